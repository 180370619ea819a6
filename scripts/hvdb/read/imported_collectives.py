"""Reads times of collectives that other programs measured: nccl-tests (its table, and its JSON of -J) and the OSU
micro-benchmarks (their table).

The files may come from a stranger. This module checks every field that it uses and ignores all other fields, above all
the environment that the JSON of nccl-tests holds.
Sources: nccl-tests 2.19 (src/util.cu), and tables of 2.8 to 2.19 in its issues; OSU micro-benchmarks 5 to 7.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record, whole_file
from hvdb.base.record import Count, Malformed, Range, Words
from hvdb.read.names import REDUCTIONS, TYPES

MAX_BYTES, MAX_ROWS, MAX_LINE = 64 << 20, 100_000, 4096
MAX_RANKS, MAX_SIZE, MIN_SECONDS, MAX_SECONDS = 1 << 20, 1 << 50, 1e-9, 1e5
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
NCCL_TESTS, OSU_BENCHMARKS = "nccl-tests", "OSU micro-benchmarks"
_DEVICE = re.compile(r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+\d{1,7}\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\b")
_OSU = re.compile(r"# OSU MPI(?:-\w+)? ([A-Za-z_]+)\b.* Latency Test")


_OSU_TYPE = re.compile(r"# Datatype: (MPI_\w+)")
_OSU_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float", "MPI_DOUBLE": "double"}
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_Type, _Reduction = Annotated[str, Words(TYPES)], Annotated[str, Words(REDUCTIONS)]
_Ranks, _Size = Annotated[int, Range(1, MAX_RANKS)], Annotated[int, Range(0, MAX_SIZE)]
_UNIT = re.compile(r"#.*?\bLatency ?\((\w{1,8})\)")


@dataclass(frozen=True)
class ImportedRow:
    """One size of one collective. size: bytes as the program counts them. seconds: of one operation, a mean over its
    iterations, or each of them if the file has them."""

    operation: str
    type: str
    reduction: str
    in_place: bool
    size: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Imported:
    """The contents of one file. ranks, nodes: None if the file does not say."""

    program: str
    ranks: int | None
    nodes: int | None
    rows: tuple[ImportedRow, ...]


def read(path: Path) -> Imported:
    """Errors: HvdbError, one line that names the file and, in a table, the line."""
    content = whole_file.read_at_most(path, MAX_BYTES)
    with record.faults_of(f"{path}: not a result of nccl-tests or the OSU micro-benchmarks"):
        return parse(*text_and_json(content))


def text_and_json(content: bytes) -> tuple[str, dict[str, Any] | None]:
    """Returns `content` as text, and the JSON object that the text is; None if it is no JSON. Errors: Malformed."""
    if len(content) > MAX_BYTES:
        raise Malformed(f"more than {MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8", errors="replace")
    if not text.lstrip().startswith("{"):
        return text, None
    try:
        return text, json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("no whole JSON document") from error


def parse(text: str, document: dict[str, Any] | None) -> Imported:
    """Reads a table, or a JSON document. text, document: as returned by text_and_json(). Errors: Malformed."""
    made = _table(text) if document is None else _json(document)
    if not made.rows:
        raise Malformed("no row with a time; did the test end early?")
    return made


def _whole(text: str, low: int, high: int, what: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not low <= int(text) <= high:
        raise Malformed(f"{what} is not a whole number from {low} to {high}")
    return int(text)


def _seconds(microseconds: object, what: str) -> float:
    try:
        if isinstance(microseconds, str) and not _NUMBER.fullmatch(microseconds):
            raise ValueError
        value = float(microseconds) / 1e6  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(microseconds, bool) or not MIN_SECONDS <= value < MAX_SECONDS:
        raise Malformed(f"{what} is not a time from {1e6 * MIN_SECONDS:g} us to {MAX_SECONDS:g} s")
    return value


def _operation(name: object) -> str:
    if not isinstance(name, str) or (key := re.sub(r"_perf.*|[^a-z]", "", name.lower())) not in _OPERATIONS:
        raise Malformed(f"the test is none of {', '.join(sorted(_OPERATIONS))}")
    return _OPERATIONS[key]


def _wrong(value: object) -> bool:
    """Returns True if a result was checked and had wrong elements. Versions before 2.13 print the largest error."""
    if value is None or value == "N/A":
        return False
    try:
        if isinstance(value, bool):
            raise TypeError
        return not 0 <= float(value) < 1e-2  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed("the number of wrong elements is not a number") from error


# --- JSON of nccl-tests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Device:
    hostname: object = None


@dataclass(frozen=True)
class _Config:
    devices: tuple[_Device, ...]
    nthreads: _Ranks
    ngpus: _Ranks


@dataclass(frozen=True)
class _Document:
    config: _Config
    results: Annotated[tuple[dict[str, object], ...], Count(MAX_ROWS)]


def _json(document: dict[str, Any]) -> Imported:
    found = record.read(_Document, document, others=True)
    config = found.config
    # The list of devices has one entry for each process, that of its first GPU.
    ranks = record.value(_Ranks, len(config.devices) * config.nthreads * config.ngpus, "the number of ranks")
    hosts = {device.hostname for device in config.devices if isinstance(device.hostname, str)}
    rows = [row for result in found.results for row in _json_rows(result)]
    return Imported(NCCL_TESTS, ranks, len(hosts) or None, tuple(rows))


def _json_rows(result: dict[str, Any]) -> Iterator[ImportedRow]:
    size = record.value(_Size, result.get("size"), "size")
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        form = result.get(key)
        if form is None or size == 0:
            continue
        if not isinstance(form, dict) or "time" not in form:
            raise Malformed(f"{key} has no time (a CPU time of -C is not the time of the collective)")
        if _wrong(form.get("nwrong")):
            raise Malformed(f"{size} bytes have wrong elements")
        times = [form["time"]]
        if (each := result.get(f"{key}_per_iter")) is not None:
            times = each.get("times_us") if isinstance(each, dict) else None
            if not isinstance(times, list) or not 0 < len(times) <= MAX_ROWS:
                raise Malformed(f"{key}_per_iter has no list of 1 to {MAX_ROWS} times")
        if any(isinstance(time, str) for time in times):
            raise Malformed(f"a time of {size} bytes is not a number")
        yield ImportedRow(
            _operation(result.get("experiment_name")),
            record.value(_Type, result.get("type"), "type"),
            record.value(_Reduction, result.get("redop"), "redop"),
            in_place,
            size,
            tuple(_seconds(time, "time") for time in times),
        )


# --- Tables -----------------------------------------------------------------------------------------------------------


def _table(text: str) -> Imported:
    lines = text.splitlines()
    if lines and not text.endswith("\n") and lines[-1].strip()[:1].isdigit():
        raise Malformed(f"line {len(lines)} is cut off: it has no line break")
    for number, line in enumerate(lines, 1):
        if found := _OSU.match(line):
            return _osu(lines, number, found[1])
        if line.startswith("#") and {"size", "count", "type", "algbw"} <= set(line.split()):
            return _nccl_table(lines, number)
    raise Malformed("neither JSON nor a table with a known heading")


def _blamed(number: int, line: str) -> list[str]:
    if len(line) > MAX_LINE:
        raise Malformed(f"line {number} is too long")
    return line.split()


def _nccl_table(lines: list[str], heading: int) -> Imported:
    """heading: the number of the line that names the columns, which versions differ in."""
    columns = lines[heading - 1].split()[1:]
    columns = columns[: len(columns) - columns.count("timestamp")]
    if "cputime" in columns:
        raise Malformed("the table has CPU times (-C), which are not the time of the collective")
    places = [index for index, name in enumerate(columns) if name == "time"]
    if columns[:4] != ["size", "count", "type", "redop"] or len(places) != 2 or len(columns) < places[-1] + 4:
        raise Malformed(f"line {heading} does not name the columns of nccl-tests")
    hosts: dict[int, str] = {}
    operation = ""
    for line in lines[:heading]:
        if found := _DEVICE.match(line[:MAX_LINE]):
            hosts[int(found[1])] = found[2]
        if line.startswith("# Collective test starting:"):
            operation = _operation(line.rpartition("/")[2].partition(":")[2] or line.rpartition("/")[2])
    if hosts and sorted(hosts) != list(range(len(hosts))):
        raise Malformed("the list of ranks has a gap")
    rows: list[ImportedRow] = []
    for number, line in enumerate(lines[heading:], heading + 1):
        fields = _blamed(number, line)
        if line.startswith("# Collective test starting:"):
            raise Malformed(f"line {number} begins another test; give each test a file, or a gate, of its own")
        if not fields or not fields[0].isdigit():
            continue  # a comment, a unit, or what NCCL_DEBUG prints between the rows
        try:
            rows += _nccl_rows(fields, columns, places, operation, len(hosts))
        except Malformed as error:
            raise Malformed(f"line {number}: {error}") from error
        if len(rows) > MAX_ROWS:
            raise Malformed(f"more than {MAX_ROWS} rows")
    return Imported(NCCL_TESTS, len(hosts) or None, len(set(hosts.values())) or None, tuple(rows))


def _nccl_rows(
    fields: list[str], columns: list[str], places: list[int], operation: str, ranks: int
) -> Iterator[ImportedRow]:
    if len(fields) < len(columns):
        raise Malformed(f"{len(fields)} fields, and the heading names {len(columns)}")
    size = _whole(fields[0], 0, MAX_SIZE, "size")
    if size == 0:
        return
    for place, start in enumerate(places):
        if _wrong(fields[start + 3]):
            raise Malformed("wrong elements")
        yield ImportedRow(
            operation or _by_its_rates(fields, start, ranks),
            record.value(_Type, fields[2], "type"),
            record.value(_Reduction, fields[3], "redop"),
            place == 1,
            size,
            (_seconds(fields[start], "time"),),
        )


def _by_its_rates(fields: list[str], start: int, ranks: int) -> str:
    """Tables of before 2.17 do not name the operation. An all-reduce's busbw is 2 (n - 1) / n of its algbw."""
    if fields[3] not in REDUCTIONS[:-1] or ranks < 3:
        raise Malformed("the table does not name its test ('# Collective test starting: ...')")
    factor = 2 * (ranks - 1) / ranks
    try:
        algorithm, bus = float(fields[start + 1]), float(fields[start + 2])
    except ValueError as error:
        raise Malformed("a bandwidth is not a number") from error
    if algorithm >= 0.5 and abs(bus / algorithm - factor) > 0.05 * factor:
        raise Malformed("the table does not name its test, and its rates are not those of an all-reduce")
    return "all_reduce"


def _osu(lines: list[str], heading: int, test: str) -> Imported:
    """Tables of the OSU micro-benchmarks name neither the ranks nor the place of the buffers."""
    operation = _operation(test)
    if operation == "barrier":
        raise Malformed("osu_barrier's one time, which has no size, is not read")
    if units := [found[1] for line in lines if (found := _UNIT.search(line[:MAX_LINE])) and found[1] != "us"]:
        raise Malformed(f"its times are in '{units[0]}', not in us")
    # OSU prints the type since version 7, and older versions reduce floats. An operation that only moves data takes as
    # long with any type.
    kind = "float"
    types = [found[1] for line in lines if (found := _OSU_TYPE.match(line[:MAX_LINE]))]
    if types and operation in _REDUCING:
        kind = _OSU_TYPES[record.value(Annotated[str, Words(tuple(_OSU_TYPES))], types[0], "Datatype")]
    rows: list[ImportedRow] = []
    for number, line in enumerate(lines[heading:], heading + 1):
        fields = _blamed(number, line)
        if _OSU.match(line):
            raise Malformed(f"line {number} begins another test; give each test a file, or a gate, of its own")
        if not fields or not fields[0].isdigit():
            continue
        try:
            if len(fields) < 2:
                raise Malformed("a size without a time")
            if "fail" in map(str.lower, fields[2:]):
                raise Malformed("wrong elements")
            size = _whole(fields[0], 1, MAX_SIZE, "size")
            reduction = "sum" if operation in _REDUCING else "none"
            rows.append(ImportedRow(operation, kind, reduction, False, size, (_seconds(fields[1], "time"),)))
        except Malformed as error:
            raise Malformed(f"line {number}: {error}") from error
        if len(rows) > MAX_ROWS:
            raise Malformed(f"more than {MAX_ROWS} rows")
    return Imported(OSU_BENCHMARKS, None, None, tuple(rows))
