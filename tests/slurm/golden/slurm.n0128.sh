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

# sha256 of the list of cells: 890da36ee5690bbbae82e13e01322078cae0133fda02a27d8942d3ff43ea2052
