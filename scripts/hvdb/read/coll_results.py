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
from typing import Annotated, Any, NamedTuple

from hvdb.base import record
from hvdb.base.errors import HvdbError
from hvdb.base.record import Count, Malformed, Range, Text, Words
from hvdb.base.sqlite import sqlite3
from hvdb.read import imported_collectives, schema, store
from hvdb.read.names import OPERATIONS, REDUCTIONS, TYPES

PLACES = {"out_of_place": "out of place", "in_place": "in place"}
MAX_FILE_BYTES = 64 << 20  # bytes; room for 100,000 rows
MAX_ROWS = 100_000
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
_Name, _Ranks, _Size = Annotated[str, Text(300)], Annotated[int, Range(1, 1 << 20)], Annotated[int, Range(0, 1 << 60)]
_Time, _End = Annotated[float, Range(0, 1e12, inner=True)], Annotated[float, Range(0, 1e12)]  # microseconds
_Seconds = Annotated[float, Range(0, 1e6, inner=True)]
_Operation, _Type = Annotated[str, Words(OPERATIONS)], Annotated[str, Words(TYPES)]
_Rows = Annotated[list[dict[str, object]], Count(MAX_ROWS)]
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


def _interval(time: float, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """Returns the interval of `time`, or (None, None) if it has none or it reaches zero. Errors: Malformed."""
    if (low is None) != (high is None) or (low is not None and high is not None and not low <= time <= high):
        raise Malformed("a time does not lie between the ends of its interval")
    return (low, high) if low else (None, None)


@dataclass(frozen=True)
class _Form:
    """A result of `hvd_bench coll -J`. time: None if too short for the clock. bound: a share of `time`."""

    time: _Time | None
    stop_reason: _Name
    time_low: _End | None = None
    time_high: _End | None = None
    bound: Annotated[float, Range(0, 1e6, inner=True)] | None = None
    nwrong: Annotated[int, Range(0, 1 << 62)] | None = None
    settled: bool | None = None  # versions of hvd_bench before 2026-11-25 do not write "settled"

    def point(self, size: int, time: float) -> Point:
        bound = None if self.bound is None else time * self.bound
        settled = self.stop_reason == SETTLED if self.settled is None else self.settled
        return Point(size, time, *_interval(time, self.time_low, self.time_high), bound, settled)


@dataclass(frozen=True)
class _Row:
    """A row of `hvd_bench coll -J`."""

    size: _Size
    variant: _Name
    data_plane: _Name
    experiment_name: _Operation
    type: _Type
    redop: Annotated[str, Words(REDUCTIONS)]
    out_of_place: _Form | None = None
    in_place: _Form | None = None
    ragged: bool = False  # versions of hvd_bench before 2026-11-25 do not write "ragged"


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


def _name(side: str, plane: str, ragged: bool) -> str:
    return (side or f"hvd_bench coll ({plane})") + (", ragged" if ragged else "")


def _library(name: str, versions: dict[str, Any]) -> str:
    """Returns the name of a library in figures. versions: library -> text of a file, which may be a stranger's."""
    version = _VERSION.search(str(versions.get(name, "")))
    return " ".join(_LIBRARIES[name].format(version[0] if version else "").split()) if name in _LIBRARIES else name


def _own_rows(document: dict[str, Any], gathered: _Gathered) -> None:
    config = record.value(dict[str, object], document.get("config"), "config")
    ranks = record.value(_Ranks, config.get("ranks"), "config.ranks")
    for row in record.value(Annotated[list[_Row], Count(MAX_ROWS)], document["results"], "results"):
        for key, place in PLACES.items():
            form = getattr(row, key)
            panel = Panel(row.experiment_name, row.type, row.redop, place, ranks)
            if form is None or not gathered.may_draw(panel, row.size, form.nwrong or 0):
                continue
            if form.time is None:
                gathered.leave_out(panel, row.size, TOO_SHORT)
            else:
                name = _name(row.variant, row.data_plane, row.ragged)
                gathered.add(panel, name, form.point(row.size, form.time))


def _stored(file: Path, wanted: Sequence[str], into: Read) -> None:
    """Adds the sessions of a store to `into`. wanted: starts of the UUIDs of the sessions to add; empty: all sessions.

    Errors: HvdbError.
    """
    with store.open_readonly(file) as connection:
        if schema.COLL not in schema.records(connection):
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
        if schema.COLL not in schema.records(connection):
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
    parts = record.value(_Name, row.get("cell"), "cell").split("/")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in (parts[2], parts[4])):
        raise Malformed("cell is not OPERATION/TYPE/BYTES/in|out/CALLS")
    kind = record.value(_Name, row.get("class"), "class")
    operation = record.value(_Operation, parts[0], "the operation of a cell")
    panel = Panel(
        operation,
        _PEER_TYPES[record.value(Annotated[str, Words(tuple(_PEER_TYPES))], parts[1], "the type of a cell")],
        "sum" if operation in ("all_reduce", "reduce_scatter") else "none",
        _PEER_PLACES[record.value(Annotated[str, Words(tuple(_PEER_PLACES))], parts[3], "the place of a cell")],
        record.value(_Ranks, classes.get(kind), "the ranks of a class"),
    )
    size = record.value(_Size, int(parts[2][:20]), "the bytes of a cell")
    return panel, kind, size, record.value(Annotated[int, Range(1, 1 << 20)], int(parts[4][:20]), "the calls of a cell")


def _peer_rows(document: dict[str, Any], gathered: _Gathered) -> None:
    """Reads the times of every library if the file has the key `series`.

    Otherwise reads the two times of each result: that of hvd_bench and that of the fastest peer.
    """
    plan = record.value(dict[str, object], document["plan"], "plan")
    classes = record.value(dict[str, object], plan.get("classes"), "plan.classes")
    versions = record.value(dict[str, object], plan.get("libraries", {}), "plan.libraries")
    own = document.get("series") is not None
    first_calls: dict[tuple[Panel, str, str, int], int] = {}
    rows = "series" if own else "cells"
    for row in record.value(_Rows, document.get(rows), rows):
        panel, kind, size, calls = _peer_cell(row, classes)
        name = _library(record.value(_Name, row.get("library" if own else "ours"), "a library"), versions)
        # The number of ranks tells the class, unless two classes have as many ranks.
        of_class = f", {kind}" if list(classes.values()).count(panel.ranks) > 1 else ""
        points = {}
        if own:
            seconds = record.value(_Seconds, row.get("seconds"), "seconds")
            ends = _interval(seconds, *(record.value(_End | None, row.get(key), key) for key in ("low", "high")))
            scaled = [None if end is None else 1e6 * end / calls for end in ends]
            points[f"{name}{of_class}"] = Point(size, 1e6 * seconds / calls, *scaled)
        else:
            peer = _library(record.value(_Name, row.get("peer"), "peer"), versions)
            times = [1e6 * record.value(_Seconds, row.get(key), key) for key in ("ours_seconds", "peer_seconds")]
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
        elif row.type not in TYPES or row.reduction not in REDUCTIONS:
            gathered.leave_out(panel, row.size, "hvd_bench has no such type or reduction")
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
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        with record.faults_of(
            f"{file}: is not JSON of 'hvd_bench coll -J' or 'scripts/maintain/peers collectives --json'"
        ):
            if len(content) > MAX_FILE_BYTES:
                raise Malformed(f"more than {MAX_FILE_BYTES >> 20} MiB")
            text = content.decode("utf-8", errors="replace")
            document = record.json_object(text, MAX_FILE_BYTES) if text.lstrip().startswith("{") else {}
            config = document.get("config")
            if not document or (isinstance(config, dict) and "ranks" not in config):  # nccl-tests names devices only
                _foreign(file, ranks, made)
            elif "results" in document:
                _own_rows(document, _Gathered(made, Source(file)))
            elif "plan" in document:
                plan = record.value(dict[str, object], document["plan"], "plan")
                machine = record.value(_Name, plan.get("machine", ""), "plan.machine")
                _peer_rows(document, _Gathered(made, Source(file, "", machine)))
            else:
                raise Malformed("neither results nor a plan")
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
