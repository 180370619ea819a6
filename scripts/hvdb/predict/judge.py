"""Compares a prediction with runs that were measured after it. A run says by its label to which prediction it belongs:
`hvd_bench --label prediction=<SHA-256 of the file>`. Nobody can know this hash before the prediction is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.judge import comparable, efficiency
from hvdb.predict import schedule
from hvdb.read.names import COMPONENTS
from hvdb.read.predictions import PredictedRow, Prediction
from hvdb.read.runs import Run, by_session

LABEL = "label.prediction"
# A part of a predicted step -> the component of a measured one.
_COMPONENT_OF = {
    "exposed": "exposed_communication",
    "stragglers": "stragglers",
    "control": "control_plane",
    "slowed": "overlap_slowdown",
    "interference": "interference",
}


@dataclass(frozen=True)
class Judged:
    """A predicted row and the sessions that measured it. step: seconds, the median of `runs`; its interval if there is
    one session. efficiency: fraction, None if no session measured one rank alone. differs: the part of the step that
    differs most from its prediction, "" if no session has parts."""

    what_if: str
    row: PredictedRow
    runs: tuple[Run, ...]
    step: float
    interval: tuple[float, float] | None
    efficiency: float | None
    differs: str

    @property
    def step_inside(self) -> bool:
        return self.row.step_seconds.holds(self.step)

    @property
    def efficiency_inside(self) -> bool | None:
        """None if no efficiency was measured. That of one rank is 1 by definition, and not judged."""
        if self.efficiency is None or self.row.ranks == 1:
            return None
        return self.row.efficiency.holds(self.efficiency)

    @property
    def inside(self) -> bool:
        """True if everything that was measured lies in its band."""
        return self.step_inside and self.efficiency_inside is not False


def training_facts(run: Run) -> dict[str, str]:
    """Returns the columns and facts in which a run must agree with `run` to test a prediction of it, all but the
    schedule, which a what-if may change, and what follows from it."""
    columns = {
        name: run.columns[name] for name in comparable.CURVE_COLUMNS if name not in ("schedule", "allreduce_type")
    }
    facts = {key: fact.value for key, fact in run.provenance.items() if fact.in_fingerprint}
    made = {**columns, "unit": run.unit, **facts}
    return {key: str(value) for key, value in made.items() if not key.startswith("engine.")}


def _require(prediction: Prediction, run: Run) -> None:
    """Errors: HvdbError if the run cannot be a test of the prediction; NotComparable if it is of something else."""
    short = run.short_id
    if run.session_uuid in prediction.sessions:
        raise HvdbError(f"run {short} is an input of {prediction.file}, so it is no test of it")
    if run.started_utc <= prediction.latest_input:
        raise HvdbError(f"run {short} began before the newest input of {prediction.file}, so it is no test of it")
    here = training_facts(run)
    there = prediction.training or here
    named = {**vars(prediction.profile), "device": prediction.device}
    named["batch_size"] = named.pop("units_per_step")
    del named["source_run"]  # another run recorded the profile
    there = {**there, **{key: str(value) for key, value in named.items()}}
    if run.world_size > 1:
        here["ranks on a node"] = f"{run.world_size / run.nodes:g}"
        there["ranks on a node"] = str(prediction.ranks_per_node)
    if differing := [key for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key)]:
        shown = "; ".join(f"{key}: {here.get(key)!r:.200}, predicted {there.get(key)!r:.200}" for key in differing[:6])
        raise NotComparable(f"run {short} is not what {prediction.file} predicts: {shown}")


def judge(prediction: Prediction, stored: Sequence[Run]) -> tuple[list[Judged], list[str]]:
    """Returns the predicted rows that were measured, and a line for each run that has no row.

    Errors: TooLittle if no run has the label; HvdbError, NotComparable for a run that is no test of the prediction.
    """
    chosen = efficiency.select(stored)
    labelled = [run for run in chosen.runs if run.fact(LABEL) == prediction.sha256]
    notes = [f"left out: {line}" for line in chosen.left_out]
    by_place: dict[tuple[int, int], list[dict[str, Run]]] = {}
    for members in by_session(labelled).values():
        phases = {run.phase: run for run in members}
        if not (run := phases.get("full")):
            continue
        _require(prediction, run)
        options = tuple(schedule.of_run(run).options())
        same = [
            place
            for place, what_if in enumerate(prediction.what_ifs)
            if what_if.options == options and not what_if.hardware  # a run does not say on which link it was
        ]
        if same and any((row.what_if, row.ranks) == (same[0], run.world_size) for row in prediction.rows):
            by_place.setdefault((same[0], run.world_size), []).append(phases)
        else:
            notes.append(f"run {run.short_id} on {run.world_size} ranks with {' '.join(options)} was not predicted")
    if not by_place:
        raise TooLittle(
            f"no run in these stores is a test of {prediction.file}: measure with --label prediction="
            f"{prediction.sha256}"
        )
    rows = [(row, by_place[place]) for row in prediction.rows if (place := (row.what_if, row.ranks)) in by_place]
    return [_judged(prediction, row, sessions) for row, sessions in rows], notes


def _judged(prediction: Prediction, row: PredictedRow, sessions: Sequence[dict[str, Run]]) -> Judged:
    full = tuple(phases["full"] for phases in sessions)
    times = [efficiency.step_time(run) for run in full]
    only = times[0] if len(times) == 1 else None
    reached = [run.decomposition["efficiency"].fraction.value for run in full if "efficiency" in run.decomposition]
    return Judged(
        what_if=prediction.what_ifs[row.what_if].text,
        row=row,
        runs=full,
        step=float(np.median([time.value for time in times])),
        interval=(only.low, only.high) if only and only.low is not None and only.high is not None else None,
        efficiency=float(np.median(reached)) if reached else None,
        differs=_differs(row, sessions),
    )


def _differs(row: PredictedRow, sessions: Sequence[dict[str, Run]]) -> str:
    """Returns a text such as `exposed communication +9.1 points of the predicted step`."""
    whole = row.step_seconds.value
    gaps: dict[str, list[float]] = {}
    for phases in sessions:
        for name, component in _COMPONENT_OF.items():
            if part := phases["full"].decomposition.get(component):
                gaps.setdefault(COMPONENTS[component], []).append(part.seconds / whole - row.parts[name])
        if solo := phases.get("solo"):
            alone = efficiency.step_time(solo).value / whole - row.efficiency.value
            gaps.setdefault("one rank alone", []).append(alone)
    if not gaps:
        return ""
    middles = {name: float(np.median(found)) for name, found in gaps.items()}
    most = max(middles, key=lambda name: abs(middles[name]))
    return f"{most} {100 * middles[most]:+.1f} points of the predicted step"
