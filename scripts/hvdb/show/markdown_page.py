"""Writes a document as Markdown. Every text goes through printable.markdown(), code() or code_block()."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hvdb.base import printable
from hvdb.show import document, tables
from hvdb.show.document import Block, Bullets, Document, Figure, Listing, Paragraph, Section, Table, cut


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield printable.markdown(cut(block.text, document.MAX_LINE_LENGTH))
    elif isinstance(block, Bullets):
        lines, more = document.first(block.lines, document.MAX_ROWS, "lines")
        yield from (f"- {printable.markdown(cut(line))}" for line in [*lines, *([more] if more else [])])
    elif isinstance(block, Table):
        rows, more = document.first(block.rows, document.MAX_ROWS, "rows")
        yield tables.markdown_table(
            block.header, [[cut(cell) for cell in row] for row in rows], first_is_code=block.first_is_code
        )
        yield from ["", more] if more else []
    elif isinstance(block, Listing):
        lines, more = document.first(block.lines, document.MAX_LINES, "lines")
        yield from printable.code_block(cut(line, document.MAX_LINE_LENGTH) for line in lines)
        yield from ["", more] if more else []


def _sections(sections: Iterable[Section], level: int) -> Iterator[str]:
    for section in sections:
        yield from [f"{'#' * level} {printable.markdown(cut(section.title))}", ""]
        for block in section.blocks:
            if not isinstance(block, Figure):
                yield from [*_block(block), ""]
        yield from _sections(section.parts, level + 1)


def text(page: Document) -> str:
    """Returns the page as Markdown that ends with a newline. Leaves out the figures, whose numbers are in tables."""
    head = [f"# {printable.markdown(cut(page.title))}", "", printable.markdown(cut(page.lead)), ""]
    return "\n".join([*head, *_sections(page.sections, 2)])
