"""Plots time and bus bandwidth of collective operations against size: curves with intervals, and the bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hvdb.base import printable
from hvdb.read.coll_results import Panel, Point, Series, bus_factor, bus_rate
from hvdb.show import figure

WIDTH, PANEL_HEIGHT = 11.5, 2.9  # inches
HEAD, FOOT = 0.95, 0.75
# Each compared side of a panel has its own marker and colour. When every colour has been used, the colours are used
# again with dash-dotted lines.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*")
LOOKS = tuple(
    (figure.CYCLE[i % len(figure.CYCLE)], marker, "-" if i < len(figure.CYCLE) else "-.")
    for i, marker in enumerate(MARKERS)
)
Look = tuple[str, str, str]
UNITS = ("", "K", "M", "G", "T", "P")

Value = Callable[[int, float], float]
"""(size in bytes, microseconds) -> the y value in the plot."""


def size_text(size: float) -> str:
    """Returns a number of bytes in the notation of nccl-tests, with binary units, such as 64K or 1.5M."""
    power = 0
    while size >= 1024 and power + 1 < len(UNITS):
        size, power = size / 1024, power + 1
    return f"{size:.3g}{UNITS[power]}"


def _line(axes: Axes, points: Sequence[Point], value: Value, look: Look, name: str) -> None:
    colour, marker, line = look
    sizes = [point.size for point in points]
    axes.plot(sizes, [value(p.size, p.time) for p in points], color=colour, linestyle=line, linewidth=1.2, alpha=0.8)
    for settled in (True, False):
        some = [p for p in points if p.settled == settled]
        fill = colour if settled else "white"
        at, values = [p.size for p in some], [value(p.size, p.time) for p in some]
        axes.plot(at, values, marker, color=colour, markerfacecolor=fill, markersize=4.5)
    known = [(p.size, value(p.size, p.low), value(p.size, p.high)) for p in points if p.low and p.high]
    if known:
        axes.vlines(*zip(*known, strict=True), color=colour, linewidth=1.6, alpha=0.5)
    axes.plot([], [], marker, color=colour, linestyle=line, markersize=4.5, label=printable.label(name))


def _bound(axes: Axes, points: Sequence[Point], value: Value, colour: str, name: str) -> None:
    known = [(p.size, value(p.size, p.bound)) for p in points if p.bound]
    if known:
        axes.plot(*zip(*known, strict=True), "--", color=colour, linewidth=1, label=printable.label(name))


def _draw(axes: Axes, members: Sequence[Series], names: Mapping[int, str], value: Value) -> None:
    bounded: set[int] = set()  # sources whose bound was drawn; all sides of one source have the same bound
    for number, series in enumerate(members):
        look = LOOKS[number % len(LOOKS)]
        # The label contains the name of the file only if two sides in the panel have the same name.
        twice = sum(other.name == series.name for other in members) > 1
        start = f"{names[series.source]}: " if twice else ""
        points = sorted(series.points, key=lambda point: point.size)
        _line(axes, points, value, look, start + series.name)
        if series.source not in bounded:
            bounded.add(series.source)
            several = len({other.source for other in members if any(p.bound for p in other.points)}) > 1
            of_file = f"{names[series.source]}: " if several else ""
            _bound(axes, points, value, look[0] if several else figure.INK, f"{of_file}bound")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(size)))
    axes.set_xlabel("size, bytes")


def draw(panels: Mapping[Panel, Sequence[Series]], names: Mapping[int, str], path: Path) -> Path:
    """Writes the figure of one operation to `path` (.png or .svg) and returns `path`. names: source -> label.

    Errors: those of figure.write().
    """
    height = HEAD + FOOT + PANEL_HEIGHT * len(panels)
    fig, axes = figure.new(len(panels), 2, WIDTH, height, gridspec_kw={"wspace": 0.2, "hspace": 0.45})
    fig.subplots_adjust(left=0.065, right=0.79, top=1 - HEAD / height, bottom=FOOT / height)
    for (times, rates), (panel, members) in zip(axes, panels.items(), strict=True):
        _draw(times, members, names, lambda _, microseconds: microseconds)
        times.set_yscale("log", base=10)
        times.yaxis.set_minor_locator(NullLocator())
        times.set_title(panel.title())
        times.set_ylabel("time, µs")
        _draw(rates, members, names, lambda size, microseconds, panel=panel: bus_rate(panel, size, microseconds))
        rates.set_ylim(bottom=0)
        rates.set_ylabel("bus bandwidth, GB/s")
        if bus_factor(panel.operation, panel.ranks) == 0:
            rates.set_title("one rank: no bus", fontweight="normal")
        rates.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handletextpad=0.4)
    (operation,) = {panel.operation for panel in panels}
    figure.headline(
        fig,
        f"{operation} against size",
        "medians of the slowest rank's time; bars: nominal 95 % intervals (coverage: docs/coll.md); dashed: the bound; "
        "hollow: its interval is wider than asked",
    )
    shown = [printable.terminal(name) for name in names.values()]
    return figure.write(fig, path, f"hvd_bench: {operation}", f"from {', '.join(shown)}", f"from {', '.join(shown)}")
