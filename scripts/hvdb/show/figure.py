"""Code that all plots share: a style for colour-blind readers, a footer with run ids, metadata with full run ids."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # because compute nodes have no display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hvdb.base import printable, whole_file
from hvdb.base.errors import HvdbError

# Colours that people with any common kind of colour blindness can distinguish. Source: Okabe and Ito, "Color Universal
# Design" (2008).
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, BROWN = "#56B4E9", "#CC79A7", "#F0E442", "#8C510A"
INK, MUTED, FAINT = "#222222", "#767676", "#D9D9D9"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
SHOWN_IDS = 12
MANY_RANKS = 8  # an axis of fewer ranks has room for text on the right of the last point
SOFTWARE = "hvd_bench scripts/plot"

STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor", "text.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "hvd_bench",  # makes the ids in .svg files the same in every run, so equal input gives equal bytes
}
plt.rcParams.update(STYLE)
MAX_INCHES = 65535 / STYLE["savefig.dpi"]  # matplotlib draws at most 65,535 pixels per side


def _require_drawable(width: float, height: float) -> None:
    if max(width, height) > MAX_INCHES:
        raise HvdbError(
            f"the plot would be {width:.0f} x {height:.0f} inches, and {MAX_INCHES:.0f} a side is the most that can "
            "be drawn: plot fewer networks or runs at a time (--model)"
        )


def new(rows: int, columns: int, width: float, height: float, **kwargs: object) -> tuple[Figure, list[list[Axes]]]:
    """Returns a figure of `rows` x `columns` axes. width, height: inches. Errors: HvdbError for too large a figure."""
    _require_drawable(width, height)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **kwargs)
    return figure, axes.tolist()


def headline(figure: Figure, title: str, subtitle: str) -> None:
    """Writes a title and one line of explanation at the top left, some fixed inches below the top edge."""
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.12 / height, title, fontsize=14, fontweight="bold", va="top", color=INK)
    figure.text(0.012, 1 - 0.42 / height, subtitle, fontsize=9.5, va="top", color=MUTED)


def note(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: object) -> None:
    """Writes `text` at `offset` points from the place `at`, which is given in data coordinates."""
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **style)


def log2_ranks_axis(axes: Axes, highest: int) -> None:
    """Makes the x axis a logarithmic axis (base 2) of ranks from 1 to `highest`, labelled with whole numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.84, max(2, highest) * (1.19 if highest >= MANY_RANKS else 1.7))
    ticks = [2**power for power in range(20) if 2**power <= highest * 1.01]
    axes.set_xticks(ticks if len(ticks) <= 6 else ticks[:1] + ticks[1::2] if len(ticks) % 2 == 0 else ticks[::2])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def log_rate_axis(axes: Axes) -> None:
    """Makes the y axis a logarithmic axis (base 10) of images per second, labelled with numbers without exponents."""
    axes.set_yscale("log", base=10)
    round_log_ticks(axes.yaxis, *axes.dataLim.intervaly)


def round_log_ticks(axis: Axis, low: float, high: float) -> None:
    """Gives a logarithmic axis (base 10) with data from `low` to `high` ticks at round numbers without exponents."""
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5) if high < 50 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def save(figure: Figure, path: Path, title: str, run_ids: Sequence[str], others: str = "") -> Path:
    """Writes the figure with write(), with short run ids in the footer and full run ids in the description.

    others: names what else is shown, in both.
    """
    shown = [run[:8] for run in run_ids[:SHOWN_IDS]]
    more = f" and {len(run_ids) - SHOWN_IDS} more (all in the file's metadata)" if len(run_ids) > SHOWN_IDS else ""
    return write(
        figure, path, title, f"hvd_bench runs: {' '.join(shown)}{more}{others}", f"runs: {' '.join(run_ids)}{others}"
    )


def write(figure: Figure, path: Path, title: str, footer: str, description: str) -> Path:
    """Writes the figure to `path` (.png or .svg) and closes it. `description` goes into the file's metadata.

    Errors: HvdbError if the figure is too large; OSError.
    """
    _require_drawable(*figure.get_size_inches())
    columns = int(figure.get_figwidth() * 16)
    text = "\n".join(map(printable.label, textwrap.wrap(printable.terminal(footer), columns)))
    figure.text(0.012, 0.06 / figure.get_figheight(), text, fontsize=7, color=MUTED, va="bottom", family="monospace")
    metadata = {"Title": printable.terminal(title), "Description": printable.terminal(description)}
    if path.suffix == ".svg":
        metadata |= {"Creator": SOFTWARE, "Date": None}
    else:
        metadata |= {"Software": SOFTWARE}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file.replacing(path) as fresh:
            figure.savefig(fresh, format=path.suffix[1:], metadata=metadata)
    finally:
        plt.close(figure)
    return path
