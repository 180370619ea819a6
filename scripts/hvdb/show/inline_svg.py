"""Turns a figure of matplotlib into SVG inside an HTML page. Text stays text, and the colours are those of the page."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

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
