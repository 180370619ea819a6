"""Reads what other benchmarks print: nccl-tests, the OSU micro-benchmarks and hvd_bench coll, by
imported_collectives.py, and the JSON of Google Benchmark and of nvbench.

First all rows are read, and those that cannot be used are kept aside; then chosen() picks rows and is strict about
them. The text may come from a stranger. This module checks every field that it uses and ignores all other fields.
Sources: Google Benchmark 1.4 to 1.9 (src/json_reporter.cc), nvbench's JSON 1.0 (nvbench/json_printer.cu).
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import printable, record, whole_file
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Count, Malformed, Range, Words
from hvdb.read import imported_collectives, output_text
from hvdb.read.collective_rows import COLL, IN_PLACE, MAX_ROWS, MAX_SECONDS, NCCL_TESTS, OSU_BENCHMARKS, Imported
from hvdb.read.output_text import MAX_BYTES, Output

GBENCH, NVBENCH, COMMAND = "Google Benchmark", "nvbench", "command"
# COMMAND is any command, whose output metrics.py reads.
TOOLS = {
    "nccl-tests": NCCL_TESTS,
    "osu": OSU_BENCHMARKS,
    "gbench": GBENCH,
    "nvbench": NVBENCH,
    "coll": COLL,
    "command": COMMAND,
}
# More cells would need more pairs and minutes of computing.
MAX_CELLS = 200
MIN_SECONDS = 1e-15
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SHOWN_NAMES = 5
_MAX_NAME = 300  # a longer name is cut, and a digest keeps it apart from others
_Entries = Annotated[list[dict[str, object]], Count(MAX_ROWS)]
# (name, indices) of a benchmark -> "iteration" or the kind of an aggregate -> entries
_Groups = dict[tuple[object, ...], dict[str, list[dict[str, Any]]]]
_Row = tuple[str, Sequence[float], str]  # name, samples, why it cannot be used
_NVBENCH_TIMES = ("nv/cold/time/gpu/mean", "nv/cpu_only/time/cpu/mean")


@dataclass(frozen=True)
class Results:
    """What one process of `program`, one of TOOLS.values(), printed.

    facts: what must be equal in results that are compared. costs: name of a row -> positive numbers, samples or one
    mean, of which more is worse; seconds of one operation, except for COMMAND. units: row -> the unit that a metric of
    COMMAND was printed with, "" if none. faulty: name of a row -> why it cannot be used; no such row has costs.
    """

    program: str
    facts: dict[str, str]
    costs: dict[str, list[float]]
    units: dict[str, str] = field(default_factory=dict)
    faulty: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Results:
    """Errors: HvdbError, one line that names the file."""
    content = whole_file.read_at_most(path, MAX_BYTES)
    try:
        return parse(content)
    except Malformed as error:
        known = ", ".join(program for program in TOOLS.values() if program != COMMAND)
        raise HvdbError(f"{path}: no store, and not a result of {known}: {error}") from error


def parse(content: bytes, tool: str | None = None) -> Results:
    """Returns the results of the program `tool`, a key of TOOLS, or of the only program that printed results.

    Errors: Malformed if there are none.
    """
    output = output_text.output_of(content)
    found = _benchmarks(output)
    if not found or (tool and TOOLS[tool] not in found):
        found |= {program: _collectives(one) for program, one in imported_collectives.programs(output).items()}
    printed = " and ".join(found)
    if tool and TOOLS[tool] not in found:
        raise Malformed(f"it is one of {printed}" if found else _unknown(output))
    if not tool and len(found) > 1:
        raise Malformed(f"it holds results of {printed}; give each a file of its own")
    if not found:
        raise Malformed(_unknown(output))
    results = found[TOOLS[tool]] if tool else next(iter(found.values()))
    if not (results.costs or results.faulty):
        raise Malformed("no row with a time; did the test end early?")
    return results


def _unknown(output: Output) -> str:
    for line in output.lines:
        if "#bytes" in line and ("#repetitions" in line or "#iterations" in line):
            name = "Intel MPI Benchmarks" if "#repetitions" in line else "perftest"
            return f"a table of {name}, which is not read; gate --tool command --metric reads any number"
    return output.fault or "neither JSON nor a table with a known heading"


def chosen(results: Results, rows: Sequence[str], what: str) -> Results:
    """Returns the results of some rows. rows: names, or patterns of names with * and ?; empty: all rows.

    nccl-tests and coll measure out of place and in place. A row in place, whose name ends with IN_PLACE, is chosen only
    by a name or pattern that holds these words, unless its row out of place is not there. what: whose results these
    are, for errors.
    Errors: HvdbError for a pattern without a row, a faulty row, or too many rows.
    """
    names = _choose([results], rows, what)
    _require_good(results, names, what)
    units = {name: results.units[name] for name in names if name in results.units}
    return replace(results, costs={name: results.costs[name] for name in names}, units=units, faulty={})


def matched(a: Results, b: Results, rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the names of the rows to compare, and a line for each row that only one side has. rows: as for chosen().

    Errors: those of chosen(); NotComparable if no row is in both, or the sides print a row with different units.
    """
    names = _choose([a, b], rows, "A and B")
    for side, results in (("A", a), ("B", b)):
        _require_good(results, names, side)
    both = [name for name in names if name in a.costs and name in b.costs]
    if not both:
        first = [printable.terminal(next(iter(side.costs), "nothing")) for side in (a, b)]
        raise NotComparable(f"A and B have no row in common; A has '{first[0]}', B has '{first[1]}'")
    for name in both:
        units = [side.units.get(name) or "no unit" for side in (a, b)]
        if units[0] != units[1]:
            raise NotComparable(f"row {printable.terminal(name)}: A is in {units[0]}, B in {units[1]}")
    missing = [f"{name}: side {'B' if name in a.costs else 'A'} has no such row" for name in names if name not in both]
    return both, missing


def _require_good(results: Results, names: Iterable[str], what: str) -> None:
    for name in names:
        if name in results.faulty:
            raise HvdbError(f"{what}: row '{printable.terminal(name)}': {results.faulty[name]}")


def _choose(sides: Sequence[Results], rows: Sequence[str], what: str) -> list[str]:
    names = list(dict.fromkeys(name for side in sides for name in (*side.costs, *side.faulty)))
    for row in rows:
        if not any(_fits(name, row) for name in names):
            near = difflib.get_close_matches(row[:_MAX_NAME], names[: 10 * MAX_CELLS], _SHOWN_NAMES, 0.5)
            shown = [f"'{printable.terminal(name)}'" for name in dict.fromkeys([*near, *names])][:_SHOWN_NAMES]
            more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
            raise HvdbError(f"{what}: --row '{row}': there is no such row; there are {', '.join(shown)}{more}")
    known = set(names) if sides[0].program in (NCCL_TESTS, COLL) else ()
    twins = {name for name in known if name.endswith(IN_PLACE) and name.removesuffix(IN_PLACE) in known}
    plain = [row for row in rows or ["*"] if IN_PLACE.strip() not in row]
    exact = [row for row in rows if row not in plain]
    made = [n for n in names if any(_fits(n, row) for row in (exact if n in twins else (*exact, *plain)))]
    if len(made) > MAX_CELLS:
        raise HvdbError(f"{what}: {len(made)} rows, and at most {MAX_CELLS} can be judged: choose some with --row")
    return made


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


# --- The programs -----------------------------------------------------------------------------------------------------


def _results(program: str, facts: dict[str, str], rows: Iterable[_Row]) -> Results:
    """A row that occurs several times has the samples of all of them."""
    costs: dict[str, list[float]] = defaultdict(list)
    faulty: dict[str, str] = {}
    for name, samples, fault in rows:
        if len(name) > _MAX_NAME:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            name = f"{name[: _MAX_NAME - 11]}...{digest}"
        if fault:
            faulty.setdefault(name, fault)
        else:
            costs[name].extend(samples)
    return Results(program, facts, {name: costs[name] for name in costs if name not in faulty}, faulty=faulty)


def _collectives(found: Imported) -> Results:
    facts = {key: str(count) for key, count in (("ranks", found.ranks), ("nodes", found.nodes)) if count}
    rows = [(row.name, row.seconds, "") for row in found.rows]
    faults = [(fault.name, (), fault.why if fault.name == fault.place else str(fault)) for fault in found.faults]
    return _results(found.program, facts, [*rows, *faults])


def _benchmarks(output: Output) -> dict[str, Results]:
    """Returns the results of Google Benchmark and of nvbench."""
    found: dict[str, tuple[dict[str, str], list[_Row]]] = {}
    for document in output.documents:
        is_nvbench = isinstance(document, dict) and bool({"meta", "devices"} & document.keys())
        if not isinstance(document, dict) or "benchmarks" not in document or not (is_nvbench or "context" in document):
            continue
        facts, rows = _nvbench(document) if is_nvbench else _google_benchmark(document)
        before, all_rows = found.setdefault(NVBENCH if is_nvbench else GBENCH, (facts, []))
        if facts != before:
            raise Malformed(f"its documents say {before} and {facts}; give each a file, or a gate, of its own")
        all_rows += [*rows, *([("the end of the output", (), output.fault)] if output.fault else [])]
    return {program: _results(program, facts, rows) for program, (facts, rows) in found.items()}


def _google_benchmark(document: dict[str, Any]) -> tuple[dict[str, str], Iterable[_Row]]:
    entries = record.value(_Entries, document["benchmarks"], "benchmarks")
    context = record.value(dict[str, object], document.get("context"), "context")
    keys = ("num_cpus", "library_build_type")
    facts = {key: str(context[key])[:40] for key in keys if isinstance(context.get(key), str | int)}
    # A benchmark can be registered twice under one name. Versions before 1.5.4 have no index that tells which is which.
    groups: _Groups = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for entry in entries:
        if entry.get("skipped") is True:
            continue
        name = entry.get("run_name", entry.get("name"))
        kind = "iteration" if entry.get("run_type", "iteration") == "iteration" else str(entry.get("aggregate_name"))
        indices = [str(entry.get(key))[:20] for key in ("family_index", "per_family_instance_index")]
        key = (name if isinstance(name, str) else "a benchmark without a name", *indices)
        repetition = (*key, kind, str(entry.get("repetition_index", 0))[:20])
        groups.setdefault((*key, seen[repetition]), {}).setdefault(kind, []).append(entry)
        seen[repetition] += 1
    return facts, _of_groups(groups)


def _of_groups(groups: _Groups) -> Iterator[_Row]:
    """Yields the repetitions of each benchmark; its median or mean if the file has only aggregates."""
    twins: Counter[str] = Counter()
    for (name, *_), kinds in groups.items():
        if not (used := kinds.get("iteration") or kinds.get("median") or kinds.get("mean")):
            continue
        twins[str(name)] += 1
        own = f"{name} ({twins[str(name)]})" if twins[str(name)] > 1 else str(name)
        for entry in used:
            try:
                yield own, [_real_seconds(entry)], ""
            except Malformed as fault:
                yield own, (), str(fault)


def _real_seconds(entry: dict[str, Any]) -> float:
    if entry.get("error_occurred") not in (None, False):
        raise Malformed("it ended with an error")
    unit = record.value(Annotated[str, Words(tuple(_SECONDS))], entry.get("time_unit"), "time_unit")
    time = Annotated[float, Range(0, MAX_SECONDS / _SECONDS[unit], inner=True)]
    return _long_enough(_SECONDS[unit] * record.value(time, entry.get("real_time"), "real_time"), "real_time")


def _long_enough(seconds: float, what: str) -> float:
    if not MIN_SECONDS <= seconds < MAX_SECONDS:
        raise Malformed(f"{what} is not from {MIN_SECONDS:g} s to {MAX_SECONDS:g} s")
    return seconds


def _nvbench(document: dict[str, Any]) -> tuple[dict[str, str], Iterable[_Row]]:
    devices = record.value(_Entries | None, document.get("devices"), "devices") or []
    names = [str(device.get("name"))[:40] for device in devices[:8]]
    benchmarks = record.value(_Entries, document["benchmarks"], "benchmarks")
    return {"devices": ", ".join(names)} if names else {}, _of_states(benchmarks)


def _of_states(benchmarks: list[dict[str, Any]]) -> Iterator[_Row]:
    """Yields the GPU time of each state that ran; the CPU time of a benchmark that uses no GPU."""
    for number, benchmark in enumerate(benchmarks, 1):
        states = record.value(_Entries | None, benchmark.get("states"), f"benchmarks[{number}].states") or []
        for state in states:
            words = [word for word in (benchmark.get("name"), state.get("name")) if isinstance(word, str)]
            if state.get("is_skipped") is True:
                continue
            try:
                yield " ".join(words) or f"benchmarks[{number}]", [_gpu_seconds(state)], ""
            except Malformed as fault:
                yield " ".join(words) or f"benchmarks[{number}]", (), str(fault)


def _gpu_seconds(state: dict[str, Any]) -> float:
    summaries = record.value(_Entries | None, state.get("summaries"), "summaries") or []
    tagged = {str(summary.get("tag")): summary.get("data") for summary in summaries}
    for tag in _NVBENCH_TIMES:
        if tag in tagged:
            data = record.value(_Entries, tagged[tag], tag)
            value = next((one.get("value") for one in data if one.get("name") == "value"), None)
            try:  # nvbench writes numbers as texts
                seconds = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raise Malformed(f"{tag} is not a number") from error
            return _long_enough(seconds, tag)
    raise Malformed(f"it has no mean GPU time ({_NVBENCH_TIMES[0]})")
