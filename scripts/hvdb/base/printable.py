"""Makes text from strangers (in a store or a file name) safe to show on a terminal, in Markdown, in HTML or in a plot.

The text must not move the cursor of a terminal, break a Markdown table, become HTML, or become a formula of matplotlib.
Each of these places has a function.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TextIO

from hvdb.base.errors import HvdbError

# Maximum characters of a text in a plot. Without this limit, a text could need a bitmap of any size.
MAX_LABEL_LENGTH = 120
MAX_FILE_NAME_LENGTH = 60

# "_" between letters or digits is not matched, because it does not begin emphasis there. "://", "www." and "@" are
# matched, because Markdown turns the text around them into links.
_MARKUP = re.compile(r"[\\`*\[\]<>&|~$@]|(?<![^\W_])_|_(?![^\W_])|://|www\.")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.,:;/=+%(){}-]+")


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # Python's stand-in for a byte of a file's name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def terminal(text: object) -> str:
    """Returns `text` on one line. Unprintable characters (ESC, newline, NUL) become escapes (\\x1b, \\n, \\x00)."""
    text = str(text)
    return text if text.isprintable() else "".join(map(_escape, text))


def say(line: object, stream: TextIO | None = None) -> None:
    """Prints a line that may contain a file name or text of a store. Errors: OSError if the line cannot be written."""
    print(terminal(line), file=stream)


def markdown(text: object) -> str:
    """Returns `text` as one line of Markdown that shows exactly `text`: no markup, HTML, formula or link."""
    return _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), terminal(text))


def code(text: object) -> str:
    """Returns `text` as a Markdown code span if its characters are safe there, even in a table; else markdown(text)."""
    text = terminal(text)
    return f"`{text}`" if _PLAIN_CODE.fullmatch(text) else markdown(text)


def code_block(lines: Iterable[object]) -> list[str]:
    """Returns the lines of a Markdown code block. The fence is longer than any run of backticks in `lines`."""
    shown = [terminal(line) for line in lines]
    runs = [len(run) for line in shown for run in re.findall("`+", line)]
    fence = "`" * max([3, *(1 + run for run in runs)])
    return [fence, *shown, fence]


def html(text: object) -> str:
    """Returns `text` as one line of HTML that shows exactly `text`, in an element or in a quoted attribute."""
    return escape(terminal(text), quote=True)


def label(text: object) -> str:
    """Returns `text` for a plot: one line of at most MAX_LABEL_LENGTH characters, in which no "$" begins a formula."""
    text = terminal(text)
    if len(text) > MAX_LABEL_LENGTH:
        text = f"{text[: MAX_LABEL_LENGTH - 1]}…"
    return text.replace("$", r"\$")


def file_in(folder: Path, start: str, text: str, suffix: str) -> Path:
    """Returns the path of the file `start` + `text` + `suffix` in `folder`.

    Characters of `text` other than letters, digits, '_' and '-' become '_', and a long text is cut. A digest of the
    original text is then added, so that different texts give different names.
    Errors: HvdbError if the file would not lie in `folder` itself.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:MAX_FILE_NAME_LENGTH]
    if name != text:
        name = f"{name}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    path = folder / f"{start}{name}{suffix}"
    if path.parent != folder:
        raise HvdbError(f"{path}: would not lie in {folder}")
    return path
