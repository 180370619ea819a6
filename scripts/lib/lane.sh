#!/usr/bin/env bash
# The lane of scripts/test: builds and clang-tidy, which compute and wait for nobody, one after the other in the
# background. At idle priority they have only the time that the tests leave, which wait more than they compute.
#
# lane.sh LOGS idle|normal STEP...: output in LOGS/STEP.log; at a step's end LOGS/STEP.end has its "STATUS SECONDS".
set -euo pipefail
# shellcheck source=scripts/lib/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

asan_build() { scripts/build asan -DHVD_WERROR=ON; }

# Only what has threads of our own; HVD_TSAN_TESTS and HVD_TSAN_LABELS say what that is.
tsan_build() {
  cmake --preset tsan -DHVD_WITH_ONEDNN=OFF -DHVD_WITH_MPI=OFF -DHVD_WERROR=ON || return 1
  local targets listed='s/^ *Test *#[0-9]*: \([^ ]*\)$/\1/p'  # without those that are "(Disabled)"
  targets=$(ctest --test-dir build/tsan -N -R "$HVD_TSAN_TESTS" -L "$HVD_TSAN_LABELS" | sed -n "$listed")
  # shellcheck disable=SC2086  # a list of names
  cmake --build build/tsan --target $targets
}

# The sources of ours that a build directory compiles: not CUDA's, which are nvcc's affair, nor what a build writes.
# A folder's unit has a line per file: the longest first, so that none of them is waited for at the end.
sources() {  # BUILD_DIR
  "$HVD_PYTHON" -c 'import json, sys
paths = {entry["file"] for entry in json.load(open(sys.argv[1] + "/compile_commands.json"))}
ours = [path for path in sorted(paths) if path.endswith((".cpp", ".cxx")) and not path.endswith("/build_info.cpp")]
print(*sorted(ours, key=lambda path: -len(open(path).readlines())), sep="\n")' "$1"
}

# clang-tidy parses as clang does and turns its warnings (-Wthread-safety among them) into errors, so nothing is
# compiled besides. It sees a folder at a time, which spares parsing the same headers again and again.
tidy() {
  local folders=build/tidy-folders
  cmake --preset tidy -B "$folders" -DCMAKE_UNITY_BUILD=ON -DHVD_WERROR=ON || return 1
  sources "$folders" >"$logs/tidy-files"
  wc -l "$logs/tidy-files"
  xargs -a "$logs/tidy-files" -n 1 -P "$(nproc)" scripts/lib/tidy_folder.sh "$folders"
}

cd "$hvd_root"
logs=$1 priority=$2
shift 2
if [ "$priority" = idle ]; then
  chrt --idle --pid 0 $$ 2>/dev/null || renice -n 19 $$ >/dev/null
  # Where the kernel divides the processor between sessions first, priorities count within one only.
  { echo 19 >/proc/self/autogroup; } 2>/dev/null || true
fi
for name in "$@"; do
  begun=$SECONDS status=0
  "${name//-/_}" >"$logs/$name.log" 2>&1 || status=$?
  echo "$status $((SECONDS - begun))" >"$logs/$name.partial"
  mv "$logs/$name.partial" "$logs/$name.end"  # whole, or not there
done
