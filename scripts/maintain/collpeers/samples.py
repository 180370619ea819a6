"""Reads the output of the measuring programs and the record of launches. Both may come from a stranger: every field is
checked, unknown fields are refused, and error texts do not quote wrong values. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from . import cells
from hvdb import strict_json
from hvdb.strict_json import Malformed, above_zero, whole

MOST_SAMPLES = 1000
MOST_CELLS = 1000
LONGEST_LINE = 32 << 20  # enough for a launch with the most cells and samples


@dataclass(frozen=True)
class Result:
    """One cell of one launch. seconds: the slowest rank's, one per sample; empty if the library has no such operation.

    wrong: number of wrong elements in all results, over all ranks and samples.
    """

    seconds: tuple[float, ...]
    wrong: int


def result(seconds: object, wrong: object) -> Result:
    """Checks the values of a result. Errors: Malformed."""
    if not isinstance(seconds, list) or len(seconds) > MOST_SAMPLES:
        raise Malformed("seconds is not a list of samples")
    times = tuple(above_zero(value, 1e6, "a number of seconds") for value in seconds)
    return Result(times, whole(wrong, 0, 1 << 62, "wrong"))


def printed(text: str, asked: Collection[str], ranks: int) -> dict[str, Result]:
    """Reads a launch's output: cell -> its result. Skips lines of the launcher, which do not begin with a brace.

    Errors: Malformed, also for a cell that was not asked for or that occurs twice.
    """
    found: dict[str, Result] = {}
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        row = strict_json.load(line, LONGEST_LINE)
        if set(row) != {"cell", "ranks", "wrong", "seconds"}:
            raise Malformed("keys other than cell, ranks, wrong and seconds")
        if not isinstance(row["cell"], str) or row["cell"] not in asked:
            raise Malformed("a cell that was not asked for")
        if row["cell"] in found:
            raise Malformed("a cell that occurs twice")
        if whole(row["ranks"], 1, 1 << 20, "ranks") != ranks:
            raise Malformed(f"{row['ranks']} ranks instead of {ranks}")
        found[row["cell"]] = result(row["seconds"], row["wrong"])
    return found


def is_cell(text: object) -> bool:
    """Returns True if a value of a record is the text of a cell."""
    return isinstance(text, str) and len(text) <= cells.LONGEST_CELL and cells.parse(text) is not None
