"""Images per second and efficiency against ranks, one column per network, with intervals and published points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hvdb import figure, tables
from hvdb.bootstrap import Estimate
from hvdb.efficiency import Cell
from hvdb.published import PublishedPoint

# Published series that are drawn: set-up -> (marker, label). One per network generation; the rest stands in the data.
PUBLISHED_SERIES = {
    "roce25-rdma-nccl": ("o", "published, 16 GPUs, 25 Gbit/s RDMA"),
    "tcp40-nccl": ("s", "published, 64 GPUs, 40 Gbit/s TCP"),
    "roce25-128": ("^", "published, 128 GPUs, 25 Gbit/s RoCE"),
    "roce25-512": ("D", "published, 512 GPUs, 25 Gbit/s RoCE"),
}
HOLLOW = {
    "linestyle": "none",
    "markerfacecolor": "white",
    "markeredgecolor": figure.MUTED,
    "markersize": 6,
    "markeredgewidth": 1.2,
}


def _curves(cells: Sequence[Cell]) -> dict[tuple, list[Cell]]:
    """Cells by configuration, by ranks; where one rank both reduced and ran alone, the baseline stands."""
    curves: dict[tuple, dict[int, Cell]] = {}
    for cell in cells:
        points = curves.setdefault(tuple(cell.configuration.values()), {})
        if cell.ranks not in points or cell.kind == "solo":
            points[cell.ranks] = cell
    return {key: [points[ranks] for ranks in sorted(points)] for key, points in curves.items()}


def _label(configuration: dict, panel: Sequence[dict]) -> str:
    """Names the type of arithmetic and what else tells the curves of one panel apart."""
    names = ("schedule", "comm", "batch_size", "image_size", "threads", "allreduce_type")
    differing = [name for name in names if len({other[name] for other in panel}) > 1]
    text = ", ".join(str(configuration[name]) for name in ("compute_type", *differing))
    return f"{', '.join(tables.marks(configuration)) or 'measured here'} ({text})"


def _with_interval(
    axes: Axes, ranks: Sequence[int], figures: Sequence[Estimate], scale: float, **style: object
) -> None:
    values = np.array([figure_.value for figure_ in figures]) * scale
    low = np.array([f.value if f.low is None else f.low for f in figures]) * scale
    high = np.array([f.value if f.high is None else f.high for f in figures]) * scale
    # a percentile interval need not contain the point: never a negative bar
    errors = [np.maximum(values - low, 0), np.maximum(high - values, 0)]
    axes.errorbar(ranks, values, yerr=errors, capsize=3.5, linewidth=1.8, markersize=6.5, zorder=4, **style)


def _rates(axes: Axes, curves: dict[tuple, list[Cell]], points: list[PublishedPoint], highest: int) -> None:
    for colour, cells in zip(figure.CYCLE, curves.values(), strict=False):
        ranks = [cell.ranks for cell in cells]
        base = cells[0].images_per_second.value / cells[0].ranks
        axes.plot([1, highest], [base, base * highest], linestyle=(0, (5, 3)), linewidth=1, color=colour, alpha=0.55)
        _with_interval(axes, ranks, [c.images_per_second for c in cells], 1.0, color=colour, marker="o")
        last = cells[-1]
        axes.annotate(
            tables.number(last.images_per_second.value),
            (last.ranks, last.images_per_second.value),
            xytext=(9, -4),
            textcoords="offset points",
            color=colour,
            fontweight="bold",
        )
    rate = {(p.setup): p for p in points if p.images_per_second is not None}
    for setup, (marker, _) in PUBLISHED_SERIES.items():
        point = rate.get(setup)
        base = rate.get(point.baseline_setup) if point else None
        if point and base:
            pair = ([1, point.gpus], [base.images_per_second, point.images_per_second])
            axes.plot(*pair, color=figure.MUTED, linewidth=0.9, alpha=0.6, zorder=2)
            axes.plot(*pair, marker=marker, zorder=3, **HOLLOW)
    figure.log_rate_axis(axes)


def _efficiencies(axes: Axes, curves: dict[tuple, list[Cell]], points: list[PublishedPoint]) -> float:
    """Draws one panel; returns its lowest value in %."""
    axes.axhline(100, linestyle=(0, (5, 3)), linewidth=1, color=figure.MUTED)
    lowest = 100.0
    for colour, cells in zip(figure.CYCLE, curves.values(), strict=False):
        shown = [cell for cell in cells if cell.efficiency is not None]
        if not shown:
            continue
        _with_interval(axes, [c.ranks for c in shown], [c.efficiency for c in shown], 100.0, color=colour, marker="o")
        last = shown[-1]
        lowest = min([lowest, *(100.0 * (c.efficiency.low or c.efficiency.value) for c in shown)])
        if last.ranks > 1:
            axes.annotate(
                f"{100 * last.efficiency.value:.1f} %",
                (last.ranks, 100 * last.efficiency.value),
                xytext=(8, -3),
                textcoords="offset points",
                color=colour,
                fontweight="bold",
            )
    for point in points:
        if point.setup in PUBLISHED_SERIES and point.efficiency is not None:
            value = 100.0 * (point.efficiency_stated or point.efficiency)
            lowest = min(lowest, value)
            axes.plot([point.gpus], [value], marker=PUBLISHED_SERIES[point.setup][0], zorder=3, **HOLLOW)
            axes.annotate(
                f"{value:g}",
                (point.gpus, value),
                xytext=(0, -14),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
                color=figure.MUTED,
            )
    return lowest


def draw(cells: Sequence[Cell], points: Sequence[PublishedPoint], path: Path) -> Path:
    """Writes the figure; `cells` as from efficiency.cells(), at least one. Returns `path`."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    beside = [p for p in points if p.model in models and p.setup in PUBLISHED_SERIES]
    highest = max([cell.ranks for cell in cells] + [p.gpus for p in beside])
    fig, axes = figure.new(2, len(models), max(5.4, 3.7 * len(models) + 0.4), 7.0, sharex=True, sharey="row")
    handles: dict[str, Line2D] = {}
    lowest = 100.0
    for column, model in enumerate(models):
        curves = _curves([cell for cell in cells if cell.model == model])
        own = [p for p in points if p.model == model]
        _rates(axes[0][column], curves, own, highest)
        lowest = min(lowest, _efficiencies(axes[1][column], curves, own))
        axes[0][column].set_title(tables.title(model), pad=8)
        axes[1][column].set_xlabel("ranks")
        for row in (0, 1):
            figure.log2_ranks_axis(axes[row][column], highest)
        panel = [curve[0].configuration for curve in curves.values()]
        for colour, configuration in zip(figure.CYCLE, panel, strict=False):
            handles.setdefault(_label(configuration, panel), Line2D([], [], color=colour, marker="o", linewidth=1.8))
    axes[0][0].set_ylim(bottom=0.5 * min(cell.images_per_second.low or cell.images_per_second.value for cell in cells))
    axes[1][0].set_ylim(max(0.0, 10.0 * np.floor((lowest - 6) / 10.0)), 106)
    axes[0][0].set_ylabel("images / s, whole world")
    axes[1][0].set_ylabel("scaling efficiency, %")
    handles["ideal"] = Line2D([], [], color=figure.MUTED, linestyle=(0, (5, 3)), linewidth=1)
    for setup in dict.fromkeys(p.setup for p in sorted(beside, key=lambda p: p.gpus)):
        marker, label = PUBLISHED_SERIES[setup]
        handles[label] = Line2D([], [], marker=marker, **HOLLOW)
    subtitle = "Weak scaling against one rank alone in the same session; bars: 95 % bootstrap interval."
    if beside:
        subtitle += " Grey: Horovod on Pascal GPUs, 2017 and 2018."
    figure.headline(fig, "How well training scales", subtitle)
    fig.subplots_adjust(
        left=0.085 if len(models) > 1 else 0.13, right=0.985, top=0.855, bottom=0.2, hspace=0.1, wspace=0.08
    )
    fig.legend(
        list(handles.values()),
        list(handles),
        loc="lower left",
        bbox_to_anchor=(0.005, 0.045),
        ncol=3 if len(models) > 1 else 2,
        columnspacing=1.6,
        handletextpad=0.6,
        fontsize=8.5,
    )
    run_ids = list(dict.fromkeys(run for cell in cells for run in cell.run_ids))
    return figure.save(fig, path, "hvd_bench: images per second and scaling efficiency against ranks", run_ids)
