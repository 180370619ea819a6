#!/usr/bin/env bash
# clang-tidy on one thing for the lane of scripts/test: tidy_one.sh folder UNIT | tidy_one.sh file SOURCE.
set -euo pipefail
case $1 in
  folder)
    # A folder's unit includes its sources, which are therefore "headers" to it. One check takes time as the square of
    # what it sees: it goes with the files.
    clang-tidy -p build/tidy-folders --quiet \
      --checks='-clang-analyzer-*,-bugprone-suspicious-include,-performance-unnecessary-value-param' \
      --header-filter='/(engine|models|bench)/.*\.(h|cpp)$' "$2"
    ;;
  file)
    # Paths through our code, not through the standard library's, which take most of the analyzer's time.
    analyzer=()
    for option in c++-stdlib-inlining=false max-nodes=75000; do
      for word in -analyzer-config "$option"; do analyzer+=(--extra-arg=-Xclang "--extra-arg=$word"); done
    done
    clang-tidy -p build/tidy --quiet --checks='-*,clang-analyzer-*,performance-unnecessary-value-param' "${analyzer[@]}" "$2"
    ;;
esac
