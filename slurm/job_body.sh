# shellcheck shell=bash disable=SC2034,SC2154,SC2317  # set above this part; called by traps
#
# ---- From here on, all job scripts are the same (slurm/job_body.sh). A job compiles nothing.

attempt=$scheduler_id
[ "$restart" = 0 ] || attempt=$attempt.$restart
db=$folder/stores/$job.r$repetition.$attempt.db  # only this attempt writes to this file
events=$folder/events/$job.r$repetition.$attempt.log
stop='' child='' signals=0 position=0 lacking=0 failed=0 began=$(date +%s)

# Writes one line per event without delay, so that the log is readable however this job ends.
event() { printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >>"$events"; }

give_up() {  # MESSAGE: called if nothing can run
  printf '%s: %s\n' "$job" "$1" >&2
  event "finish code=2 lacking=all $1"
  exit 2
}

# Called for the scheduler's warning (USR1), the scheduler's termination (TERM), or a person's Ctrl-C. The job starts no
# further cell. The running hvd_bench gets the signal, stores its results, marked incomplete, and ends with exit code 7.
on_signal() {  # NAME PASS-ON
  stop=$1
  signals=$((signals + 1))
  event "signal $1"
  if [ -n "$child" ] && [ "$2" = yes ]; then kill -s "$1" "$child" 2>/dev/null; fi
}
trap 'on_signal USR1 yes' USR1
# A scheduler itself sends TERM and INT to the ranks. If this script passed the signal on, the ranks would get it twice,
# and the second signal would end them before they have stored their results.
trap 'on_signal TERM "$pass_on_term"' TERM
trap 'on_signal INT "$pass_on_term"' INT

held() { case $held in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# Lists the done cells in the stores of all attempts. The log names a store that cannot be read.
list_held() {
  local stores=() file
  for file in "$folder"/stores/*.db "$folder"/stores/*.partial; do
    if [ -e "$file" ]; then stores+=("$file"); fi
  done
  held=' '
  if [ "${#stores[@]}" -gt 0 ]; then
    held=" $("$hvd_bench" stored cell "${stores[@]}" </dev/null | tr '\n' ' ') "
  fi
}

# cell HASH ROLE RANKS SECONDS ARGUMENT...: makes one launch, unless the cell is done or too little time is left.
cell() {
  local hash=$1 role=$2 ranks=$3 seconds=$4 code seen left
  shift 4
  position=$((position + 1))
  if held "$hash"; then
    event "held $hash"
    return
  fi
  lacking=$((lacking + 1))
  if [ -n "$stop" ]; then return; fi
  left=$((began + walltime_seconds - warning_seconds - $(date +%s)))
  if [ "$walltime_seconds" -gt 0 ] && [ "$left" -lt "$seconds" ]; then
    event "late $hash needs=$seconds left=$left"
    return
  fi
  event "begin $hash role=$role ranks=$ranks order=$position/$cells seconds=$seconds"
  launcher_for "$ranks"
  "${launcher[@]}" "$hvd_bench" "$@" --db "$db" --label "campaign=$campaign" --label "spec=$spec" \
    --label "cell=$hash" --label "role=$role" --label "repetition=$repetition" \
    --label "order=$position/$cells" --label "order_seed=$order_seed" </dev/null &
  child=$!
  while :; do  # a loop, because a trap ends `wait` early
    seen=$signals
    wait "$child"
    code=$?
    [ "$seen" = "$signals" ] && break
  done
  child=''
  event "end $hash code=$code"
  case $code in
    0) lacking=$((lacking - 1)) ;;
    7) [ -n "$stop" ] || stop=interrupted ;; # the ranks got a signal that this script did not get
    *)
      if [ -n "$stop" ]; then return; fi
      failed=$((failed + 1))
      if [ "$code" = 5 ]; then stop=lost-rank; fi # a node may be lost, so continue in another allocation
      ;;
  esac
}

# Slurm requeues a preempted job only if the job still runs after its grace time. This job ends earlier, so it requeues
# itself. A cancelled job is no longer RUNNING in Slurm's record, so it does not requeue itself.
requeue_if_preempted() {
  [ "$requeue" = yes ] || return
  # One element of an array has the number of the whole array as its SLURM_JOB_ID. Slurm takes this number for all
  # elements, so the element is named by its index.
  local id=$SLURM_JOB_ID record
  if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  record=$(SLURM_TIME_FORMAT=standard timeout 30 scontrol show job --oneliner "$id" 2>/dev/null)
  if [[ $record != *' JobState=RUNNING '*' PreemptTime='[0-9]* ]]; then return; fi
  event 'requeue preempted'
  timeout 30 scontrol requeue "$id"
}

mkdir -p "$folder/stores" "$folder/events"
event "start job=$scheduler_id restart=$restart host=$(hostname) pid=$$ spec=$spec order_seed=$order_seed" \
  || { printf '%s: %s cannot be written; is the disk full?\n' "$job" "$events" >&2; exit 2; }
set +u  # because modules and set-up lines may use unset variables
set_up || give_up "the site's modules, environment or set-up failed (the log says why); correct the site"
set -u
[ -x "$hvd_bench" ] || give_up "$hvd_bench is not there; build or install it, or set program.hvd_bench of the site"
list_held
run_cells
event "finish code=$((lacking > 0)) lacking=$lacking failed=$failed${stop:+ stopped=$stop}"
printf '%s, repetition %s: %s of %s cells lacking, %s failed%s\n' "$job" "$repetition" "$lacking" "$cells" "$failed" \
  "${stop:+, stopped by $stop}"
if [ -n "$stop" ] && [ "$lacking" -gt 0 ]; then requeue_if_preempted; fi
exit $((lacking > 0))
