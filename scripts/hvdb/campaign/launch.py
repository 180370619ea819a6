"""Builds the command that starts the ranks of one cell inside a job: srun, jsrun or mpirun. Pure.

Sources: the manual pages srun(1) and mpirun(1) (Open MPI 4.1), and IBM's "Job Step Manager: jsrun".
"""

from __future__ import annotations

from hvdb.campaign.cell import Shape
from hvdb.campaign.site import Site


def command(site: Site, shape: Shape) -> list[str]:
    """Returns the words of the command line before `hvd_bench`."""
    builders = {"slurm": _srun, "lsf": _jsrun, "none": _mpirun}
    return builders[site.scheduler](site, shape)


def _srun(site: Site, shape: Shape) -> list[str]:
    words = [*site.launch.command, f"--nodes={shape.nodes}", f"--ntasks={shape.ranks}"]
    words.append(f"--ntasks-per-node={shape.ranks_per_node}")
    # "block" fills node after node. The second "block" fills socket after socket, in which order GPUs are numbered;
    # Slurm's default deals ranks to the sockets in turn. "Pack" leaves the remaining ranks to the last node.
    distribution = "block:block" if site.node.gpus else "block"
    if site.node.gpus or shape.ragged:
        words.append(f"--distribution={distribution}{',Pack' if shape.ragged else ''}")
    if site.launch.cores_per_rank:
        # Since Slurm 22.05, srun does not inherit --cpus-per-task from the job.
        words.append(f"--cpus-per-task={site.launch.cores_per_rank}")
    return [*words, *site.launch.options, *site.launch.binding]


def _jsrun(site: Site, shape: Shape) -> list[str]:
    """Builds resource sets. -n: number of sets. -r: sets per host. -a, -c and -g: ranks, cores and GPUs of a set.

    Normally there is one set per node with all ranks of the node, so that the ranks see one another's GPUs. If the last
    node has fewer ranks than the other nodes, or if the site asks for it, there is one set per rank.
    """
    cores, gpus = site.launch.cores_per_rank, 1 if site.node.gpus else 0
    if shape.ragged or site.launch.resource_sets == "rank":
        sets = [f"-n{shape.ranks}", f"-r{shape.ranks_per_node}", "-a1", f"-c{cores}", f"-g{gpus}"]
    else:
        ranks = shape.ranks_per_node
        sets = [f"-n{shape.nodes}", "-r1", f"-a{ranks}", f"-c{cores * ranks}", f"-g{gpus * ranks}"]
    return [*site.launch.command, *sets, *site.launch.binding, *site.launch.options]


def _mpirun(site: Site, shape: Shape) -> list[str]:
    words = [*site.launch.command, "-n", str(shape.ranks)]
    if site.launch.cores_per_rank:
        words += ["--map-by", f"slot:PE={site.launch.cores_per_rank}"]
    return [*words, *site.launch.options, *site.launch.binding]
