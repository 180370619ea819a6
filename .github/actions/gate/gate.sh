#!/usr/bin/env bash
# gate.sh STEP...: the steps of action.yml, which describes the variables GATE_*. Elsewhere: gate.sh plan prepare measure.
# Gates the git repository in the current folder. Runs no variable as code but GATE_BUILD. HVD_BENCH: a program that is
# there already. GATE_FOLDER: where commits are built and results written (default: hvd-gate in RUNNER_TEMP).
# Exit codes: those of scripts/gate; 2 if a step fails.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.." && pwd)
# shellcheck source=scripts/lib/shell.sh
source "$root/scripts/lib/shell.sh"

complain() {
  local text=${1//[^[:print:]]/?}
  if [ -n "${GITHUB_ACTIONS:-}" ]; then text="::error title=gate::${text//%/%25}"; else text="gate.sh: $text"; fi
  printf '%s\n' "$text" >&2
}
fail() {
  complain "$1"
  exit 2
}

# In a container the checkout belongs to another user, which git refuses. The job runs the code of this checkout anyway.
in_git() { git -c safe.directory='*' "$@"; }

commit_of() {
  local name
  for name in "$1" "origin/$1"; do
    in_git rev-parse --verify --quiet --end-of-options "$name^{commit}" && return
  done
  fail "base: this clone has no commit '$1'; name another, or fetch more history (actions/checkout: fetch-depth: 0)"
}

# Sets head and base.
find_commits() {
  in_git rev-parse --git-dir >/dev/null 2>&1 || fail "$PWD is in no git repository; check out yours first"
  head=$(commit_of HEAD)
  base=${GATE_BASE:-HEAD^}  # GitHub's merge of a pull request, GITHUB_SHA, has the base as its first parent
  [ -n "${GATE_BASE:-}" ] || [ "$head" = "${GITHUB_SHA:-}" ] || base=${GATE_PULL_BASE:-$base}
  base=$(commit_of "$base")
  [ -n "${GATE_BASE:-}" ] || base=$(in_git merge-base "$base" "$head") ||
    fail "base: this clone does not show where the pull request began; fetch more history (fetch-depth: 0)"
}

# Prints a hash of what builds depend on beside the commit. A base that was kept from another compiler or processor would
# differ from HEAD in more than the commit.
state_now() {
  {
    printf '%s\n' "$GATE_BUILD" "${GATE_CACHE_KEY:-}" "${ImageVersion:-}"
    cc --version 2>&1 || true
    grep -m 2 -E '^(model name|flags)' /proc/cpuinfo || true
    find "$root"/{engine,models,bench,cmake,CMakeLists.txt} -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
  } | sha256sum | cut -c 1-16
}

plan() {
  local base head state
  [ -n "${GATE_BUILD:-}" ] || fail "build: is missing; give the shell command that builds a commit"
  [[ ${GATE_B:-} == *'{checkout}'* ]] ||
    fail "b: names no {checkout}; give the side to measure, such as LD_LIBRARY_PATH={checkout}/lib"
  find_commits
  state=$(state_now)
  mkdir -p "$folder"
  printf '%s\n' "$base $head $state" >"$folder/plan"
  printf '%s\n' "kept=$folder/kept" "key=hvd-gate-$state-$base" "like=hvd-gate-$state-" >>"${GITHUB_OUTPUT:-/dev/null}"
  hvd_say "A is $base, B is $head"
}

is_kept() { [ "$(cat "$1" 2>/dev/null)" = "$state" ]; }

# build NAME COMMIT TREE: builds the commit of the caller's repository in the folder TREE.
build() {
  if is_kept "$3.built"; then
    hvd_say "$1: the build of $2 is kept from before"
    return
  fi
  hvd_say "$1: building $2"
  rm -rf "${3%/*}"
  in_git worktree prune
  in_git worktree add --quiet --force --detach "$3" "$2"
  (cd "$3" && GATE_CHECKOUT=$3 bash -euo pipefail -c "${GATE_BUILD//'{checkout}'/"$3"}" </dev/null) ||
    fail "build: failed with exit code $? at the $1, commit $2; its output is above"
  printf '%s\n' "$state" >"$3.built"
}

prepare() {
  build base "$base" "$tree_a"
  build head "$head" "$tree_b"
  if [ -n "${HVD_BENCH:-}" ]; then
    hvd_say "hvd_bench is $HVD_BENCH"
  elif [ -n "${GATE_WHEEL_URL:-}" ]; then
    python3 -m venv --clear --system-site-packages "$folder/venv" || fail "wheel-url: needs python3 with venv"
    "$folder/venv/bin/pip" install -q --disable-pip-version-check numpy matplotlib
    # Without dependencies, because a package named hvdb on PyPI is not ours: scripts/gate is that of this checkout.
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps -- "$GATE_WHEEL_URL" ||
      fail "wheel-url: '$GATE_WHEEL_URL' cannot be installed; pip's reason is above"
    [ -x "$folder/venv/bin/hvd_bench" ] || fail "wheel-url: '$GATE_WHEEL_URL' holds no program hvd_bench"
  else
    "$root/scripts/install_deps" --scripts
    [ -z "${GATE_TOOL:-}" ] || return 0
    "$root/scripts/install_deps" --program
    is_kept "$folder/kept/hvd_bench/built" && return
    "$root/scripts/build" release --target hvd_bench
    cmake --install "$root/build/release" --prefix "$folder/kept/hvd_bench" --component program
    printf '%s\n' "$state" >"$folder/kept/hvd_bench/built"
  fi
}

# add OPTION LINES: adds OPTION=LINE to the words of the gate for each line that is not blank.
add() {
  local line
  while IFS= read -r line; do [[ $line =~ ^[[:space:]]*$ ]] || words+=("$1=$line"); done <<<"$2"
}

measure() {
  local results words code=0 verdict=ERROR option name a=${GATE_A:-$GATE_B}
  results=$(mktemp -d "$folder/results.XXXXXX")
  words=("--db=$results/gate.db" "--json=$results/gate.json" "--junit=$results/gate.xml" "--markdown=$results/table"
    "--a=${a//'{checkout}'/"$tree_a"}" "--b=${GATE_B//'{checkout}'/"$tree_b"}" --explain ${GITHUB_ACTIONS:+--github})
  for option in cells launch tool row metric higher-is-better threshold; do
    name=${option//-/_}
    name=GATE_${name^^}
    add "--${option/cells/cell}" "${!name:-}"
  done
  add --time-limit "${GATE_TIME_LIMIT:-10}"
  add --fail-on "${GATE_FAIL_ON:-regression}"
  for name in "$folder"/{venv,kept/hvd_bench}/bin/hvd_bench; do
    if [ -z "${HVD_BENCH:-}" ] && [ -x "$name" ]; then export HVD_BENCH=$name; fi
  done
  if [ -x "$folder/venv/bin/python" ]; then export HVD_PYTHON=$folder/venv/bin/python; fi
  hvd_prepare_mpi
  "$root/scripts/gate" "${words[@]}" || code=$?
  if [ -f "$results/table" ]; then
    [ "$code" -eq 2 ] || verdict=$(sed -n '1s/^### gate: \([A-Z]*\).*/\1/p' "$results/table")
  else
    printf '### gate: no verdict (exit code %s); the log of this step says why\n' "$code" >"$results/table"
    complain "no verdict (exit code $code); the lines above say why"
  fi
  cat "$results/table" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
  printf '%s\n' "verdict=$verdict" "exit-code=$code" "results=$results" >>"${GITHUB_OUTPUT:-/dev/null}"
  exit "$code"
}

[ -n "${GATE_FOLDER:-${RUNNER_TEMP:-}}" ] || fail "GATE_FOLDER: is not set; name a folder for the builds"
folder=$(realpath -m "${GATE_FOLDER:-$RUNNER_TEMP/hvd-gate}")
[[ $folder =~ ^[A-Za-z0-9/._+@-]+$ ]] || fail "$folder: may have no blanks and quotes, because sides and builds name it"
for step in "$@"; do
  [[ $step =~ ^(plan|prepare|measure)$ ]] || fail "'$step' is no step; the steps are plan, prepare and measure"
  if [ "$step" != plan ]; then
    [ -f "$folder/plan" ] || fail "$folder/plan: is missing; the step plan writes it"
    read -r base head state <"$folder/plan"
    # The paths of both sides have one length, because the length of the environment moves a program's stack.
    tree_a=$folder/kept/a/$base tree_b=$folder/head/b/$head
  fi
  "$step"
done
