"""A store as one Markdown page: what was run, how well it scaled, where the rest went, and on what."""

from __future__ import annotations

from collections.abc import Sequence

from hvdb import efficiency, printable, published, tables
from hvdb.efficiency import Cell, Selection
from hvdb.runs import Run

# Components of table decomposition in the order of the fall, as the program names them (bench/cli/report.cpp).
COMPONENTS = {
    "interference": "interference of the ranks",
    "stragglers": "waiting for stragglers",
    "exposed_communication": "exposed communication",
    "control_plane": "control plane",
    "overlap_slowdown": "compute slowed by overlap",
    "update": "update",
    "residual": "residual",
    "efficiency": "efficiency",
}
MIB = 1024.0 * 1024.0


def _world(run: Run) -> str:
    return f"{run.world_size} rank{'s' if run.world_size > 1 else ''} on {run.nodes} node{'s' if run.nodes > 1 else ''}"


def _runs_table(runs: Sequence[Run]) -> str:
    rows = [
        (
            r.short_id,
            ", ".join([tables.title(r.model), *tables.marks(r.columns)]),
            r.phase,
            _world(r),
            f"{r.batch_size} x {r.image_size}",
            f"{r.compute_type}/{r.allreduce_type}",
            r.schedule,
            f"{r.comm} ({r.data_plane})",
            f"{r.warmup_steps} + {r.measured_steps}",
            r.stop_reason or "-",
            r.status if not r.status_reason else f"{r.status}: {r.status_reason}",
            r.checks or "-",
        )
        for r in runs
    ]
    header = (
        "run",
        "model",
        "phase",
        "world",
        "batch x image",
        "compute/reduce type",
        "schedule",
        "transport",
        "steps (warm-up + measured)",
        "stopped because",
        "status",
        "checks",
    )
    return tables.markdown_table(header, rows, first_is_code=True)


def _decomposition_table(run: Run) -> str:
    rows = []
    titles = COMPONENTS | {name: name for name in run.decomposition if name not in COMPONENTS}
    for name, title in titles.items():
        part = run.decomposition.get(name)
        if part is not None:
            span = "-" if part.low is None or part.high is None else f"{100 * part.low:.1f} to {100 * part.high:.1f}"
            share = f"{100 * part.fraction:.1f}"
            shown = f"not resolved ({share})" if part.unresolved else share
            rows.append((title, shown, span, f"{1000 * part.seconds:.1f}"))
    return tables.markdown_table(("part of the step", "% of step", "95 % interval", "ms"), rows)


def _memory_table(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        for rank in run.ranks:
            planned, base, peak = rank["planned_bytes"], rank["baseline_bytes"], rank["peak_bytes"]
            if planned and peak:
                own = peak - (base or 0)
                rows.append(
                    (
                        run.short_id,
                        str(rank["rank"]),
                        rank["host"],
                        f"{planned / MIB:.0f}",
                        f"{own / MIB:.0f}",
                        f"{own / planned:.2f}",
                    )
                )
    if not rows:
        return ""
    header = ("run", "rank", "host", "planned MiB", "peak over baseline MiB", "peak / plan")
    return "\n## Memory\n\n" + tables.markdown_table(header, rows, first_is_code=True) + "\n"


def _provenance_table(runs: Sequence[Run]) -> str:
    keys = sorted({key for run in runs for key in run.provenance})
    rows = []
    for key in keys:
        values = list(dict.fromkeys(run.provenance[key].value for run in runs if key in run.provenance))
        weighty = any(run.provenance[key].in_fingerprint for run in runs if key in run.provenance)
        rows.append((key, "yes" if weighty else "", "; ".join(values[:3]) + (" ..." if len(values) > 3 else "")))
    return tables.markdown_table(("fact", "can change the result", "value"), rows, first_is_code=True)


def markdown(selection: Selection, cells: Sequence[Cell], runs: Sequence[Run]) -> str:
    """The whole page. `runs` are all runs of the store, `selection` and `cells` those of the efficiency table."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    out = [
        "# hvd_bench report",
        "",
        f"{len(runs)} runs in {len({r.session_uuid for r in runs})} sessions, "
        f"{printable.markdown(runs[0].started_utc)} to {printable.markdown(runs[-1].started_utc)} (UTC)."
        if runs
        else "No runs.",
        "",
    ]
    out += ["## Scaling efficiency", ""]
    if cells:
        out += [tables.markdown_table(tables.EFFICIENCY_HEADER, tables.efficiency_rows(cells)), ""]
        out += [f"- {note}" for note in tables.EFFICIENCY_NOTES]
        out += [f"- Note: {printable.markdown(line)}" for line in efficiency.notes(cells, selection.runs)]
    out += [f"- Left out: {printable.markdown(line)}" for line in selection.left_out]
    beside = tables.published_rows(published.load(), models)
    if beside:
        out += ["", "Published beside it (other hardware; sources in `results/published.csv`):", ""]
        out += [tables.markdown_table(tables.PUBLISHED_HEADER, beside)]
    explained = [run for run in selection.runs if run.decomposition]
    if explained:
        out += ["", "## Where the step time goes"]
        for run in explained:
            words = ", ".join([tables.title(run.model), *tables.marks(run.columns), _world(run)])
            out += ["", f"### {printable.markdown(words)}, run {printable.code(run.short_id)}", ""]
            out += [_decomposition_table(run)]
    out += [_memory_table(selection.runs)]
    out += ["## Runs", "", _runs_table(runs), "", "## Provenance", "", _provenance_table(runs), ""]
    out += ["## Command lines", ""]
    out += [*printable.code_block(dict.fromkeys(run.session["command_line"] for run in runs)), ""]
    return "\n".join(out)
