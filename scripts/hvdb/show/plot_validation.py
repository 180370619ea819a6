"""Plots predicted against measured step times of held-out runs, with bands and intervals. A kind of cell is a panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hvdb.read.predictions import KINDS, HeldOut, Validation
from hvdb.show import figure

TITLES = {
    "calibrated": "worlds that were measured",
    "beyond": "worlds beyond the measured ones",
    "compute": "real training on one machine",
}
WIDTH, HEIGHT = 5.2, 5.6  # of a panel and of the figure, in inches
INSIDE = {"marker": "o", "color": figure.BLUE, "markersize": 4.5}
OUTSIDE = {"marker": "s", "color": figure.VERMILION, "markersize": 5.5, "markerfacecolor": "white"}


def _error(times: Sequence[float], cells: Sequence[HeldOut]) -> float:
    """Returns the median error of predicted times in %."""
    return 100 * float(np.median([abs(t / c.measured.middle - 1) for t, c in zip(times, cells, strict=True)]))


def summary(cells: Sequence[HeldOut]) -> str:
    """Returns coverage and median error, and the error of the best trivial predictor that all cells have."""
    inside = sum(cell.is_inside for cell in cells)
    said = (
        f"{inside} of {len(cells)} in the band; median error {_error([c.predicted.middle for c in cells], cells):.1f} %"
    )
    names = set.intersection(*(set(cell.trivial) for cell in cells))
    if names:
        said += f" (best trivial: {min(_error([c.trivial[name] for c in cells], cells) for name in names):.1f} %)"
    return said


def _panel(axes: Axes, cells: Sequence[HeldOut]) -> None:
    for cell in cells:
        style = INSIDE if cell.is_inside else OUTSIDE
        low, middle, high = (1e3 * x for x in (cell.predicted.low, cell.predicted.middle, cell.predicted.high))
        measured = 1e3 * cell.measured.middle
        axes.vlines(measured, low, high, color=style["color"], linewidth=1.6, alpha=0.45)
        axes.hlines(middle, 1e3 * cell.measured.low, 1e3 * cell.measured.high, color=style["color"], linewidth=0.8)
        axes.plot(measured, middle, linestyle="none", zorder=3, **style)
    ends = [1e3 * x for c in cells for x in (c.predicted.low, c.predicted.high, c.measured.low, c.measured.high)]
    reach = (min(ends) / 1.1, max(ends) * 1.1)
    axes.plot(reach, reach, linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=reach, ylim=reach, xlabel="measured step, ms")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw(validation: Validation, path: Path) -> Path:
    """Writes the figure to `path` (.png or .svg) and returns `path`. Errors: those of figure.write()."""
    kinds = [kind for kind in KINDS if any(cell.kind == kind for cell in validation.cells)]
    width = WIDTH * len(kinds) + 0.6
    fig, axes = figure.new(1, len(kinds), width, HEIGHT)
    fig.subplots_adjust(left=0.75 / width, right=0.98, top=0.78, bottom=0.2, wspace=0.2)
    for axis, kind in zip(axes[0], kinds, strict=True):
        cells = [cell for cell in validation.cells if cell.kind == kind]
        _panel(axis, cells)
        axis.set_title(f"{TITLES[kind]}\n", pad=4)
        axis.text(0, 1.015, summary(cells), transform=axis.transAxes, fontsize=8.5, color=figure.MUTED)
    axes[0][0].set_ylabel("PREDICTED step, ms")
    handles = {"measured in the predicted band": INSIDE, "measured outside of it": OUTSIDE}
    lines = [Line2D([], [], linestyle="none", **style) for style in handles.values()]
    lines.append(Line2D([], [], linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED))
    fig.legend(lines, [*handles, "equal"], loc="lower left", bbox_to_anchor=(0.005, 0.05), ncol=3)
    subtitle = "Held-out runs. Vertical bars: predicted band; horizontal bars: interval of the measured time."
    figure.headline(fig, "PREDICTED against measured step time", subtitle)
    source = f"from {validation.file.name}"
    about = "hvd_bench: predicted against measured step time"
    return figure.write(fig, path, about, source, f"{source}, SHA-256 {validation.sha256}")
