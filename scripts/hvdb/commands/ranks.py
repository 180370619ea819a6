"""hvdb ranks: shows which ranks of a stored run are slow, and by how much."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base import printable
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, EXIT_NOT_COMPARABLE, HvdbError
from hvdb.commands import add_figures, add_several, new_parser, number
from hvdb.commands import selection as choice
from hvdb.judge import comparable, efficiency, rank_work
from hvdb.judge.rank_work import Examined
from hvdb.judge.slow_ranks import CONFIDENCE
from hvdb.read import runs
from hvdb.read.runs import Run
from hvdb.show import rank_report, tables
from hvdb.show.rank_report import SHOWN_RANKS

# If several runs are examined, the exit code is the first code of this list that one of these runs gives.
EXITS = (EXIT_CHECK_FAILED, EXIT_NOT_COMPARABLE, EXIT_INCONCLUSIVE, EXIT_GOOD)

_percent = number(lambda value: 0 < value < 1000, "{} is not a percentage above 0")
_seed = number(lambda value: value >= 0, "{} is not a whole number from 0", int)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "ranks",
        "Which rank of a stored run is slow? Compares the ranks' own work step by step, and whole nodes. "
        "Default: all complete runs of several ranks, of the newest session of each configuration.",
        "exit codes: 0 nobody is slow, 1 a rank or a node is slow, 2 usage or I/O, 3 the run does not tell, "
        "4 not comparable (the ranks' GPUs are of several models); of several runs: 1 before 4 before 3",
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db, or .partial)")
    add_several(made, "--run", "exactly these runs (start of the UUID); nothing is filtered", metavar="ID")
    made.add_argument("--phase", choices=("full", "none", "solo"), help="only runs of this phase")
    choice.add_kinds(made)
    made.add_argument(
        "--threshold",
        type=_percent,
        default=100 * rank_report.THRESHOLD,
        metavar="PERCENT",
        help="by how much a rank must be slower to be called slow (default: %(default)g)",
    )
    made.add_argument(
        "--seed", type=_seed, metavar="N", default=1, help="of the simulation behind the test (default: 1)"
    )
    made.add_argument("--all", action="store_true", help=f"show all ranks, not only the slowest {SHOWN_RANKS}")
    made.add_argument(
        "--json", action="store_true", help="one JSON document: seconds, and fractions (0.05: 5 %% slower)"
    )
    add_figures(made, None, "draw one picture for each run into this folder")
    return made


def newest(stored: Sequence[Run]) -> list[Run]:
    """Returns the newest run for each configuration, phase and number of ranks, oldest first.

    stored: the runs, oldest first.
    """
    columns = ("phase", "world_size", "allocation_size", "nodes")
    last: dict[tuple, Run] = {}
    for run in stored:
        key = (*comparable.curve(run).values(), *(run.columns[name] for name in columns))
        key += (efficiency.VALIDATION in run.provenance,)
        last.pop(key, None)
        last[key] = run
    return list(last.values())


def select(stored: Sequence[Run], arguments: argparse.Namespace) -> efficiency.Selection:
    """Returns the runs to examine, and a line for each reason why runs are left out.

    Errors: HvdbError if no run is left.
    """
    if arguments.run:
        return efficiency.Selection([runs.find(list(stored), prefix) for prefix in arguments.run], [])
    wanted = [run for run in stored if arguments.phase in (None, run.phase)]
    several = [run for run in wanted if run.world_size > 1 or arguments.phase == "solo"]
    kept = efficiency.select(
        several, traced=arguments.traced, origin=arguments.origin, incomplete=arguments.incomplete, validations=True
    )
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


def text(examined: Examined, threshold: float, shown: int | None) -> list[str]:
    """Returns the lines about one run: title, table of the slowest ranks, conclusions and notes.

    shown: number of ranks in the table; None: all ranks.
    """
    table = rank_report.rows(examined)
    said = [rank_report.title(examined), f"own work: {examined.kind} ({rank_work.OWN_WORK[examined.kind]})"]
    said += tables.text_table(rank_report.HEADER, table[:shown]).splitlines()
    if shown is not None and len(table) > shown:
        said.append(f"the slowest {shown} of {len(table)} ranks (--all shows them all)")
    return [*said, *rank_report.conclusions(examined, threshold), *(f"note: {line}" for line in examined.notes)]


def document(examined: Examined) -> dict[str, Any]:
    """Returns one run for the JSON document. Times are in seconds; `slower` and its interval are fractions."""
    medians = np.median(examined.seconds, axis=1)
    findings = examined.findings
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
                "verdict": rank_report.verdict(examined, rank),
            }
            for rank, finding in enumerate(findings.ranks)
        ],
        "nodes": {host: dataclasses.asdict(finding) for host, finding in findings.nodes.items()},
        "slow_nodes": findings.slow_nodes,
        "slow_ranks": findings.slow_ranks,
        "unclear_ranks": findings.unclear_ranks,
        "notes": examined.notes,
        "exit_code": examined.exit_code,
    }


def _draw(examined: Examined, threshold: float, folder: Path, forms: Sequence[str]) -> list[Path]:
    from hvdb.show import plot_ranks  # matplotlib is slow to import

    run = examined.run
    picture = plot_ranks.picture(examined, threshold)
    files = [printable.file_in(folder, "ranks_", f"{run.phase}_{run.short_id}", f".{form}") for form in forms]
    return [plot_ranks.draw(picture, examined.findings, file, run.uuid) for file in files]


def run(arguments: argparse.Namespace) -> int:
    """Prints a report on the ranks of each run, as text or JSON, and returns the exit code."""
    threshold = arguments.threshold / 100
    selection = select(choice.load(arguments.stores), arguments)
    refused: dict[str, HvdbError] = {}
    documents, codes = [], set()
    for run, examined in rank_work.examine_all(selection.runs, threshold, arguments.seed):
        if isinstance(examined, HvdbError):
            refused[run.uuid] = examined
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
