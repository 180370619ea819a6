#!/usr/bin/env bash
#SBATCH --job-name=hvd-46a678b2-n0064
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=00:47:00
#SBATCH --signal=B:USR1@120
#SBATCH --array=1-2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/campaign/logs/n0064.%A.%a.out
# Campaign golden, job n0064, on site slurm-8gpu: written by scripts/campaign generate, which
# writes it again: edit the spec or the site instead.
# spec 3c2665d2435a86c6
# site 831faf8da89f5a5f
# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps
set -uo pipefail

campaign=golden
spec=3c2665d2435a86c6
job=n0064
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
    1) launcher=(srun --mpi=pmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    8) launcher=(srun --mpi=pmix --nodes=1 --ntasks=8 --ntasks-per-node=8 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
    512) launcher=(srun --mpi=pmix --nodes=64 --ntasks=512 --ntasks-per-node=8 --cpus-per-task=16 --cpu-bind=cores --gpu-bind=none) ;;
  esac
}

# sha256 of the list of cells: 3d3d09196e53347e1ae2f189a5c30f7e388cd5c4c9ab1bbd270cdfcd0d8db8a3
