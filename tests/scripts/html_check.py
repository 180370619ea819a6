"""Checks that an HTML report holds only the tags, attributes and addresses that its writer makes."""

from __future__ import annotations

import re
from html.parser import HTMLParser

PAGE = "html head meta title style body header h1 h2 h3 p nav ul li a main section div table thead tbody tr th td code"
TAGS = frozenset(f"{PAGE} pre figure figcaption details summary".split())
# The names are in lower case, because html.parser turns clipPath into clippath.
DRAWING = frozenset("svg g path defs clippath rect use text image".split())
ATTRIBUTES = {
    "html": {"lang"},
    "meta": {"charset", "content", "http-equiv", "name"},
    "a": {"href"},
    "nav": {"aria-label"},
    "p": {"class"},
    "section": {"class", "id"},
    "div": {"aria-label", "class", "role", "tabindex"},
    "th": {"class"},
    "td": {"class"},
    "svg": {"aria-label", "role", "style", "viewbox"},
}
DRAWN = {"clip-path", "d", "height", "href", "id", "style", "transform", "width", "x", "y"}
ADDRESS = re.compile(r"#[a-z0-9-]+|data:image/png;base64,[A-Za-z0-9+/=\s]+")


class Page(HTMLParser):
    """Parses a page into `wrong` (everything that is not allowed), `text` (what a reader sees) and `headings`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.text = ""
        self.headings: list[str] = []
        self.drawings = 0
        self.ids: list[str] = []
        self.styles = 0
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS | DRAWING:
            self.wrong.append(f"<{tag}>")
        known = DRAWN if tag in DRAWING - {"svg"} else ATTRIBUTES.get(tag, set())
        for name, value in attrs:
            if name not in known or (name == "href" and not ADDRESS.fullmatch(value or "")):
                self.wrong.append(f"<{tag} {name}={value!a:.80}>")
            if name == "style" and re.search(r"url\((?!#)|@import|expression", value or ""):
                self.wrong.append(f"<{tag} {name}={value!a:.80}>")
            if name == "id":
                self.ids.append(value or "")
        self.drawings += tag == "svg"
        self.styles += tag == "style"
        self._open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside != "style":
            self.text += data
        if inside in ("h1", "h2", "h3"):
            self.headings[-1] += data

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"<!--{data[:40]!a}")

    def faults(self) -> list[str]:
        """Returns everything that is wrong with the page. The list is empty if nothing is wrong."""
        faults = list(self.wrong)
        if self.styles != 1:
            faults.append(f"{self.styles} <style>")
        if len(set(self.ids)) != len(self.ids):
            faults.append("an id that is there twice")
        return faults
