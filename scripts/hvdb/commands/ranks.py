"""hvdb ranks: which rank of a stored run is slow, and by how much."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdb import comparable, efficiency, printable, rank_work, runs, tables
from hvdb.bootstrap import Estimate
from hvdb.commands import new_parser
from hvdb.commands import selection as choice
from hvdb.errors import (
    EXIT_CHECK_FAILED,
    EXIT_GOOD,
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    HvdbError,
    NotComparable,
)
from hvdb.rank_work import CannotTell, Examined
from hvdb.runs import Run
from hvdb.slow_ranks import CONFIDENCE, Finding

SHOWN_RANKS = 16
LONGEST_HOST = 48  # characters shown of the name of a host
HEADER = ("rank", "host", "node", "device", "ms", f"slower % [{100 * CONFIDENCE:g} %]", "verdict")
# The code of several runs is the first of these that one of them has.
EXITS = (EXIT_CHECK_FAILED, EXIT_NOT_COMPARABLE, EXIT_INCONCLUSIVE, EXIT_GOOD)


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value < 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage above 0")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is below 0")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser(
        "ranks",
        "Which rank of a stored run is slow? Compares the ranks' own work step by step, and whole nodes. "
        "Default: all complete runs of several ranks, of the newest session of each configuration.",
        "exit codes: 0 nobody is slow, 1 a rank or a node is slow, 2 usage or I/O, 3 the run does not tell, "
        "4 not comparable (the ranks' GPUs are of several models); of several runs: 1 before 4 before 3",
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db, or .partial)")
    made.add_argument(
        "--run", action="append", metavar="ID", help="exactly these runs (start of the UUID); nothing is filtered"
    )
    made.add_argument("--phase", choices=("full", "none", "solo"), help="only runs of this phase")
    made.add_argument("--traced", action="store_true", help="take traced and profiled runs, and only those")
    made.add_argument("--origin", choices=("measured", "simulated"), default="measured")
    made.add_argument("--incomplete", action="store_true", help="take runs that were cut short as well")
    made.add_argument(
        "--threshold",
        type=_percent,
        default=2.0,
        metavar="PERCENT",
        help="by how much a rank must be slower to be called slow (default: 2)",
    )
    made.add_argument(
        "--seed", type=_seed, metavar="N", default=1, help="of the simulation behind the test (default: 1)"
    )
    made.add_argument("--all", action="store_true", help=f"show all ranks, not only the slowest {SHOWN_RANKS}")
    made.add_argument(
        "--json", action="store_true", help="one JSON document: seconds, and fractions (0.05: 5 %% slower)"
    )
    made.add_argument("--out", type=Path, metavar="FOLDER", help="draw one picture for each run into this folder")
    made.add_argument("--format", choices=("png", "svg"), action="append", help="png (default), svg or both")
    return made


def newest(found: Sequence[Run]) -> list[Run]:
    """The last of `found`, oldest first, of each configuration, phase and number of ranks, in the same order."""
    columns = (*comparable.CURVE_COLUMNS, "phase", "world_size", "allocation_size", "nodes")
    last: dict[tuple, Run] = {}
    for run in found:
        key = tuple(run.columns[name] for name in columns)
        last.pop(key, None)
        last[key] = run
    return list(last.values())


def select(found: Sequence[Run], arguments: argparse.Namespace) -> efficiency.Selection:
    """The runs to examine, and a line for each reason why others are left out. Errors: HvdbError if none are left."""
    if arguments.run:
        return efficiency.Selection([runs.find(list(found), prefix) for prefix in arguments.run], [])
    wanted = [run for run in found if arguments.phase in (None, run.phase)]
    several = [run for run in wanted if run.world_size > 1 or arguments.phase == "solo"]
    kept = efficiency.select(several, traced=arguments.traced, origin=arguments.origin, incomplete=arguments.incomplete)
    chosen = newest(kept.runs)
    left_out = list(kept.left_out)
    if alone := len(wanted) - len(several):
        left_out.append(f"{alone} of one rank")
    if older := len(kept.runs) - len(chosen):
        left_out.append(f"{older} older of the same configuration (--run shows them)")
    if not chosen:
        reasons = "; ".join(left_out)
        raise HvdbError(f"nothing to show: {f'left out {reasons}' if reasons else 'the stores hold no such runs'}")
    return efficiency.Selection(chosen, left_out)


def verdict(examined: Examined, rank: int) -> str:
    """One word or two about a rank, for a table."""
    found = examined.findings
    if examined.hosts and examined.hosts[rank] in found.slow_nodes:
        return "slow node"
    return "slow" if rank in found.slow_ranks else "unclear" if rank in found.unclear_ranks else "ok"


def short(host: str) -> str:
    """The name of a host, made printable and cut if it is very long."""
    name = printable.terminal(host)
    return name if len(name) <= LONGEST_HOST else f"{name[: LONGEST_HOST - 1]}…"


def _slower(finding: Finding) -> str:
    """`5.1 [4.6, 5.7]`, in %."""
    return tables.estimate(
        Estimate(finding.slower, finding.low, finding.high), 100.0, lambda value: f"{round(value, 1) + 0:.1f}"
    )


def _amount(finding: Finding) -> str:
    """`5.1 % [4.6, 5.7]`."""
    return _slower(finding).replace(" [", " % [", 1)


def title(examined: Examined) -> str:
    """The run in one line."""
    run, samples = examined.run, examined.seconds.shape[1]
    words = [tables.title(run.model), *tables.marks(run.columns), f"batch {run.batch_size}", run.compute_type]
    if models := run.fact("gpu.name"):
        words.append(models)
    nodes = f" on {run.nodes} nodes" if run.nodes > 1 else ""
    words.append(f"phase {run.phase}, {run.world_size} ranks{nodes}, {samples} samples of each")
    return f"run {run.short_id} of {run.started_utc}: {', '.join(words)}"


def rows(examined: Examined) -> list[tuple[str, ...]]:
    """One tuple of strings per rank, under HEADER, the slowest first. ms: the median of its own work."""
    nodes = {host: str(number) for number, host in enumerate(dict.fromkeys(examined.hosts))}
    medians = 1000.0 * np.median(examined.seconds, axis=1)
    made = []
    for rank in examined.findings.slowest_first:
        host = examined.hosts[rank] if examined.hosts else "?"
        made.append(
            (
                str(rank),
                short(host),
                nodes.get(host, "?"),
                examined.devices[rank],
                tables.number(medians[rank]),
                _slower(examined.findings.ranks[rank]),
                verdict(examined, rank),
            )
        )
    return made


def _doubt(finding: Finding, threshold: float) -> str:
    """Why a rank that is slower by `threshold` or more is not accused."""
    if finding.low < threshold:
        return f"its interval reaches below {100 * threshold:g} %; more samples may tell"
    return "the others differ from each other too much, or too few of its samples are independent"


def _some(lines: Sequence[str], what: str) -> list[str]:
    """At most SHOWN_RANKS of `lines`, and how many more there are."""
    more = len(lines) - SHOWN_RANKS
    return [*lines[:SHOWN_RANKS], *([f"and {more} more {what}"] if more > 0 else [])]


def conclusions(examined: Examined, threshold: float) -> list[str]:
    """The closing lines: who is slow, who may be, or that nobody is."""
    found = examined.findings

    def name(rank: int) -> str:
        where = [f"host {short(examined.hosts[rank])}"] if examined.hosts else []
        return f"rank {rank} ({', '.join([*where, examined.devices[rank]])})"

    nodes = [
        f"all {examined.hosts.count(host)} ranks of node {short(host)} are slow: "
        f"the node is {_amount(found.nodes[host])} slower than the median of the other nodes"
        for host in found.slow_nodes
    ]
    slow = [
        f"{name(rank)} is {_amount(found.ranks[rank])} slower than the median of the other ranks"
        for rank in found.slowest_first
        if rank in found.slow_ranks
    ]
    unclear = [
        f"{name(rank)} may be slow, by {_amount(found.ranks[rank])}: {_doubt(found.ranks[rank], threshold)}"
        for rank in found.slowest_first
        if rank in found.unclear_ranks
    ]
    said = [*_some(nodes, "nodes"), *_some(slow, "slow ranks"), *_some(unclear, "ranks that may be slow")]
    if said:
        return said
    nobody = f"no rank is slower than the others by {100 * threshold:g} % or more"
    reach = max(finding.high for finding in found.ranks)
    return [
        nobody if reach < threshold else f"{nobody}, as far as can be told: intervals reach up to {100 * reach:.1f} %"
    ]


def text(examined: Examined, threshold: float, shown: int | None) -> list[str]:
    """The lines about one run: title, table of the `shown` slowest ranks (None: of all), conclusions and notes."""
    table = rows(examined)
    said = [title(examined), f"own work: {examined.kind} ({rank_work.OWN_WORK[examined.kind]})"]
    said += tables.text_table(HEADER, table[:shown]).splitlines()
    if shown is not None and len(table) > shown:
        said.append(f"the slowest {shown} of {len(table)} ranks (--all shows them all)")
    return [*said, *conclusions(examined, threshold), *(f"note: {line}" for line in examined.notes)]


def document(examined: Examined) -> dict[str, Any]:
    """One run of the JSON document; times are seconds, `slower` and its interval fractions."""
    medians = np.median(examined.seconds, axis=1)
    found = examined.findings
    return {
        "run": examined.run.uuid,
        "model": examined.run.model,
        "phase": examined.run.phase,
        "kind": examined.kind,
        "samples": examined.seconds.shape[1],
        "ranks": [
            {
                "rank": rank,
                "host": examined.hosts[rank] if examined.hosts else None,
                "device": examined.devices[rank],
                "median_seconds": float(medians[rank]),
                **dataclasses.asdict(finding),
                "verdict": verdict(examined, rank),
            }
            for rank, finding in enumerate(found.ranks)
        ],
        "nodes": {host: dataclasses.asdict(finding) for host, finding in found.nodes.items()},
        "slow_nodes": found.slow_nodes,
        "slow_ranks": found.slow_ranks,
        "unclear_ranks": found.unclear_ranks,
        "notes": examined.notes,
        "exit_code": examined.exit_code,
    }


def _draw(examined: Examined, threshold: float, folder: Path, forms: Sequence[str]) -> list[Path]:
    from hvdb import plot_ranks  # matplotlib is slow to import

    run = examined.run
    picture = plot_ranks.Picture(title(examined), examined.kind, examined.seconds, examined.hosts, threshold)
    files = [printable.file_in(folder, "ranks_", f"{run.phase}_{run.short_id}", f".{form}") for form in forms]
    return [plot_ranks.draw(picture, examined.findings, file, run.uuid) for file in files]


def run(arguments: argparse.Namespace) -> int:
    """Prints what the ranks of each run are like, as text or JSON; returns the exit code."""
    threshold = arguments.threshold / 100
    selection = select(choice.load(arguments.stores), arguments)
    refused: dict[str, HvdbError] = {}
    wanted = []
    for run in selection.runs:
        try:
            wanted.append((run, rank_work.kind_of(run)))
        except CannotTell as error:
            refused[run.uuid] = error
    documents, codes = [], set()
    kinds = {run.uuid: kind for run, kind in wanted}
    for run, by_rank in runs.samples_of_ranks(wanted):
        try:
            examined = rank_work.examine(run, kinds[run.uuid], by_rank, threshold, arguments.seed)
        except (CannotTell, NotComparable) as error:
            refused[run.uuid] = error
            continue
        if codes and not arguments.json:
            print()
        codes.add(examined.exit_code)
        if arguments.json:
            documents.append(document(examined))
        else:
            for line in text(examined, threshold, None if arguments.all else SHOWN_RANKS):
                printable.say(line)
        if arguments.out:
            for path in _draw(examined, threshold, arguments.out, arguments.format or ["png"]):
                printable.say(path, sys.stderr if arguments.json else None)
    for uuid, error in refused.items():
        codes.add(error.exit_code)
        printable.say(f"run {uuid[:8]}: {error}", sys.stderr)
    if arguments.json:
        whole = {
            "threshold": threshold,
            "confidence": CONFIDENCE,
            "runs": documents,
            "refused": {uuid: str(error) for uuid, error in refused.items()},
            "left_out": selection.left_out,
        }
        print(json.dumps(whole, indent=2))
    else:
        for line in selection.left_out:
            printable.say(f"left out: {line}")
    return next(code for code in EXITS if code in codes)
