"""A page as plain data. markdown_page.py and html_page.py write this data, so both pages have the same contents.

All text is plain text and may come from a stranger. The writers escape the text. cut() and first() limit its length, so
that no store can make a page too large to open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hvdb import printable

LONGEST_TEXT = 400  # characters of a cell of a table, a heading or an item of a list
LONGEST_LINE = 4000  # characters of a line of a listing: a command line to run again must be complete
MOST_ROWS = 100
MOST_LINES = 60

Item = TypeVar("Item")


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. first_is_code: the first column contains identifiers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    first_is_code: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines that are shown unchanged: commands."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A drawing. about: a description for a reader who cannot see the drawing. draw: writes it to a .svg file.

    Markdown pages have no figures. A table beside each figure has the figure's numbers.
    """

    about: str
    draw: Callable[[Path], Path]


Block = Paragraph | Bullets | Table | Listing | Figure


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block] = ()
    parts: Sequence[Section] = ()


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    sections: Sequence[Section]


def cut(text: object, longest: int = LONGEST_TEXT) -> str:
    """Returns `text` as one printable line of at most `longest` characters."""
    shown = printable.terminal(str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def first(items: Sequence[Item], most: int, what: str) -> tuple[Sequence[Item], str]:
    """Returns at most `most` of `items`, and a line that says how many are left out, or ""."""
    more = len(items) - most
    return items[:most], f"{more} more {what} not shown" if more > 0 else ""
