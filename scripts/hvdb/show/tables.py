"""Writes figures as a table, for a terminal (with aligned columns) or in Markdown. A column's title names its unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hvdb.base import printable
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read import names
from hvdb.read.published import PublishedPoint, headline
from hvdb.read.runs import IMAGES, TORCH

Item = TypeVar("Item")
MODEL_TITLES = {"inception3": "Inception V3", "resnet50": "ResNet-50", "resnet101": "ResNet-101", "vgg16": "VGG-16"}
# Component of a decomposition -> title: first the losses, then what remains.
COMPONENTS = {**names.COMPONENTS}
COMPONENTS["efficiency"] = COMPONENTS.pop("efficiency")

# Matches the text of a figure: "", "-", "-0.4", "12.3 GB/s", "1 of 2", "98.1 [96.5, 99.7]", "100 (baseline)".
FIGURE = re.compile(r"-?|-?\d[\d.,]*( \S+)?( \d+)?( [\[(].*)?")
SHOWN_DIGITS = 8  # of a profile's hash, as of the UUIDs of runs
SHRUNK = re.compile(r"(.+)-div(\d+)")


def title(model: str) -> str:
    """Returns the network's usual name. Adds a remark if the model is a replay with smaller gradients."""
    words = ""
    while shrunk := SHRUNK.fullmatch(model):
        model, words = shrunk[1], f" with 1/{shrunk[2]} of its gradients{words}"
    return MODEL_TITLES.get(model, model) + words


def marks(configuration: Mapping[str, Any]) -> list[str]:
    """Returns words for the properties in which a row is not an ordinary measurement of training.

    configuration: comparable.curve() of a run. These words must be shown wherever the row is shown.
    """
    device, profile = configuration["device"], configuration["replay"]
    properties = {
        "traced": configuration["traced"],
        "simulated": configuration["origin"] == "simulated",
        f"replayed compute (profile {profile[:SHOWN_DIGITS]})": device == "replay",
        "naive reference": device == "reference",
        "trained by PyTorch": device == TORCH,
    }
    return [mark for mark, holds in properties.items() if holds]


def number(value: float) -> str:
    """Returns `value` with at least three significant digits and without exponent: 0.412, 4.12, 41.2, 412, 4123."""
    size = abs(value)
    digits = 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:.{digits}f}"


def estimate(figure: Interval | None, scale: float = 1.0, form: Any = number) -> str:
    """Returns a figure as text by Interval.text(), or '-' for None."""
    return "-" if figure is None else figure.text(scale, form)


def with_unit(rate: str, unit: str) -> str:
    """Returns a rate, with its unit if that is not images, which the titles of columns say."""
    return rate if unit == IMAGES else f"{rate} {unit}/s"


def percent(value: float | None) -> str:
    """Returns a fraction (0..1) as a percentage with one decimal. Returns '-' for None."""
    return "-" if value is None else f"{100.0 * value:.1f}"


def efficiency_text(figure: Interval | None) -> str:
    """Returns an efficiency in percent as text: `97.6 [97.0, 98.6]`, or `not resolved: ...`, or '-' for None."""
    if figure is not None and not efficiency.resolved(figure):
        return efficiency.unresolved(figure)
    return "-" if figure is None else figure.text()


def rows(columns: Mapping[str, Callable[[Item], str]], items: Iterable[Item]) -> list[tuple[str, ...]]:
    """Returns one row for each of `items`. columns: title of a column -> a function from an item to its text."""
    return [tuple(text(item) for text in columns.values()) for item in items]


_EFFICIENCY: dict[str, Callable[[EfficiencyRow], str]] = {
    "model": lambda cell: ", ".join([title(cell.model), *marks(cell.configuration)]),
    "batch/rank": lambda cell: str(cell.configuration["batch_size"]),
    "image": lambda cell: str(cell.configuration["image_size"] or "-"),
    "type": lambda cell: cell.configuration["compute_type"],
    "schedule": lambda cell: "alone" if cell.kind == "solo" else cell.configuration["schedule"],
    "ranks": lambda c: str(c.ranks) if c.allocation == c.ranks else f"{c.ranks} of {c.allocation}",
    "images/s [95 %]": lambda cell: with_unit(estimate(cell.images_per_second), cell.unit),
    "efficiency % [95 %]": lambda c: "100 (baseline)" if c.kind == "solo" else efficiency_text(c.efficiency),
    "no reduction %": lambda cell: efficiency_text(cell.no_reduction),
    "ring bound %": lambda cell: percent(cell.ring_bound),
    "sessions": lambda cell: str(cell.sessions),
    "runs": lambda cell: " ".join(run[:8] for run in cell.run_ids[:3]),
}
_NOTES = (
    "efficiency = (images/s / ranks) / images/s of one rank alone, measured in turn in the same session.",
    "no reduction: the same with nothing reduced; what is missing to 100 % there is interference of the ranks and"
    " waiting for stragglers.",
    "ring bound: what would remain if reduction hid behind backward (taken as 2/3 of forward + backward) as far as"
    " it can; an estimate from stored times, '-' where they are missing.",
    "[..]: 95 % bootstrap interval; of one session as the program stored it, over steps or rounds; from five"
    " sessions on over sessions (the median of which is shown).",
    "trained by PyTorch: the efficiency is relative to one rank alone that never waits for its input; no reduction"
    " compares steps with theirs.",
    f"not resolved: there is no interval, or it is wider than {100 * names.WIDEST_EFFICIENCY:.0f} points.",
)


def binds(cell: EfficiencyRow) -> bool:
    """Returns True if the row's ring bound is known and, as it is shown, below 100 %."""
    return cell.ring_bound is not None and percent(cell.ring_bound) != "100.0"


def efficiency_table(cells: Sequence[EfficiencyRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Returns header, rows (one per cell) and notes. The column of the ring bound is left out if it binds nowhere."""
    torch = any(cell.configuration["device"] == TORCH for cell in cells)
    # The beginnings of titles of columns and of notes.
    hidden = ("-" if any(map(binds, cells)) else "ring bound", "-" if torch else "trained by PyTorch")
    columns = {name: text for name, text in _EFFICIENCY.items() if not name.startswith(hidden)}
    return tuple(columns), rows(columns, cells), [note for note in _NOTES if not note.startswith(hidden)]


_PUBLISHED: dict[str, Callable[[PublishedPoint], str]] = {
    "model": lambda point: title(point.model),
    "GPUs": lambda point: str(point.gpus),
    "images/s": lambda point: "-" if point.images_per_second is None else f"{point.images_per_second:.1f}",
    "efficiency %": lambda point: percent(point.efficiency_stated),
    "network": lambda point: point.network,
    "reduction": lambda point: point.reduction,
    "hardware": lambda point: point.hardware,
}
PUBLISHED_HEADER = tuple(_PUBLISHED)


def published_rows(points: Sequence[PublishedPoint], models: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns one row per published point of `models`. The columns are those of PUBLISHED_HEADER."""
    return [row for model in models for row in rows(_PUBLISHED, headline(list(points), model))]


def numeric_columns(rows: Sequence[Sequence[str]], columns: int) -> list[bool]:
    """Returns, for each column, True if the column contains only figures. Such a column is aligned to the right."""
    return [all(FIGURE.fullmatch(row[i]) for row in rows) for i in range(columns)]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a printable table with two spaces between columns. Figures are aligned right, words are aligned left."""
    table = [tuple(map(printable.terminal, row)) for row in (header, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    right = numeric_columns(rows, len(header))
    lines = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, first_is_code: bool = False) -> str:
    """Returns a Markdown table that shows the text of `rows` unchanged. first_is_code: the first column is code."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [printable.markdown(cell) for cell in row]
        if first_is_code:
            cells[0] = printable.code(row[0])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
