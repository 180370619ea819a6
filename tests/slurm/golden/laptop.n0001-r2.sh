#!/usr/bin/env bash
# Campaign golden, job n0001-r2, on site laptop: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site 188164143a023048
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=3c2665d2435a86c6
job=n0001-r2
folder=/campaign
hvd_bench='/opt/hvd bench/bin/hvd_bench'
order_seed=1
walltime_seconds=0
warning_seconds=0
pass_on_term=yes
requeue=no
scheduler_id=local-$(date +%s)-$$
repetition=2
restart=0

set_up() {
  unset HOROVOD_CACHE_CAPACITY HOROVOD_CYCLE_TIME HOROVOD_FUSION_THRESHOLD HVD_CUBLAS_ROOT HVD_CUDNN_ROOT HVD_MAX_CPU_ISA HVD_MPI HVD_NCCL_ROOT
  { [ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; } || return
  unset HOROVOD_TIMELINE  # a traced cell would count as lacking
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(mpirun -n 1) ;;
    2) launcher=(mpirun -n 2) ;;
  esac
}

cells=6
run_cells() {  # in random order, from the order seed
  case $repetition in
    2)
      cell ea7668fc26a0ba6b scale    2 142 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      cell 04c1e66b07241bae scale    1 141 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell e157eb071499fc7c scale    2 142 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell cf54f76a72147393 scale    2 142 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell 45cddcdf7de0224e scale    1 141 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 963e34df576d46aa scale    2 142 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

