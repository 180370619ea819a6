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

# sha256 of the list of cells: 55420ccef816dbd8d7cbb6ac369023b0b336cc628a9dcb733f5ad386280f423c
