#!/usr/bin/env bash
# Runs clang-tidy on one translation unit of a folder, for scripts/lib/lane.sh: tidy_folder.sh BUILD_DIR UNIT.
set -euo pipefail
# A folder's unit includes the folder's sources, so clang-tidy takes the sources for headers. The analyzer must follow
# paths through these sources. Following paths through the standard library's headers would take most of its time.
analyzer=()
for word in -analyzer-opt-analyze-headers -analyzer-config c++-stdlib-inlining=false -analyzer-config max-nodes=75000; do
  analyzer+=(--extra-arg=-Xclang "--extra-arg=$word")
done
exec clang-tidy -p "$1" --quiet --checks=-bugprone-suspicious-include \
  --header-filter='/(engine|models|bench)/.*\.(h|cpp)$' "${analyzer[@]}" "$2"
