#!/usr/bin/env bash
#SBATCH --job-name=hvd-46a678b2-n0128
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=00:47:00
#SBATCH --signal=B:USR1@120
#SBATCH --array=1-2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/campaign/logs/n0128.%A.%a.out
# Campaign golden, job n0128, on site slurm-4gpu: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site 2f48bf03e942141e
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
requeue=yes
scheduler_id=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:?is not set: scripts/campaign submits this}}
repetition=${SLURM_ARRAY_TASK_ID:-1}
restart=${SLURM_RESTART_COUNT:-0}

set_up() {
  unset HOROVOD_CACHE_CAPACITY HOROVOD_CYCLE_TIME HOROVOD_FUSION_THRESHOLD HVD_CUBLAS_ROOT HVD_CUDNN_ROOT HVD_MAX_CPU_ISA HVD_MPI HVD_NCCL_ROOT
  export SLURM_EXPORT_ENV=ALL  # sbatch --export=NONE must not hide these lines from the ranks
  unset HOROVOD_TIMELINE  # a traced cell would count as lacking
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --distribution=block:block --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    4) launcher=(srun --mpi=pmix --nodes=1 --ntasks=4 --ntasks-per-node=4 --distribution=block:block --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    512) launcher=(srun --mpi=pmix --nodes=128 --ntasks=512 --ntasks-per-node=4 --distribution=block:block --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    1)
      cell 0ea03430c2af6d7b scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell e048d6f3aa814366 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 2cb646ea943f823e one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 59cff3fdedd2d3e6 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 86fa820f29281bf6 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell b37c659d689154cf scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 6b51582632236b4e scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 3f5492f88e120a4e one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 08a472b60309718e one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 71bb4d06fe9d2209 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      ;;
    2)
      cell 6013519b29ca66ab scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell e315a364d193e786 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 34de9f8f131d1ee6 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 63156190de9b71b8 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell a63376f4089739a4 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell d27c82c83e39ca6c scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 5096a590a2aa9129 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 386be93752f00c59 one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 0f3f481a3e7c3822 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 8f2e19f4d30ffb62 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

