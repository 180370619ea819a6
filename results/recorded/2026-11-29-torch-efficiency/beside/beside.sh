#!/bin/bash
# Two trainings and the replays of their steps, in turns. Variables: as for profiled.sh; EXAMPLES, docs/examples/torch;
# SECONDS_EACH=60.
set -eu
here=$(dirname "$0")
for model in resnet50 gpt; do
    OMP_NUM_THREADS=1 "$PYTHON" "$here/training.py" $model $model.replay
    for turn in 1 2 3; do
        echo "== $model, turn $turn"
        OMP_NUM_THREADS=1 "$PYTHON" -m torch.distributed.run --nproc-per-node 2 "$here/training.py" $model beside.db
        mpirun -n 2 "$HVD_BENCH" --replay $model.replay --efficiency --max-time "$SECONDS_EACH" --db beside.db
    done
done
