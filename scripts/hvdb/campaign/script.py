"""Builds the text of a job script: directives for the scheduler, settings, and the commands that start ranks. Pure.

Sources: the manual pages sbatch(1), bsub(1), srun(1) and mpirun(1) (Open MPI 4.1), IBM's "Job Step Manager: jsrun", and
for quotes in #SBATCH lines src/sbatch/opt.c of Slurm 22.05. tests/cluster submits a campaign whose folder has such
characters in its name to a real Slurm.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path

from hvdb.base import data, printable
from hvdb.base.errors import CampaignError
from hvdb.campaign import bench_options
from hvdb.campaign.cell import Shape, digest
from hvdb.campaign.plan import Job, Plan
from hvdb.campaign.site import Site


def in_script(path: Path | str) -> str:
    """Returns a path or a word of the command line as the text whose UTF-8 form has the same bytes.

    Scripts are UTF-8 in every locale, but Python decodes paths by the locale. In ISO-8859-1 it reads the byte FC as
    "ü", and "ü" in a script would name another file. Bytes that are not UTF-8 become surrogates ("surrogateescape").
    """
    return os.fsencode(path).decode("utf-8", "surrogateescape")


class Layout:
    """job_prefix: the beginning of the names of this campaign's jobs. Queries of the scheduler select jobs by it."""

    def __init__(self, folder: Path) -> None:
        """folder: the campaign's folder, absolute."""
        self.folder = folder
        self.spec = folder / "spec.toml"
        self.manifest = folder / "campaign.json"
        self.submissions = folder / "submissions.jsonl"
        self.jobs, self.stores, self.logs, self.events = (folder / n for n in ("jobs", "stores", "logs", "events"))
        self.job_prefix = f"hvd-{digest(in_script(folder), 8)}-"

    def script(self, job_name: str) -> Path:
        return self.jobs / f"{job_name}.sh"

    def job_name(self, job: Job) -> str:
        return self.job_prefix + job.name


PROGRAM = data.called("campaign")

# Shell text for the job's identity: (scheduler id, repetition in an array, restarts). A rerun under LSF uses its start
# time instead of the number of restarts, because some versions of LSF do not count restarts.
IDENTITY = {
    "slurm": (
        f"${{SLURM_ARRAY_JOB_ID:-${{SLURM_JOB_ID:?is not set: {PROGRAM} submits this}}}}",
        "${SLURM_ARRAY_TASK_ID:-1}",
        "${SLURM_RESTART_COUNT:-0}",
    ),
    "lsf": (
        f"${{LSB_JOBID:?is not set: {PROGRAM} submits this}}",
        "${LSB_JOBINDEX:-1}",
        '$([ "${LSB_RESTART:-N}" = Y ] && date +%s || echo 0)',
    ),
    "none": ("local-$(date +%s)-$$", "1", "0"),
}


def text(plan: Plan, job: Job, layout: Layout, hvd_bench: Path) -> str:
    """Returns the whole script, which ends with a line break. hvd_bench: absolute path of the program to measure.

    layout has paths of this process. hvd_bench and the texts of the plan are texts of a script, as of in_script().
    """
    site, spec = plan.site, plan.spec
    parts = [
        "#!/usr/bin/env bash",
        *directives(site, job, layout),
        f"# Campaign {spec.name}, job {job.name}, on site {site.name}: written by {PROGRAM} generate, which",
        "# writes it again: edit the spec or the site instead.",
        f"# spec {spec.hash}",
        f"# site {site.hash}",
        "# shellcheck disable=SC1091,SC2034,SC2054,SC2317  # files of the system; what only some jobs need; traps",
        "set -uo pipefail",
        "",
        *_settings(plan, job, layout, hvd_bench),
        "",
        *_set_up(plan),
        "",
        *_launchers(plan, job),
        "",
        *_cells(plan, job),
        "",
        data.JOB_BODY.read_text(encoding="utf-8").partition("\n#\n")[2].rstrip("\n"),
    ]
    return "\n".join(parts) + "\n"


def _assignment(name: str, value: object) -> str:
    return f"{name}={shlex.quote(str(value))}"


def _settings(plan: Plan, job: Job, layout: Layout, hvd_bench: Path) -> list[str]:
    scheduler_id, index, restart = IDENTITY[plan.site.scheduler]
    repetition = index if plan.site.submit.array else str(next(iter(job.cells)))
    return [
        _assignment("campaign", plan.spec.name),
        _assignment("spec", plan.spec.hash),
        _assignment("job", job.name),
        _assignment("folder", in_script(layout.folder)),
        _assignment("hvd_bench", hvd_bench),
        _assignment("order_seed", plan.spec.order_seed),
        # A walltime of 0 means no limit: without a scheduler nothing limits a job.
        _assignment("walltime_seconds", 0 if plan.site.scheduler == "none" else job.walltime_seconds),
        _assignment("warning_seconds", plan.site.walltime.warning_seconds),
        _assignment("pass_on_term", "yes" if plan.site.scheduler == "none" else "no"),
        _assignment("requeue", "yes" if plan.site.scheduler == "slurm" and plan.site.submit.requeue else "no"),
        f"scheduler_id={scheduler_id}",
        f"repetition={repetition}",
        f"restart={restart}",
    ]


def _set_up(plan: Plan) -> list[str]:
    """Returns the lines of a shell function that sets up the site. The function fails if one of its lines fails."""
    program = plan.site.program
    kept = (bench_options.TRACE_VARIABLE, *plan.site.submit.keep_variables)
    lines = [f"unset {' '.join(name for name in bench_options.VARIABLES if name not in kept)}"]
    if plan.site.scheduler == "slurm":
        lines.append("export SLURM_EXPORT_ENV=ALL  # sbatch --export=NONE must not hide these lines from the ranks")
    if program.modules:
        lines.append("type module >/dev/null 2>&1 || source /etc/profile  # a job's shell may not know it")
        lines.append(f"module load {' '.join(map(shlex.quote, program.modules))} || return")
    lines += [f"export {_assignment(name, value)}" for name, value in program.environment.items()]
    lines += [f"{{ {line}; }} || return" for line in program.setup]
    lines.append(f"unset {bench_options.TRACE_VARIABLE}  # a traced cell would count as lacking")
    return ["set_up() {", *(f"  {line}" for line in lines), "}"]


def _launchers(plan: Plan, job: Job) -> list[str]:
    lines = ["launcher_for() {  # RANKS", "  case $1 in"]
    for shape in job.shapes():
        words = " ".join(map(shlex.quote, launch_command(plan.site, shape)))
        lines.append(f"    {shape.ranks}) launcher=({words}) ;;")
    return [*lines, "  esac", "}"]


def _cells(plan: Plan, job: Job) -> list[str]:
    lines = [f"cells={len(next(iter(job.cells.values())))}", "run_cells() {  # in random order, from the order seed"]
    lines.append("  case $repetition in")
    for repetition, cells in job.cells.items():
        lines.append(f"    {repetition})")
        for cell in cells:
            seconds = math.ceil(plan.cell_seconds[cell.hash])
            head = f"cell {cell.hash} {cell.role:<8} {cell.shape.ranks} {seconds}"
            lines.append(f"      {head} {shlex.join(cell.arguments())}")
        lines.append("      ;;")
    lines.append('    *) give_up "there is no repetition $repetition in this job" ;;')
    return [*lines, "  esac", "}"]


def directives(site: Site, job: Job, layout: Layout) -> list[str]:
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
    return f"{in_script(layout.logs)}/{job.name}.".replace("%", "%%") + f"{number}.out"


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
    return f"{in_script(layout.logs)}/{job.name}.{'%J.%I' if site.submit.array else '%J'}.out"


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


def launch_command(site: Site, shape: Shape) -> list[str]:
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
