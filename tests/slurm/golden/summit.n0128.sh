#!/usr/bin/env bash
#BSUB -J "hvd-46a678b2-n0128[1-2]"
#BSUB -nnodes 128
#BSUB -W 0:47
#BSUB -wa USR1 -wt 2
#BSUB -r
#BSUB -o "/campaign/logs/n0128.%J.%I.out"
# Campaign golden, job n0128, on site summit: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site bb605427b7d0c919
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=3c2665d2435a86c6
job=n0128
folder=/campaign
hvd_bench='/opt/hvd bench/bin/hvd_bench'
order_seed=1
walltime_seconds=2820
warning_seconds=120
pass_on_term=no
requeue=no
scheduler_id=${LSB_JOBID:?is not set: scripts/campaign submits this}
repetition=${LSB_JOBINDEX:-1}
restart=$([ "${LSB_RESTART:-N}" = Y ] && date +%s || echo 0)

set_up() {
  :
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(jsrun -n1 -r1 -a1 -c7 -g1 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
    4) launcher=(jsrun -n1 -r1 -a4 -c28 -g4 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
    512) launcher=(jsrun -n128 -r1 -a4 -c28 -g4 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    1)
      cell 8aa8320ca65f708e scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell d2533092d8fff9e3 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 7f6e8fe6317fb88b one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 042132a7790e2380 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell df8c17e7b0005418 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell d1c63eef7bb1648e scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell b07a10ce25693625 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell a01cb55d988894f4 one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 6f2ef2a0cffcb9de one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 9c49618123cf1a95 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      ;;
    2)
      cell 992625ea92bd9019 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 2bf3b69017258923 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell c0213f4a0dd9fff7 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell f2c9c805549a9502 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell e7d72512bdb78137 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 8ec821c6cf0e4c3f scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 9009e2d3b3049bd3 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 9e9994d4b48252cf one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell f2b85141c6011fcf one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 17c5e668277126b2 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

# ---- From here on, all job scripts are the same (slurm/job_body.sh). A job compiles nothing.

attempt=$scheduler_id
[ "$restart" = 0 ] || attempt=$attempt.$restart
db=$folder/stores/$job.r$repetition.$attempt.db  # only this attempt writes to this file
events=$folder/events/$job.r$repetition.$attempt.log
stop='' child='' signals=0 position=0 lacking=0 failed=0 began=$(date +%s)

# Writes one line per event at once, so that the log is readable however this job ends.
event() { printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >>"$events"; }

give_up() {  # MESSAGE: called if nothing can run
  printf '%s: %s\n' "$job" "$1" >&2
  event "finish code=2 lacking=all $1"
  exit 2
}

# Called for the scheduler's warning (USR1), its termination (TERM), or a person's Ctrl-C: no further cell is started,
# and the running one is told. hvd_bench then stores its results, marked incomplete, and ends with 7.
on_signal() {  # NAME PASS-ON
  stop=$1
  signals=$((signals + 1))
  event "signal $1"
  if [ -n "$child" ] && [ "$2" = yes ]; then kill -s "$1" "$child" 2>/dev/null; fi
}
trap 'on_signal USR1 yes' USR1
# The scheduler sends these signals to the ranks itself, and a second signal would stop them before they have stored.
trap 'on_signal TERM "$pass_on_term"' TERM
trap 'on_signal INT "$pass_on_term"' INT

held() { case $held in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# Lists the cells that the stores of all attempts hold. The log names a store that cannot be read.
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

# cell HASH ROLE RANKS SECONDS ARGUMENT...: makes one launch, unless the stores hold it or too little time is left.
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
  while :; do  # again after a trap, which ends `wait` early
    seen=$signals
    wait "$child"
    code=$?
    [ "$seen" = "$signals" ] && break
  done
  child=''
  event "end $hash code=$code"
  case $code in
    0) lacking=$((lacking - 1)) ;;
    7) [ -n "$stop" ] || stop=interrupted ;; # the ranks had a signal that this script did not have
    *)
      if [ -n "$stop" ]; then return; fi
      failed=$((failed + 1))
      if [ "$code" = 5 ]; then stop=lost-rank; fi # a node may be lost, so continue in another allocation
      ;;
  esac
}

# Slurm requeues a preempted job only if it still runs after its grace time, and this job ends before that. A cancelled
# job is no longer running in Slurm's record.
requeue_if_preempted() {
  [ "$requeue" = yes ] || return
  local record
  record=$(SLURM_TIME_FORMAT=standard timeout 30 scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null)
  if [[ $record != *' JobState=RUNNING '*' PreemptTime='[0-9]* ]]; then return; fi
  event 'requeue preempted'
  timeout 30 scontrol requeue "$SLURM_JOB_ID"
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
