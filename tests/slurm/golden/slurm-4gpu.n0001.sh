#!/usr/bin/env bash
#SBATCH --job-name=hvd-46a678b2-n0001
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=00:39:00
#SBATCH --signal=B:USR1@120
#SBATCH --array=1-2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/campaign/logs/n0001.%A.%a.out
# Campaign golden, job n0001, on site slurm-4gpu: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site f4dd62b67c297940
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=3c2665d2435a86c6
job=n0001
folder=/campaign
hvd_bench='/opt/hvd bench/bin/hvd_bench'
order_seed=1
walltime_seconds=2340
warning_seconds=120
pass_on_term=no
requeue=yes
scheduler_id=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:?is not set: scripts/campaign submits this}}
repetition=${SLURM_ARRAY_TASK_ID:-1}
restart=${SLURM_RESTART_COUNT:-0}

set_up() {
  :
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    2) launcher=(srun --mpi=pmix --nodes=1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    4) launcher=(srun --mpi=pmix --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    1)
      cell a664217a3a0d2efd scale    1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 0f7aa56a7028a296 scale    4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell b92132c40637943a scale    2 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell c27c5960ddbca242 scale    2 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 4db75840d4d098bc scale    4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell ad62772a99dfed92 scale    2 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell ce341577a2010a53 scale    4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell dcad741fce2d33ab scale    4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell e16910cbd65becf8 scale    1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell d4e79eba668b2de3 scale    2 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    2)
      cell 2d6ba32ef0e356fe scale    2 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 9c876b8abe557795 scale    1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell c231d22312085e3b scale    4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell c657531c1fae08aa scale    4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell c8d7d9abeff724c3 scale    2 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 3968b7ba5c486770 scale    4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell 05b1d349864f2abd scale    2 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cuda --efficiency --max-time 120
      cell dd8c93a0f361d926 scale    4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      cell 6307df473b8b2600 scale    1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --max-time 120
      cell 8c3d39ca29b08ef8 scale    2 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

