"""Reads the tables of nccl-tests and rccl-tests, of hvd_bench coll, and of the OSU micro-benchmarks.

An output may hold several tables, and log lines between and inside of their rows.
Sources: nccl-tests 2.19.6 (src/util.cu, src/common.cu) and tables of 2.5 to 2.20 in its issues; rccl-tests
(src/common.cu); OSU micro-benchmarks 5 to 7.5 (c/util/osu_util_mpi.c); bench/cli/coll/report.cpp.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from hvdb.base.record import Malformed
from hvdb.read.collective_rows import (
    COLL,
    NCCL_TESTS,
    NUMBER,
    OSU_BENCHMARKS,
    UNNAMED,
    Cell,
    Gathered,
    operation_of,
    row_of,
)
from hvdb.read.names import OPERATIONS, REDUCTIONS
from hvdb.read.output_text import Output

MAX_LINE = 4096
_DEVICE = re.compile(r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+\d{1,7}\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\b")
_STARTING = "# Collective test starting:"
_COLL_WORLD = re.compile(r"# (\d{1,7}) ranks on (\d{1,7}) node\(s\), ")
_COLL_TEST = re.compile(rf"# ({'|'.join(OPERATIONS)})((?:, (?!over )[^,]{{1,60}})*)(?:, over .*)?")
_VALUE = re.compile(r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)|N/A|-", re.ASCII)
_NO_FIRST_PLACE = re.compile(r"\S {30,}\S")  # nccl-tests prints 32 spaces if it measured in place only
_OSU = re.compile(r"# OSU (?:MPI|NCCL|RCCL|xCCL|OpenSHMEM|UPC\S*)?(?:-\S+(?: MANAGED)?)? ?(.*?) ?(?:Latency )?Test\b")
_OSU_HEADING = re.compile(r"# (?:Size\b|(?:Avg Latency|Latency|Overall|Bandwidth) ?\()")
_OSU_TIME = re.compile(r"\b(?:Latency|Overall) ?\((\w{1,8})\)")
_OSU_TYPE = re.compile(r"# Datatype: (MPI_\w+)")
_OSU_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float", "MPI_DOUBLE": "double"}
_OSU_KINDS = ("non-blocking", "neighborhood", "persistent")


@dataclass(frozen=True)
class _Above:
    """What the lines above a table of nccl-tests or coll say. hosts: rank -> host. comment: the line above."""

    operation: str = ""
    is_coll: bool = False
    world: tuple[int, int] = (0, 0)
    hosts: dict[int, str] = field(default_factory=dict)
    comment: str = ""

    def after(self, line: str, begun: bool) -> _Above:
        """Returns what is known after the comment `line`. begun: True if a table was read since the last test."""
        if line.startswith(_STARTING):
            path = line.rpartition("/")[2]
            return _Above(operation_of(path.partition(":")[2] or path))
        if device := _DEVICE.match(line):
            above = _Above() if begun else self
            above.hosts[int(device[1])] = device[2]
            return above
        if world := _COLL_WORLD.match(line):
            return _Above(is_coll=True, world=(int(world[1]), int(world[2])))
        if self.is_coll and (test := _COLL_TEST.fullmatch(line)):
            return replace(self, operation=(test[1] + test[2]).replace(",", ""))
        return replace(self, comment=line)


def tables(output: Output) -> dict[str, Gathered]:
    """Returns program -> its rows. Errors: Malformed, for a fault of a whole table."""
    found: dict[str, Gathered] = defaultdict(Gathered)
    table: _Table | _OsuTable | None = None
    above = _Above()
    for number, line in enumerate(output.lines, 1):
        begin = line.lstrip()[:1]
        if begin == "#":
            line = line.strip()[:MAX_LINE]
            if title := _OSU.match(line):
                next_table: _Table | _OsuTable | None = _OsuTable(found[OSU_BENCHMARKS], title[1])
            elif {"size", "count", "type", "algbw"} <= set(line.split()):
                next_table = _Table(found[COLL if "|" in line else NCCL_TESTS], above, number, line)
            else:
                begins = _DEVICE.match(line) or line.startswith(_STARTING) or _COLL_WORLD.match(line)
                above, next_table = above.after(line, table is not None), None if begins else table
                if isinstance(table, _OsuTable):
                    table.comment(line)
            if table and next_table is not table:
                table.finish()
            table = next_table
        elif table and begin.isascii() and begin.isdigit():
            cut = output.cut and number == len(output.lines)
            table.row(number, line[: MAX_LINE + 1], "cut off: it has no line break" if cut else "")
    if table:
        table.finish()
    return found


def _is_text(fields: list[str]) -> bool:
    """Returns True if a line that begins with a number goes on with a word, as log lines do."""
    return len(fields) > 1 and fields[1][0].isalpha() and fields[1].lower() not in ("nan", "inf")


class _Table:
    """A table of nccl-tests or coll. Its rows are made at its end, when the operation is known."""

    def __init__(self, gathered: Gathered, above: _Above, number: int, heading: str) -> None:
        columns = heading.partition("|")[0].split()[1:]
        self.columns = columns[: len(columns) - columns.count("timestamp")]
        if "cputime" in columns:
            raise Malformed("the table has CPU times (-C), which are not the time of the collective")
        self.places = [index for index, name in enumerate(columns) if name == "time"]
        is_known = columns[:3] == ["size", "count", "type"] and 1 <= len(self.places) <= 2
        if not is_known or len(self.columns) < self.places[-1] + 4:
            raise Malformed(f"line {number} does not name the columns of nccl-tests")
        self.is_in_place = [False, True]
        if len(self.places) == 1 and "in-place" in above.comment and "out-of-place" not in above.comment:
            self.is_in_place = [True]
        self.pauses = {*self.places, len(self.columns)}  # the program prints up to one of these, then measures
        self.gathered, self.operation = gathered, above.operation
        self.ranks, nodes = above.world if above.is_coll else (len(above.hosts), len(set(above.hosts.values())))
        if sorted(above.hosts) != list(range(len(above.hosts))):
            gathered.doubt = gathered.doubt or "the list of ranks has a gap"
        elif self.ranks:
            gathered.worlds.add((self.ranks, nodes))
        self.entries: list[tuple[int, list[str], str]] = []  # line, fields, fault
        self.pending: tuple[int, list[str]] | None = None

    def row(self, number: int, line: str, fault: str) -> None:
        if len(line) > MAX_LINE:
            self.entries.append((number, [], f"longer than {MAX_LINE} characters"))
            return
        tokens = line.partition("|")[0].split()
        if self.pending and len(tokens) > 3 and all(map(_VALUE.fullmatch, tokens[:3])):
            number, begun = self.pending
            fields = self._fields(begun, tokens)
        elif not tokens[0].isdigit() or _is_text(tokens):
            return
        else:
            self._end_pending()
            fields = self._fields([], tokens)
        self.pending = None
        if len(self.places) == 2 and len(fields) == self.places[1] and _NO_FIRST_PLACE.search(line):
            first, second = self.places
            fields[first:first] = ["-"] * (second - first)
        if len(fields) in self.pauses and len(fields) < len(self.columns) and not fault:
            self.pending = number, fields
        else:
            self.entries.append((number, fields, fault))

    def _fields(self, begun: list[str], tokens: list[str]) -> list[str]:
        """Returns the fields `begun` and those in `tokens`, up to a log line that begins inside of the row."""
        fields = list(begun)
        first_value = self.columns.index("root") if "root" in self.columns else self.places[0]
        for token in tokens:
            if len(fields) == len(self.columns):
                break
            if len(fields) >= first_value and not _VALUE.fullmatch(token):
                if len(fields) in self.pauses:
                    break
                if len(fields) + 1 in self.pauses and (value := _VALUE.match(token)):
                    return [*fields, value[0]]
            fields.append(token)
        return fields

    def _end_pending(self) -> None:
        if self.pending:
            self.entries.append((*self.pending, ""))
            self.pending = None

    def finish(self) -> None:
        self._end_pending()
        operation = self.operation or self._by_its_rates()
        redop = self.columns.index("redop") if "redop" in self.columns else None
        for number, fields, fault in self.entries:
            if not fault and len(fields) < len(self.columns):
                fault = f"{len(fields)} fields, and the heading names {len(self.columns)}"
            fields = fields + [""] * (len(self.columns) - len(fields))
            if fields[0].strip("0") == "" and fields[0] and operation != "barrier":
                continue  # nothing was sent
            reduction = "none" if redop is None else fields[redop]
            for start, is_in_place in zip(self.places, self.is_in_place, strict=False):
                if fields[start] != "-":  # coll did not measure this place
                    cell = Cell(fields[0], fields[2], reduction, fields[start + 3])
                    self.gathered.add(row_of(f"line {number}", operation, is_in_place, cell, [fields[start]], fault))

    def _by_its_rates(self) -> str:
        """Tables of before 2.17 do not name the operation. An all-reduce's busbw is 2 (n - 1) / n of its algbw."""
        for number, fields, fault in self.entries:
            try:
                if not fault and len(fields) == len(self.columns):
                    self._require_all_reduce(fields)
            except Malformed as error:
                self.gathered.doubt = self.gathered.doubt or f"line {number}: {error}"
                return UNNAMED
        return "all_reduce"

    def _require_all_reduce(self, fields: list[str]) -> None:
        redop = fields[self.columns.index("redop")] if "redop" in self.columns else ""
        if redop not in REDUCTIONS[:-1] or self.ranks < 3:
            raise Malformed("the table does not name its test ('# Collective test starting: ...')")
        factor = 2 * (self.ranks - 1) / self.ranks
        for start in self.places:
            if fields[start] == "-":
                continue
            try:
                algorithm, bus = float(fields[start + 1]), float(fields[start + 2])
            except ValueError as error:
                raise Malformed("a bandwidth is not a number") from error
            if algorithm >= 0.5 and abs(bus / algorithm - factor) > 0.05 * factor:
                raise Malformed("the table does not name its test, and its rates are not those of an all-reduce")


class _OsuTable:
    """A table of the OSU micro-benchmarks, which names neither the ranks nor the place of the buffers. The time of a
    non-blocking operation is the overall time, which includes what the test computes meanwhile."""

    def __init__(self, gathered: Gathered, title: str) -> None:
        words = title.lower().replace("personalized exchange", "").split() or ["latency"]
        rest = " ".join(word for word in words if word not in _OSU_KINDS)
        self.operation = " ".join([*(word for word in words if word in _OSU_KINDS), operation_of(rest)])
        self.gathered = gathered
        # OSU prints the type since version 7, and older versions reduce floats. An operation that only moves data takes
        # as long with any type.
        self.type, self.reduction = "float", "sum" if "reduce" in self.operation else "none"
        self.has_size, self.fault = True, ""

    def comment(self, line: str) -> None:
        if self.reduction == "sum" and (found := _OSU_TYPE.match(line)):
            self.type = _OSU_TYPES.get(found[1], found[1])
        if _OSU_HEADING.match(line):
            self.has_size, self.fault = line.startswith("# Size"), ""
            time = _OSU_TIME.search(line)
            if not time or "Bandwidth" in line[: time.start()]:
                self.fault = "the table has no column of times (gate --tool command --metric reads any number)"
            elif time[1] != "us":
                self.fault = f"its times are in '{time[1]}', not in us"

    def row(self, number: int, line: str, fault: str) -> None:
        fields = line.split()
        if not (fields[0].isdigit() if self.has_size else NUMBER.fullmatch(fields[0])):
            return
        if not self.has_size:
            fields.insert(0, "0")
        if len(line) > MAX_LINE:
            fault = f"longer than {MAX_LINE} characters"
        elif len(fields) < 2:
            fault = fault or "a size without a time"
        elif len(fields) > 2 and (_is_text(fields) or (not self.has_size and _is_text(fields[1:]))):
            return
        cell = Cell(fields[0], self.type, self.reduction, int("fail" in map(str.lower, fields[2:])))
        self.gathered.add(row_of(f"line {number}", self.operation, False, cell, fields[1:2], fault or self.fault))

    def finish(self) -> None:
        """Nothing is left to be done."""
