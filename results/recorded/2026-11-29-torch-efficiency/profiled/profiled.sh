#!/bin/bash
# Five sessions each of a training that hides a half of its reductions, and of one that hides most. Variables: PYTHON, that
# of PyTorch; NETWORK_BENCH, tests/testbed/network_bench; HVD_BENCH; PYTHONPATH (scripts).
here=$(dirname "$(readlink -f "$0")")
export MEASURE_SECONDS=40 DB=profiled.db OUT=profiled.jsonl
for width in 2048 1024; do
    for session in 1 2 3 4 5; do
        WIDTH=$width BUCKET_MB=0.25 "$NETWORK_BENCH" --nodes 4 --rate-mbit 100 --latency-us 0 -- "$here/../torch.sh" "$here/profiled.py"
    done
done
