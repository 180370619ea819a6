#!/bin/bash
# The GPT of beside.sh and its replay in turns, on two nodes of 500 Mbit/s. Variables: as for beside.sh.
set -eu
here=$(dirname "$(readlink -f "$0")")
two=("$NETWORK_BENCH" --nodes 2 --rate-mbit 500 --latency-us 0 --)
for turn in 1 2 3; do
    echo "== gpt on two nodes, turn $turn"
    SECONDS_EACH=120 "${two[@]}" "$here/../torch.sh" "$here/training.py" gpt network-gpt.db
    "${two[@]}" "$HVD_BENCH" --replay "$here/gpt.replay" --efficiency --threads 1 --max-time 90 --db network-gpt.db
done
