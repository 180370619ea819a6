"""Plots the ranks of one run: a heat map of the ranks' own work over time, and each rank's slowdown and interval."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from hvdb.base import printable
from hvdb.judge.rank_work import Examined
from hvdb.judge.slow_ranks import CONFIDENCE, Findings, log_ratios
from hvdb.show import figure, rank_report

# Blue and vermilion differ for people with any common kind of colour blindness (source: figure.py).
DIVERGING = LinearSegmentedColormap.from_list("faster_slower", [figure.BLUE, "#FFFFFF", figure.VERMILION])
MAX_COLUMNS = 1000  # maximum columns of a heat map; with more samples, a column is the median of neighbouring samples
MAX_NAMED = 32  # limit on the ranks that have names on the axis, and on the nodes that have names beside the heat map
NAMED_AMONG_MANY = 4  # with more than MAX_NAMED ranks, at most this number of slow ranks have names
HEIGHT, WIDTH = 6.6, 11.5  # inches
LOOKS = {"slow": (figure.VERMILION, "s"), "may be slow": (figure.ORANGE, "^"), "ok": (figure.BLUE, "o")}


@dataclass(frozen=True)
class Picture:
    """The data to draw. seconds: own work of the ranks (ranks, samples). hosts: host of each rank; empty if unknown.

    threshold: a slow rank is slower by at least this fraction. most_columns: most columns of the heat map.
    """

    title: str
    kind: str
    seconds: np.ndarray
    hosts: list[str]
    threshold: float
    most_columns: int = MAX_COLUMNS


def picture(examined: Examined, threshold: float, most_columns: int = MAX_COLUMNS) -> Picture:
    """Returns the data to draw for an examined run."""
    title = rank_report.title(examined)
    return Picture(title, examined.kind, examined.seconds, examined.hosts, threshold, most_columns)


def columns(ratios: np.ndarray, most: int = MAX_COLUMNS) -> np.ndarray:
    """Reduces `ratios` (ranks, samples) to at most `most` columns by taking medians of neighbouring columns."""
    samples = ratios.shape[1]
    if samples <= most:
        return ratios
    begins = np.linspace(0, samples, most + 1).astype(int)
    return np.stack([np.median(ratios[:, a:b], axis=1) for a, b in pairwise(begins)], axis=1)


def limit(percent: np.ndarray, threshold: float) -> float:
    """Returns the end of the colour scale in %: a value above nearly all of `percent`, at least twice the threshold."""
    return float(max(200 * threshold, np.percentile(np.abs(percent), 99)))


def _looks(findings: Findings, hosts: list[str]) -> dict[str, list[int]]:
    """Returns marker (a key of LOOKS) -> the ranks that the plot shows with this marker."""
    slow = {rank for rank, host in enumerate(hosts) if host in findings.slow_nodes} | set(findings.slow_ranks)
    unclear = set(findings.unclear_ranks)
    others = set(range(len(findings.ranks))) - slow - unclear
    return {name: sorted(ranks) for name, ranks in (("slow", slow), ("may be slow", unclear), ("ok", others)) if ranks}


def _heat_map(axes: Axes, bar: Axes, picture: Picture, slow: list[int]) -> None:
    percent = 100 * np.expm1(log_ratios(picture.seconds))
    ranks, samples = percent.shape
    end = limit(percent, picture.threshold)
    shown = axes.imshow(
        columns(percent, picture.most_columns),
        cmap=DIVERGING,
        vmin=-end,
        vmax=end,
        aspect="auto",
        interpolation="nearest",
        extent=(0, samples, ranks - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_xlabel("sample")
    axes.set_ylabel("rank")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.plot([samples * 1.012] * len(slow), slow, "<", color=figure.VERMILION, markersize=5, clip_on=False)
    axes.set_xlim(0, samples)
    colours = axes.figure.colorbar(shown, cax=bar, orientation="horizontal", extend="both")
    colours.set_label("own work beside the median of the other ranks in the same step, %", fontsize=8.5)
    colours.outline.set_visible(False)
    begins = [rank for rank in range(1, len(picture.hosts)) if picture.hosts[rank] != picture.hosts[rank - 1]]
    if 0 < len(begins) < MAX_NAMED:
        for rank in begins:
            axes.axhline(rank - 0.5, color=figure.INK, linewidth=0.6)
        for rank, after in zip([0, *begins], [*begins, ranks], strict=True):
            host = printable.terminal(picture.hosts[rank])
            name = printable.label(host if len(host) <= 12 else f"{host[:11]}…")
            axes.text(1.022, 1 - (rank + after) / 2 / ranks, name, transform=axes.transAxes, fontsize=7.5, va="center")


def _intervals(axes: Axes, picture: Picture, findings: Findings, looks: dict[str, list[int]]) -> None:
    order = findings.slowest_first
    places = {rank: place for place, rank in enumerate(order)}
    few = len(order) <= MAX_NAMED
    for name, ranks in looks.items():
        colour, marker = LOOKS[name]
        shown = [findings.ranks[rank] for rank in ranks]
        at = [places[rank] for rank in ranks]
        axes.hlines(at, [100 * f.low for f in shown], [100 * f.high for f in shown], color=colour, alpha=0.6)
        axes.plot([100 * f.slower for f in shown], at, marker, color=colour, markersize=5 if few else 3, label=name)
    axes.axvline(0, color=figure.MUTED, linewidth=0.8)
    axes.axvline(100 * picture.threshold, color=figure.INK, linewidth=0.8, linestyle="--")
    margin = 0.5 + 0.015 * len(order)
    axes.set_ylim(len(order) - 1 + margin, -margin)
    axes.set_xlabel("slower than the median of the others, %")
    if few:
        axes.set_yticks(range(len(order)), [f"rank {rank}" for rank in order], fontsize=8)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(order)} ranks, the slowest on top")
        for rank in [rank for rank in order if rank in looks.get("slow", [])][:NAMED_AMONG_MANY]:
            at = (100 * findings.ranks[rank].low, places[rank])
            figure.note(axes, f"rank {rank}", at, (-4, 0), ha="right", va="center", fontsize=7.5)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, handletextpad=0.2, columnspacing=1.2)


def draw(picture: Picture, findings: Findings, path: Path, run_id: str) -> Path:
    """Writes the figure of one run to `path` (.png or .svg) and returns `path`. Errors: those of figure.save()."""
    words = [
        *textwrap.wrap(printable.terminal(picture.title), 115)[:2],
        f"own work: {picture.kind}; lines: {100 * CONFIDENCE:g} % intervals; dashed: {100 * picture.threshold:g} %",
    ]
    head, foot = 0.85 + 0.17 * len(words), 1.45  # heights in inches
    fig, ((heat, medians),) = figure.new(1, 2, WIDTH, HEIGHT, gridspec_kw={"width_ratios": (2.1, 1), "wspace": 0.32})
    fig.subplots_adjust(left=0.065, right=0.975, top=1 - head / HEIGHT, bottom=foot / HEIGHT)
    place = heat.get_position()
    bar = fig.add_axes((place.x0, 0.72 / HEIGHT, place.width, 0.12 / HEIGHT))
    looks = _looks(findings, picture.hosts)
    _heat_map(heat, bar, picture, looks.get("slow", []))
    heat.set_title("Every sample")
    _intervals(medians, picture, findings, looks)
    medians.set_title("Median of each rank")
    figure.headline(fig, "Which rank is slow", "\n".join(map(printable.label, words)))
    return figure.save(fig, path, "hvd_bench: own work of the ranks", [run_id])
