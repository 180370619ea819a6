"""scripts/ranks: which rank of a stored run is slow, and by how much."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hvdb import comparable, efficiency, printable, runs, slow_ranks, tables
from hvdb.bootstrap import Estimate
from hvdb.errors import (
    EXIT_CHECK_FAILED,
    EXIT_GOOD,
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    HvdbError,
    NotComparable,
)
from hvdb.runs import Run
from hvdb.slow_ranks import CONFIDENCE, FEWEST_STEPS, MAJORITY, Finding, Findings

SHOWN_RANKS = 16
LONGEST_HOST = 48  # characters shown of the name of a host
HEADER = ("rank", "host", "node", "device", "ms", f"slower % [{100 * CONFIDENCE:g} %]", "verdict")
# The kinds of samples that hold a rank's own work, and why they do.
OWN_WORK = {
    "compute_seconds": "forward and backward, which wait for no other rank; the steps of all ranks take equally long "
    "where each waits for the slowest",
    "step_seconds": "whole steps, which wait for no other rank in phase none",
}
# Facts about GPUs that make two of them different devices, and those that may be why one of equal GPUs is slow.
DEVICE_FACTS = ("gpu.name", "gpu.compute_capability", "gpu.multiprocessors", "gpu.memory_bytes")
REASON_FACTS = ("gpu.power_limit_watts", "gpu.max_sm_mhz", "gpu.max_memory_mhz", "gpu.ecc", "gpu.driver", "gpu.engines")
BETWEEN_RANKS = "; "  # in such a fact, between the values of ranks that differ
# The code of several runs is the first of these that one of them has.
EXITS = (EXIT_CHECK_FAILED, EXIT_NOT_COMPARABLE, EXIT_INCONCLUSIVE, EXIT_GOOD)


class CannotTell(HvdbError):
    """A run that does not say whether one of its ranks is slow."""

    exit_code = EXIT_INCONCLUSIVE


@dataclass(frozen=True)
class Examined:
    """A run, the own work of its ranks, seconds (ranks, samples), and what was found in it.

    hosts, devices: of each rank; hosts is empty if the store lacks one. notes: what a reader must know besides.
    """

    run: Run
    kind: str
    seconds: np.ndarray
    hosts: list[str]
    devices: list[str]
    findings: Findings
    notes: list[str]

    @property
    def exit_code(self) -> int:
        if self.findings.slow_ranks or self.findings.slow_nodes:
            return EXIT_CHECK_FAILED
        return EXIT_INCONCLUSIVE if self.findings.unclear_ranks else EXIT_GOOD


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
    """The command line of scripts/ranks."""
    made = argparse.ArgumentParser(
        prog="scripts/ranks",
        description="Which rank of a stored run is slow? Compares the ranks' own work step by step, and whole nodes. "
        "Default: all complete runs of several ranks, of the newest session of each configuration.",
        epilog="exit codes: 0 nobody is slow, 1 a rank or a node is slow, 2 usage or I/O, 3 the run does not tell, "
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


def own_work(run: Run) -> str:
    """The kind of samples that holds a rank's own work. Errors: CannotTell if the run has none."""
    if "compute_seconds" in run.samples:
        return "compute_seconds"
    if "step_seconds" not in run.samples:
        raise CannotTell("the store holds no samples of its ranks")
    if run.phase == "none":
        return "step_seconds"
    raise CannotTell(
        "the store holds step times only (no compute_seconds): every rank waits for the slowest in each step, so that "
        "a slow rank cannot be told from those that wait for it"
    )


def matrix(run: Run, kind: str, by_rank: dict[int, np.ndarray]) -> np.ndarray:
    """Samples of all ranks, seconds (ranks, samples), cut to the shortest rank. Errors: CannotTell."""
    if missing := run.world_size - len(by_rank):
        first = next(rank for rank in range(run.world_size) if rank not in by_rank)
        raise CannotTell(f"{kind} of {missing} of its {run.world_size} ranks is missing, the first is rank {first}")
    steps = min(map(len, by_rank.values()))
    if steps < FEWEST_STEPS:
        raise CannotTell(f"{steps} samples of a rank are too few: {FEWEST_STEPS} at least (--num-iters, --max-time)")
    seconds = np.array([by_rank[rank][:steps] for rank in range(run.world_size)])
    if not (seconds > 0).all():
        raise CannotTell(f"{kind} holds times of 0, which have no ratio to others")
    return seconds


def require_equal_devices(run: Run) -> None:
    """Raises NotComparable if the ranks' GPUs are of several models: the store does not say which rank has which."""
    for key in DEVICE_FACTS:
        if BETWEEN_RANKS in run.fact(key):
            raise NotComparable(
                f"its ranks have different GPUs ({key}: {run.fact(key)}), and the store does not say which rank has "
                "which; only ranks of equal devices are compared, so measure each model alone"
            )


def examine(run: Run, kind: str, by_rank: dict[int, np.ndarray], threshold: float, seed: int) -> Examined:
    """What the samples `by_rank` of `kind` say about the ranks of `run`. threshold: a fraction.

    Errors: CannotTell, NotComparable.
    """
    if run.world_size < 2:
        raise CannotTell("one rank has no others to be compared with")
    require_equal_devices(run)
    seconds = matrix(run, kind, by_rank)
    ranks, samples = seconds.shape
    placed = {row["rank"]: row for row in run.ranks}
    known = len(placed) == ranks
    hosts = [placed[rank]["host"] for rank in range(ranks)] if known else []
    on_gpus = run.device == "cuda" and known
    devices = [f"GPU {placed[rank]['local_rank']}" if on_gpus else run.device for rank in range(ranks)]
    notes = [
        f"the ranks' GPUs differ in {key.removeprefix('gpu.')}: {run.fact(key)}"
        for key in REASON_FACTS
        if BETWEEN_RANKS in run.fact(key)
    ]
    if longest := max(map(len, by_rank.values())) - samples:
        notes.append(f"some ranks have up to {longest} samples more than others; the first {samples} of each are used")
    if not known:
        notes.append("the store does not say on which host each rank ran, so nodes are not compared")
    findings = slow_ranks.examine(seconds, hosts, threshold, seed)
    if ranks < MAJORITY:
        notes.append(f"{ranks} ranks have no majority: which of them is usual, and which is not, cannot be told")
    if 0 < len(findings.nodes) < MAJORITY:
        notes.append(f"{len(findings.nodes)} nodes have no majority: which is usual, and which is not, cannot be told")
    return Examined(run, kind, seconds, hosts, devices, findings, notes)


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
    said = [title(examined), f"own work: {examined.kind} ({OWN_WORK[examined.kind]})"]
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


def _say(line: object, stream: TextIO | None = None) -> None:
    print(printable.terminal(line), file=stream)


def _draw(examined: Examined, threshold: float, folder: Path, forms: Sequence[str]) -> list[Path]:
    from hvdb import plot_ranks  # matplotlib is slow to import

    run = examined.run
    picture = plot_ranks.Picture(title(examined), examined.kind, examined.seconds, examined.hosts, threshold)
    files = [printable.file_in(folder, "ranks_", f"{run.phase}_{run.short_id}", f".{form}") for form in forms]
    return [plot_ranks.draw(picture, examined.findings, file, run.uuid) for file in files]


def main(argv: Sequence[str]) -> int:
    """Prints what the ranks of each run are like, as text or JSON; returns the exit code."""
    arguments = parser().parse_args(argv)
    threshold = arguments.threshold / 100
    selection = select(runs.load(arguments.stores), arguments)
    refused: dict[str, HvdbError] = {}
    wanted = []
    for run in selection.runs:
        try:
            wanted.append((run, own_work(run)))
        except CannotTell as error:
            refused[run.uuid] = error
    documents, codes = [], set()
    kinds = {run.uuid: kind for run, kind in wanted}
    for run, by_rank in runs.samples_of_ranks(wanted):
        try:
            examined = examine(run, kinds[run.uuid], by_rank, threshold, arguments.seed)
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
                _say(line)
        if arguments.out:
            for path in _draw(examined, threshold, arguments.out, arguments.format or ["png"]):
                _say(path, sys.stderr if arguments.json else None)
    for uuid, error in refused.items():
        codes.add(error.exit_code)
        _say(f"run {uuid[:8]}: {error}", sys.stderr)
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
            _say(f"left out: {line}")
    return next(code for code in EXITS if code in codes)
