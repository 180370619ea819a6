"""Sorts the sessions of stores into series, and judges the newest session of each series.

The sessions of a series have one configuration and one fingerprint. A change of a driver, a library or a processor
changes the fingerprint and opens a new series. Within a series, an expected change (expected.py) begins a new segment.
A session is judged only by earlier sessions of its own segment. An observation is the log of a session's cost, see
log_cost().
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hvdb.base.errors import HvdbError
from hvdb.judge import change_points, comparable, prediction_interval, sides
from hvdb.judge.change_points import Change
from hvdb.judge.comparable import Difference
from hvdb.judge.expected import Expected, Moment, moment
from hvdb.judge.prediction_interval import NewestJudgement
from hvdb.judge.thresholds import COST, Thresholds
from hvdb.read.runs import Run, grouped

# A stored efficiency below this value is taken for a fault and not for a measurement.
MIN_EFFICIENCY = 1e-6


@dataclass(frozen=True)
class Series:
    """One series. runs: the main run of each session (sides.sessions()) in the order of time.

    costs: log cost of each run, (sessions,).
    opened: differences between the first session of the series and the configuration's previous session; None if the
    configuration has no previous session.
    closed: True if another series of the configuration has begun since the last session of this series.
    begins: index of the first session of a segment -> the expected changes that begin it.
    """

    name: str
    metric: str
    runs: list[Run]
    costs: np.ndarray
    opened: list[Difference] | None
    closed: bool
    begins: dict[int, list[Expected]]

    @property
    def segments(self) -> list[tuple[int, int]]:
        """Returns (index of the first session, index after the last session) of each segment."""
        return list(pairwise([*sorted({0, *self.begins}), len(self.runs)]))

    def segment_begin(self, index: int) -> int:
        """Returns the index of the first session of the segment that contains session `index`."""
        return max(begin for begin, _ in self.segments if begin <= index)

    def figure(self, log_cost: float) -> float:
        """Converts a log cost to images per second of the whole world, or to an efficiency in percent."""
        return (self.runs[0].world_size if self.metric == COST else 100.0) * math.exp(-log_cost)


@dataclass(frozen=True)
class SeriesOutcome:
    """The result for one series. judged: index of the judged session.

    judged and judgement are None if no session of the series was judged. reason: why the threshold has its value.
    changes: change points of all segments; None if ruptures is not installed.
    """

    series: Series
    judged: int | None
    judgement: NewestJudgement | None
    reason: str
    changes: list[Change] | None


def log_cost(run: Run, metric: str) -> float | None:
    """Returns the log of the seconds per image or, for the metric "efficiency", the log of 1 / the stored efficiency.

    Returns None if an efficiency is needed but none is stored.
    """
    if metric == COST:
        return sides.log_cost(run)
    stored = run.decomposition.get("efficiency")
    return -math.log(stored.fraction.value) if stored and stored.fraction.value >= MIN_EFFICIENCY else None


def group(sessions: Sequence[Run], metric: str, expected: Sequence[tuple[Expected, Moment]]) -> list[Series]:
    """Sorts `sessions` into series. Returns the series sorted by name and then by time.

    sessions: one run of each session; log_cost() of each run is not None. expected: (expected change, its begin()).
    """
    configurations = sides.configurations(sessions)
    names = sides.names(list(configurations))
    all_series = []
    for key, runs in sorted(configurations.items(), key=lambda item: names[item[0]]):
        members = grouped(range(len(runs)), lambda place, runs=runs: runs[place].fingerprint)
        for places in members.values():
            own = [runs[place] for place in places]
            first, last = places[0], places[-1]
            all_series.append(
                Series(
                    name=names[key] + (f", profile {own[0].replay}" if own[0].replay else ""),
                    metric=metric,
                    runs=own,
                    costs=np.array([log_cost(run, metric) for run in own]),
                    opened=comparable.fingerprint_differences(runs[first - 1], own[0]) if first else None,
                    closed=any(others[0] > last for others in members.values()),
                    begins=_begins(own, runs[:first], expected),
                )
            )
    return all_series


def _begins(
    runs: Sequence[Run], before: Sequence[Run], expected: Sequence[tuple[Expected, Moment]]
) -> dict[int, list[Expected]]:
    """Returns Series.begins for `runs`. before: the runs of the configuration that are earlier than `runs`.

    An expected change applies only if the configuration has a run from before the change.
    """
    begins: dict[int, list[Expected]] = {}
    for entry, begin in expected:
        later = [index for index, run in enumerate(runs) if moment(run) >= begin]
        if later and entry.fits(runs[0]) and (later[0] or (before and moment(before[-1]) < begin)):
            begins.setdefault(later[0], []).append(entry)
    return begins


def _judged(series: Series, new: Collection[str] | None) -> int | None:
    """Returns the index of the session to judge: the session whose UUID is in `new`.

    If `new` is None, this is the last session of a series that is not closed. Returns None if there is no such session.
    """
    if new is None:
        return None if series.closed else len(series.runs) - 1
    named = [index for index, run in enumerate(series.runs) if run.session_uuid in new]
    if len(named) > 1:
        raise HvdbError(
            f"{len(named)} new sessions of {series.name}, and a verdict is about one: name it (--new), or judge all of "
            "them as side B of a comparison (compare)"
        )
    return named[0] if named else None


def judge(
    all_series: Sequence[Series], tolerances: Thresholds, new: Collection[str] | None = None
) -> list[SeriesOutcome]:
    """Returns an outcome for each series. new: UUIDs of the sessions to judge; None: as in _judged().

    Errors: HvdbError if `new` contains several sessions of one series.
    """
    chosen = [_judged(series, new) for series in all_series]
    rules = [tolerances.rule(series.runs[0]) for series in all_series]
    observed, thresholds = {}, {}
    for series, index, rule in zip(all_series, chosen, rules, strict=True):
        if index is not None:
            name = series.runs[index].uuid
            observed[name] = series.costs[series.segment_begin(index) : index], float(series.costs[index])
            thresholds[name] = rule.slowdown
    judged = prediction_interval.judge(observed, thresholds)
    return [
        SeriesOutcome(
            series=series,
            judged=index,
            judgement=None if index is None else judged[series.runs[index].uuid],
            reason=rule.reason,
            changes=_changes(series) if change_points.available() else None,
        )
        for series, index, rule in zip(all_series, chosen, rules, strict=True)
    ]


def _changes(series: Series) -> list[Change]:
    return [
        dataclasses.replace(change, index=begin + change.index)
        for begin, end in series.segments
        for change in change_points.find(series.costs[begin:end])
    ]
