#!/bin/bash
# In the root of a checkout with a release build: proof.sh FOLDER COUNT. COUNT gates of equal sides of coll and of a command, and of a B that is slower by what the command's gate before called detectable
set -u
out=$1; mkdir -p "$out"
for i in $(seq 1 "$2"); do
  scripts/gate --seed "$i" --db "$out/coll-$i.db" --a 'HVD_X=1' --b 'HVD_X=1' --cell 'ar=coll --ranks 2 -b 1K -e 64K -f 8 --max-time 0.02' --json "$out/coll-$i.verdict" >/dev/null 2>&1; echo "coll $i $?"
  scripts/gate --seed "$i" --db "$out/command-$i.json" --tool command --metric 'loop=Latency: ([0-9.]+)' --a 'python3 results/recorded/2026-11-29-library-gate/work.py 20000' --b 'python3 results/recorded/2026-11-29-library-gate/work.py 20000' --json "$out/command-$i.verdict" >/dev/null 2>&1; echo "command $i $?"
  loops=$(python3 -c "
import json,sys
c=json.load(open('$out/command-$i.verdict'))['cells'][0]
d=c['detectable']
print(round(20000*(1+d)) if d and d<3 else 0)")
  if [ "$loops" -gt 0 ]; then
  scripts/gate --seed "$i" --db "$out/slower-$i.json" --tool command --metric 'loop=Latency: ([0-9.]+)' --a 'python3 results/recorded/2026-11-29-library-gate/work.py 20000' --b "python3 results/recorded/2026-11-29-library-gate/work.py $loops" --json "$out/slower-$i.verdict" >/dev/null 2>&1; echo "slower $i $loops $?"; fi
done
