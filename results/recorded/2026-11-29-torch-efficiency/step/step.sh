#!/bin/bash
# The step of one profile with our engine and with DistributedDataParallel over Gloo, in turns: two ranks of this host,
# and four nodes of 500 Mbit/s. Variables: as for profiled.sh.
set -eu
here=$(dirname "$(readlink -f "$0")")
profile=$PWD/resnet50.replay
grep -v ^factors "$here/../beside/resnet50.replay" >"$profile"  # so that every step takes equally long
four=("$NETWORK_BENCH" --nodes 4 --rate-mbit 500 --latency-us 0 --)
ours=(--replay "$profile" --num-warmup-batches 4)
export OMP_NUM_THREADS=1
for turn in 1 2 3 4 5 6; do
    echo "== turn $turn"
    mpirun -n 2 "$HVD_BENCH" "${ours[@]}" --num-iters 30 --num-batches-per-iter 1 --db step.db --label where=host
    "$PYTHON" -m torch.distributed.run --nproc-per-node 2 "$here/ddp_replay.py" "$profile" host.jsonl 15
    "${four[@]}" "$HVD_BENCH" "${ours[@]}" --num-iters 10 --num-batches-per-iter 1 --db step.db --label where=four
    "${four[@]}" "$here/../torch.sh" "$here/ddp_replay.py" "$profile" four.jsonl 20
done
