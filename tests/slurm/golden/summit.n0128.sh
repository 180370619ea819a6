#!/usr/bin/env bash
#BSUB -J "hvd-46a678b2-n0128[1-2]"
#BSUB -nnodes 128
#BSUB -W 0:47
#BSUB -wa USR1 -wt 2
#BSUB -r
#BSUB -o "/campaign/logs/n0128.%J.%I.out"
# Campaign golden, job n0128, on site summit: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site 9fd5756adcc8f00b
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=3c2665d2435a86c6
job=n0128
folder=/campaign
hvd_bench='/opt/hvd bench/bin/hvd_bench'
order_seed=1
walltime_seconds=2820
warning_seconds=120
pass_on_term=no
requeue=no
scheduler_id=${LSB_JOBID:?is not set: scripts/campaign submits this}
repetition=${LSB_JOBINDEX:-1}
restart=$([ "${LSB_RESTART:-N}" = Y ] && date +%s || echo 0)

set_up() {
  unset HOROVOD_CACHE_CAPACITY HOROVOD_CYCLE_TIME HOROVOD_FUSION_THRESHOLD HVD_CUBLAS_ROOT HVD_CUDNN_ROOT HVD_MAX_CPU_ISA HVD_MPI HVD_NCCL_ROOT
  unset HOROVOD_TIMELINE  # a traced cell would count as lacking
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(jsrun -n1 -r1 -a1 -c7 -g1 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
    4) launcher=(jsrun -n1 -r1 -a4 -c28 -g4 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
    512) launcher=(jsrun -n128 -r1 -a4 -c28 -g4 -bpacked:7 -dpacked --smpiargs=-gpu) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    1)
      cell 8aa8320ca65f708e scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell d2533092d8fff9e3 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 7f6e8fe6317fb88b one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 042132a7790e2380 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell df8c17e7b0005418 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell d1c63eef7bb1648e scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell b07a10ce25693625 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell a01cb55d988894f4 one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 6f2ef2a0cffcb9de one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 9c49618123cf1a95 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      ;;
    2)
      cell 992625ea92bd9019 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 2bf3b69017258923 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell c0213f4a0dd9fff7 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell f2c9c805549a9502 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell e7d72512bdb78137 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 8ec821c6cf0e4c3f scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 9009e2d3b3049bd3 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 9e9994d4b48252cf one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell f2b85141c6011fcf one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 17c5e668277126b2 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

