"""hvdb compare: judges recorded runs. The runs are the pairs in the store of a gate, or the runs in two stores."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable
from hvdb.commands import add_several, judging, new_parser, selection
from hvdb.judge import sides, verdict
from hvdb.judge.sides import Cell
from hvdb.judge.thresholds import Thresholds
from hvdb.run import gate_plan
from hvdb.show import verdict_report
from hvdb.show.verdict_report import Outcome, Report

# At most this number of runs of each side is used. With more runs, the exact test takes long and its answer is as good.
MAX_RUNS = 50


def judge_unpaired(cells: Sequence[Cell], tolerances: Thresholds, expected: Sequence[str]) -> list[Outcome]:
    """Judges cells whose two sides were not measured in turn.

    expected: patterns of the names of facts that may differ between the sides.
    Errors: NotComparable if a fact that can change the result differs and matches none of the patterns.
    """
    for cell in cells:
        unexpected = [
            difference
            for difference in sides.differences(cell)
            if difference.in_fingerprint and not any(fnmatch.fnmatch(difference.key, pattern) for pattern in expected)
        ]
        if unexpected:
            shown = "; ".join(f"{d.key}: '{d.first}' in A, '{d.second}' in B" for d in unexpected[:6])
            more = f" and {len(unexpected) - 6} more" if len(unexpected) > 6 else ""
            raise NotComparable(
                f"{cell.name}: A and B differ in what can change the result: {shown}{more}; if that is what you "
                f"compare, say so: --expect {unexpected[0].key}"
            )
    costs = {cell.name: tuple(np.array([*map(sides.log_cost, runs)]) for runs in (cell.a, cell.b)) for cell in cells}
    rules = {cell.name: tolerances.rule(cell.a[0]) for cell in cells}
    judged = verdict.judge_unpaired(costs, {name: rule.slowdown for name, rule in rules.items()})
    return [verdict_report.outcome_of(cell, judged[cell.name], rules[cell.name].reason) for cell in cells]


def _of_a_gate(file: Path) -> list[Outcome]:
    """Recomputes the verdicts of a gate from the pairs in its store `file`. Errors: HvdbError."""
    stored = selection.load([file])
    plans = {run.fact(sides.PLAN) for run in stored}
    if plans <= {""}:
        raise HvdbError(f"{file}: holds no pairs of a gate; name the store of side B as well")
    if len(plans) > 1:
        raise NotComparable(f"{file}: holds runs of {len(plans)} plans; give a store of one gate")
    return gate_plan.outcomes(gate_plan.read(plans.pop()), sides.labelled(stored))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "compare",
        "Judges whether B is slower than A by more than a threshold, from what has been recorded: the "
        "pairs of one store that a gate filled, or two stores. Sessions that were measured apart are compared by an "
        "exact rank-sum test, which needs at least three of each for one configuration and more for several. Only "
        "pairs measured in turn (gate) cancel drift.",
        judging.EXIT_CODES,
    )
    made.add_argument("a", type=Path, metavar="A.db", help="a gate's store, or side A")
    made.add_argument("b", type=Path, metavar="B.db", nargs="?", help="side B")
    may_differ = "a fact that may differ between A and B, such as lib.file.onednn or build.*"
    add_several(made, "--expect", may_differ, default=[], metavar="KEY")
    judging.add_options(made)
    return made


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdicts and returns the exit code. Errors: HvdbError."""
    judging.require_free_outputs(judging.outputs(arguments), [file for file in (arguments.a, arguments.b) if file])
    if arguments.b is None:
        if arguments.threshold is not None or arguments.thresholds:
            raise HvdbError("--threshold: the pairs of a gate are judged by the threshold that it was planned with")
        return judging.show(Report("compare", _of_a_gate(arguments.a)), arguments)
    a, b = judging.load([arguments.a]), judging.load([arguments.b])
    for run in (*a, *b):
        if sides.CELL in run.provenance:
            raise NotComparable(f"{run.source}: holds both sides of a gate; give it alone: compare {run.source}")
    cells, missing = sides.by_configuration(a, b)
    if not cells:
        raise NotComparable(f"{arguments.a} and {arguments.b} have no configuration in common")
    newest = [sides.newest(cell, MAX_RUNS) for cell in cells]
    outcomes = judge_unpaired(newest, judging.tolerances(arguments), arguments.expect)
    return judging.show(Report("compare", outcomes, tuple(missing)), arguments)
