"""Plots the losses of efficiency as a waterfall from 100 % to the measured efficiency. Each full run has a panel."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from hvdb.base import printable
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import Estimate
from hvdb.read.runs import Component, Run
from hvdb.show import figure, tables

# Component -> colour, in the order of the waterfall's bars from left to right. The bar 'efficiency' follows at the end.
STEPS = {
    "interference": figure.ORANGE,
    "stragglers": figure.PURPLE,
    "exposed_communication": figure.VERMILION,
    "control_plane": figure.SKY,
    "overlap_slowdown": figure.YELLOW,
    "update": figure.GREEN,
    "residual": figure.MUTED,
}


def levels(run: Run) -> list[tuple[str, float, float]]:
    """Returns (component, from %, to %) of each bar of the waterfall, from left to right.

    The fractions of a decomposition and the efficiency sum to 1, so the waterfall ends exactly at the efficiency.
    """
    height = 100.0
    fall = []
    # Unknown components are drawn before the residual, so that the bars end at the efficiency.
    unknown = [name for name in run.decomposition if name not in STEPS and name != "efficiency"]
    for name in [*list(STEPS)[:-1], *unknown, "residual"]:
        part = run.decomposition.get(name)
        if part is None:
            continue
        fall.append((name, height, height - 100.0 * part.fraction))
        height -= 100.0 * part.fraction
    return fall


def amount(percent: float, milliseconds: float) -> str:
    """Returns the loss of a part as text, in % of the step and in ms. As in hvd_bench's table, a gain is negative."""
    shown = f"{percent:.1f}"
    return f"{'0.0' if float(shown) == 0 else shown}\n{round(milliseconds) + 0} ms"


def reached_text(part: Component) -> str:
    """Returns the efficiency as text: `97.6 %`, or in short lines that it is not resolved."""
    reached = Estimate(part.fraction, part.low, part.high)
    if efficiency.resolved(reached):
        return f"{100 * part.fraction:.1f} %"
    return "\n".join(textwrap.wrap(efficiency.unresolved(reached), 13))


def tick(component: str) -> str:
    """Returns the component's name as hvd_bench prints it, but broken into short lines."""
    name = tables.COMPONENTS.get(component) or printable.terminal(component).replace("_", " ")
    return "\n".join(map(printable.label, textwrap.wrap(name, 13)))


def _panel(axes: Axes, run: Run) -> None:
    fall = levels(run)
    axes.bar(0, 100, color=figure.FAINT, width=0.72)
    labels = ["ideal"]
    figure.note(axes, "100", (0, 100), (0, 4), ha="center", fontsize=8.5)
    lowest = highest = 100.0
    for position, (name, above, below) in enumerate(fall, start=1):
        colour = STEPS.get(name, figure.INK)
        part = run.decomposition[name]
        axes.plot([position - 1.36, position + 0.36], [above, above], color=figure.MUTED, linewidth=0.8)
        ink = figure.MUTED if part.unresolved else figure.INK
        if part.unresolved:  # has no bar, but changes the level, so that the bars end at the efficiency
            axes.plot([position, position], [above, below], color=figure.MUTED, linewidth=0.8)
        else:
            axes.bar(position, below - above, bottom=above, color=colour, width=0.72)
        if part.low is not None and part.high is not None:
            error = [[max(0.0, 100 * (part.high - part.fraction))], [max(0.0, 100 * (part.fraction - part.low))]]
            axes.errorbar(position, below, yerr=error, color=ink, capsize=3, linewidth=1)
        top = max(above, below, below + 100 * max(0.0, part.fraction - (part.low or part.fraction)))
        lost = "not\nresolved" if part.unresolved else amount(100 * part.fraction, 1000 * part.seconds)
        figure.note(axes, lost, (position, top), (0, 4), ha="center", fontsize=8, color=ink)
        highest = max(highest, top)
        lowest = min(lowest, below, below - 100 * max(0.0, (part.high or part.fraction) - part.fraction))
        labels.append(tick(name))
    reached = run.decomposition["efficiency"]
    axes.plot(
        [len(fall) - 0.36, len(fall) + 1.36], [fall[-1][2] if fall else 100] * 2, color=figure.MUTED, linewidth=0.8
    )
    axes.bar(len(fall) + 1, 100 * reached.fraction, color=figure.BLUE, width=0.72)
    at = (len(fall) + 1, 100 * reached.fraction)
    figure.note(axes, reached_text(reached), at, (0, 4), ha="center", fontweight="bold", color=figure.BLUE)
    labels.append(tick("efficiency"))
    axes.set_xticks(range(len(labels)), labels, rotation=0, fontsize=7)
    axes.grid(axis="x", visible=False)
    # The axis does not start at 0, so that small losses are visible. The label of the axis says where it starts.
    floor = max(0.0, 10.0 * ((min(lowest, 100 * reached.fraction) - 8) // 10))
    axes.set_ylim(floor, highest + 0.18 * (highest - floor))
    step = 1000.0 * run.step_seconds if run.step_seconds is not None else None
    timing = f", step {step:.0f} ms" if step is not None else ""
    words = [tables.title(run.model), f"{run.world_size} ranks", *tables.marks(run.columns)]
    axes.set_title(printable.label(", ".join(words)), pad=16)
    axes.text(
        0,
        1.02,
        printable.label(f"{run.compute_type}, batch {run.batch_size}, {run.schedule}, {run.comm}{timing}"),
        transform=axes.transAxes,
        fontsize=8.5,
        color=figure.MUTED,
    )
    axes.set_ylabel("% of the step" + (f" (axis starts at {floor:.0f})" if floor else ""))


def draw(runs: Sequence[Run], path: Path) -> Path:
    """Writes the figure to `path` and returns `path`. runs: one or more, each with a part 'efficiency'."""
    columns = 2 if len(runs) > 1 else 1
    rows = -(-len(runs) // columns)
    width = 7.3 * columns if columns > 1 else 8.6
    subtitle = textwrap.wrap(
        "From the ideal (one rank's speed on every rank) down to what was reached; bars: 95 % interval of each part."
        " Numbers: lost, in % of the step and in ms; what is negative is a gain. Not resolved: the interval holds 0.",
        int(13 * width),
    )
    head = 1.15 + 0.17 * (len(subtitle) - 1)  # `head` and `foot` are in inches
    foot = 0.75
    height = 3.7 * rows - 0.9 + head + foot
    fig, axes = figure.new(rows, columns, width, height)
    panels = [panel for row in axes for panel in row]
    for panel, run in zip(panels, runs, strict=False):
        _panel(panel, run)
    for panel in panels[len(runs) :]:
        panel.set_visible(False)
    figure.headline(fig, "Where the efficiency goes", "\n".join(subtitle))
    fig.subplots_adjust(
        left=0.06 if columns > 1 else 0.1,
        right=0.985,
        top=1 - head / height,
        bottom=foot / height,
        hspace=0.42,
        wspace=0.14,
    )
    return figure.save(fig, path, "hvd_bench: decomposition of the loss of efficiency", [run.uuid for run in runs])
