"""Builds the directives, which are the lines of a job script for the scheduler. Pure. Sources: sbatch(1), bsub(1)."""

from __future__ import annotations

from hvdb.campaign.layout import Layout
from hvdb.campaign.plan import Job
from hvdb.campaign.site import Site


def lines(site: Site, job: Job, layout: Layout) -> list[str]:
    """Returns all directives in a fixed order, or no directives if the site has no scheduler."""
    builders = {"slurm": _sbatch, "lsf": _bsub, "none": lambda *_: []}
    return builders[site.scheduler](site, job, layout)


def array_text(repetitions: list[int], limit: int) -> str:
    """Returns the indices of a job array: "1-3", "2,5", or "1-9%2" with limit 2. Slurm and LSF share this notation."""
    spans: list[list[int]] = []
    for index in sorted(repetitions):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"{text}%{limit}" if limit else text


def _slurm_time(seconds: int) -> str:
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours >= 24:
        return f"{hours // 24}-{hours % 24:02d}:{minutes:02d}:00"
    return f"{hours:02d}:{minutes:02d}:00"


def _sbatch(site: Site, job: Job, layout: Layout) -> list[str]:
    submit = site.submit
    named = {
        "account": submit.account,
        "partition": submit.partition,
        "qos": submit.qos,
        "constraint": submit.constraint,
        "reservation": submit.reservation,
    }
    ranks = max(shape.ranks_per_node for shape in job.shapes())
    words = [f"--job-name={layout.job_name(job)}"]
    words += [f"--{name}={value}" for name, value in named.items() if value]
    words += [f"--nodes={job.nodes}", f"--ntasks-per-node={ranks}"]
    if site.node.gpus:
        # If the job has the node to itself, request all GPUs of the node, so that the ranks see all of them.
        words.append(f"--gpus-per-node={site.node.gpus if submit.exclusive else ranks}")
    if site.launch.cores_per_rank:
        words.append(f"--cpus-per-task={site.launch.cores_per_rank}")
    if submit.exclusive:
        words.append("--exclusive")
    words.append(f"--time={_slurm_time(job.walltime_seconds)}")
    if site.walltime.warning_seconds:
        # "B:" makes Slurm send the signal to the script. The script forwards the signal and starts no further cell.
        words.append(f"--signal=B:USR1@{site.walltime.warning_seconds}")
    if submit.array:
        words.append(f"--array={array_text(list(job.cells), submit.array_limit)}")
    words.append("--requeue" if submit.requeue else "--no-requeue")
    words += ["--open-mode=append", f"--output={layout.log_pattern(site, job)}"]
    return [f"#SBATCH {word}" for word in [*words, *submit.extra]]


def _bsub(site: Site, job: Job, layout: Layout) -> list[str]:
    submit = site.submit
    indices = f"[{array_text(list(job.cells), submit.array_limit)}]" if submit.array else ""
    words = [f'-J "{layout.job_name(job)}{indices}"']
    named = {"-P": submit.account, "-q": submit.partition, "-U": submit.reservation, "-R": submit.constraint}
    words += [f'{name} "{value}"' for name, value in named.items() if value]
    minutes = job.walltime_seconds // 60
    words += [f"-nnodes {job.nodes}", f"-W {minutes // 60}:{minutes % 60:02d}"]
    if site.walltime.warning_seconds:
        words.append(f"-wa USR1 -wt {-(-site.walltime.warning_seconds // 60)}")
    words.append("-r" if submit.requeue else "-rn")
    words.append(f'-o "{layout.log_pattern(site, job)}"')
    return [f"#BSUB {word}" for word in [*words, *submit.extra]]
