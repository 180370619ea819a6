"""Builds the directives, which are the lines of a job script for the scheduler. Pure.

Sources: sbatch(1), bsub(1), and for quotes in #SBATCH lines src/sbatch/opt.c of Slurm 22.05. tests/cluster submits a
campaign whose folder has such characters in its name to a real Slurm.
"""

from __future__ import annotations

import re

from hvdb.base import printable
from hvdb.campaign.errors import CampaignError
from hvdb.campaign.layout import Layout
from hvdb.campaign.plan import Job
from hvdb.campaign.site import Site


def lines(site: Site, job: Job, layout: Layout) -> list[str]:
    """Returns all directives in a fixed order, or no directives if the site has no scheduler.

    Errors: CampaignError for a folder or a field of the site that cannot be written into a directive.
    """
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


def _sbatch_value(value: str) -> str:
    """Returns `value` as sbatch reads it: in double quotes if needed, in which a backslash precedes " and \\."""
    if re.fullmatch(r"[\w.,:;/=+%@&|^*?!~()\[\]{}<>-]*", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _sbatch(site: Site, job: Job, layout: Layout) -> list[str]:
    submit = site.submit
    named = {name: getattr(submit, name) for name in ("account", "partition", "qos", "constraint", "reservation")}
    ranks = max(shape.ranks_per_node for shape in job.shapes())
    words = [f"--job-name={layout.job_name(job)}"]
    words += [f"--{name}={_sbatch_value(value)}" for name, value in named.items() if value]
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
    words += ["--open-mode=append", f"--output={_sbatch_value(_slurm_log(site, job, layout))}"]
    return [f"#SBATCH {word}" for word in [*words, *submit.extra]]


def _refuse_folder(layout: Layout, character: str, why: str) -> CampaignError:
    folder = printable.terminal(layout.folder)
    return CampaignError(
        f"{folder}: {why}, so a job's log would be lost; use an --out without {character!r} in its path"
    )


def _slurm_log(site: Site, job: Job, layout: Layout) -> str:
    """Returns the pattern of a job's log. %A: number of the array, %a: index in it, %j: number of the job, %%: "%"."""
    if found := re.search(r"[\n\\]", str(layout.folder)):
        why = "Slurm does not replace %j in a path with a backslash" if found[0] == "\\" else "Slurm reads line by line"
        raise _refuse_folder(layout, found[0], why)
    number = "%A.%a" if site.submit.array else "%j"
    return f"{layout.logs}/{job.name}.".replace("%", "%%") + f"{number}.out"


def _bsub_value(site: Site, key: str, value: str) -> str:
    if '"' in value and "'" in value:
        raise CampaignError(f"site {site.name}: submit.{key}: a #BSUB line cannot hold both kinds of quotes ({value})")
    return f"'{value}'" if '"' in value else f'"{value}"'


def _lsf_log(site: Site, job: Job, layout: Layout) -> str:
    """Returns the pattern of a job's log. %J: number of the job, %I: index in the array.

    LSF documents no way to write other special characters. A script that is an argument of bsub goes through a shell.
    """
    unsafe = r"[^A-Za-z0-9_@+=:,./~-]" if site.submit.by == "argument" else r"[\x00-\x1f\x7f\\\"%$`]"
    if found := re.search(unsafe, str(layout.folder)):
        raise _refuse_folder(layout, found[0], f"bsub cannot take {found[0]!r} in a path")
    return f"{layout.logs}/{job.name}.{'%J.%I' if site.submit.array else '%J'}.out"


def _bsub(site: Site, job: Job, layout: Layout) -> list[str]:
    submit = site.submit
    indices = f"[{array_text(list(job.cells), submit.array_limit)}]" if submit.array else ""
    words = [f'-J "{layout.job_name(job)}{indices}"']
    named = {"-P": "account", "-q": "partition", "-U": "reservation", "-R": "constraint"}
    values = {option: (key, getattr(submit, key)) for option, key in named.items()}
    words += [f"{option} {_bsub_value(site, key, value)}" for option, (key, value) in values.items() if value]
    minutes = job.walltime_seconds // 60
    words += [f"-nnodes {job.nodes}", f"-W {minutes // 60}:{minutes % 60:02d}"]
    if site.walltime.warning_seconds:
        words.append(f"-wa USR1 -wt {-(-site.walltime.warning_seconds // 60)}")
    words.append("-r" if submit.requeue else "-rn")
    words.append(f'-o "{_lsf_log(site, job, layout)}"')
    return [f"#BSUB {word}" for word in [*words, *submit.extra]]
