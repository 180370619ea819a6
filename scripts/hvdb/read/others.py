"""Reads what other benchmarks print: nccl-tests and the OSU micro-benchmarks, by imported_collectives.py, and the JSON
of Google Benchmark.

The text may come from a stranger. This module checks every field that it uses and ignores all other fields.
Source: Google Benchmark 1.7 to 1.9 (src/json_reporter.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import printable, record, whole_file
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Count, Malformed, Range, Text, Words
from hvdb.read import imported_collectives
from hvdb.read.imported_collectives import (
    MAX_BYTES,
    MAX_ROWS,
    MAX_SECONDS,
    NCCL_TESTS,
    OSU_BENCHMARKS,
    Imported,
    ImportedRow,
)

GBENCH = "Google Benchmark"
TOOLS = {"nccl-tests": NCCL_TESTS, "osu": OSU_BENCHMARKS, "gbench": GBENCH}
# More cells would need more pairs and minutes of computing.
MAX_CELLS = 200
MIN_SECONDS = 1e-15
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SHOWN_NAMES = 5
_Name = Annotated[str, Text(300)]
_Entries = Annotated[list[dict[str, object]], Count(MAX_ROWS)]
_Repetition = Annotated[int, Range(0, MAX_ROWS)]


@dataclass(frozen=True)
class Results:
    """What one process of `program`, one of TOOLS.values(), printed.

    facts: what must be equal in results that are compared. seconds: name of a row -> the times of one operation, either
    samples or one mean.
    """

    program: str
    facts: dict[str, str]
    seconds: dict[str, tuple[float, ...]]


def read(path: Path) -> Results:
    """Errors: HvdbError, one line that names the file."""
    content = whole_file.read_at_most(path, MAX_BYTES)
    try:
        return parse(content)
    except Malformed as error:
        known = ", ".join(TOOLS.values())
        raise HvdbError(f"{path}: no store, and not a result of {known}: {error}") from error


def parse(content: bytes) -> Results:
    """Errors: Malformed."""
    text, document = imported_collectives.text_and_json(content)
    if document is not None and "benchmarks" in document:
        return _google_benchmark(document)
    return _collectives(imported_collectives.parse(text, document))


def _collectives(found: Imported) -> Results:
    counts = {"ranks": found.ranks, "nodes": found.nodes}
    seconds: dict[str, tuple[float, ...]] = {}
    for row in found.rows:
        if (name := _name(row)) in seconds:
            raise Malformed(f"'{name}' occurs twice")
        seconds[name] = row.seconds
    return Results(found.program, {key: str(count) for key, count in counts.items() if count}, seconds)


def _name(row: ImportedRow) -> str:
    reduction = [] if row.reduction in ("sum", "none") else [row.reduction]
    place = ["in place"] if row.in_place else []
    return " ".join([row.operation, row.type, *reduction, str(row.size), *place])


def _google_benchmark(document: dict[str, Any]) -> Results:
    entries = record.value(_Entries, document["benchmarks"], "benchmarks")
    context = record.value(dict[str, object], document.get("context"), "context")
    facts = {
        key: str(context[key])[:40]
        for key in ("num_cpus", "library_build_type")
        if isinstance(context.get(key), str | int)
    }
    samples: dict[str, dict[int, float]] = {}
    for entry in entries:
        if entry.get("run_type", "iteration") != "iteration" or entry.get("skipped") is True:
            continue  # an aggregate of other entries, or a benchmark that did not run
        name = record.value(_Name, entry.get("name"), "the name of a benchmark")
        shown = printable.terminal(name)
        repetition = record.value(_Repetition, entry.get("repetition_index", 0), "repetition_index")
        mine = samples.setdefault(name, {})
        if repetition in mine:
            raise Malformed(f"'{shown}' occurs twice")
        mine[repetition] = _real_seconds(entry, shown)
    if not samples:
        raise Malformed("no benchmark with a time of its own; are there only aggregates?")
    return Results(GBENCH, facts, {name: tuple(mine.values()) for name, mine in samples.items()})


def _real_seconds(entry: dict[str, Any], name: str) -> float:
    if entry.get("error_occurred") not in (None, False):
        raise Malformed(f"'{name}' ended with an error")
    unit = record.value(Annotated[str, Words(tuple(_SECONDS))], entry.get("time_unit"), f"time_unit of '{name}'")
    time = Annotated[float, Range(0, MAX_SECONDS / _SECONDS[unit], inner=True)]
    seconds = _SECONDS[unit] * record.value(time, entry.get("real_time"), f"real_time of '{name}'")
    if seconds < MIN_SECONDS:
        raise Malformed(f"real_time of '{name}' is shorter than {MIN_SECONDS:g} s")
    return seconds


def matched(a: Results, b: Results, patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the names of the rows to compare, and a line for each row that only one side has.

    patterns: names, or patterns of names with * and ?; empty: all rows.
    Errors: HvdbError for a pattern without a row, or for too many rows; NotComparable if no row is in both.
    """
    names = list(dict.fromkeys([*a.seconds, *b.seconds]))
    for pattern in patterns:
        if not any(_fits(name, pattern) for name in names):
            shown = ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES])
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            raise HvdbError(f"--row '{pattern}': there is no such row; there are {shown}{more}")
    chosen = [name for name in names if not patterns or any(_fits(name, pattern) for pattern in patterns)]
    if len(chosen) > MAX_CELLS:
        raise HvdbError(f"{len(chosen)} rows, and at most {MAX_CELLS} can be judged: choose some with --row")
    both = [name for name in chosen if name in a.seconds and name in b.seconds]
    if not both:
        first = [next(iter(side.seconds)) for side in (a, b)]
        raise NotComparable(f"A and B have no row in common; A has '{first[0]}', B has '{first[1]}'")
    missing = [
        f"{name}: side {'B' if name in a.seconds else 'A'} has no such row" for name in chosen if name not in both
    ]
    return both, missing


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
