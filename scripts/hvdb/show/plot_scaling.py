"""Plots images per second and efficiency against ranks, with intervals and published points. A network is a column."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hvdb.base import printable
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read.predictions import Prediction
from hvdb.read.published import PublishedPoint
from hvdb.show import figure, predicted, tables

# Published series in the plot: set-up -> marker. One per generation of interconnect; published.csv has more series.
PUBLISHED_SERIES = {"roce25-rdma-nccl": "o", "tcp40-nccl": "s", "roce25-128": "^", "roce25-512": "D"}
# Published points of 16 to 512 GPUs are drawn if a curve reaches this many ranks. They squeeze shorter curves.
MIN_RANKS_BESIDE_PUBLISHED = 8
HOLLOW = {
    "linestyle": "none",
    "markerfacecolor": "white",
    "markeredgecolor": figure.MUTED,
    "markersize": 6,
    "markeredgewidth": 1.2,
}
# The axis of the efficiency ends between MIN_TOP and MAX_TOP. The axis shows at most SHOWN_OF_BOUND of the intervals
# above the highest point, so that a wide interval does not flatten the curves. ROOM is left free at the ends of the
# axis. A value above the axis is drawn as an arrow with a number. All values are in %.
MIN_TOP, MAX_TOP, SHOWN_OF_BOUND, ROOM = 106.0, 200.0, 25.0, 6.0
# Heights in inches: title, the two rows of panels, ticks and label of the axis, footer, each further line of the title.
HEAD_INCHES, PANELS_INCHES, TICKS_INCHES, FOOTER_INCHES, LINE_INCHES = 1.0, 4.6, 0.6, 0.3, 0.17
# (colour, marker) of each configuration. After the last pair of this list, the first pair is used again.
CURVE_STYLES = [(colour, marker) for marker in ("o", "v", "X") for colour in figure.CYCLE]
# Colours of predicted bands, which are light where curves are dark. At most so many predictions and what-ifs are drawn.
BAND_COLOURS = (figure.YELLOW, figure.SKY, figure.PURPLE, figure.GREEN, figure.ORANGE)
PREDICTED_LINE = {"linestyle": (0, (1, 1.5)), "linewidth": 1.4, "marker": "_", "markersize": 8}
# Property in which curves of one network may differ -> a function that returns the name of a value.
DISTINCTIONS: dict[str, Callable[[Any], str]] = {
    "device": str,
    "schedule": lambda schedule: "not reducing" if schedule == "none" else schedule,
    "comm": str,
    "batch_size": lambda images: f"batch {images}",
    "image_size": lambda pixels: f"image {pixels}",
    "auxiliary_head": lambda has: "auxiliary head" if has else "no auxiliary head",
    "threads": lambda count: f"{count} thread{'' if count == 1 else 's'}",
    "allreduce_type": lambda kind: f"reduced in {kind}",
}


def _curves(cells: Sequence[EfficiencyRow]) -> dict[tuple, list[EfficiencyRow]]:
    """Returns configuration -> its cells, sorted by number of ranks. A solo run stands for a full run on one rank."""
    curves: dict[tuple, dict[int, EfficiencyRow]] = {}
    for cell in cells:
        points = curves.setdefault(tuple(cell.configuration.values()), {})
        if cell.ranks not in points or cell.kind == "solo":
            points[cell.ranks] = cell
    return {key: [points[ranks] for ranks in sorted(points)] for key, points in curves.items()}


def labels(panels: Sequence[Sequence[dict]]) -> list[list[str]]:
    """Returns a name for each configuration of each panel.

    The name is made of the compute type and of the properties in which the curves of any panel differ. Within a panel
    all names differ. Curves of different panels with one name have the same values of these properties.
    """
    differing = [name for name in DISTINCTIONS if any(len({curve[name] for curve in panel}) > 1 for panel in panels)]

    def label(configuration: dict) -> str:
        words = [configuration["compute_type"], *(DISTINCTIONS[name](configuration[name]) for name in differing)]
        return printable.label(f"{', '.join(tables.marks(configuration)) or 'measured here'} ({', '.join(words)})")

    return [[label(configuration) for configuration in panel] for panel in panels]


def styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns name -> (colour, marker)."""
    return {name: CURVE_STYLES[i % len(CURVE_STYLES)] for i, name in enumerate(dict.fromkeys(names))}


def efficiency_axis(
    cells: Sequence[EfficiencyRow], points: Sequence[PublishedPoint], bands: Sequence[predicted.Curve] = ()
) -> tuple[float, float]:
    """Returns the bottom and the top of the axis of the efficiency in %. The top is between MIN_TOP and MAX_TOP."""
    ours = [cell.efficiency for cell in cells if cell.efficiency is not None]
    values = [100.0, *(100.0 * e.value for e in ours), *(_percent(p) for p in points if p.efficiency is not None)]
    drawn = [row.efficiency for curve in bands for row in curve.rows]
    values += [100.0 * band.value for band in drawn]
    lowest = min([*values, *(100.0 * e.low for e in [*ours, *drawn] if e.low is not None)])
    bound = max([0.0, *(100.0 * e.high for e in [*ours, *drawn] if e.high is not None)])
    highest = max(*values, min(bound, max(values) + SHOWN_OF_BOUND))
    bottom = max(0.0, 10.0 * float(np.floor((lowest - ROOM) / 10.0)))
    return bottom, min(MAX_TOP, max(MIN_TOP, highest + ROOM))


def _percent(point: PublishedPoint) -> float:
    return 100.0 * (point.efficiency_stated or point.efficiency)


def _with_interval(
    axes: Axes, ranks: Sequence[int], figures: Sequence[Interval], scale: float, **style: object
) -> None:
    values = np.array([figure_.value for figure_ in figures]) * scale
    low = np.array([f.value if f.low is None else f.low for f in figures]) * scale
    high = np.array([f.value if f.high is None else f.high for f in figures]) * scale
    # A percentile interval may lie beside its point, but matplotlib refuses error bars of negative length.
    errors = [np.maximum(values - low, 0), np.maximum(high - values, 0)]
    axes.errorbar(ranks, values, yerr=errors, capsize=3.5, linewidth=1.8, markersize=6.5, zorder=4, **style)


def _beside(ranks: int, highest: int, colour: str) -> dict[str, Any]:
    """Returns where to write the text of a curve's last point: right of the point if there is room, else above it."""
    room = 2 * ranks <= highest or highest < figure.MANY_RANKS
    place = {"offset": (9, -4)} if room else {"offset": (3, 8), "ha": "right"}
    return {**place, "color": colour, "fontweight": "bold"}


def _rates(
    axes: Axes, curves: dict[str, list[EfficiencyRow]], style: dict, points: list[PublishedPoint], highest: int
) -> None:
    for name, cells in curves.items():
        colour, marker = style[name]
        ranks = [cell.ranks for cell in cells]
        base = cells[0].images_per_second.value / cells[0].ranks
        axes.plot([1, highest], [base, base * highest], linestyle=(0, (5, 3)), linewidth=1, color=colour, alpha=0.55)
        _with_interval(axes, ranks, [c.images_per_second for c in cells], 1.0, color=colour, marker=marker)
        last = cells[-1]
        at = (last.ranks, last.images_per_second.value)
        figure.note(axes, tables.number(at[1]), at, **_beside(last.ranks, highest, colour))
    rate = {(p.setup): p for p in points if p.images_per_second is not None}
    for setup, marker in PUBLISHED_SERIES.items():
        point = rate.get(setup)
        base = rate.get(point.baseline_setup) if point else None
        if point and base:
            pair = ([1, point.gpus], [base.images_per_second, point.images_per_second])
            axes.plot(*pair, color=figure.MUTED, linewidth=0.9, alpha=0.6, zorder=2)
            axes.plot(*pair, marker=marker, zorder=3, **HOLLOW)
    figure.log_rate_axis(axes)


def _efficiencies(
    axes: Axes,
    curves: dict[str, list[EfficiencyRow]],
    style: dict,
    points: list[PublishedPoint],
    highest: int,
    top: float,
) -> None:
    """Draws the efficiencies of one panel. The axes of the panel end at `highest` ranks and at `top` %."""
    axes.axhline(100, linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED)
    for name, cells in curves.items():
        colour, marker = style[name]
        shown = [cell for cell in cells if cell.efficiency is not None]
        if not shown:
            continue
        _with_interval(
            axes, [c.ranks for c in shown], [c.efficiency for c in shown], 100.0, color=colour, marker=marker
        )
        for cell in shown:
            _name_efficiency(axes, cell, top, _beside(cell.ranks, highest, colour), is_last=cell is shown[-1])
    for point in points:
        if point.setup in PUBLISHED_SERIES and point.efficiency is not None:
            value = _percent(point)
            axes.plot([point.gpus], [value], marker=PUBLISHED_SERIES[point.setup], zorder=3, **HOLLOW)
            figure.note(
                axes, f"{value:g}", (point.gpus, value), (0, -14), ha="center", fontsize=7.5, color=figure.MUTED
            )


def _bands(axes: Axes, curves: Sequence[predicted.Curve], colours: Mapping[str, str]) -> None:
    """Draws predicted efficiencies: a shaded band, a bar at each predicted number of ranks, and a line of dots.

    colours: name of a curve -> its colour.
    """
    for curve in curves:
        ranks = [row.ranks for row in curve.rows]
        low, middle, high = (
            [100.0 * getattr(row.efficiency, end) for row in curve.rows] for end in ("low", "value", "high")
        )
        axes.fill_between(ranks, low, high, color=colours[curve.name], alpha=0.35, linewidth=0, zorder=1)
        axes.vlines(ranks, low, high, color=colours[curve.name], linewidth=5, alpha=0.6, zorder=1)
        axes.plot(ranks, middle, color=figure.INK, zorder=2, **PREDICTED_LINE)


def _name_efficiency(axes: Axes, cell: EfficiencyRow, top: float, beside: dict[str, Any], *, is_last: bool) -> None:
    """Writes the value of a curve's last point beside the point. For a value above the axis, draws an arrow at the top
    and writes the value beside the arrow."""
    value, high = 100.0 * cell.efficiency.value, 100.0 * (cell.efficiency.high or 0.0)
    if not efficiency.resolved(cell.efficiency):
        if cell.ranks > 1:
            words = efficiency.unresolved(cell.efficiency).replace(": ", ":\n")
            place = {"ha": "right", **beside, "fontweight": "normal", "fontsize": 7.5}
            figure.note(axes, words, (cell.ranks, min(value, top)), **place)
        return
    if value > top:
        words = f"↑ {value:.1f} %"
        figure.note(axes, words, (cell.ranks, top), (5, -10), fontweight="bold", color=beside["color"])
        return
    if is_last and cell.ranks > 1:
        figure.note(axes, f"{value:.1f} %", (cell.ranks, value), **beside)
    if high > top:
        figure.note(axes, f"↑ {high:.0f}", (cell.ranks, top), (3, -8), fontsize=7.5, color=beside["color"])


def _arrange(fig: Figure, handles: dict[str, Line2D], head: float) -> None:
    """Puts the legend under the panels, in as many columns as fit. Makes the figure higher by the legend's height."""
    for columns in (3, 2, 1):
        legend = fig.legend(
            list(handles.values()),
            list(handles),
            loc="lower left",
            ncol=columns,
            columnspacing=1.6,
            handletextpad=0.6,
            fontsize=8.5,
        )
        box = legend.get_window_extent(fig.canvas.get_renderer())
        if box.width <= fig.bbox.width or columns == 1:
            break
        legend.remove()
    under = FOOTER_INCHES + box.height / fig.dpi + TICKS_INCHES
    height = head + PANELS_INCHES + under
    fig.set_figheight(height)
    fig.subplots_adjust(top=1 - head / height, bottom=under / height)
    legend.set_bbox_to_anchor((0.005, FOOTER_INCHES / height))


def draw(
    cells: Sequence[EfficiencyRow], points: Sequence[PublishedPoint], path: Path, predictions: Sequence[Prediction] = ()
) -> Path:
    """Writes the figure to `path` and returns `path`. cells: one or more rows from efficiency.cells().

    predictions: those of networks that `cells` do not have are left out.
    """
    models = list(dict.fromkeys(cell.model for cell in cells))
    shown = [prediction for prediction in predictions if prediction.profile.model in models]
    all_bands = predicted.curves(shown)
    bands = all_bands[: len(BAND_COLOURS)]
    colours = dict(zip(dict.fromkeys(curve.name for curve in bands), BAND_COLOURS, strict=False))
    highest = max([cell.ranks for cell in cells] + [row.ranks for c in bands for row in c.rows])
    points = points if highest >= MIN_RANKS_BESIDE_PUBLISHED else []
    beside = [p for p in points if p.model in models and p.setup in PUBLISHED_SERIES]
    highest = max([highest, *(p.gpus for p in beside)])
    panels = [list(_curves([cell for cell in cells if cell.model == model]).values()) for model in models]
    names = labels([[curve[0].configuration for curve in curves] for curves in panels])
    style = styles(name for panel in names for name in panel)
    bottom, top = efficiency_axis(cells, beside, bands)
    width = max(6.6, 3.7 * len(models) + 0.4)
    height = HEAD_INCHES + PANELS_INCHES + TICKS_INCHES + FOOTER_INCHES
    fig, axes = figure.new(2, len(models), width, height, sharex=True, sharey="row")
    for column, model in enumerate(models):
        curves = dict(zip(names[column], panels[column], strict=True))
        own = [p for p in points if p.model == model]
        _rates(axes[0][column], curves, style, own, highest)
        _efficiencies(axes[1][column], curves, style, own, highest, top)
        _bands(axes[1][column], [curve for curve in bands if curve.model == model], colours)
        sizes = {curve[0].configuration["image_size"] for curve in panels[column]}
        size = f", {sizes.pop()} px" if len(sizes) == 1 and None not in sizes else ""
        axes[0][column].set_title(printable.label(tables.title(model) + size), pad=8)
        axes[1][column].set_xlabel("ranks")
        for row in (0, 1):
            figure.log2_ranks_axis(axes[row][column], highest)
    axes[0][0].set_ylim(bottom=0.7 * min(cell.images_per_second.low or cell.images_per_second.value for cell in cells))
    axes[1][0].set_ylim(bottom, top)
    units = " or ".join(dict.fromkeys(cell.unit for cell in cells))
    axes[0][0].set_ylabel(printable.label(f"{units} / s, whole world"))
    axes[1][0].set_ylabel("scaling efficiency, %")
    handles = {
        name: Line2D([], [], color=colour, marker=marker, linewidth=1.8) for name, (colour, marker) in style.items()
    }
    handles["ideal"] = Line2D([], [], color=figure.MUTED, linestyle=(0, (5, 3)), linewidth=1)
    for point in sorted(beside, key=lambda p: p.gpus):
        label = f"published, {point.gpus} GPUs, {point.network}"
        handles.setdefault(label, Line2D([], [], marker=PUBLISHED_SERIES[point.setup], **HOLLOW))
    for name, colour in colours.items():
        handles[printable.label(name)] = Line2D([], [], color=colour, linewidth=7, alpha=0.6)
    subtitle = "Weak scaling against one rank alone in the same session; whiskers: 95 % interval."
    if beside:
        subtitle += " Grey: Horovod on Pascal GPUs, 2017 and 2018."
    if bands:
        more = len(all_bands) - len(bands)
        subtitle += " Shaded: PREDICTED, not measured" + (f"; {more} more not drawn." if more else ".")
    fig.subplots_adjust(left=0.95 / width, right=0.985, hspace=0.1, wspace=0.08)
    lines = textwrap.wrap(subtitle, int(13 * width))
    _arrange(fig, handles, HEAD_INCHES + LINE_INCHES * (len(lines) - 1))
    figure.headline(fig, "How well training scales", "\n".join(lines))
    run_ids = list(dict.fromkeys(run for cell in cells for run in cell.run_ids))
    files = f"; predictions: {', '.join(map(predicted.file_text, shown))}" if shown else ""
    return figure.save(fig, path, "hvd_bench: images per second and scaling efficiency against ranks", run_ids, files)
