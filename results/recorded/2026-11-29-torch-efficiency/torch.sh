#!/bin/bash
# One rank under mpirun. PYTHON: that of PyTorch. HVD_BENCH and PYTHONPATH (scripts) as for the other files.
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=0 MASTER_ADDR=10.77.0.2 MASTER_PORT=29500
export GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
exec "$PYTHON" "$@"
