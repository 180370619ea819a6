"""A page as plain data. markdown_page.py and html_page.py write this data, so their two pages have equal contents.

All text is plain text and may come from a stranger. markdown_page.py and html_page.py escape it. cut() and first()
limit the length of the text, so that no store can make a page too large to open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hvdb.base import printable

MAX_TEXT_LENGTH = 400  # maximum characters of a cell of a table, of a heading or of an item of a list
MAX_LINE_LENGTH = (
    4000  # maximum characters of a line of a listing; a command line must fit, so that it can be run again
)
MAX_ROWS = 100
MAX_LINES = 60

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
    """Lines that are shown unchanged, such as commands."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A drawing. about: describes the drawing to a reader who cannot see it. draw: writes the drawing to a .svg file.

    Markdown pages have no figures. The page therefore has a table with the numbers of each figure.
    """

    about: str
    draw: Callable[[Path], Path]


Block = Paragraph | Bullets | Table | Listing | Figure


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block] = ()
    parts: Sequence[Section] = ()
    folded: bool = False  # an HTML page shows the title only, until the reader opens the section


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    sections: Sequence[Section]


def cut(text: object, longest: int = MAX_TEXT_LENGTH) -> str:
    """Returns `text` as one printable line of at most `longest` characters."""
    shown = printable.terminal(str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def first(items: Sequence[Item], most: int, what: str) -> tuple[Sequence[Item], str]:
    """Returns the first `most` of `items`, and a line that says how many items are left out ("" if none is)."""
    more = len(items) - most
    return items[:most], f"{more} more {what} not shown" if more > 0 else ""
