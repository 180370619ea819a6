"""Builds the report's sections of stored facts: operations, traces, memory, runs, provenance, differences."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdb.judge import comparable
from hvdb.judge.comparable import System
from hvdb.read import layer_profile
from hvdb.read.layer_profile import KindShare, Peaks
from hvdb.read.runs import Operation, Run
from hvdb.show import tables
from hvdb.show.document import MAX_LINE_LENGTH, Bullets, Figure, Listing, Paragraph, Section, Table

MIB = 1024.0 * 1024.0
MAX_PROFILES = 4
COSTLIEST = 15
MAX_VALUES = 3  # maximum values shown for one fact
TIMELINE_OPTION, TIMELINE_VARIABLE = "--timeline-filename", "HOROVOD_TIMELINE"
WORK_HEADER = ("ms", "% of profile", "rate")
BOUND_HEADER = ("bound ms", "x bound")


def world(run: Run) -> str:
    """Returns the size of the run's world as text: `8 ranks on 2 nodes`."""
    return f"{run.world_size} rank{'s' if run.world_size > 1 else ''} on {run.nodes} node{'s' if run.nodes > 1 else ''}"


def name(run: Run) -> str:
    """Returns the name of the run's network, with the words of tables.marks() for the run."""
    return ", ".join([tables.title(run.model), *tables.marks(comparable.curve(run))])


def _work(work: KindShare | Operation, total: float, peaks: Peaks | None) -> tuple[str, ...]:
    rate = layer_profile.rate(work.flops, work.bytes, work.seconds)
    cells = (tables.number(1e3 * work.seconds), f"{100 * work.seconds / total:.1f}", rate or "-")
    if peaks is None:
        return cells
    bound = peaks.bound(work)
    times = tables.number(work.seconds / bound) if bound > 0 else "-"
    return (*cells, tables.number(1e3 * bound), times)


def _profile(run: Run, *, with_figure: bool) -> Section:
    def draw(path: Path) -> Path:
        from hvdb.show import plot_profile

        return plot_profile.draw(run, path)

    operations = [o for o in run.operations if o.seconds > 0]
    total, peaks = sum(o.seconds for o in operations), layer_profile.peaks(run)
    header = (*WORK_HEADER, *(BOUND_HEADER if peaks else ()))
    kinds = [(s.kind, str(s.count), *_work(s, total, peaks)) for s in layer_profile.shares(operations)]
    costliest = sorted(operations, key=lambda o: -o.seconds)[:COSTLIEST]
    rows = [(o.node, o.kind, o.implementation, *_work(o, total, peaks)) for o in costliest]
    bounds = (
        f"Bounds: the longer of arithmetic at {peaks.flops * 1e-12:.4g} TFLOP/s and traffic at "
        f"{peaks.bytes * 1e-12:.4g} TB/s, the peaks of the device's data sheet; fused operations may be faster."
        if peaks
        else "Bounds are not known: the store holds no peak rates for this device, as for every CPU."
    )
    inside = f"{100 * layer_profile.library_fraction(operations):.1f} % inside the library's primitives"
    return Section(
        f"{name(run)}, run {run.short_id}",
        [
            Paragraph(
                f"{len(operations)} operations of one rank take {tables.number(1e3 * total)} ms per step, {inside}. "
                f"Profiled: slower than untraced. {bounds}"
            ),
            *([Figure(f"{name(run)}: time of each operation, in execution order, and by kind", draw)] * with_figure),
            Table(("kind", "count", *header), kinds),
            Table((f"costliest {len(rows)}", "kind", "implementation", *header), rows),
        ],
    )


def operations(runs: Sequence[Run]) -> list[Section]:
    """Shows the newest profile of each network, beside the bounds of the device if the bounds are known."""
    profiled = layer_profile.newest(runs)
    if not profiled:
        return []
    parts = [_profile(run, with_figure=place < MAX_PROFILES) for place, run in enumerate(profiled)]
    return [Section("Time per operation", (), parts)]


def _timeline(command_line: str) -> str | None:
    """Returns the name of the trace file in the command line of a session."""
    try:
        words = shlex.split(command_line[:MAX_LINE_LENGTH])
    except ValueError:
        return None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == TIMELINE_OPTION:
            return following
        if word.startswith((f"{TIMELINE_OPTION}=", f"{TIMELINE_VARIABLE}=")):
            return word.partition("=")[2]
    return None


def timelines(runs: Sequence[Run]) -> list[Section]:
    """Lists the names of the trace files. The names may come from a stranger, so they are shown as plain text."""
    named = {run.session_uuid: (run, _timeline(run.session["command_line"])) for run in runs}
    rows = [(run.short_id, name(run), file) for run, file in named.values() if file]
    if not rows:
        return []
    how = (
        "One Chrome trace for each rank, on the machine that measured; https://ui.perfetto.dev and chrome://tracing "
        "open them."
    )
    return [Section("Timelines", [Paragraph(how), Table(("run", "model", "file"), rows, first_is_code=True)])]


def differences(compared: Sequence[System]) -> list[Section]:
    """Lists the differences between the first system and each of the other systems."""
    parts = []
    for other in compared[1:]:
        first, second, differing = comparable.system_differences(compared[0], other)
        rows = [
            (d.key, "yes" if d.in_fingerprint else "", d.first or "(none)", d.second or "(none)") for d in differing
        ]
        header = ("fact", "can change the result", f"system {compared[0].letter}", f"system {other.letter}")
        parts.append(
            Section(
                f"Systems {compared[0].letter} and {other.letter}",
                [
                    Paragraph(f"By runs {first.short_id} and {second.short_id}, the most alike of the two systems."),
                    Table(header, rows, first_is_code=True),
                ],
            )
        )
    return [Section("What differs between the systems", (), parts)] if parts else []


def memory(runs: Sequence[Run]) -> list[Section]:
    """Lists, for each run, the rank whose peak of memory lies highest above the rank's own baseline."""
    rows = []
    for run in runs:
        known = [rank for rank in run.ranks if rank["planned_bytes"] and rank["peak_bytes"]]
        if not known:
            continue
        most = max(known, key=lambda rank: rank["peak_bytes"] - (rank["baseline_bytes"] or 0))
        own = most["peak_bytes"] - (most["baseline_bytes"] or 0)
        rows.append(
            (
                run.short_id,
                name(run),
                str(len(known)),
                str(most["rank"]),
                most["host"],
                f"{most['planned_bytes'] / MIB:.0f}",
                f"{own / MIB:.0f}",
                f"{own / most['planned_bytes']:.2f}",
            )
        )
    if not rows:
        return []
    header = ("run", "model", "ranks", "highest: rank", "host", "planned MiB", "peak over baseline MiB", "peak / plan")
    return [Section("Memory", [Table(header, rows, first_is_code=True)])]


_RUNS: dict[str, Callable[[Run], str]] = {
    "run": lambda run: run.short_id,
    "model": name,
    "phase": lambda run: run.phase,
    "world": world,
    "batch x image": lambda run: f"{run.batch_size} x {run.image_size}",
    "compute/reduce type": lambda run: f"{run.compute_type}/{run.allreduce_type}",
    "schedule": lambda run: run.schedule,
    "transport": lambda run: f"{run.comm} ({run.data_plane})",
    "steps (warm-up + measured)": lambda run: f"{run.warmup_steps} + {run.measured_steps}",
    "stopped because": lambda run: run.stop_reason or "-",
    "status": lambda run: f"{run.status}: {run.status_reason}" if run.status_reason else run.status,
    "checks": lambda run: run.checks or "-",
}


def runs(stored: Sequence[Run]) -> Section:
    """Lists all runs and how each run ended."""
    return Section("Runs", [Table(tuple(_RUNS), tables.rows(_RUNS, stored), first_is_code=True)])


def provenance(runs: Sequence[Run]) -> Section:
    """Lists every fact with the values that the fact has in the runs."""
    rows = []
    for key in sorted({key for run in runs for key in run.provenance}):
        facts = [run.provenance[key] for run in runs if key in run.provenance]
        values = list(dict.fromkeys(fact.value for fact in facts))
        weighty = any(fact.in_fingerprint for fact in facts)
        more = " ..." if len(values) > MAX_VALUES else ""
        rows.append((key, "yes" if weighty else "", "; ".join(values[:MAX_VALUES]) + more))
    table = Table(("fact", "can change the result", "value"), rows, first_is_code=True)
    return Section("Provenance", [table], folded=True)


def commands(runs: Sequence[Run]) -> Section:
    """Lists the command line of every session."""
    lines = list(dict.fromkeys(run.session["command_line"] for run in runs))
    return Section("Command lines", [Listing(lines)], folded=True)


def bullets(lines: Sequence[str]) -> list[Bullets]:
    """Returns one block with the lines, or no block if there are no lines."""
    return [Bullets(lines)] if lines else []
