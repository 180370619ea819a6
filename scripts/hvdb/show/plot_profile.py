"""Plots a per-layer profile: operations in execution order, the time of each kind, and the costliest operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from hvdb.base import printable
from hvdb.read.layer_profile import library_fraction, rate, shares
from hvdb.read.runs import Operation, Run
from hvdb.show import figure, tables

SHOWN_KINDS = 7
SHOWN_OPERATIONS = 14
# The upper panel shows moving averages over this fraction of the step, at so many moments, and names some operations.
AVERAGED, MOMENTS, NAMED_MOMENTS, OTHER = 0.04, 400, 7, "other"
# Matches the module in the name of an operation: "a.conv" in "a.conv.backward_data" and in "a.conv+a.relu".
MODULE = re.compile(r".*?(?=\+|[._](?:backward|accumulate|weight)|$)", re.DOTALL)
KIND_COLOURS = (figure.BLUE, figure.ORANGE, figure.GREEN, figure.VERMILION, figure.SKY, figure.PURPLE, figure.YELLOW)


def label(name: str, longest: int = 30) -> str:
    """Returns the name of an operation in readable form ('fc bwd data' for 'fc.backward_data').

    Leaves out the middle of a name of more than `longest` characters.
    """
    name = printable.terminal(name)
    for long, short in (("backward_weights", "bwd weights"), ("backward_data", "bwd data"), ("backward", "bwd")):
        name = name.replace(f"_{long}", f" {short}").replace(f".{long}", f" {short}")
    name = name.replace("softmax_cross_entropy", "softmax loss").replace("_", " ")
    half = (longest - 1) // 2
    return printable.label(name if len(name) <= longest else f"{name[:half]}…{name[-half:]}")


def _timeline(axes: Axes, operations: Sequence[Operation], colours: dict[str, str]) -> None:
    """Draws which share of the time each kind takes around each moment of the step. Ticks at the top name modules."""
    ends = np.concatenate([[0.0], np.cumsum([1e3 * o.seconds for o in operations])])
    total = ends[-1]
    moments = np.linspace(0, total, MOMENTS)
    begin, end = (np.clip(moments + side * AVERAGED / 2 * total, 0, total) for side in (-1, 1))
    shares = []
    for kind in colours:
        kinds = (o.kind if o.kind in colours else OTHER for o in operations)
        spent = [1e3 * o.seconds * (of == kind) for o, of in zip(operations, kinds, strict=True)]
        so_far = np.concatenate([[0.0], np.cumsum(spent)])
        shares.append(100 * (np.interp(end, ends, so_far) - np.interp(begin, ends, so_far)) / (end - begin))
    axes.stackplot(moments, shares, colors=list(colours.values()), linewidth=0)
    axes.set(xlim=(0, total), ylim=(0, 100), ylabel="share of the time, %")
    axes.set_xlabel(f"ms since the step began; average over {100 * AVERAGED:g} % of the step", loc="left")
    axes.grid(visible=False)
    places = (np.arange(NAMED_MOMENTS) + 0.5) / NAMED_MOMENTS * total
    running = (operations[min(int(np.searchsorted(ends, at)), len(operations)) - 1].node for at in places)
    names = [label(MODULE.match(node)[0], 17) for node in running]
    axes.secondary_xaxis("top").set_xticks(places, names, fontsize=7.5)


def _bars(axes: Axes, labels: list[str], seconds: list[float], colours: list[str], notes: list[str]) -> None:
    positions = np.arange(len(labels))[::-1]
    axes.barh(positions, [1e3 * value for value in seconds], color=colours, height=0.74)
    axes.set_yticks(positions, labels, fontsize=8)
    axes.set_xlim(0, 1e3 * max(seconds) * 1.5)
    axes.set_xlabel("ms per step")
    axes.grid(axis="y", visible=False)
    for position, value, note in zip(positions, seconds, notes, strict=True):
        figure.note(axes, note, (1e3 * value, position), (4, 0), va="center", fontsize=8, color=figure.MUTED)


def draw(run: Run, path: Path) -> Path:
    """Writes the figure of a profiled run to `path` and returns `path`. layer_profile.takes_time(run) must be true."""
    operations = [o for o in run.operations if o.seconds > 0]
    total = sum(o.seconds for o in operations)
    kinds = shares(operations)
    colours = {share.kind: colour for share, colour in zip(kinds, KIND_COLOURS, strict=False)}
    colours |= {OTHER: figure.FAINT} if len(kinds) > len(KIND_COLOURS) else {}
    fig = figure.plt.figure(figsize=(11.5, 8.4))
    grid = fig.add_gridspec(
        2, 2, height_ratios=(1.0, 1.35), left=0.19, right=0.935, top=0.86, bottom=0.095, hspace=0.34, wspace=0.8
    )
    timeline, by_kind, costliest = (fig.add_subplot(cell) for cell in (grid[0, :], grid[1, 0], grid[1, 1]))
    _timeline(timeline, operations, colours)
    fig.legend(
        handles=[Patch(color=c, label=label(k)) for k, c in colours.items()],
        ncol=len(colours),
        loc="lower left",
        bbox_to_anchor=(0.004, 0.893),
        handlelength=1,
        columnspacing=1.2,
    )
    listed = kinds[: SHOWN_KINDS + 3]
    _bars(
        by_kind,
        [f"{label(s.kind)}  x{s.count}" for s in listed],
        [s.seconds for s in listed],
        [colours.get(s.kind, figure.FAINT) for s in listed],
        [f"{100 * s.seconds / total:.1f} %  {rate(s.flops, s.bytes, s.seconds)}" for s in listed],
    )
    by_kind.set_title("by kind of operation")
    top = sorted(operations, key=lambda o: -o.seconds)[:SHOWN_OPERATIONS]
    _bars(
        costliest,
        [label(o.node) for o in top],
        [o.seconds for o in top],
        [colours.get(o.kind, figure.FAINT) for o in top],
        [f"{100 * o.seconds / total:.1f} %  {rate(o.flops, o.bytes, o.seconds)}" for o in top],
    )
    costliest.set_title("the costliest operations")
    flops = sum(o.flops for o in operations)
    figure.headline(
        fig,
        f"{printable.label(tables.title(run.model))}: where a step's compute time goes",
        f"{printable.label(run.compute_type)}, batch {run.batch_size}, image {run.image_size}, "
        f"{run.threads} thread(s); "
        f"{len(operations)} operations, {1e3 * total:.0f} ms, {rate(flops, 0.0, total)}; "
        f"{100 * library_fraction(operations):.1f} % inside the library's primitives. Profiled: slower than untraced.",
    )
    return figure.save(fig, path, f"hvd_bench: per-layer profile of {run.model}", [run.uuid])
