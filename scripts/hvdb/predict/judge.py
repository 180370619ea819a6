"""Compares a prediction with runs that were measured after it. A run says by its label to which prediction it belongs:
`hvd_bench --label prediction=<SHA-256 of the file>`. Nobody can know this hash before the prediction is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.judge import efficiency
from hvdb.predict import schedule
from hvdb.read.names import COMPONENTS
from hvdb.read.predictions import Band, Prediction, Row
from hvdb.read.runs import Run, by_session, grouped

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
    row: Row
    runs: tuple[Run, ...]
    step: float
    interval: tuple[float, float] | None
    efficiency: float | None
    differs: str

    @property
    def inside(self) -> bool:
        """True if everything that was measured lies in its band."""
        reached = self.efficiency
        return _within(self.step, self.row.step) and (reached is None or _within(reached, self.row.efficiency))


def _within(value: float, band: Band) -> bool:
    return band.low <= value <= band.high


def _require(prediction: Prediction, run: Run) -> None:
    """Errors: HvdbError if the run cannot be a test of the prediction; NotComparable if it is of something else."""
    short = run.short_id
    if run.session_uuid in prediction.sessions:
        raise HvdbError(f"run {short} is an input of {prediction.file}, so it is no test of it")
    if run.started_utc <= prediction.latest_input:
        raise HvdbError(f"run {short} began before the newest input of {prediction.file}, so it is no test of it")
    facts = {
        "model": (prediction.model, run.model),
        "unit": (prediction.unit, run.unit),
        "units a step": (prediction.units_per_step, run.batch_size),
        "compute type": (prediction.compute_type, run.compute_type),
        "device": (prediction.device, run.device),
        "ranks on a node": (prediction.ranks_per_node * run.nodes, run.world_size),
    }
    if differing := [f"{name} {here!r}, predicted {there!r}" for name, (there, here) in facts.items() if there != here]:
        raise NotComparable(f"run {short} is not what {prediction.file} predicts: {'; '.join(differing)}")


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
        same = [place for place, what_if in enumerate(prediction.what_ifs) if what_if.options == options]
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


def _judged(prediction: Prediction, row: Row, sessions: Sequence[dict[str, Run]]) -> Judged:
    full = tuple(phases["full"] for phases in sessions)
    times = [efficiency.step_time(run) for run in full]
    only = times[0] if len(times) == 1 else None
    reached = [run.decomposition["efficiency"].fraction for run in full if "efficiency" in run.decomposition]
    return Judged(
        what_if=prediction.what_ifs[row.what_if].text,
        row=row,
        runs=full,
        step=float(np.median([time.value for time in times])),
        interval=(only.low, only.high) if only and only.low is not None and only.high is not None else None,
        efficiency=float(np.median(reached)) if reached else None,
        differs=_differs(row, full),
    )


def _differs(row: Row, full: Sequence[Run]) -> str:
    """Returns a text such as `exposed communication: +9.1 points of the predicted step`."""
    parts = grouped(
        [
            (name, run.decomposition[component])
            for name, component in _COMPONENT_OF.items()
            for run in full
            if component in run.decomposition
        ],
        lambda pair: pair[0],
    )
    gaps = {
        name: float(np.median([part.seconds for _, part in known])) / row.step.middle - row.parts[name]
        for name, known in parts.items()
    }
    if not gaps:
        return ""
    most = max(gaps, key=lambda name: abs(gaps[name]))
    return f"{COMPONENTS[_COMPONENT_OF[most]]} {100 * gaps[most]:+.1f} points of the predicted step"
