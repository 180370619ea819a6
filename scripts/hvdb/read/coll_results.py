"""Reads results of collective operations from stores of `hvd_bench coll --db`, JSON of `hvd_bench coll -J`, JSON of
`scripts/maintain/peers collectives --json`, and what nccl-tests and the OSU micro-benchmarks print.

The files may come from a stranger. This module checks every field that it uses, and ignores all other fields.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from hvdb.base import strict_json
from hvdb.base.errors import HvdbError
from hvdb.base.sqlite import sqlite3
from hvdb.base.strict_json import Malformed
from hvdb.read import imported_collectives, store, untrusted
from hvdb.read.names import OPERATIONS, REDUCTIONS, TYPES

PLACES = {"out_of_place": "out of place", "in_place": "in place"}
MAX_FILE_BYTES = 64 << 20  # bytes; room for 100,000 rows
MAX_ROWS = 100_000
MAX_RANKS = 1 << 20
MAX_MICROSECONDS = 1e12
SETTLED = "interval narrow enough"
TOO_SHORT = "took less time than the clock can tell"
# The peers' names of types and places -> the names that hvd_bench uses.
_PEER_TYPES = {"fp32": "float", "fp64": "double", "int32": "int32", "int64": "int64"}
_PEER_PLACES = {"out": "out of place", "in": "in place"}
# Library of `peers collectives` -> its name in figures. {}: the library's version, or that of PyTorch for Gloo.
_LIBRARIES = {
    "ours": "hvd_bench, registered memory",
    "ours_plain": "hvd_bench, plain memory",
    "system": "Open MPI {} (system)",
    "system_ring": "Open MPI {} (system), ring",
    "openmpi": "Open MPI {}",
    "mpich": "MPICH {}",
    "intelmpi": "Intel MPI {}",
    "intelmpi_yield": "Intel MPI {}, yielding",
    "oneccl": "oneCCL {}",
    "gloo": "Gloo of PyTorch {}",
}
_SESSIONS = """SELECT uuid, ranks, value AS machine FROM coll_session
    LEFT JOIN coll_provenance ON session_uuid = uuid AND key = 'cpu.model' ORDER BY started_utc, uuid"""
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}", re.ASCII)


class Panel(NamedTuple):
    """One diagram: all sizes of one operation with one type, reduction, place and number of ranks."""

    operation: str
    type: str
    reduction: str
    place: str
    ranks: int

    def title(self) -> str:
        """Returns a text of one line that names the panel."""
        words = [self.operation, self.type, *([] if self.reduction == "none" else [self.reduction]), self.place]
        return f"{' '.join(words)}, {self.ranks} rank{'' if self.ranks == 1 else 's'}"


@dataclass(frozen=True)
class Point:
    """One measured size. size: bytes, counted as nccl-tests counts bytes. Times are microseconds of one operation.

    time: the median. low, high: 95 % interval of `time`; None if there is no interval or if the interval reaches zero.
    bound: the least possible time. settled: True if the interval was narrow enough when sampling ended.
    """

    size: int
    time: float
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    settled: bool = True


class Source(NamedTuple):
    """A file, or one session of a store with several sessions. session: UUID of the session; "" for a whole file.
    machine: what the file says of the machine."""

    file: Path
    session: str = ""
    machine: str = ""


@dataclass
class Series:
    """The points of one side (an algorithm or a library) in one panel. source: index of its source in Read.sources."""

    panel: Panel
    name: str
    source: int
    points: list[Point] = field(default_factory=list)


@dataclass
class Read:
    """The contents of the files. series: in the order of the files. left_out: a line per result without a point."""

    sources: list[Source] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def bus_factor(operation: str, ranks: int) -> float:
    """Returns the factor by which size / time is multiplied to give the bus bandwidth. Source: docs/coll.md."""
    if operation in ("broadcast", "reduce", "sendrecv", "barrier"):
        return 0.0 if operation == "barrier" else 1.0
    return (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks


def bus_rate(panel: Panel, size: int, microseconds: float) -> float:
    """Returns the bus bandwidth in GB/s."""
    return bus_factor(panel.operation, panel.ranks) * size / microseconds / 1e3


def _one_of(value: object, known: Sequence[str], what: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise Malformed(f"{what} is none of {', '.join(known)}")
    return value


def _list(value: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MAX_ROWS or not all(isinstance(row, dict) for row in value):
        raise Malformed(f"{what} is not a list of at most {MAX_ROWS} objects")
    return value


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def _time(value: object, what: str) -> float:
    return strict_json.above_zero(value, MAX_MICROSECONDS, what)


def _end(value: object, what: str) -> float | None:
    """Returns `value`, an end of an interval, if `value` is None, 0 or a number above 0. Errors: Malformed."""
    return value if value is None or value == 0 else _time(value, what)


def _point(size: int, form: dict[str, Any]) -> Point:
    time = _time(form.get("time"), "time")
    low, high = (_end(form.get(key), key) for key in ("time_low", "time_high"))
    if (low is None) != (high is None) or (low is not None and high is not None and not low <= time <= high):
        raise Malformed("time does not lie between time_low and time_high")
    if low == 0:
        low = high = None
    bound = form.get("bound")
    bound_time = None if bound is None else time * strict_json.above_zero(bound, 1e6, "bound")
    reason = strict_json.text(form.get("stop_reason"), "stop_reason")
    settled = form.get("settled", reason == SETTLED)  # versions of hvd_bench before 2026-11-25 do not write "settled"
    if not isinstance(settled, bool):
        raise Malformed("settled is not true or false")
    return Point(size, time, low, high, bound_time, settled)


class _Gathered:
    """Collects the points of one source into series, one series for each panel and name of a side."""

    def __init__(self, into: Read, source: Source) -> None:
        self.into, self.source = into, len(into.sources)
        into.sources.append(source)
        self.known: dict[tuple[Panel, str], Series] = {}
        self.cells: set[tuple[Panel, str, int]] = set()
        self.lines: set[str] = set()

    def has(self, panel: Panel, name: str, size: int) -> bool:
        return (panel, name, size) in self.cells

    def add(self, panel: Panel, name: str, point: Point) -> None:
        if self.has(panel, name, point.size):
            raise Malformed("a cell that occurs twice")
        self.cells.add((panel, name, point.size))
        if (panel, name) not in self.known:
            self.known[panel, name] = Series(panel, name, self.source)
            self.into.series.append(self.known[panel, name])
        self.known[panel, name].points.append(point)

    def may_draw(self, panel: Panel, size: int, wrong: int) -> bool:
        """Returns True if the result can be drawn. Otherwise (wrong elements, or no size) adds a line to left_out."""
        if wrong:
            self.leave_out(panel, size, f"{wrong} wrong elements")
        elif size == 0:
            self.leave_out(panel, size, "has no size, so it cannot be drawn")
        return wrong == 0 and size > 0

    def leave_out(self, panel: Panel, size: int, why: str) -> None:
        line = f"{panel.title()}, {size} bytes: {why}"
        if line not in self.lines:  # the results of several libraries may give the same line
            self.lines.add(line)
            self.into.left_out.append(line)


def _name(side: str, plane: str, ragged: object) -> str:
    if not isinstance(ragged, bool):
        raise Malformed("ragged is not true or false")
    return (side or f"hvd_bench coll ({plane})") + (", ragged" if ragged else "")


def _library(name: str, versions: dict[str, Any]) -> str:
    """Returns the name of a library in figures. versions: library -> text of a file, which may be a stranger's."""
    version = _VERSION.search(str(versions.get(name, "")))
    return " ".join(_LIBRARIES[name].format(version[0] if version else "").split()) if name in _LIBRARIES else name


def _own_rows(document: dict[str, Any], gathered: _Gathered) -> None:
    ranks = strict_json.whole(_table(document.get("config"), "config").get("ranks"), 1, MAX_RANKS, "ranks")
    for row in _list(document["results"], "results"):
        size = strict_json.whole(row.get("size"), 0, 1 << 60, "size")
        variant = strict_json.text(row.get("variant"), "variant")
        plane = strict_json.text(row.get("data_plane"), "data_plane")
        for key, place in PLACES.items():
            if row.get(key) is None:
                continue
            panel = Panel(
                _one_of(row.get("experiment_name"), OPERATIONS, "experiment_name"),
                _one_of(row.get("type"), TYPES, "type"),
                _one_of(row.get("redop"), REDUCTIONS, "redop"),
                place,
                ranks,
            )
            form = _table(row[key], key)
            wrong = form.get("nwrong")
            wrong = 0 if wrong is None else strict_json.whole(wrong, 0, 1 << 62, "nwrong")
            if not gathered.may_draw(panel, size, wrong):
                continue
            if form.get("time", "") is None:
                gathered.leave_out(panel, size, TOO_SHORT)
            else:
                # Versions of hvd_bench before 2026-11-25 do not write "ragged".
                gathered.add(panel, _name(variant, plane, row.get("ragged", False)), _point(size, form))


def _stored(file: Path, wanted: Sequence[str], into: Read) -> None:
    """Adds the sessions of a store to `into`. wanted: starts of the UUIDs of the sessions to add; empty: all sessions.

    Errors: HvdbError.
    """
    with store.open_readonly(file) as connection:
        if untrusted.COLL not in untrusted.records(connection):
            raise HvdbError(f"{file}: holds no results of collectives; hvd_bench coll --db stores them")
        sessions = [row for row in connection.execute(_SESSIONS) if not wanted or row["uuid"].startswith(tuple(wanted))]
        for session in sessions:
            uuid = session["uuid"] if len(sessions) > 1 else ""
            gathered = _Gathered(into, Source(file, uuid, session["machine"] or ""))
            cells = connection.execute(
                "SELECT * FROM coll_cell WHERE session_uuid = ? ORDER BY seq", (session["uuid"],)
            )
            for cell in cells:
                _stored_cell(cell, session["ranks"], gathered)


def in_store(path: Path) -> bool:
    """Returns True if the store `path` has results of collectives. Does not check their values. Errors: StoreError."""
    with store.open_readonly(path, thorough=False) as connection:
        if untrusted.COLL not in untrusted.records(connection):
            return False
        return connection.execute("SELECT 1 FROM coll_session LIMIT 1").fetchone() is not None


def _stored_cell(cell: sqlite3.Row, ranks: int, gathered: _Gathered) -> None:
    place = PLACES["in_place" if cell["in_place"] else "out_of_place"]
    panel = Panel(cell["operation"], cell["type"], cell["reduction"], place, ranks)
    size, seconds = cell["bytes"], cell["seconds"]
    name = _name(cell["side"], cell["data_plane"], bool(cell["ragged"]))
    if not gathered.may_draw(panel, size, cell["wrong"] or 0):
        return
    if seconds is None:
        gathered.leave_out(panel, size, TOO_SHORT)
    elif gathered.has(panel, name, size):
        gathered.leave_out(panel, size, f"occurs twice as {name}")
    else:
        low, high = cell["seconds_low"], cell["seconds_high"]
        ends = (1e6 * low, 1e6 * high) if low else (None, None)
        bound = 1e6 * seconds * cell["bound"] if cell["bound"] else None
        gathered.add(panel, name, Point(size, 1e6 * seconds, *ends, bound, bool(cell["settled"])))


def _peer_cell(row: dict[str, Any], classes: dict[str, Any]) -> tuple[Panel, str, int, int]:
    """Returns (panel, class, bytes per call, calls per sample) of the row `row`. Errors: Malformed."""
    parts = strict_json.text(row.get("cell"), "cell").split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in (parts[2], parts[4])):
        raise Malformed("cell is not OPERATION/TYPE/BYTES/in|out/CALLS")
    kind = strict_json.text(row.get("class"), "class")
    operation = _one_of(parts[0], OPERATIONS, "the operation of a cell")
    panel = Panel(
        operation,
        _PEER_TYPES[_one_of(parts[1], list(_PEER_TYPES), "the type of a cell")],
        "sum" if operation in ("all_reduce", "reduce_scatter") else "none",
        _PEER_PLACES[_one_of(parts[3], list(_PEER_PLACES), "the place of a cell")],
        strict_json.whole(classes.get(kind), 1, MAX_RANKS, "the ranks of a class"),
    )
    size = strict_json.whole(int(parts[2][:20]), 0, 1 << 60, "the bytes of a cell")
    return panel, kind, size, strict_json.whole(int(parts[4][:20]), 1, 1 << 20, "the calls of a cell")


def _peer_rows(document: dict[str, Any], gathered: _Gathered) -> None:
    """Reads the times of every library if the file has the key `series`.

    Otherwise reads the two times of each result: that of hvd_bench and that of the fastest peer.
    """
    plan = _table(document["plan"], "plan")
    classes, versions = _table(plan.get("classes"), "classes"), _table(plan.get("libraries", {}), "libraries")
    own = document.get("series") is not None
    first_calls: dict[tuple[Panel, str, str, int], int] = {}
    for row in _list(document.get("series" if own else "cells"), "series" if own else "cells"):
        panel, kind, size, calls = _peer_cell(row, classes)
        name = _library(strict_json.text(row.get("library" if own else "ours"), "a library"), versions)
        # The number of ranks tells the class, unless two classes have as many ranks.
        of_class = f", {kind}" if list(classes.values()).count(panel.ranks) > 1 else ""
        points = {}
        if own:
            low, high = (_end(row.get(key), key) for key in ("low", "high"))
            seconds = strict_json.above_zero(row.get("seconds"), 1e6, "seconds")
            if (low is None) != (high is None) or (low is not None and high is not None and not low <= seconds <= high):
                raise Malformed("seconds does not lie between low and high")
            scaled = [None if end is None else 1e6 * end / calls for end in (low, high)]
            points[f"{name}{of_class}"] = Point(size, 1e6 * seconds / calls, *(scaled if low else (None, None)))
        else:
            peer = _library(strict_json.text(row.get("peer"), "peer"), versions)
            times = [1e6 * strict_json.above_zero(row.get(key), 1e6, key) for key in ("ours_seconds", "peer_seconds")]
            points[f"{name}{of_class}"] = Point(size, times[0] / calls)
            points[f"{peer}, beside {name}{of_class}"] = Point(size, times[1] / calls)
        if panel.operation == "barrier":
            gathered.leave_out(panel, size, "has no size, so it cannot be drawn")
            continue
        if size == 0:
            raise Malformed(f"{panel.operation} of 0 bytes")
        one_number = first_calls.setdefault((panel, name, kind, size), calls)
        if calls != one_number:
            gathered.leave_out(panel, size, f"{calls} calls a sample; drawn with {one_number}")
            continue
        for curve, point in points.items():
            gathered.add(panel, curve, point)


def _foreign(file: Path, ranks: int | None, into: Read) -> None:
    """Adds the rows of another program to `into`. ranks: for tables that do not say on how many they were measured."""
    found = imported_collectives.read(file)
    ranks = found.ranks or ranks
    if ranks is None:
        raise HvdbError(f"{file}: does not say on how many ranks it was measured; say it with --ranks")
    gathered = _Gathered(into, Source(file))
    for row in found.rows:
        place = PLACES["in_place" if row.in_place else "out_of_place"]
        panel = Panel(row.operation, row.type, row.reduction, place, ranks)
        if gathered.has(panel, found.program, row.size):
            gathered.leave_out(panel, row.size, "occurs twice")
        elif row.operation == "barrier":
            gathered.leave_out(panel, row.size, "has no size, so it cannot be drawn")
        else:
            gathered.add(panel, found.program, Point(row.size, 1e6 * statistics.median(row.seconds)))


def read(files: Sequence[Path], sessions: Sequence[str] = (), ranks: int | None = None) -> Read:
    """Returns all series of the files. sessions: starts of the UUIDs of the sessions to read; empty: all sessions.

    ranks: of files of other programs that do not say on how many ranks they were measured.
    Errors: HvdbError, which names the file and the fault; OSError.
    """
    made = Read()
    for file in files:
        if store.is_database(file):
            _stored(file, sessions, made)
            continue
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise Malformed(f"more than {MAX_FILE_BYTES >> 20} MiB")
            text = content.decode("utf-8", errors="replace")
            document = strict_json.load(text, MAX_FILE_BYTES) if text.lstrip().startswith("{") else {}
            config = document.get("config")
            if not document or (isinstance(config, dict) and "ranks" not in config):  # nccl-tests names devices only
                _foreign(file, ranks, made)
            elif "results" in document:
                _own_rows(document, _Gathered(made, Source(file)))
            elif "plan" in document:
                machine = strict_json.text(_table(document["plan"], "plan").get("machine", ""), "machine")
                _peer_rows(document, _Gathered(made, Source(file, "", machine)))
            else:
                raise Malformed("neither results nor a plan")
        except Malformed as error:
            raise HvdbError(
                f"{file}: is not JSON of 'hvd_bench coll -J' or 'scripts/maintain/peers collectives --json': {error}"
            ) from error
    return made


def by_operation(series: Sequence[Series]) -> Iterator[tuple[str, dict[Panel, list[Series]]]]:
    """Yields each operation, with the series of each panel in the order of the files.

    Operations and panels have a fixed order.
    """
    for operation in OPERATIONS:
        curves = sorted(
            (curve for curve in series if curve.panel.operation == operation), key=lambda s: _order(s.panel)
        )
        if curves:
            yield operation, {panel: list(members) for panel, members in groupby(curves, key=lambda s: s.panel)}


def _order(panel: Panel) -> tuple[int, ...]:
    places = list(PLACES.values())
    return (TYPES.index(panel.type), REDUCTIONS.index(panel.reduction), panel.ranks, places.index(panel.place))
