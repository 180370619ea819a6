"""Writes a document as one self-contained HTML file, which has no script and loads no font or picture.

Every text of the document is escaped by printable.html(). Only the table of contents has links. The targets of these
links are section numbers. The content security policy is a second protection in case of a mistake in this module.
A figure of matplotlib becomes SVG inside the page: its text stays text, and its colours are those of the page.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

from hvdb.base.errors import HvdbError
from hvdb.base.printable import html
from hvdb.show import document, tables
from hvdb.show.document import Block, Bullets, Document, Figure, Listing, Paragraph, Section, Table, cut

# Colours of figure.py -> the CSS variables of the page. The variables have other values on a dark page.
COLOURS = {
    "#222222": "var(--ink)",
    "#767676": "var(--muted)",
    "#d9d9d9": "var(--faint)",
    "#ffffff": "var(--paper)",
    "#000000": "var(--ink)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--vermilion)",
    "#009e73": "var(--green)",
    "#f0e442": "var(--yellow)",
}
_COLOUR = re.compile("|".join(COLOURS))
# matplotlib places text for the font DejaVu Sans. Verdana may replace it, because both have equally wide letters.
_FONT = re.compile(r"'DejaVu Sans( Mono)?'")
_TARGET = re.compile(r"url\(#([\w-]+)\)")
_LONG_NUMBER = re.compile(r"(\.\d\d)\d+")
_PLACES = ("d", "x", "y")  # attributes in points, which are rounded to two decimals; no screen shows more decimals
_DROPPED = ("metadata", "style")


def _page_style(style: str) -> str:
    style = _COLOUR.sub(lambda match: COLOURS[match[0]], style)
    return _FONT.sub(lambda match: f"{match[0]}, {'monospace' if match[1] else 'Verdana, sans-serif'}", style)


def embedded(svg: str, about: str, prefix: str) -> str:
    """Turns the SVG text of a figure of matplotlib into an element of a page. about: a text for screen readers.

    prefix: the beginning of all ids in this figure; no other figure of the page may have it. Ids are renumbered,
    because matplotlib's ids differ from run to run. Ids to which nothing refers are dropped.
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for child in [child for child in element if child.tag.rpartition("}")[2] in _DROPPED]:
            element.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    numbered: dict[str, str] = {}

    def renamed(name: str) -> str:
        return numbered.setdefault(name, f"{prefix}{len(numbered) + 1}")

    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                element.set(name, f"#{renamed(value[1:])}")
            elif name == "style":
                element.set(name, _page_style(value))
            elif name in _PLACES:
                element.set(name, _LONG_NUMBER.sub(r"\1", value))
            if name in ("style", "clip-path", "fill"):
                element.set(name, _TARGET.sub(lambda match: f"url(#{renamed(match[1])})", element.get(name)))
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in numbered:
            element.set("id", numbered[name])
    width = root.get("width")
    root.attrib = {"viewBox": root.get("viewBox"), "style": f"max-width: {width}", "role": "img", "aria-label": about}
    return ElementTree.tostring(root, encoding="unicode")


def drawn(draw: Callable[[Path], Path], about: str, prefix: str) -> str:
    """Lets `draw` write a .svg file and returns embedded() of the file's text. Errors: those of `draw`."""
    from hvdb.show import figure  # imported here, because the import is slow and pages without figures do not need it

    settings = {"svg.fonttype": "none", "savefig.transparent": True}
    with figure.plt.rc_context(settings), tempfile.TemporaryDirectory(prefix="hvdb-") as folder:
        return embedded(draw(Path(folder) / "figure.svg").read_text(encoding="utf-8"), about, prefix)


MAX_BYTES = 2_000_000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# The colours --blue to --yellow come from figure.py. On a dark page some colours are lighter than in figure.py, so that
# these colours stand out. Yellow is darker than in figure.py, so that intervals drawn on yellow stand out.
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f5f6f8; --ink: #222222; --muted: #646464;
  --faint: #d9d9d9; --blue: #0072b2; --vermilion: #d55e00; --green: #009e73;
  --yellow: #f0e442; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #15171a; --panel: #1f2226; --ink: #e6e6e6; --muted: #a3a3a3; --faint: #3c4046;
    --blue: #2b86d4; --vermilion: #f07a28; --green: #22b78c; --yellow: #9c9219; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .6rem; border-bottom: 1px solid var(--faint); padding-bottom: .2rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
p, ul { margin: .4rem 0; max-width: 55rem; }
ul { padding-left: 1.2rem; }
.lead, figcaption { color: var(--muted); }
nav { margin-top: 1.2rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; padding: 0; max-width: none; }
a { color: var(--blue); }
section.answer { background: var(--panel); border-left: 4px solid var(--blue); padding: .2rem 1.1rem .8rem;
  margin-top: 1.5rem; }
section.answer h2 { border: 0; margin-top: .6rem; }
section.answer table { width: 100%; font-size: .95rem; } section.answer td:first-child { font-weight: 600; }
summary { cursor: pointer; border-bottom: 1px solid var(--faint); margin: 2.5rem 0 .6rem; }
summary h2 { display: inline-block; margin: 0; border: 0; }
.wide { overflow-x: auto; margin: .8rem 0; }
.wide:focus-visible, a:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--faint);
  max-width: 32rem; overflow-wrap: break-word; }
th { color: var(--muted); font-weight: 600; vertical-align: bottom; }
td.n { white-space: nowrap; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; }
code, pre { font-family: "DejaVu Sans Mono", Consolas, Menlo, monospace; font-size: .85em; }
pre { background: var(--panel); padding: .7rem .9rem; white-space: pre-wrap; }
figure { margin: 1rem 0; }
svg { display: block; width: 100%; min-width: 38rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { font-size: .875rem; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  details::details-content { content-visibility: visible; }
  .wide { overflow: visible; } svg { min-width: 0; } table { font-size: 7.5pt; }
  th, td, td.n { overflow-wrap: anywhere; white-space: normal; }
  tr, figure, h2, h3 { break-inside: avoid; } h2, h3 { break-after: avoid; } thead { display: table-header-group; } }
"""


def _row(cells: Iterable[str], numeric: list[bool], tag: str, *, first_is_code: bool) -> str:
    written = []
    for place, (cell, right) in enumerate(zip(cells, numeric, strict=True)):
        shown = html(cut(cell))
        text = f"<code>{shown}</code>" if first_is_code and place == 0 else shown
        begin = f'<{tag} class="n">' if right else f"<{tag}>"
        written.append(f"{begin}{text}</{tag}>")
    return f"<tr>{''.join(written)}</tr>"


def _table(table: Table, title: str) -> Iterator[str]:
    rows, more = document.first(table.rows, document.MAX_ROWS, "rows")
    numeric = tables.numeric_columns(rows, len(table.header))
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{html(cut(title))}"><table>'
    yield f"<thead>{_row(table.header, numeric, 'th', first_is_code=False)}</thead><tbody>"
    yield from (_row(row, numeric, "td", first_is_code=table.first_is_code) for row in rows)
    yield "</tbody></table></div>"
    yield f"<p>{more}</p>" if more else ""


def _block(block: Block, title: str, numbers: Iterator[int]) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield f"<p>{html(cut(block.text, document.MAX_LINE_LENGTH))}</p>"
    elif isinstance(block, Bullets):
        lines, more = document.first(block.lines, document.MAX_ROWS, "lines")
        items = [*lines, *([more] if more else [])]
        yield from ["<ul>", *(f"<li>{html(cut(line))}</li>" for line in items), "</ul>"]
    elif isinstance(block, Table):
        yield from _table(block, title)
    elif isinstance(block, Listing):
        lines, more = document.first(block.lines, document.MAX_LINES, "lines")
        shown = "\n".join(html(cut(line, document.MAX_LINE_LENGTH)) for line in lines)
        yield f"<pre>{shown}</pre>"
        yield f"<p>{more}</p>" if more else ""
    elif isinstance(block, Figure):
        drawing = drawn(block.draw, cut(block.about), f"f{next(numbers)}-")
        yield f'<figure><div class="wide" tabindex="0" role="region" aria-label="{html(cut(block.about))}">'
        yield f"{drawing}</div><figcaption>{html(cut(block.about))}</figcaption></figure>"


def _sections(sections: Iterable[Section], start: str, level: int, numbers: Iterator[int]) -> Iterator[str]:
    for place, section in enumerate(sections, 1):
        name = f"{start}{place}"
        kind = ' class="answer"' if name == "s1" else ""
        heading = f"<h{level}>{html(cut(section.title))}</h{level}>"
        heading = f"<details><summary>{heading}</summary>" if section.folded else heading
        yield f'<section id="{name}"{kind}>{heading}'
        for block in section.blocks:
            yield from _block(block, section.title, numbers)
        yield from _sections(section.parts, f"{name}-", level + 1, numbers)
        yield "</details></section>" if section.folded else "</section>"


def text(page: Document) -> str:
    """Returns the page as HTML. Errors: HvdbError if the HTML would take more than MAX_BYTES in UTF-8."""
    contents = "".join(
        f'<li><a href="#s{place}">{html(cut(section.title))}</a></li>' for place, section in enumerate(page.sections, 1)
    )
    first, begin_of_next, others = "\n".join(_sections(page.sections, "s", 2, count(1))).partition('<section id="s2">')
    lines = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html(cut(page.title))}</title><style>{STYLE}</style></head><body>",
        f'<header><h1>{html(cut(page.title))}</h1><p class="lead">{html(cut(page.lead))}</p></header>',
        f'<main>{first}<nav aria-label="Contents"><ul>{contents}</ul></nav>{begin_of_next}{others}',
        "</main></body></html>\n",
    ]
    made = "\n".join(line for line in lines if line)
    if len(made.encode()) > MAX_BYTES:
        raise HvdbError(
            f"the page would have {len(made.encode()) / 1e6:.1f} MB, and {MAX_BYTES / 1e6:g} MB is the most: "
            "report fewer networks or runs at a time (--model, --run)"
        )
    return made
