"""Plots series of sessions in the order of time, with prediction intervals, change points and expected changes.

Each configuration has a panel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from hvdb.base import printable
from hvdb.judge.expected import moment
from hvdb.judge.history import SeriesOutcome
from hvdb.judge.thresholds import COST
from hvdb.judge.verdict import Verdict
from hvdb.read.runs import Run, grouped
from hvdb.show import figure, history_report

WIDTH, PANEL_HEIGHT = 11.5, 3.1  # inches
HEAD, FOOT = 0.95, 0.75
MAX_DATES = 6
MAX_NOTED = 12  # maximum notes in one panel
# Colour and marker of the series of a panel. After the last pair of this list, the first pair is used again.
SERIES_LOOKS = ((figure.BLUE, "o"), (figure.PURPLE, "s"), (figure.GREEN, "^"), (figure.SKY, "D"))
VERDICT_LOOKS = {
    Verdict.PASS: (figure.GREEN, "*"),
    Verdict.REGRESSION: (figure.VERMILION, "X"),
    Verdict.INCONCLUSIVE: (figure.ORANGE, "P"),
}


class _Panel:
    """The panel of one configuration. On the x axis, the sessions of the configuration are numbered by time."""

    def __init__(self, axes: Axes, outcomes: Sequence[SeriesOutcome]) -> None:
        self.axes = axes
        runs = sorted((run for outcome in outcomes for run in outcome.series.runs), key=moment)
        self.places = {run.uuid: place for place, run in enumerate(runs)}
        self.noted = 0
        for number, outcome in enumerate(outcomes):
            self._series(outcome, number)
        self._dates(runs)
        axes.set_title(printable.label(outcomes[0].series.name))
        metric = outcomes[0].series.metric
        axes.set_ylabel(printable.label(f"{runs[0].unit}/s") if metric == COST else "efficiency, %")
        axes.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handletextpad=0.4)

    def _series(self, outcome: SeriesOutcome, number: int) -> None:
        series = outcome.series
        at = np.array([self.places[run.uuid] for run in series.runs])
        figures = np.array([series.figure(cost) for cost in series.costs])
        colour, marker = SERIES_LOOKS[number % len(SERIES_LOOKS)]
        name = f"series {number + 1}{', closed' if series.closed else ''}"
        self.axes.plot(at, figures, marker, color=colour, markersize=4, alpha=0.85, label=name)
        if series.opened is not None:
            keys = ", ".join(difference.key for difference in series.opened[:2]) or "fingerprint"
            self._mark(at[0], f"new series: {keys}", figure.INK, "-")
        for index, entries in sorted(series.begins.items()):
            self._mark(at[index], f"expected: {entries[-1].reason}", figure.MUTED, ":")
        for change in outcome.changes or []:
            self._mark(at[change.index], f"cost {history_report.percent(change.growth[0])} %", figure.VERMILION, "--")
        self._judged(outcome, at, figures)

    def _mark(self, place: int, words: str, colour: str, line: str) -> None:
        self.axes.axvline(place - 0.5, color=colour, linestyle=line, linewidth=1)
        if self.noted < MAX_NOTED:
            text = printable.terminal(words)
            shown = printable.label(text if len(text) <= 34 else f"{text[:33]}…")
            height = 0.97 - 0.09 * (self.noted % 4)
            late = place > 0.75 * len(self.places)
            self.axes.text(
                place - (0.6 if late else 0.4),
                height,
                shown,
                transform=self.axes.get_xaxis_transform(),
                fontsize=7.5,
                color=colour,
                ha="right" if late else "left",
                va="top",
            )
        self.noted += 1

    def _judged(self, outcome: SeriesOutcome, at: np.ndarray, figures: np.ndarray) -> None:
        known, index, series = outcome.judgement, outcome.judged, outcome.series
        if known is None or index is None:
            return
        colour, marker = VERDICT_LOOKS[known.verdict]
        self.axes.plot(at[index], figures[index], marker, color=colour, markersize=12, label=known.verdict.value)
        if known.median is None:
            return
        span = [at[series.segment_begin(index)] - 0.4, at[index] + 0.4]
        self.axes.plot(span, [series.figure(known.median)] * 2, color=figure.INK, linewidth=0.8, label="median")
        tolerated = series.figure(known.median + math.log1p(known.threshold))
        limit = f"{100 * known.threshold:g} % slower"
        self.axes.plot(span, [tolerated] * 2, color=figure.INK, linewidth=0.8, linestyle="-.", label=limit)
        if math.isfinite(known.low):
            ends = series.figure(known.high), series.figure(known.low)
            self.axes.fill_between(
                span, *ends, color=figure.ORANGE, alpha=0.2, linewidth=0, label="prediction interval"
            )

    def _dates(self, runs: Sequence[Run]) -> None:
        places = np.unique(np.linspace(0, len(runs) - 1, min(MAX_DATES, len(runs))).astype(int))
        self.axes.set_xticks(places, [printable.label(runs[place].started_utc[:10]) for place in places])
        self.axes.set_xlim(-1, len(runs))
        self.axes.margins(y=0.3)


def draw(outcomes: Sequence[SeriesOutcome], path: Path) -> Path:
    """Writes the figure to `path` (.png or .svg) and returns `path`. Errors: those of figure.save()."""
    panels = grouped(outcomes, lambda outcome: outcome.series.name)
    height = HEAD + FOOT + PANEL_HEIGHT * len(panels)
    fig, axes = figure.new(len(panels), 1, WIDTH, height)
    fig.subplots_adjust(left=0.075, right=0.83, top=1 - HEAD / height, bottom=FOOT / height, hspace=0.42)
    for (panel,), members in zip(axes, panels.values(), strict=True):
        _Panel(panel, members)
    figure.headline(
        fig,
        "Sessions in the order of time",
        "a session each point; dashed: a change point, by how much the cost per image grew; dotted: an expected change",
    )
    runs = sorted((run for outcome in outcomes for run in outcome.series.runs), key=moment)
    return figure.save(fig, path, "hvd_bench: history", [run.uuid for run in runs])
