#!/bin/bash
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
A=BEFORE/bin/hvd_bench
B=AFTER/bin/hvd_bench
cd "$(dirname "$0")"
for i in 1 2 3 4 5 6 7 8; do
  order="A B"; [ $((i%2)) -eq 0 ] && order="B A"
  for s in $order; do
    P=${!s}
    t0=$(date +%s.%N); mpirun -n 2 $P --model resnet50 --replay one.replay --num-iters 1 --num-warmup-batches 0 --no-check --no-db --quiet >/dev/null 2>&1; t1=$(date +%s.%N)
    echo "$i $s start $(echo "$t1 - $t0" | bc)"
    mpirun -n 2 $P coll --collective all_reduce --algorithm mpi -b 8 -e 32K -f 64 --max-time 2 2>/dev/null | awk -v s=$s -v i=$i '$1 ~ /^(8|512|32768)$/ {print i, s, "mpi", $1, $0}' | cut -c1-150
  done
done
