"""Reads times of collectives that other programs measured: nccl-tests and rccl-tests (tables, JSON of -J and -Z json),
the OSU micro-benchmarks (tables), and hvd_bench coll (its table and its JSON).

The files may come from a stranger. This module checks every field that it uses and ignores all other fields, above all
the environment that the JSON of nccl-tests holds.
Sources: nccl-tests 2.19.6 (src/util.cu); rccl-tests (JSON of -Z json: a list of records, or a record a line);
bench/cli/coll/report.cpp; collective_tables.py for the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record, whole_file
from hvdb.base.record import Count, Malformed, Range
from hvdb.read import collective_tables, output_text
from hvdb.read.collective_rows import (
    COLL,
    MAX_RANKS,
    MAX_ROWS,
    NCCL_TESTS,
    OSU_BENCHMARKS,
    Cell,
    Fault,
    Gathered,
    Imported,
    ImportedRow,
    operation_of,
    row_of,
)
from hvdb.read.output_text import MAX_BYTES, Output

__all__ = ["Fault", "Imported", "ImportedRow", "programs", "read"]
_Ranks = Annotated[int, Range(1, MAX_RANKS)]
_PLACES = (("out_of_place", False), ("in_place", True))


def read(path: Path) -> Imported:
    """Returns the results of one program, for those who use all of its rows.

    Errors: HvdbError, one line that names the file and the first row that cannot be used.
    """
    content = whole_file.read_at_most(path, MAX_BYTES)
    with record.faults_of(f"{path}: not a result of {NCCL_TESTS}, the {OSU_BENCHMARKS} or {COLL}"):
        output = output_text.output_of(content)
        found = programs(output)
        if len(found) != 1:
            several = " and ".join(found)
            nothing = output.fault or "neither JSON nor a table with a known heading"
            raise Malformed(f"it holds results of {several}; give each a file of its own" if several else nothing)
        (made,) = found.values()
        if made.faults or made.doubt:
            raise Malformed(str(made.faults[0]) if made.faults else made.doubt)
        if not made.rows:
            raise Malformed("no row with a time; did the test end early?")
    return made


def programs(output: Output) -> dict[str, Imported]:
    """Returns program -> its results, which may have no row. Rows that cannot be used are among the faults.

    Errors: Malformed, for what concerns more than a row.
    """
    found: dict[str, Gathered] = defaultdict(Gathered)
    for number, document in enumerate(output.documents, 1):
        place = f"document {number}: " if len(output.documents) > 1 else ""
        if isinstance(document, dict) and {"config", "results"} <= document.keys():
            _results(document, place, found)
        else:
            _records(document if isinstance(document, list) else [document], place, found)
    found = found or collective_tables.tables(output)
    for one in found.values() if output.fault else ():
        one.add(Fault(output.fault, "cut off", "the end of the output"))
    return {program: one.imported(program) for program, one in found.items()}


# --- JSON of nccl-tests and coll --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Device:
    hostname: object = None


@dataclass(frozen=True)
class _NcclConfig:
    devices: tuple[_Device, ...]
    nthreads: _Ranks
    ngpus: _Ranks

    def world(self) -> tuple[int, int]:
        # The list of devices has one entry for each process, that of its first GPU.
        ranks = record.value(_Ranks, len(self.devices) * self.nthreads * self.ngpus, "the number of ranks")
        return ranks, len({device.hostname for device in self.devices if isinstance(device.hostname, str)})


@dataclass(frozen=True)
class _CollConfig:
    ranks: _Ranks
    nodes: _Ranks

    def world(self) -> tuple[int, int]:
        return self.ranks, self.nodes


@dataclass(frozen=True)
class _Document:
    config: dict[str, object]
    results: Annotated[tuple[dict[str, object], ...], Count(MAX_ROWS)]


def _results(document: dict[str, Any], place: str, found: dict[str, Gathered]) -> None:
    is_coll = isinstance(program := document.get("program"), str) and program.startswith("hvd_bench")
    gathered = found[COLL if is_coll else NCCL_TESTS]
    whole = record.read(_Document, document, others=True)
    config = record.value(_CollConfig if is_coll else _NcclConfig, whole.config, "config")
    gathered.worlds.add(config.world())
    for number, result in enumerate(whole.results, 1):
        for row in _rows(result, f"{place}results[{number}]"):
            gathered.add(row)


def _rows(result: dict[str, Any], place: str) -> Iterator[ImportedRow | Fault]:
    size, name = result.get("size"), result.get("experiment_name")
    if size == 0 and name != "barrier":
        return  # nothing was sent
    operation, variant = operation_of(name), result.get("variant")
    if operation and result.get("ragged") is True:  # hvd_bench coll measures one operation in several ways
        operation += " ragged"
    if operation and isinstance(variant, str) and variant:
        operation += f" {variant[:60]}"
    for key, in_place in _PLACES:
        if (form := result.get(key)) is None:
            continue
        each, why, times = result.get(f"{key}_per_iter"), "", []
        if not isinstance(form, dict) or "time" not in form:
            form, why = {}, f"{key} has no time (a CPU time of -C is not the time of the collective)"
        elif each is None or (isinstance(each, dict) and "times_us" not in each):  # coll writes no list
            times = [form["time"]]
        else:
            times = each["times_us"] if isinstance(each, dict) else None
            if not isinstance(times, list) or not 0 < len(times) <= MAX_ROWS:
                why, times = f"{key}_per_iter has no list of 1 to {MAX_ROWS} times", []
        cell = Cell(size, result.get("type"), result.get("redop"), form.get("nwrong"))
        yield row_of(place, operation, in_place, cell, times, why)


# --- JSON of rccl-tests -----------------------------------------------------------------------------------------------


def _records(records: list[Any], place: str, found: dict[str, Gathered]) -> None:
    """Adds the records of rccl-tests, and passes over all other JSON."""
    for number, one in enumerate(records, 1):
        if not isinstance(one, dict) or not {"name", "inPlace", "size", "time"} <= one.keys():
            continue
        gathered = found[NCCL_TESTS]
        ranks, nodes = one.get("ranks"), one.get("nodes")
        if type(ranks) is int and type(nodes) is int and 0 < nodes <= ranks <= MAX_RANKS:
            gathered.worlds.add((ranks, nodes))
        if one["size"] != 0:
            cell = Cell(one["size"], one.get("type"), one.get("redop"), one.get("wrong"))
            row = row_of(f"{place}record {number}", operation_of(one["name"]), one["inPlace"] == 1, cell, [one["time"]])
            gathered.add(row)
