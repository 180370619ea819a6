"""Plots the losses of efficiency as a waterfall from 100 % to the measured efficiency. Each full run has a panel.

All panels have the same rows and the same axis. Parts that are 0 or not resolved in every run share the row REST.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from hvdb.base import printable
from hvdb.judge import comparable, efficiency
from hvdb.read.runs import Component, Run
from hvdb.show import figure, tables

# Component -> colour, in the order of the rows from top to bottom. The row 'efficiency' follows at the end.
STEPS = {
    "interference": figure.ORANGE,
    "input": figure.BROWN,
    "stragglers": figure.PURPLE,
    "exposed_communication": figure.VERMILION,
    "control_plane": figure.SKY,
    "overlap_slowdown": figure.YELLOW,
    "update": figure.GREEN,
    "residual": figure.MUTED,
}
REST = "0 or not resolved"
COLUMNS, PANEL_WIDTH, ROW_HEIGHT, NAMES_WIDTH = 3, 3.9, 0.36, 2.0  # panels in a row; inches


def is_seen(part: Component) -> bool:
    """Returns True if the part is resolved and not shown as 0.0 %."""
    return not part.unresolved and f"{abs(100 * part.fraction.value):.1f}" != "0.0"


def rows(runs: Sequence[Run]) -> list[str]:
    """Returns the components that is_seen() in one of the runs, in the order of the rows."""
    # Unknown components are drawn before the residual.
    names = [*list(STEPS)[:-1], *(name for run in runs for name in run.decomposition if name not in STEPS), "residual"]
    seen = {name for run in runs for name, part in run.decomposition.items() if is_seen(part)} - {"efficiency"}
    return [name for name in dict.fromkeys(names) if name in seen]


def levels(run: Run, names: Sequence[str]) -> list[tuple[str, float, float]]:
    """Returns (component, from %, to %) of each row of `names`, then of REST, which is all that is not seen.

    The fractions of a decomposition and the efficiency sum to 1, so the waterfall ends exactly at the efficiency.
    """
    seen = {name: part.fraction.value for name, part in run.decomposition.items() if name in names and is_seen(part)}
    lost = {name: seen.get(name, 0.0) for name in names}
    every = sum(part.fraction.value for name, part in run.decomposition.items() if name != "efficiency")
    lost[REST] = every - sum(lost.values())
    ends = 100.0 * (1.0 - np.cumsum([0.0, *lost.values()]))
    return [(name, float(above), float(below)) for name, above, below in zip(lost, ends, ends[1:], strict=False)]


def amount(percent: float, milliseconds: float) -> str:
    """Returns the loss of a part as text, in % of the step and in ms. As in hvd_bench's table, a gain is negative."""
    shown = f"{percent:.1f}"
    return f"{'0.0' if float(shown) == 0 else shown} %, {round(milliseconds) + 0} ms"


def reached_text(part: Component) -> str:
    """Returns the efficiency as text: `97.6 %`, or in short lines that it is not resolved."""
    if efficiency.resolved(part.fraction):
        return f"{100 * part.fraction.value:.1f} %"
    return "\n".join(textwrap.wrap(efficiency.unresolved(part.fraction), 20))


def tick(component: str) -> str:
    """Returns the component's name as hvd_bench prints it."""
    return printable.label(tables.COMPONENTS.get(component) or printable.terminal(component)[:26].replace("_", " "))


def _panel(axes: Axes, run: Run, names: Sequence[str]) -> tuple[float, float]:
    """Draws one run. Returns the lowest and the highest value drawn."""
    fall, reached = levels(run, names), run.decomposition["efficiency"]
    percent = 100 * reached.fraction.value
    axes.barh(0, 100, color=figure.FAINT, height=0.72)
    figure.note(axes, "100 %", (100, 0), (4, 0), va="center", fontsize=8.5)
    ends = [100.0, percent]
    for row, (name, above, below) in enumerate(fall, start=1):
        axes.plot([above, above], [row - 1.36, row + 0.36], color=figure.MUTED, linewidth=0.8)
        part = run.decomposition.get(name)
        if part is None or not is_seen(part):
            axes.barh(row, below - above, left=above, color=figure.FAINT, height=0.72)
            said = f"{above - below:.1f} %".replace("-0.0", "0.0") if name == REST else REST if part else ""
            figure.note(axes, said, (max(above, below), row), (4, 0), va="center", fontsize=8.5, color=figure.MUTED)
            continue
        axes.barh(row, below - above, left=above, color=STEPS.get(name, figure.INK), height=0.72)
        lost = part.fraction
        low, high = (below if end is None else below + 100 * (lost.value - end) for end in (lost.high, lost.low))
        if lost.known:
            whiskers = [[max(0.0, below - low)], [max(0.0, high - below)]]
            axes.errorbar(below, row, xerr=whiskers, color=figure.INK, capsize=3, linewidth=1)
        ends += [above, low, high]
        said = amount(100 * lost.value, 1000 * part.seconds)
        figure.note(axes, said, (max(above, below, high), row), (4, 0), va="center", fontsize=8.5)
    last = len(fall) + 1
    axes.plot([percent] * 2, [last - 1.36, last + 0.36], color=figure.MUTED, linewidth=0.8)
    axes.barh(last, percent, color=figure.BLUE, height=0.72)
    style = {"va": "center", "fontweight": "bold", "color": figure.BLUE}
    figure.note(axes, reached_text(reached), (percent, last), (4, 0), **style)
    timing = "" if run.step_seconds is None else f", step {1000.0 * run.step_seconds:.0f} ms"
    words = [tables.title(run.model), f"{run.world_size} ranks", *tables.marks(comparable.curve(run))]
    axes.set_title(printable.label(", ".join(words)), pad=16)
    size = f"batch {run.batch_size}" + (f", {run.image_size} px" if run.image_size else "")
    how = printable.label(f"{run.compute_type}, {size}, {run.schedule}, {run.comm}{timing}")
    axes.text(0, 1.02, how, transform=axes.transAxes, fontsize=8.5, color=figure.MUTED)
    return min(ends), max(ends)


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Writes the figure to `path` and returns `path`. runs: one or more, each with a part 'efficiency'."""
    columns = min(COLUMNS, len(runs))
    lines, names = -(-len(runs) // columns), rows(runs)
    labels = ["ideal", *map(tick, names), REST, tick("efficiency")]
    width = NAMES_WIDTH + (PANEL_WIDTH * columns if columns > 1 else 6.6)
    rest = [
        name for name in dict.fromkeys(tick(name) for run in runs for name in run.decomposition) if name not in labels
    ]
    subtitle = textwrap.wrap(
        "From the ideal (one rank's speed on every rank) down to what was reached. Numbers: lost, in % of the step and"
        " in ms; what is negative is a gain. Whiskers: 95 % interval of the part. Not resolved: that interval holds 0."
        + (f" Joined in one row: {', '.join(rest)}." if rest else ""),
        int(13 * width),
    )
    head = 1.15 + 0.17 * (len(subtitle) - 1)  # `head` and `foot` are in inches
    foot, gap, panel = 0.85, 0.95, ROW_HEIGHT * len(labels)
    height = panel * lines + gap * (lines - 1) + head + foot
    fig, axes = figure.new(lines, columns, width, height, sharex=True, sharey=True)
    panels = [axis for row in axes for axis in row]
    drawn = [_panel(axis, run, names) for axis, run in zip(panels, runs, strict=False)]
    lowest, highest = min(low for low, _ in drawn), max(high for _, high in drawn)
    # The axis does not start at 0, so that small losses are visible. The label of the axis says where it starts.
    floor = max(0.0, 10.0 * ((lowest - 4) // 10))
    room = 0.45 if columns > 1 else 0.25  # for the numbers, right of the bars
    panels[0].set(xlim=(floor, highest + room * (highest - floor)), ylim=(len(labels) - 0.4, -0.6))
    panels[0].set_yticks(range(len(labels)), labels)
    for place, axis in enumerate(panels):
        axis.grid(axis="y", visible=False)
        axis.tick_params(axis="y", length=0)
        axis.set_xticks([at for at in axis.get_xticks() if floor <= at <= highest])
        axis.set_visible(place < len(runs))
        if place + columns >= len(runs):
            axis.xaxis.set_tick_params(labelbottom=True)
            axis.set_xlabel("% of the step" + (f" (axis starts at {floor:.0f})" if floor else ""), loc="left")
    figure.headline(fig, "Where the efficiency goes", "\n".join(subtitle))
    inches = {"top": 1 - head / height, "bottom": foot / height, "hspace": gap / panel}
    fig.subplots_adjust(left=NAMES_WIDTH / width, right=0.985, wspace=0.08, **inches)
    return figure.save(fig, path, "hvd_bench: decomposition of the loss of efficiency", [run.uuid for run in runs])
