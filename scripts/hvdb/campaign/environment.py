"""Decides which environment variables the scheduler's programs get, and with them the jobs, which inherit from these.

Pure. Sources: the sections on environment variables in sbatch(1), squeue(1), scancel(1) and srun(1), and IBM's
"Environment variables" of LSF.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Variables that change what the scheduler's programs do or print (SQUEUE_STATES hides jobs, BSUB_QUIET hides the number
# of a job), and variables that describe a job or step in which the user calls us. srun and MPI would take the latter
# for those of the campaign's job.
_REMOVED = (
    "SLURM_ SBATCH_ SRUN_ SALLOC_ SQUEUE_ SACCT_ SCANCEL_ SCONTROL_ SINFO_ "
    "LSB_ BSUB_ JSM_ PMI_ PMIX_ OMPI_COMM_WORLD_"
).split()
# SLURM_CONF says which Slurm to talk to. PMIX_MCA_* are settings of a user, not facts of a step.
_KEPT = ("SLURM_CONF",)
_KEPT_PREFIX = "PMIX_MCA_"


def for_scheduler(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Returns `environment` without the variables of schedulers, except SLURM_CONF, LSF_* and the names in `keep`."""
    return {
        name: value
        for name, value in environment.items()
        if name in keep or name in _KEPT or name.startswith(_KEPT_PREFIX) or not name.startswith(tuple(_REMOVED))
    }
