"""The configuration files of a Slurm in one folder on one machine, made by pure functions from a shape.

Tried with Slurm 22.05 (Debian 12). Every daemon runs as the calling user and uses the loopback device. There are no
cgroups, no accounting storage, and no GPUs: Slurm only counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A cluster of `nodes` nodes, each with `cpus` CPUs and `gpus` counted GPUs. With low_priority, tasks run at nice
    19, so that Slurm's daemons get processor time beside hundreds of tasks. Never measure with low_priority."""

    nodes: int = 2
    cpus: int = 4
    gpus: int = 0
    low_priority: bool = False
    kill_wait_seconds: int = 10


@dataclass(frozen=True)
class Place:
    """The host, folder and ports of a cluster. With `isolated`, every node has its own host name and /dev/shm."""

    folder: Path
    user: str
    host: str
    first_port: int
    isolated: bool
    gpu_files: tuple[str, ...]

    @property
    def config(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "run" / "munge.sock"


def node_names(shape: Shape) -> list[str]:
    return [f"n{i}" for i in range(1, shape.nodes + 1)]


def _range(prefix: str, first: int, last: int) -> str:
    return f"{prefix}{first}" if first == last else f"{prefix}[{first}-{last}]"


def slurm_conf(shape: Shape, place: Place) -> str:
    """Returns slurm.conf. Two partitions have the same nodes. A job of `urgent` preempts jobs of `batch`: they get
    SIGTERM and are requeued after 10 s."""
    f = place.folder
    names = _range("n", 1, shape.nodes)
    ports = _range("", place.first_port + 1, place.first_port + shape.nodes)
    host = names if place.isolated else place.host
    gres = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    return f"""\
ClusterName=test
SlurmctldHost={place.host}(127.0.0.1)
SlurmctldPort={place.first_port}
SlurmUser={place.user}
SlurmdUser={place.user}
AuthType=auth/munge
AuthInfo=socket={place.munge_socket},cred_expire=30
CredType=cred/munge
StateSaveLocation={f}/state
SlurmctldPidFile={f}/run/slurmctld.pid
SlurmctldLogFile={f}/log/slurmctld.log
SlurmdPidFile={f}/run/slurmd.%n.pid
SlurmdLogFile={f}/log/slurmd.%n.log
SlurmdSpoolDir={f}/spool/%n
TmpFS={f}/tmp/%n
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={f}/etc/task_prolog.sh
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={f}/log/jobcomp.txt
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=120
SlurmdTimeout=300
MessageTimeout=60
BatchStartTimeout=60
KillWait={shape.kill_wait_seconds}
MinJobAge=3600
InactiveLimit=0
TreeWidth=64
MailProg=/bin/true
RebootProgram=/bin/true
PropagateResourceLimitsExcept=MEMLOCK
{"GresTypes=gpu" if shape.gpus else ""}
NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs={shape.cpus} RealMemory=4000{gres}
PartitionName=batch Nodes={names} Default=YES MaxTime=1:00:00 DefaultTime=10 PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes={names} MaxTime=1:00:00 DefaultTime=10 PriorityTier=10 PreemptMode=off
"""


def gres_conf(shape: Shape, place: Place) -> str:
    """Returns gres.conf. Slurm sets CUDA_VISIBLE_DEVICES only if File= names character devices. Without cgroups, Slurm
    never opens these devices."""
    lines = [f"Name=gpu File={file}" for file in place.gpu_files[: shape.gpus]]
    return "\n".join(["AutoDetect=off", *lines, ""]) if lines else ""


def task_prolog(shape: Shape, place: Place) -> str:
    """Returns the script that slurmd runs before each task. slurmd applies `export` lines that the script prints."""
    lines = [
        "#!/bin/sh",
        # By default a waiting Open MPI spins. Here it must yield, because there are more tasks than cores.
        "echo export OMPI_MCA_mpi_yield_when_idle=1",
        "echo export OMPI_MCA_pml=ob1",
        # All nodes are on this machine.
        "echo export OMPI_MCA_btl_tcp_if_include=127.0.0.0/8",
        "echo export OMPI_ALLOW_RUN_AS_ROOT=1",
        "echo export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ]
    if shape.low_priority:
        # Some kernels divide processor time among sessions first, and apply nice values only within a session. On these
        # kernels, only the line with autogroup slows a task down.
        lines.append("renice -n 19 -p $PPID >/dev/null 2>&1")
        lines.append("echo 19 2>/dev/null >/proc/$PPID/autogroup")
    if not place.isolated:
        # Open MPI names shared-memory files by host, job and local rank. On one host, two nodes' names would collide.
        lines.append(f"echo export OMPI_MCA_btl_vader_backing_directory={place.folder}/tmp/$SLURMD_NODENAME")
    return "\n".join([*lines, "exit 0", ""])


def config_files(shape: Shape, place: Place) -> dict[str, str]:
    """Maps file names in <folder>/etc to texts."""
    return {
        "slurm.conf": slurm_conf(shape, place),
        "gres.conf": gres_conf(shape, place),
        "task_prolog.sh": task_prolog(shape, place),
        # Fences other than a ring let some ranks leave the barrier of MPI_Init before all ranks have entered it. With
        # about 32 nodes or more, Open MPI 4.1 then crashes (seen with Slurm 22.05).
        "mpi.conf": "PMIxCollFence=ring\n",
        # Without a named plugin, slurmd exits on a machine that has no cgroup file system.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "hosts": "127.0.0.1 localhost " + " ".join([place.host, *node_names(shape)]) + "\n",
    }
