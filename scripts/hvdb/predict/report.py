"""Shows a prediction and how it is judged, for a person: sentences, tables, and lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.predict.draws import GROUPS
from hvdb.predict.inputs import Inputs
from hvdb.predict.judge import Judged
from hvdb.predict.steps import World, count_text, nodes_text
from hvdb.read.predictions import Measured, Prediction

HEADER = ("ranks", "step ms [90 %]", "efficiency % [90 %]", "measured %", "exposed", "stragglers", "compute")
WHAT_IFS = ("what if", "ranks", "efficiency % [90 %]", "gain, points [90 %]")
JUDGED = ("ranks", "what-if", "step ms [90 %]", "measured", "efficiency % [90 %]", "measured", "", "differs most")
MIN_PART = 0.1  # a group that makes less of a band's width is not named
MOST_GAINS = 3
LONGEST_WHAT_IF = 36


def measured(inputs: Inputs, text: Callable[[Interval], str]) -> dict[int, Measured]:
    """Returns ranks -> what the used sessions measured there. text: of an efficiency."""
    found: dict[int, Measured] = {}
    used = [run for session in inputs.sessions for run in (session.solo, session.full)]
    for cell in efficiency.cells(used, mix_fingerprints=True):
        if cell.kind != "full" or cell.efficiency is None:
            continue
        full = [session.full for session in inputs.sessions if session.world.ranks == cell.ranks]
        step = float(np.median([efficiency.step_time(run).value for run in full]))
        found[cell.ranks] = Measured(step, cell.efficiency, text(cell.efficiency))
    return found


def sentences(made: Prediction, inputs: Inputs, reason: str) -> list[str]:
    """Returns what a person wants to know of the last row: how fast, what it rests on, and what would gain most.
    reason: why the efficiency is above 100 %, or ""."""
    row, profile = made.rows_of(0)[-1], made.profile
    place = f"{count_text(row.nodes, 'node')} of {count_text(max(1, row.ranks // row.nodes), 'rank')}"
    units, why = made.units_per_second(row), f" (above 100 %: {reason})" if reason else ""
    first = (
        f"PREDICTED, not measured: {profile.model} ({profile.compute_type}, {profile.units_per_step} {profile.unit} a "
        f"step, {made.what_ifs[0].schedule}) on {place}: efficiency {row.efficiency_text} %{why}, "
        f"{units.text(1, lambda value: f'{value:.4g}')} {profile.unit}/s."
    )
    return [first, _basis(made, inputs, World(row.nodes, max(1, row.ranks // row.nodes))), _most(made)]


def _basis(made: Prediction, inputs: Inputs, world: World) -> str:
    fabric = inputs.fabric
    sessions = f"{count_text(len(made.sessions), 'session')} of training on {inputs.nodes_text()}"
    measured_on = {cell.world for cell in fabric.every_cell()}
    rests = f"collectives of {nodes_text(measured_on)}" if measured_on else "no measured collective"
    if world.nodes > 1 and fabric.is_described(inputs.operations, [world]):
        assert fabric.link
        rests += f" and a described link of {fabric.link.gbit:g} Gbit/s, {fabric.link.latency_us:g} us"
    far = max([inputs.sessions[0].world.nodes, fabric.largest()])
    beyond = f"; nothing was measured beyond {count_text(far, 'node')}" if world.nodes > far else ""
    gpus = "; never validated on GPUs" if inputs.base.on_gpus else ""
    return (
        f"It rests on {sessions} and on {rests}{beyond}{gpus}; the band holds {100 * made.confidence:g} % of the draws."
    )


def _most(made: Prediction) -> str:
    if not made.gains:
        return "Of other schedules, sizes, types and links, none was seen to gain anything."
    best = sorted(made.gains, key=lambda gain: -gain.efficiency.value)[:MOST_GAINS]
    named = (f"{gain.text} ({gain.efficiency.text()} points)" for gain in best)
    return f"Most would gain: {', '.join(named)}."


def rows(made: Prediction) -> list[list[str]]:
    """Returns the rows below HEADER. exposed, stragglers, compute: % of the step; compute: slowed by reductions and by
    other ranks."""
    shown = []
    for row in made.rows_of(0):
        parts = row.parts
        shares = (parts["exposed"] + parts["control"], parts["stragglers"], parts["slowed"] + parts["interference"])
        answer = row.measured.answer if row.measured else ""
        step = row.step_seconds.text(1e3)
        texts = [f"{round(100 * share, 1) + 0.0:.1f}" for share in shares]  # no -0.0
        shown.append([str(row.ranks), step, row.efficiency_text, answer, *texts])
    return shown


def what_if_rows(made: Prediction, gains: Mapping[tuple[int, int], Interval]) -> list[list[str]]:
    """Returns the rows below WHAT_IFS. gains: (index of the what-if, ranks) -> difference of the efficiency."""
    shown = []
    for place, what_if in list(enumerate(made.what_ifs))[1:]:
        text = what_if.text if len(what_if.text) <= LONGEST_WHAT_IF else what_if.text[: LONGEST_WHAT_IF - 3] + "..."
        for row in made.rows_of(place):
            shown.append([text, str(row.ranks), row.efficiency_text, gains[place, row.ranks].text()])
    return shown


def warnings(made: Prediction) -> list[str]:
    """Returns what lies outside of what was measured, with the ranks."""
    about: dict[str, list[str]] = {}
    for row in made.rows:
        for note in row.warnings:
            about.setdefault(note, []).append(str(row.ranks))
    return [f"warning: {', '.join(dict.fromkeys(ranks))} ranks: {note}" for note, ranks in about.items()]


def why(made: Prediction) -> list[str]:
    """Returns where the inputs come from, and what would make the band of the last row narrower."""
    lines = []
    for label in made.labels:
        value = "" if label.value is None else f" {label.value:.4g}"
        lines.append(f"{label.kind:<10}  {label.name}{value}: {label.source}")
    return lines + warnings(made) + [f"narrower: {line}" for line in narrower(made)]


def narrower(made: Prediction) -> list[str]:
    """Returns what would make the band of the last row narrower, the largest part first."""
    last = made.rows_of(0)[-1]
    wide = last.efficiency.width
    parts = sorted(made.narrower.items(), key=lambda item: -item[1])
    return [
        f"{GROUPS[group]}: {100 * part:.1f} of {100 * wide:.1f} points on {last.ranks} ranks"
        for group, part in parts
        if wide > 0 and part / wide >= MIN_PART
    ]


def judged_rows(found: Sequence[Judged]) -> list[list[str]]:
    """Returns the rows below JUDGED."""
    shown = []
    for one in found:
        row, interval = one.row, one.interval
        step = f"{1e3 * one.step:.1f}"
        if interval:
            step += f" [{1e3 * interval[0]:.1f}, {1e3 * interval[1]:.1f}]"
        reached = "" if one.efficiency is None else f"{100 * one.efficiency:.1f}"
        verdict = "inside" if one.inside else "OUTSIDE"
        bands = (row.step_seconds.text(1e3), row.efficiency.text())
        shown.append([str(row.ranks), one.what_if, bands[0], step, bands[1], reached, verdict, one.differs])
    return shown
