#!/usr/bin/env bash
#SBATCH --job-name=hvd-46a678b2-n0128
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
#SBATCH --time=00:47:00
#SBATCH --signal=B:USR1@120
#SBATCH --array=1-2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/campaign/logs/n0128.%A.%a.out
# Campaign golden, job n0128, on site slurm: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site b9d98bbe5a76ae9a
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
  :
}

launcher_for() {  # RANKS
  case $1 in
    1) launcher=(srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=cores) ;;
    4) launcher=(srun --mpi=pmix --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpu-bind=cores) ;;
    512) launcher=(srun --mpi=pmix --nodes=128 --ntasks=512 --ntasks-per-node=4 --cpu-bind=cores) ;;
  esac
}

cells=10
run_cells() {  # in random order, from the order seed
  case $repetition in
    1)
      cell aec4c6015fb7dd95 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell 6e4d9c36a31ff8e6 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 2fcb38f6d765024b one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --max-time 120
      cell d31813b67094c4aa one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell eee0ce150b8fb6d6 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      cell 479d8e435e4d7931 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      cell a8fe0898bc2caa5f scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell 3367d4c8a9ce261a one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 37fa7655eb791303 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 1f9f5a85177f539f one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --max-time 120
      ;;
    2)
      cell aaa49a54ad1912d9 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell 5ae2a2ba8c6b0ef4 one_rank 1 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell b6494c2b92005d82 one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --max-time 120
      cell 51ba166d40af7c2c one_node 4 181 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 37865d075e112566 scale    512 283 --model vgg16 --batch-size 64 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      cell 2ffbf89e684e1712 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --efficiency --max-time 120
      cell 90366f325f4f866c one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule negotiated --seed 1 --device cpu --max-time 120
      cell 77b29b2a79d01289 one_rank 1 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell 818994bd8cc152b0 one_node 4 181 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --max-time 120
      cell c72d0abd8f4575d1 scale    512 283 --model inception3 --batch-size 32 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cpu --efficiency --max-time 120
      ;;
    *) give_up "there is no repetition $repetition in this job" ;;
  esac
}

