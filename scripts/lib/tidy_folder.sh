#!/usr/bin/env bash
# Runs clang-tidy on one translation unit of a folder, for scripts/lib/lane.sh: tidy_folder.sh BUILD_DIR UNIT.
# A unit without findings is not checked again before something changes that clang-tidy reads. What was checked is
# remembered in ~/.cache/hvd_bench, so that all checkouts share it.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/shell.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/shell.sh"
build=$1 unit=$2

# Prints everything that the result depends on, with paths that begin at the checkout.
inputs() {
  local compile headers
  compile=$("$HVD_PYTHON" -c 'import json, sys
print(*sorted({entry["command"] for entry in json.load(open(sys.argv[1])) if entry["file"] == sys.argv[2]}), sep="\n")' \
    "$build/compile_commands.json" "$unit")
  # A source that is compiled for several libraries has a command for each.
  headers=$(cd "$build" && while read -r command; do eval "$command -M -MF /dev/stdout"; done <<<"$compile")
  headers=$(sed 's/^[^:]*://; s/\\$//' <<<"$headers" | tr -s ' ' '\n' | grep -v -e '^$' -e "/$(basename "$unit")\$")
  {
    clang-tidy --version
    cat "$hvd_root/.clang-tidy" "$hvd_root/scripts/lib/tidy_folder.sh" "$unit"
    printf '%s\n' "$compile"
    (cd "$build" && xargs sha256sum <<<"$headers")
  } | sed "s|$hvd_root||g"
}
input=$(inputs)
checked=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_bench/tidy/$(sha256sum <<<"$input" | cut -c 1-64)
if [ -e "$checked" ]; then
  echo "$unit: checked before"
  exit
fi

# A folder's unit includes the folder's sources, so clang-tidy takes the sources for headers. The analyzer must follow
# paths through these sources. Following paths through the standard library's headers would take most of its time.
analyzer=()
for word in -analyzer-opt-analyze-headers -analyzer-config c++-stdlib-inlining=false -analyzer-config max-nodes=75000; do
  analyzer+=(--extra-arg=-Xclang "--extra-arg=$word")
done
clang-tidy -p "$build" --quiet --checks=-bugprone-suspicious-include \
  --header-filter='/(engine|models|bench)/.*\.(h|cpp)$' "${analyzer[@]}" "$unit"
mkdir -p "$(dirname "$checked")"
touch "$checked"
