#!/usr/bin/env bash
#SBATCH --job-name=hvd-46a678b2-n0003-r2
#SBATCH --account=abc123
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --constraint=a100&nvlink
#SBATCH --reservation=bench
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=3
#SBATCH --gpus-per-node=3
#SBATCH --cpus-per-task=16
#SBATCH --time=1-06:25:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/campaign/logs/n0003-r2.%j.out
#SBATCH --hint=nomultithread
#SBATCH --mem=0
# Campaign golden, job n0003-r2, on site ours: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 727a42cbf989e8be
# site b22e0262dc4ff149
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=727a42cbf989e8be
job=n0003-r2
folder=/campaign
hvd_bench='/opt/hvd bench/bin/hvd_bench'
order_seed=1
walltime_seconds=109500
warning_seconds=0
pass_on_term=no
requeue=no
scheduler_id=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:?is not set: scripts/campaign submits this}}
repetition=2
restart=${SLURM_RESTART_COUNT:-0}

set_up() {
  unset HOROVOD_CACHE_CAPACITY HOROVOD_CYCLE_TIME HOROVOD_FUSION_THRESHOLD HVD_CUBLAS_ROOT HVD_CUDNN_ROOT HVD_MAX_CPU_ISA HVD_MPI HVD_NCCL_ROOT
  export SLURM_EXPORT_ENV=ALL  # sbatch --export=NONE must not hide these lines from the ranks
  type module >/dev/null 2>&1 || source /etc/profile  # a job's shell may not know it
  module load gcc/12.2 'openmpi/4.1 (cuda)' || return
  export NCCL_DEBUG=WARN
  export NOTE='it'"'"'s quoted'
  { ulimit -s unlimited; } || return
  unset HOROVOD_TIMELINE  # a traced cell would count as lacking
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --distribution=block:block --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    3) launcher=(srun --mpi=pmix --nodes=1 --ntasks=3 --ntasks-per-node=3 --distribution=block:block --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    8) launcher=(srun --mpi=pmix --nodes=3 --ntasks=8 --ntasks-per-node=3 --distribution=block:block,Pack --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    2)
      cell 772f39a84ebaf774 scale    8 9122 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 98522b24c26abe9b one_rank 1 9121 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 68d8b3c266cbf236 one_node 3 9121 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 5edba21a9576dc11 scale    8 9122 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell b60211358c288d7c one_node 3 9121 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell 12241255dd53ba97 scale    8 9122 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell e2ffcddf1b3984ee one_node 3 9121 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 8929f9f5b71417f2 one_node 3 9121 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --max-time 120
      cell c85ee213f07645a7 one_rank 1 9121 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 641e2de1975febd4 scale    8 9122 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

