"""Plots time and bus bandwidth of collective operations against size: curves with intervals, and the bounds."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hvdb.base import printable
from hvdb.read.coll_results import Panel, Point, Series, bus_factor, bus_rate
from hvdb.show import figure

WIDTH, PANEL_HEIGHT = 11.5, 2.9  # inches
HEAD, FOOT, LEGEND_LINE, LEGEND_COLUMNS = 1.0, 0.9, 0.2, 4
# Each side has its own colour and marker, which are the same in all panels. After the last, the first are used again.
COLOURS = (*figure.CYCLE, "#8C4B1F", "#4B2E83", "#7F8F00", figure.MUTED, "#00727A", "#B0306A")
LOOKS = tuple(zip(COLOURS, ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*"), strict=True))
Look = tuple[str, str]
UNITS = ("", "K", "M", "G", "T", "P")

Value = Callable[[int, float], float]
"""(size in bytes, microseconds) -> the y value in the plot."""


def size_text(size: float) -> str:
    """Returns a number of bytes in the notation of nccl-tests, with binary units, such as 64K or 1.5M."""
    power = 0
    while size >= 1024 and power + 1 < len(UNITS):
        size, power = size / 1024, power + 1
    return f"{size:.3g}{UNITS[power]}"


def time_text(microseconds: float) -> str:
    """Returns a time with its unit, such as 10 µs or 0.1 s."""
    unit, scale = ("s", 1e6) if microseconds >= 1e5 else ("ms", 1e3) if microseconds >= 1e3 else ("µs", 1)
    return f"{microseconds / scale:g} {unit}"


def _line(axes: Axes, points: Sequence[Point], value: Value, look: Look) -> None:
    colour, marker = look
    sizes = [point.size for point in points]
    axes.plot(sizes, [value(p.size, p.time) for p in points], color=colour, linewidth=1.2, alpha=0.8)
    for settled in (True, False):
        some = [p for p in points if p.settled == settled]
        fill = colour if settled else "white"
        at, values = [p.size for p in some], [value(p.size, p.time) for p in some]
        axes.plot(at, values, marker, color=colour, markerfacecolor=fill, markersize=4.5)
    known = [(p.size, value(p.size, p.low), value(p.size, p.high)) for p in points if p.low and p.high]
    if known:
        axes.vlines(*zip(*known, strict=True), color=colour, linewidth=1.6, alpha=0.5)


def labels(panels: Mapping[Panel, Sequence[Series]], names: Mapping[int, str]) -> dict[tuple[str, int], str]:
    """Returns (name, source) of each side -> its label, with the file's name if a panel has two sides of one name."""
    every = itertools.chain(*panels.values())
    twice = {s.name for members in panels.values() for s in members if sum(o.name == s.name for o in members) > 1}
    return {(s.name, s.source): f"{names[s.source]}: {s.name}" if s.name in twice else s.name for s in every}


def _draw(axes: Axes, members: Sequence[Series], looks: Mapping[tuple[str, int], Look], value: Value) -> None:
    bounded: set[int] = set()  # sources whose bound was drawn; all sides of one source have the same bound
    several = len({series.source for series in members if any(p.bound for p in series.points)}) > 1
    for series in members:
        look = looks[series.name, series.source]
        points = sorted(series.points, key=lambda point: point.size)
        _line(axes, points, value, look)
        bound = [(p.size, value(p.size, p.bound)) for p in points if p.bound]
        if bound and series.source not in bounded:
            bounded.add(series.source)
            axes.plot(*zip(*bound, strict=True), "--", color=look[0] if several else figure.INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(size)))
    axes.set_xlabel("size, bytes")


def draw(
    panels: Mapping[Panel, Sequence[Series]], names: Mapping[int, str], machines: Sequence[str], path: Path
) -> Path:
    """Writes the figure of one operation to `path` (.png or .svg) and returns `path`. names: source -> label.

    Errors: those of figure.write().
    """
    sides = labels(panels, names)
    shown = dict(zip(dict.fromkeys(sides.values()), itertools.cycle(LOOKS), strict=False))
    looks = {side: shown[label] for side, label in sides.items()}
    style = {"markersize": 4.5, "linewidth": 1.2}
    handles = [Line2D([], [], color=c, marker=m, label=printable.label(t), **style) for t, (c, m) in shown.items()]
    if any(point.bound for series in itertools.chain(*panels.values()) for point in series.points):
        handles.append(Line2D([], [], color=figure.INK, linestyle="--", linewidth=1, label="bound"))
    machine = f"Measured on {'; '.join(machines)}. " if machines else ""
    subtitle = textwrap.wrap(
        f"{printable.label(machine)}Medians of the slowest rank's time; whiskers: nominal 95 % intervals (coverage: "
        "docs/coll.md); hollow: the interval is wider than asked.",
        int(13 * WIDTH),
    )
    head = HEAD + 0.17 * (len(subtitle) - 1)
    foot = FOOT + LEGEND_LINE * -(-len(handles) // LEGEND_COLUMNS)
    height = head + foot + PANEL_HEIGHT * len(panels)
    fig, axes = figure.new(len(panels), 2, WIDTH, height, gridspec_kw={"wspace": 0.16, "hspace": 0.5})
    fig.subplots_adjust(left=0.075, right=0.985, top=1 - head / height, bottom=foot / height)
    for (times, rates), (panel, members) in zip(axes, panels.items(), strict=True):
        _draw(times, members, looks, lambda _, microseconds: microseconds)
        times.set(yscale="log", ylabel="time")
        times.yaxis.set_minor_locator(NullLocator())
        times.yaxis.set_major_formatter(FuncFormatter(lambda microseconds, _: time_text(microseconds)))
        words = [panel.type, *([] if panel.reduction == "none" else [panel.reduction]), panel.place]
        times.set_title(f"{panel.ranks} rank{'' if panel.ranks == 1 else 's'}: {', '.join(words)}")
        _draw(rates, members, looks, lambda size, microseconds, panel=panel: bus_rate(panel, size, microseconds))
        rates.set(ylim=(0, None), ylabel="bus bandwidth, GB/s")
        if bus_factor(panel.operation, panel.ranks) == 0:
            rates.set_title("one rank: no bus", fontweight="normal")
    fig.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.005, 0.25 / height), ncol=LEGEND_COLUMNS)
    (operation,) = {panel.operation for panel in panels}
    figure.headline(fig, f"{operation.replace('_', '-').capitalize()} against size", "\n".join(subtitle))
    files = ", ".join(map(printable.terminal, names.values()))
    return figure.write(fig, path, f"hvd_bench: {operation}", f"from {files}", f"from {files}")
