#!/bin/bash
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=0 MASTER_ADDR=10.77.0.2 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
export FAULT=none SECONDS=100 WIDTH=4096 DB=net.db HVD_BENCH=/work/main/build/release/bin/hvd_bench PYTHONPATH=/work/main/scripts
cd /tmp/te
exec /tmp/torchenv/bin/python slept.py 2>err.$RANK
