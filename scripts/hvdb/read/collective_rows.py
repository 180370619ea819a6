"""Rows of the programs that time collective operations, as imported_collectives.py and collective_tables.py make them.

A row that cannot be used becomes a Fault beside the good rows, so that it blocks only those who want this row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hvdb.base.record import Malformed

MAX_ROWS = 100_000
MAX_RANKS, MAX_SIZE, MIN_SECONDS, MAX_SECONDS = 1 << 20, 1 << 50, 1e-9, 1e5
NCCL_TESTS, OSU_BENCHMARKS, COLL = "nccl-tests", "OSU micro-benchmarks", "hvd_bench coll"
UNNAMED = "collective"  # the operation of a table that does not name its test
IN_PLACE = " in place"  # ends the name of a row
NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_WORD = re.compile(r"[\w.+-]{1,20}", re.ASCII)
_OPERATIONS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "barrier": "barrier",
    # operations that hvd_bench does not have
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}


@dataclass(frozen=True)
class ImportedRow:
    """One size of one collective. size: bytes as the program counts them. seconds: of one operation, a mean over its
    iterations, or each of them if the file has them.

    operation, type, reduction: in the words of hvd_bench where it has them, else in the program's own.
    """

    operation: str
    type: str
    reduction: str
    in_place: bool
    size: int
    seconds: tuple[float, ...]

    @property
    def name(self) -> str:
        reduction = [] if self.reduction in ("sum", "none") else [self.reduction]
        words = [] if self.operation == "barrier" else [self.type, *reduction, str(self.size)]
        return " ".join([self.operation, *words]) + (IN_PLACE if self.in_place else "")


@dataclass(frozen=True)
class Fault:
    """A row that cannot be used. place: its line, or where it lies in a document. name: that of the row; its place if
    it says too little for a name."""

    place: str
    why: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True)
class Imported:
    """The results of one program. ranks, nodes: None if it does not say. doubt: why the operation of some rows is
    UNNAMED, or the ranks are not known, though the program names both; "" if nothing is in doubt."""

    program: str
    ranks: int | None
    nodes: int | None
    rows: tuple[ImportedRow, ...]
    faults: tuple[Fault, ...] = ()
    doubt: str = ""


@dataclass
class Gathered:
    """What has been read of one program so far. worlds: (ranks, nodes) of its tests."""

    worlds: set[tuple[int, int]] = field(default_factory=set)
    rows: list[ImportedRow] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    doubt: str = ""

    def add(self, row: ImportedRow | Fault) -> None:
        """Errors: Malformed if there are too many."""
        (self.faults if isinstance(row, Fault) else self.rows).append(row)  # type: ignore[arg-type]
        if len(self.rows) + len(self.faults) > MAX_ROWS:
            raise Malformed(f"more than {MAX_ROWS} rows")

    def imported(self, program: str) -> Imported:
        """Errors: Malformed if the tests ran on different numbers of ranks or nodes."""
        if len(self.worlds) > 1:
            sizes = " and ".join(f"{ranks} ranks on {nodes} nodes" for ranks, nodes in sorted(self.worlds)[:2])
            raise Malformed(f"tests on {sizes}; give each a file, or a gate, of its own")
        ranks, nodes = next(iter(self.worlds), (None, None))
        return Imported(program, ranks, nodes or None, tuple(self.rows), tuple(self.faults), self.doubt)


def operation_of(name: object) -> str:
    """Returns the operation of a test: all_reduce_perf, AlltoAllv, All-to-All; "" if `name` is no name."""
    text = re.sub(r"_perf.*", "", name.lower()) if isinstance(name, str) else ""
    key = re.sub(r"[^a-z]", "", text)
    if key in _OPERATIONS:
        return _OPERATIONS[key]
    if key[-1:] in ("v", "w") and key[:-1] in _OPERATIONS:  # shares of different sizes, and of different types
        return _OPERATIONS[key[:-1]] + key[-1]
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")[:60]


class Cell(NamedTuple):
    """Values of a row as the program wrote them: numbers, texts, or anything. wrong: the number of wrong elements."""

    size: object
    type: object
    reduction: object
    wrong: object


def row_of(
    place: str, operation: str, in_place: bool, cell: Cell, microseconds: Sequence[object], why: str = ""
) -> ImportedRow | Fault:
    """Returns the row, or why it is none. microseconds: numbers, or texts. why: a fault that is known already."""
    name = place
    try:
        if not operation:
            raise Malformed("the test has no name")
        row = ImportedRow(operation, _word(cell.type), _word(cell.reduction), in_place, _size(cell.size), ())
        name = row.name
        if why:
            raise Malformed(why)
        if _is_wrong(cell.wrong):
            raise Malformed("wrong elements")
        return replace(row, seconds=tuple(_seconds(time) for time in microseconds))
    except Malformed as fault:
        return Fault(place, why or str(fault), name)


def _word(word: object) -> str:
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise Malformed("the type or the reduction is no word of at most 20 letters")
    return word


def _size(size: object) -> int:
    if isinstance(size, str) and re.fullmatch(r"\d{1,18}", size, re.ASCII):
        size = int(size)
    if type(size) is not int or not 0 <= size <= MAX_SIZE:
        raise Malformed(f"size is not a whole number from 0 to {MAX_SIZE}")
    return size


def _seconds(microseconds: object) -> float:
    try:
        if isinstance(microseconds, str) and not NUMBER.fullmatch(microseconds):
            raise ValueError
        value = float(microseconds) / 1e6  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(microseconds, bool) or not MIN_SECONDS <= value < MAX_SECONDS:
        raise Malformed(f"time is not a time from {1e6 * MIN_SECONDS:g} us to {MAX_SECONDS:g} s")
    return value


def _is_wrong(value: object) -> bool:
    """Returns True if a result was checked and had wrong elements. Versions before 2.13 print the largest error."""
    if value is None or value == "N/A":
        return False
    try:
        if isinstance(value, bool):
            raise TypeError
        return not 0 <= float(value) < 1e-2  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed("the number of wrong elements is not a number") from error
