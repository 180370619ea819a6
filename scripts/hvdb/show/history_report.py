"""Renders the history of series as a table and as JSON.

Figures are images per second of the whole world, or efficiencies in percent. Slowdowns and thresholds are percentages
in tables and ratios (0.03 for 3 %) in JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import sys
from collections.abc import Sequence
from typing import Any

from hvdb.base import printable
from hvdb.judge import change_points, verdict
from hvdb.judge.change_points import Change
from hvdb.judge.comparable import Difference
from hvdb.judge.expected import Expected
from hvdb.judge.history import Series, SeriesOutcome
from hvdb.judge.outcomes import summary
from hvdb.judge.prediction_interval import NewestJudgement
from hvdb.judge.thresholds import COST
from hvdb.judge.verdict import Verdict
from hvdb.read.runs import UNKNOWN, Run
from hvdb.show import tables
from hvdb.show.verdict_report import finite

# Version of the JSON document (results/history.schema.json). Raise it with each change that can break a reader.
FORMAT_VERSION = 1
UNITS = {COST: "images/s", "efficiency": "efficiency %"}
NOT_JUDGED = "not judged"
MAX_DATE_LENGTH = 19  # number of characters in 2026-11-23T20:05:00
SHOWN_DIFFERENCES = 6
ANY_RECORDING = "these sessions do not say which recording they replayed, so recordings of one name are one series here"


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `hvdb history`. notes: lines about expected changes that had no effect."""

    metric: str
    outcomes: Sequence[SeriesOutcome]
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> list[Verdict]:
        return [outcome.judgement.verdict for outcome in self.outcomes if outcome.judgement]

    @property
    def exit_code(self) -> int:
        """Returns the exit code of the command, by verdict.exit_code()."""
        return verdict.exit_code(self.verdicts)


def header(metric: str) -> tuple[str, ...]:
    """Returns the titles of the columns of rows()."""
    unit = UNITS[metric]
    return (
        "series",
        "since",
        "earlier",
        f"median {unit}",
        f"newest {unit}",
        "prediction interval",
        "slower % [low, high]",
        "threshold %",
        "verdict",
    )


def notes(metric: str) -> tuple[str, ...]:
    """Returns lines that explain the columns of rows()."""
    what = "cost per image" if metric == COST else "step time of all ranks over that of one rank alone, 1 / efficiency"
    level = f"{100 * verdict.ALPHA:g} %"
    return (
        "earlier: sessions before the newest one, of the same configuration and fingerprint, since the last expected "
        "change.",
        f"prediction interval: if nothing changed, a new session passes each end in {level} of cases at most.",
        f"slower: {what}, newest session against the median of the earlier ones. low and high: the shifts of the "
        "earlier sessions whose prediction interval would still hold the newest one.",
        f"REGRESSION: low is above 0, and slower above the threshold. PASS: high is below the threshold. Each is wrong "
        f"in {level} of calls at most: Holm's procedure asks for more where several series are judged.",
    )


def when(run: Run) -> str:
    """Returns the time at which the run started, in the store's notation but without fractions of a second."""
    return run.started_utc[:MAX_DATE_LENGTH]


def percent(ratio: float | None) -> str:
    """Returns a ratio as a percentage such as `+3.05`. Returns `?` for an infinite ratio and `-` for None."""
    if ratio is None:
        return "-"
    return f"{100 * ratio:+.2f}" if math.isfinite(ratio) else "?"


def number(value: float) -> str:
    """Returns a value above 0 with four or more significant digits. tables.number() is too coarse for intervals."""
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _row(outcome: SeriesOutcome) -> tuple[str, ...]:
    series, judged, known = outcome.series, outcome.judged, outcome.judgement
    begin = (series.name, when(series.runs[0]))

    def figure(cost: float) -> str:
        text = number(series.figure(cost))
        return tables.with_unit(text, series.runs[0].unit) if series.metric == COST else text

    if judged is None or known is None:
        count = len(series.runs)
        last = figure(series.costs[-1])
        return *begin, str(count), "-", last, "-", "-", "-", "closed" if series.closed else NOT_JUDGED
    low, high = (number(series.figure(end)) if math.isfinite(end) else "?" for end in (known.high, known.low))
    return (
        *begin,
        str(known.earlier),
        "-" if known.median is None else figure(known.median),
        figure(series.costs[judged]),
        f"{low} .. {high}",
        f"{percent(known.slowdown)} [{percent(known.slowdown_low)}, {percent(known.slowdown_high)}]",
        f"{100 * known.threshold:g}",
        known.verdict.value,
    )


def rows(outcomes: Sequence[SeriesOutcome]) -> list[tuple[str, ...]]:
    """Returns one tuple of strings per series, in the order of header()."""
    return [_row(outcome) for outcome in outcomes]


def opening(differences: Sequence[Difference]) -> str:
    """Returns one line about the differences that opened a new series."""
    shown = [f"{d.key}: '{d.first}' -> '{d.second}'" for d in differences[:SHOWN_DIFFERENCES]]
    more = len(differences) - len(shown)
    words = "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
    return words or "another fingerprint, and no recorded fact says why"


def _why(known: NewestJudgement) -> str:
    """Returns the reason why a session is INCONCLUSIVE."""
    if known.missing:
        sessions = "session" if known.earlier == 1 else "sessions"
        return f"{known.earlier} earlier {sessions}, and a verdict needs {known.missing} more"
    if known.slowdown is not None and known.slowdown > known.threshold:
        return "slower than tolerated, but earlier sessions spread so much that this may be chance"
    return (
        f"the earlier sessions spread so much that a slowdown of {100 * known.slowdown_high:.2f} % cannot be ruled out"
    )


def _change(series: Series, change: Change) -> str:
    run = series.runs[change.index]
    value, low, high = map(percent, change.growth)
    return f"change point: cost {value} % [{low}, {high}] since {when(run)}, run {run.short_id}, not expected"


def expectation(entry: Expected) -> str:
    """Returns one line about an expected change."""
    return f"expected since {entry.since}: {entry.reason}{f' (accepted {entry.accepted})' if entry.accepted else ''}"


def details(outcome: SeriesOutcome) -> list[str]:
    """Returns lines about one series: why it was opened, expected changes, change points, the reason of its verdict."""
    series, known = outcome.series, outcome.judgement
    lines = [ANY_RECORDING] if series.runs[0].replay == UNKNOWN else []
    lines += [] if series.opened is None else [f"a new series: {opening(series.opened)}"]
    lines += [expectation(entry) for index in sorted(series.begins) for entry in series.begins[index]]
    lines += [_change(series, change) for change in outcome.changes or []]
    if known is None:
        return lines
    lines += [f"threshold: {outcome.reason}"] if outcome.reason else []
    if known.verdict is Verdict.INCONCLUSIVE:
        lines.append(f"INCONCLUSIVE: {_why(known)}")
    if math.isfinite(known.slowdown_high) and known.slowdown_high < 0:
        lines.append("faster than its prediction interval; if that is to stay, --accept judges later sessions by it")
    return lines


def without_ruptures() -> str:
    """Returns one line that says which package to install so that change points are found."""
    return (
        f"change points: not looked for, since Python {platform.python_version()} ({sys.executable}) has no module "
        "ruptures: install hvdb[history] or ruptures for it (pip), or name another Python (HVD_PYTHON)"
    )


def text(report: Report) -> str:
    """Returns the report for a terminal, made printable."""
    lines = ["", *notes(report.metric)]
    for outcome in report.outcomes:
        about = details(outcome)
        lines += ["", f"{outcome.series.name}, since {when(outcome.series.runs[0])}:"] if about else []
        lines += [f"  {line}" for line in about]
    lines += ["", *report.notes]
    lines += [] if change_points.available() else [without_ruptures()]
    lines.append(summary("history", report.verdicts))
    return "\n".join([tables.text_table(header(report.metric), rows(report.outcomes)), *map(printable.terminal, lines)])


def _judgement(series: Series, index: int, known: NewestJudgement, reason: str) -> dict[str, Any]:
    ends = (known.high, known.low)  # in this order, because the highest cost gives the lowest figure
    return {
        "run": series.runs[index].uuid,
        "verdict": known.verdict.value,
        "threshold": known.threshold,
        "reason": reason,
        "earlier": known.earlier,
        "missing": known.missing,
        "median": None if known.median is None else series.figure(known.median),
        "newest": series.figure(series.costs[index]),
        "prediction_interval": [None if math.isinf(end) else series.figure(end) for end in ends],
        "slowdown": known.slowdown,
        "low": finite(known.slowdown_low),
        "high": finite(known.slowdown_high),
        "p_worse": known.p_worse,
        "p_fine": known.p_fine,
    }


def _changes(outcome: SeriesOutcome) -> list[dict[str, Any]] | None:
    if outcome.changes is None:
        return None
    rows = []
    for change in outcome.changes:
        run = outcome.series.runs[change.index]
        value, low, high = change.growth
        where = {"run": run.uuid, "started_utc": run.started_utc}
        rows.append({**where, "growth": value, "low": finite(low), "high": finite(high)})
    return rows


def _series(outcome: SeriesOutcome) -> dict[str, Any]:
    series = outcome.series
    return {
        "series": series.name,
        "fingerprint": series.runs[0].fingerprint,
        "closed": series.closed,
        "opened": None if series.opened is None else [dataclasses.asdict(difference) for difference in series.opened],
        "sessions": [
            {"run": run.uuid, "started_utc": run.started_utc, "value": series.figure(cost)}
            for run, cost in zip(series.runs, series.costs, strict=True)
        ],
        "expected": [
            {"run": series.runs[index].uuid, **dataclasses.asdict(entry)}
            for index in sorted(series.begins)
            for entry in series.begins[index]
        ],
        "change_points": _changes(outcome),
        "judgement": None
        if outcome.judged is None or outcome.judgement is None
        else _judgement(series, outcome.judged, outcome.judgement, outcome.reason),
    }


def json_text(report: Report) -> str:
    """Returns the report as JSON (results/history.schema.json). An infinite end of an interval becomes null."""
    document = {
        "format": "hvdb-history",
        "version": FORMAT_VERSION,
        "metric": report.metric,
        "exit_code": report.exit_code,
        "alpha": verdict.ALPHA,
        "series": [_series(outcome) for outcome in report.outcomes],
        "notes": list(report.notes),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
