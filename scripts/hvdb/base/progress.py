"""Shows progress as a line on a terminal: the name of the work, the finished part, and the time left.

The line appears after two seconds on standard error, if standard error is a terminal, and is removed at the end. The
caller must not write other output before the `with` has ended. Uses only the standard library.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

BEGIN_SECONDS = 2.0
REDRAW_SECONDS = 0.5
ERASE = "\r\x1b[K"  # moves the cursor to the beginning of the line and clears the line

Step = Callable[[float, float], None]
"""A function to call with (done, total), both in the same unit, from any thread."""


def silent(done: float, total: float) -> None:
    """A Step that does nothing, for callers that do not show progress."""


def duration(seconds: float) -> str:
    """Returns `seconds` as a text such as "45 s", "3 min 20 s" or "2 h 5 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole // 60 % 60} min"


def text(what: str, elapsed: float, done: float, total: float, at_most: float | None = None) -> str:
    """Returns the line to show after `elapsed` seconds of the work `what`. Pure.

    at_most: the most seconds that the whole work can take. Without `at_most`, the time left is estimated from the
    finished part.
    """
    words = [what]
    if total > 0:
        words.append(f"{100 * min(1.0, done / total):.0f} %")
    if at_most is not None:
        words.append(f"at most {duration(at_most - elapsed)} left")
    elif 0 < done <= total:
        words.append(f"about {duration(elapsed * (total - done) / done)} left")
    else:
        words.append(f"{duration(elapsed)} so far")
    return ", ".join(words)


@contextmanager
def shown(what: str, at_most: float | None = None, stream: TextIO | None = None) -> Iterator[Step]:
    """Shows the line inside the `with`. Yields a Step that updates the line.

    what: a name of the work, which must not come from a store. at_most: as for text(). stream: where to show the line
    (default: standard error).
    """
    stream = stream or sys.stderr
    if stream is None or not stream.isatty():
        yield silent
        return
    state = (0.0, 0.0)
    ended = threading.Event()

    def step(done: float, total: float) -> None:
        nonlocal state
        state = (done, total)

    def draw() -> None:
        begun = time.monotonic()
        wait = BEGIN_SECONDS
        drawn = False
        while not ended.wait(wait):
            stream.write(ERASE + text(what, time.monotonic() - begun, *state, at_most))
            stream.flush()
            drawn, wait = True, REDRAW_SECONDS
        if drawn:
            stream.write(ERASE)
            stream.flush()

    drawer = threading.Thread(target=draw, name="progress", daemon=True)
    drawer.start()
    try:
        yield step
    finally:
        ended.set()
        drawer.join()
