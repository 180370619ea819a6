"""Plots predicted against measured step times of held-out runs, with bands and intervals. A kind of cell is a panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hvdb.show import figure
from validation.held_out import KINDS, HeldOut, Validation

# Each gets the numbers of ranks. A node of a shaped network has one rank.
TITLES = {
    "calibrated": "{} nodes, on which training was measured before",
    "beyond": "{} nodes, more than were measured before",
    "compute": "{} ranks of one machine, real training",
}
WIDTH, HEIGHT = 5.2, 5.6  # of a panel and of the figure, in inches
INSIDE = {"marker": "o", "color": figure.BLUE, "markersize": 4.5}
OUTSIDE = {"marker": "s", "color": figure.VERMILION, "markersize": 5.5, "markerfacecolor": "white"}


def _error(times: Sequence[float], cells: Sequence[HeldOut]) -> float:
    """Returns the median error of predicted times in %."""
    return 100 * float(np.median([abs(t / c.measured.value - 1) for t, c in zip(times, cells, strict=True)]))


def summary(cells: Sequence[HeldOut]) -> str:
    """Returns lines: coverage and median error, the error of the best trivial predictor that all cells have, and the
    coverage at each rate if there are several."""
    held = sum(cell.is_inside for cell in cells)
    error = _error([cell.predicted.value for cell in cells], cells)
    lines = [f"{held} of {len(cells)} in the band; median error {error:.1f} %"]
    names = set.intersection(*(set(cell.trivial) for cell in cells))
    if names:
        best = min(_error([cell.trivial[name] for cell in cells], cells) for name in names)
        lines.append(f"best guess from the session alone: median error {best:.1f} %")
    rates = sorted({cell.rate_mbit for cell in cells})
    if len(rates) > 1:
        by_rate = ([cell.is_inside for cell in cells if cell.rate_mbit == rate] for rate in rates)
        counts = ", ".join(f"{sum(mine)} of {len(mine)}" for mine in by_rate)
        lines.append(f"at {', '.join(f'{rate:g}' for rate in rates)} Mbit/s: {counts}")
    return "\n".join(lines)


def _panel(axes: Axes, cells: Sequence[HeldOut]) -> None:
    for cell in cells:
        style = INSIDE if cell.is_inside else OUTSIDE
        low, middle, high = (1e3 * x for x in (cell.predicted.low, cell.predicted.value, cell.predicted.high))
        measured = 1e3 * cell.measured.value
        axes.vlines(measured, low, high, color=style["color"], linewidth=1.6, alpha=0.45)
        axes.hlines(middle, 1e3 * cell.measured.low, 1e3 * cell.measured.high, color=style["color"], linewidth=0.8)
        axes.plot(measured, middle, linestyle="none", zorder=3, **style)
    ends = [1e3 * x for c in cells for x in (c.predicted.low, c.predicted.high, c.measured.low, c.measured.high)]
    reach = (min(ends) / 1.1, max(ends) * 1.1)
    axes.plot(reach, reach, linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=reach, ylim=reach, xlabel="measured step, ms")
    for axis in (axes.xaxis, axes.yaxis):
        figure.round_log_ticks(axis, *reach)


def draw(validations: Sequence[Validation], path: Path) -> Path:
    """Writes the figure of the cells of all records to `path` (.png or .svg) and returns `path`. Errors: those of
    figure.write()."""
    every = [cell for validation in validations for cell in validation.cells]
    kinds = [kind for kind in KINDS if any(cell.kind == kind for cell in every)]
    width = WIDTH * len(kinds) + 0.6
    fig, axes = figure.new(1, len(kinds), width, HEIGHT)
    fig.subplots_adjust(left=0.75 / width, right=0.98, top=0.74, bottom=0.2, wspace=0.2)
    for axis, kind in zip(axes[0], kinds, strict=True):
        cells = [cell for cell in every if cell.kind == kind]
        _panel(axis, cells)
        said = summary(cells)
        ranks = " and ".join(map(str, sorted({cell.ranks for cell in cells})))
        axis.set_title(TITLES[kind].format(ranks) + "\n" * said.count("\n") + "\n", pad=4)
        axis.text(0, 1.015, said, transform=axis.transAxes, fontsize=8.5, color=figure.MUTED)
    axes[0][0].set_ylabel("PREDICTED step, ms")
    handles = {"measured in the predicted band": INSIDE, "measured outside of it": OUTSIDE}
    lines = [Line2D([], [], linestyle="none", **style) for style in handles.values()]
    lines.append(Line2D([], [], linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED))
    fig.legend(lines, [*handles, "equal"], loc="lower left", bbox_to_anchor=(0.005, 0.05), ncol=3)
    subtitle = "Held-out runs. Vertical bars: predicted band; horizontal: measured interval."
    figure.headline(fig, "PREDICTED against measured step time", subtitle)
    several = len(validations) > 1  # records often have one name, in different folders
    names = [f"{v.file.absolute().parent.name}/{v.file.name}" if several else v.file.name for v in validations]
    hashed = ", ".join(f"{name}, SHA-256 {v.sha256}" for name, v in zip(names, validations, strict=True))
    about = "hvd_bench: predicted against measured step time"
    return figure.write(fig, path, about, f"from {', '.join(names)}", f"from {hashed}")
