#!/usr/bin/env bash
# Runs the background steps of scripts/test --all one after another: builds, clang-tidy, and the tests on a bare Debian.
# At idle priority these steps use only the processor time that the tests leave, which is much, because the tests mostly
# wait.
#
# lane.sh LOGS idle|normal STEP...: writes the output of each STEP to LOGS/STEP.log and, when the STEP has ended,
# "STATUS SECONDS" to LOGS/STEP.end.
set -euo pipefail
# shellcheck source=scripts/lib/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

asan_build() { scripts/build asan -DHVD_WERROR=ON; }

# Builds only the tests of code with threads of our own. HVD_TSAN_TESTS and HVD_TSAN_LABELS select these tests.
tsan_build() {
  cmake --preset tsan -DHVD_WITH_ONEDNN=OFF -DHVD_WITH_MPI=OFF -DHVD_WERROR=ON || return 1
  local targets listed='s/^ *Test *#[0-9]*: \([^ ]*\)$/\1/p'  # the pattern leaves out tests marked "(Disabled)"
  targets=$(ctest --test-dir build/tsan -N -R "$HVD_TSAN_TESTS" -L "$HVD_TSAN_LABELS" | sed -n "$listed")
  # shellcheck disable=SC2086  # a list of names
  cmake --build build/tsan --target $targets
}

# Lists the C++ files that a build directory compiles, without CUDA sources and build_info.cpp. In a unity build, one
# file stands for a folder and includes each of the folder's sources on one line. Files with more lines come first, so
# that no long unit runs alone at the end.
sources() {  # BUILD_DIR
  "$HVD_PYTHON" -c 'import json, sys
paths = {entry["file"] for entry in json.load(open(sys.argv[1] + "/compile_commands.json"))}
ours = [path for path in sorted(paths) if path.endswith((".cpp", ".cxx")) and not path.endswith("/build_info.cpp")]
print(*sorted(ours, key=lambda path: -len(open(path).readlines())), sep="\n")' "$1"
}

# clang-tidy parses like clang and turns clang's warnings (including -Wthread-safety) into errors, so no other build
# with clang is needed. It checks one folder at a time, so that headers are parsed only once per folder.
tidy() {
  local folders=build/tidy-folders
  cmake --preset tidy -B "$folders" -DCMAKE_UNITY_BUILD=ON -DHVD_WERROR=ON || return 1
  sources "$folders" >"$logs/tidy-files"
  wc -l "$logs/tidy-files"
  xargs -a "$logs/tidy-files" -n 1 -P "$(nproc)" scripts/lib/tidy_folder.sh "$folders"
}

# The folder of 3 GB is kept only if a test failed in it, for a look, and never used again.
bare() {
  rm -rf --one-file-system "build/bare/$1"
  scripts/lib/bare_debian.sh "$1" "build/bare/$1" scripts/test --quick || return
  rm -rf --one-file-system "build/bare/$1"
}
bare_bookworm() { bare bookworm; }
bare_trixie() { bare trixie; }

cd "$hvd_root"
logs=$1 priority=$2
shift 2
if [ "$priority" = idle ]; then
  chrt --idle --pid 0 $$ 2>/dev/null || renice -n 19 $$ >/dev/null
  # Some kernels first divide the processor between sessions, so that priorities count only within a session.
  { echo 19 >/proc/self/autogroup; } 2>/dev/null || true
fi
for name in "$@"; do
  begun=$SECONDS status=0
  "${name//-/_}" >"$logs/$name.log" 2>&1 || status=$?
  echo "$status $((SECONDS - begun))" >"$logs/$name.partial"
  mv "$logs/$name.partial" "$logs/$name.end"  # so that readers never see half of the file
done
