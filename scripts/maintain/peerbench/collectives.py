"""Collectives of the engine beside those of MPIs, oneCCL and Gloo, on one host, by the rules of docs/peers.md.

Exit code: 0 done, 1 the engine gave wrong results or failed, 2 usage, input or output, 7 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import libraries
from .libraries import Library
from hvdb.base import edge, process, progress, whole_file
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, HvdbError
from hvdb.judge import exact
from hvdb.judge.claims import PARAMETERS
from hvdb.read.names import OPERATIONS
from hvdb.show import tables

Plan = Launch = Mapping[str, Any]  # the first line of a file of measure(), and each of the others
ENGINE = libraries.ROOT / "build" / "release" / "bin" / "engine_collectives"
FORMAT = "hvd coll_peers 1"
MAX_RANKS = 64  # kMaxRanks of bench/peers/collectives.cpp
IN_PLACE = ("all_reduce", "broadcast", "barrier")
CELL = re.compile(
    r"(barrier/fp32/0/in|(all_reduce|broadcast)/fp32/[1-9]\d{0,9}/in"
    r"|(reduce_scatter|all_gather|all_to_all)/fp32/[1-9]\d{0,9}/out)/[1-9]\d{0,4}"
)
GRADIENTS = {model: 4 * count for model, count in PARAMETERS.items()}  # bytes in fp32
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # such as 32768K
CACHE_BYTES = int(_CACHE.read_text().strip().removesuffix("K")) << 10 if _CACHE.exists() else 32 << 20
MARGIN = 1.05  # a cell whose interval ends at or below this ratio is at most 5 % slower
SLOWER, UNDECIDED, WITHIN, FASTER = "slower", "undecided", "not slower within 5 %", "faster"
HEADER = ("cell", "ours us", "best peer us", "best peer", "ours / peer [95 %]", "rounds", "verdict")


def cell(operation: str, size: int) -> str:
    """Returns the text of a cell. A sample must take much longer than its barrier and the reading of the clock."""
    calls = 100 if size <= 4 << 10 else 20 if size <= 64 << 10 else 4 if size <= 1 << 20 else 1
    return f"{operation}/fp32/{size}/{'in' if operation in IN_PLACE else 'out'}/{calls}"


SETS = {"quick": [cell("all_reduce", 1 << 10), cell("all_reduce", 4 << 20)], "core": [cell("barrier", 0)]}
SETS["core"] += [cell(name, size) for name in OPERATIONS[:-1] for size in (8, 1 << 10, 32 << 10, 1 << 20, 16 << 20)]
SETS["core"] += [cell("all_reduce", size) for size in GRADIENTS.values()] + ["all_reduce/fp32/1024/in/1000"]


def chosen(words: Iterable[str]) -> list[str]:
    """Returns the cells that `words` name, as sets or as cells, each once. Errors: HvdbError for an unknown word."""
    cells: dict[str, None] = {}
    for word in words:
        if word not in SETS and not CELL.fullmatch(word):
            raise HvdbError(f"'{word}' is neither a set of cells ({', '.join(SETS)}) nor {CELL.pattern}")
        cells |= dict.fromkeys(SETS.get(word, [word]))
    return list(cells)


def machine() -> str:
    """Describes the processor, its cores and its cache in words."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    return f"{name[:100]}, {libraries.cores()} cores, {CACHE_BYTES >> 20} MiB of last-level cache"


def pool_bytes(cells: Iterable[str]) -> int:
    """Returns the bytes of a rank's buffers, as bench/peers/collectives.cpp allocates them: one pool for inputs and one
    for outputs, or one for all if every cell is in place."""
    words = [cell.split("/") for cell in cells]
    pools = 2 if any(place == "out" for _, _, _, place, _ in words) else 1
    return pools * max(2 * CACHE_BYTES, *(int(size) * int(calls) for _, _, size, _, calls in words))


def available_bytes() -> int:
    """Returns the memory that programs can get without swapping (Linux). Errors: OSError."""
    (kib,) = re.findall(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return int(kib) << 10


def turns(plan: Plan) -> list[tuple[int, str, str]]:
    """Returns (round, class, library) of all launches. Each round has every library of every class once, in an order
    drawn from the seed. Pure."""
    made = []
    for number in range(plan["rounds"]):
        block = [(number, kind, name) for kind in plan["classes"] for name in plan["libraries"]]
        random.Random(f"{plan['seed']} {number}").shuffle(block)
        made += block
    return made


def measure(plan: Plan, used: Mapping[str, Library], file: Path | None, minutes: float) -> list[dict[str, Any]]:
    """Makes all launches and appends each to the file. Begins no round that should end after `minutes`, judging by the
    longest round so far. Errors: OSError."""
    words = [*(str(plan[key]) for key in ("samples", "cell_seconds", "pool_bytes")), "exact"]
    limit = 60 + 2 * (plan["cell_seconds"] + 5) * len(plan["cells"])  # checks and fills take about as long as samples
    begun, longest, launches = time.monotonic(), 0.0, []
    started, todo = begun, turns(plan)
    with progress.shown("measuring collectives", 60 * minutes) as step:
        for done, (number, kind, library) in enumerate(todo):
            if launches and launches[-1]["round"] != number:
                now = time.monotonic()
                longest, started = max(longest, now - started), now
                if now + 1.1 * longest > begun + 60 * minutes:
                    break
            step(done, len(todo))
            cells = list(plan["cells"])
            random.Random(f"{plan['seed']} {number} {kind} {library}").shuffle(cells)
            placing, ranks = used[library].placing[kind], plan["classes"][kind]
            results, failure = libraries.launch(used[library], placing, ranks, [*words, *cells], limit)
            fixed = {"round": number, "kind": kind, "library": library}
            launches.append({**fixed, "failure": failure, "results": results})
            if file:
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(json.dumps(launches[-1]) + "\n")
    return launches


def read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads a file of measure(): a line with the plan, then a line per launch; the last may be cut off by a kill.

    Errors: HvdbError, OSError.
    """
    try:
        plan, *launches = map(json.loads, file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines())
        if plan["format"] != FORMAT:
            raise ValueError(f"its format is not '{FORMAT}'")
        lines(document(plan, launches), launches)  # uses every field
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HvdbError(f"{file}: was not written by 'peers collectives': {type(error).__name__}: {error}") from error
    return plan, launches


def rounds_of(launches: Iterable[Launch], kind: str, library: str, name: str) -> dict[int, float]:
    """Returns round -> median seconds of a sample. A library with a wrong result is not compared in that cell."""
    own = [launch for launch in launches if (launch["kind"], launch["library"]) == (kind, library)]
    results = {launch["round"]: launch["results"][name] for launch in own if name in launch["results"]}
    if any(result["wrong"] for result in results.values()):
        return {}
    return {number: float(np.median(result["seconds"])) for number, result in results.items() if result["seconds"]}


def best_peer(peers: Mapping[str, Mapping[int, float]]) -> str | None:
    """Returns the peer with the lowest median over the even rounds, of those with half of the most rounds or more."""
    even = {name: [s for i, s in rounds.items() if i % 2 == 0] for name, rounds in peers.items()}
    most = max(map(len, even.values()), default=0)
    medians = {name: float(np.median(s)) for name, s in even.items() if s and 2 * len(s) >= most}
    return min(medians, key=lambda name: (medians[name], name)) if medians else None


def estimate(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Returns the estimate of values above 0 as `name`, and the ends of its 95 % interval; None below six values."""
    made = exact.paired_ratio(values, 0.95)
    return {name: made.value, "low": made.low, "high": made.high}


def judge(ours: Mapping[int, float], peers: Mapping[str, Mapping[int, float]]) -> dict[str, Any] | None:
    """Compares ours with the best peer on the odd rounds. Returns None if no odd round has both sides.

    verdict, low, high: None below six odd rounds, which give no interval.
    """
    peer = best_peer(peers)
    shared = [number for number in ours if number % 2 == 1 and peer and number in peers[peer]]
    if peer is None or not shared:
        return None
    mine, its = (np.array([rounds[number] for number in shared]) for rounds in (ours, peers[peer]))
    made = {"peer": peer, "ours_seconds": float(np.median(mine)), "peer_seconds": float(np.median(its))}
    made |= {**estimate("ratio", mine / its), "rounds": len(shared), "verdict": None}
    if made["low"] is not None:
        slow = SLOWER if made["low"] > 1 else WITHIN if made["high"] <= MARGIN else UNDECIDED
        made["verdict"] = FASTER if made["high"] < 1 else slow
    return made


def document(plan: Plan, launches: Sequence[Launch]) -> dict[str, Any]:
    """Returns what --json writes and scripts/collectives reads: judged cells, losses first, and every library's
    time in every cell (series). Seconds are those of a sample of CALLS calls."""
    rows, series = [], []
    for kind in plan["classes"]:
        for name in plan["cells"]:
            times = {library: rounds_of(launches, kind, library, name) for library in plan["libraries"]}
            for library, seconds in times.items():
                if seconds:
                    row = {"class": kind, "library": library, "cell": name, "rounds": len(seconds)}
                    series.append({**row, **estimate("seconds", list(seconds.values()))})
            peers = {library: times[library] for library in times if library not in libraries.OURS}
            for ours in (library for library in libraries.OURS if library in times):
                if judgement := judge(times[ours], peers):
                    rows.append({"class": kind, "ours": ours, "cell": name, **judgement})
    order = [SLOWER, UNDECIDED, WITHIN, FASTER, None]
    rows.sort(key=lambda row: (order.index(row["verdict"]), -row["ratio"]))
    return {"plan": dict(plan), "cells": rows, "series": series}


def title(name: str) -> str:
    """Returns a cell's text for tables, with the network whose gradients have the cell's size."""
    operation, _, size, _, calls = name.split("/")
    network = "".join(f" ({network})" for network, gradients in GRADIENTS.items() if gradients == int(size))
    return f"{operation} {int(size):,} B{network} x {calls}"


def lines(made: Mapping[str, Any], launches: Sequence[Launch]) -> list[str]:
    """Returns a table per class and memory of ours, then what is missing, wrong results and failures."""
    plan = made["plan"]
    told = [f"{plan['machine']}; {len(launches)} of {len(turns(plan))} launches, {plan['rounds']} rounds"]
    told += [f"{name}: {version}" for name, version in plan["libraries"].items()]
    told += [f"{name}: left out: {why}" for name, why in plan.get("missing", {}).items()]
    all_ours = [name for name in libraries.OURS if name in plan["libraries"]]
    for kind, ours in itertools.product(plan["classes"], all_ours):
        rows = [row for row in made["cells"] if (row["class"], row["ours"]) == (kind, ours)]
        verdicts = [row["verdict"] for row in rows]
        counts = ", ".join(f"{word} {verdicts.count(word)}" for word in (FASTER, WITHIN, UNDECIDED, SLOWER))
        cells = len(plan["cells"])
        counts += f", not judged {cells - len(verdicts) + verdicts.count(None)}, of {cells} planned cells"
        told += ["", f"{kind} ({plan['classes'][kind]} ranks), {ours}: {counts}"]
        shown = []
        for row in rows:
            calls = int(row["cell"].rpartition("/")[2])
            times = [tables.number(1e6 * row[key] / calls) for key in ("ours_seconds", "peer_seconds")]
            ratio = f"{row['ratio']:.2f}" + (f" [{row['low']:.2f}, {row['high']:.2f}]" if row["verdict"] else "")
            verdict = row["verdict"] or "too few rounds"
            shown.append((title(row["cell"]), *times, row["peer"], ratio, str(row["rounds"]), verdict))
        told += tables.text_table(HEADER, shown).splitlines() if shown else []
    wrong: dict[str, int] = {}
    for launch in launches:
        where = f"{launch['library']}, {launch['kind']}"
        told += [f"failed: {where}, round {launch['round']}: {launch['failure']}"] if launch["failure"] else []
        for name, result in launch["results"].items():
            wrong[f"{where}, {name}"] = wrong.get(f"{where}, {name}", 0) + result["wrong"]
    return told + [f"WRONG: {where}: {count} elements; not compared" for where, count in wrong.items() if count]


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("peers collectives", description=__doc__, formatter_class=raw)
    add = made.add_argument
    add("--report", type=Path, metavar="FILE", help="measure nothing: the tables of a file that --out wrote")
    add("--out", type=Path, metavar="FILE", help="takes all samples, a line of JSON per launch; must not exist")
    add("--json", type=Path, metavar="FILE", help="write the judgements and medians there")
    add("--cells", nargs="+", default=["core"], help=f"{', '.join(SETS)} or cells (default: core)")
    add("--rounds", type=int, default=24, help="launches of each library (default: 24; at least 12 for intervals)")
    add("--samples", type=int, default=9, help="per cell and launch (default: 9)")
    add("--cell-seconds", type=int, default=3, help="no sample begins later (default: 3)")
    add("--minutes", type=float, default=1e5, help="begin no round that is not expected to end in this time")
    add("--seed", type=int, default=1, help="of all orders (default: 1)")
    add("--classes", nargs="+", choices=(libraries.CORES, libraries.OVERSUBSCRIBED), default=[libraries.CORES])
    add("--libraries", nargs="+", choices=libraries.NAMES, default=libraries.NAMES, help="(default: all)")
    add("--engine", type=Path, default=ENGINE, help="engine_collectives (default: of build/release)")
    return made


def planned(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Library]]:
    """Builds the programs. Returns the plan and the libraries that take part. Errors: HvdbError."""
    if min(options.rounds, options.samples) < 1 or options.cell_seconds < 0 or not options.minutes > 0:
        raise HvdbError("--rounds and --samples must be at least 1, --cell-seconds at least 0, --minutes above 0")
    if options.json and not os.access(options.json.absolute().parent, os.W_OK):
        raise HvdbError(f"--json {options.json}: no file can be made there")
    cores = libraries.cores()
    ranks = {libraries.CORES: cores, libraries.OVERSUBSCRIBED: 2 * cores}
    if max(ranks[kind] for kind in options.classes) > MAX_RANKS:
        raise HvdbError(f"the programs have room for {MAX_RANKS} ranks: limit the processors with taskset")
    if ranks[options.classes[0]] < 2:
        raise HvdbError("there is one core, and a comparison needs two ranks: --classes oversubscribed")
    cells, used, versions, left_out = chosen(options.cells), {}, {}, {}
    need, free = max(ranks[kind] for kind in options.classes) * pool_bytes(cells), available_bytes()
    if 2 * need > free:  # libraries copy what they move
        raise HvdbError(f"the buffers need {need >> 20} of {free >> 20} MiB, more than half: name smaller cells")
    for name in options.libraries:
        try:
            used[name] = libraries.find(name, options.engine.resolve())
            versions[name] = libraries.build(used[name])
        except (OSError, HvdbError) as error:
            if name in libraries.OURS:
                raise HvdbError(f"{name} cannot be started: {error}") from error
            how = "there is no mpirun" if name == "system" else "scripts/install_deps --peers fetches it"
            left_out[name] = str(error) if isinstance(error, HvdbError) else f"not installed; {how}"
    plan = {"format": FORMAT, "machine": machine(), "classes": {kind: ranks[kind] for kind in options.classes}}
    plan |= {"libraries": versions, "missing": left_out, "cells": cells, "rounds": options.rounds}
    plan |= {"samples": options.samples, "cell_seconds": options.cell_seconds}
    return {**plan, "pool_bytes": 2 * CACHE_BYTES, "seed": options.seed}, used


def run(options: argparse.Namespace) -> int:
    """Carries out the command. Returns the exit code. Errors: HvdbError, OSError."""
    if options.report:
        plan, launches = read(options.report)
    else:
        process.end_in_order_when_told()
        plan, used = planned(options)
        if options.out:
            with options.out.open("x", encoding="utf-8") as opened:
                opened.write(json.dumps(plan) + "\n")
        launches = measure(plan, used, options.out, options.minutes)
    made = document(plan, launches)
    for line in lines(made, launches):
        edge.tell("peers", line)
    if options.json:
        whole_file.write_text(options.json, json.dumps(made, indent=1) + "\n")
    ours = [launch for launch in launches if launch["library"] in libraries.OURS]
    bad = any(launch["failure"] or any(result["wrong"] for result in launch["results"].values()) for launch in ours)
    return EXIT_CHECK_FAILED if bad else EXIT_GOOD
