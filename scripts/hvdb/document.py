"""A page as plain data, which markdown_page.py and html_page.py write, so that both say the same.

Every text in it is plain text, also that of a stranger: the writers escape it, and they bound it (cut(), first()), so
that no store makes a page too large to open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hvdb import printable

LONGEST_TEXT = 400  # characters of a cell, a heading or an item of a list
LONGEST_LINE = 4000  # of a listing: a command line that is run again must be whole
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
    """Rows of text under a header. first_is_code: the first column holds identifiers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    first_is_code: bool = False


@dataclass(frozen=True)
class Listing:
    """Lines that are shown as they are: commands."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A drawing. `about`: what it shows, for a reader who does not see it. draw: writes it to a .svg file.

    Markdown has no figures: their numbers are in a table beside them.
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
    """`text` on one printable line of at most `longest` characters."""
    shown = printable.terminal(str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def first(items: Sequence[Item], most: int, what: str) -> tuple[Sequence[Item], str]:
    """At most `most` of `items`, and the line that says how many are left out, or ""."""
    more = len(items) - most
    return items[:most], f"{more} more {what} not shown" if more > 0 else ""
