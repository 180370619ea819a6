"""Builds the text of a job script. Pure."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from hvdb.base import data
from hvdb.campaign import bench_options, directives, launch
from hvdb.campaign.layout import Layout
from hvdb.campaign.plan import Job, Plan

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
    """Returns the whole script, which ends with a line break. hvd_bench: absolute path of the program to measure."""
    site, spec = plan.site, plan.spec
    parts = [
        "#!/usr/bin/env bash",
        *directives.lines(site, job, layout),
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
        _assignment("folder", layout.folder),
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
        words = " ".join(map(shlex.quote, launch.command(plan.site, shape)))
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
