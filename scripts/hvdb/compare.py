"""`hvdb compare`: judges what has been recorded: the pairs of a gate's store, or two stores side by side."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdb import efficiency, gate_plan, printable, runs, sides, store, verdict, verdict_report, whole_file
from hvdb.errors import HvdbError, NotComparable
from hvdb.runs import Run
from hvdb.sides import Cell
from hvdb.verdict_report import Outcome

EXIT_CODES = (
    "exit codes: 0 every cell passes, 1 a cell is slower, 2 usage or I/O, 3 inconclusive: more runs are needed, "
    "4 not comparable"
)
DEFAULT_THRESHOLD = 0.02
# The exact test of more runs takes long and tells nothing more.
MOST_RUNS = 50


def slowdown(text: str) -> float:
    """'3' or '3%' as 0.03. Errors: ArgumentTypeError."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no percentage above 0, up to 100")
    return value


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Options on the threshold and on where verdicts go, which gate and compare share."""
    parser.add_argument(
        "--threshold",
        type=slowdown,
        metavar="PERCENT",
        help=f"slowdown of B that is tolerated (default: {100 * DEFAULT_THRESHOLD:g})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write them as JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write them for a merge request's comment")


def require_free_outputs(arguments: argparse.Namespace) -> None:
    """Before anything is measured. Errors: HvdbError for a verdict's file that is a database or has no folder."""
    for file in (arguments.json, arguments.junit, arguments.markdown):
        if file and store.is_database(file):
            raise HvdbError(f"{file}: is a database, which the verdicts would replace; name another file")
        if file and not file.parent.is_dir():
            raise HvdbError(f"{file}: there is no folder {file.parent}; make it, or name another file")


def show(outcomes: Sequence[Outcome], arguments: argparse.Namespace, title: str) -> int:
    """Prints the verdicts, writes the files that were asked for; returns the exit code."""
    print(verdict_report.text(outcomes))
    print(f"\n{title}: {verdict_report.summary(outcomes)}")
    for file, text in (
        (arguments.json, verdict_report.json_text(outcomes)),
        (arguments.junit, verdict_report.junit(outcomes)),
        (arguments.markdown, verdict_report.markdown(outcomes, title)),
    ):
        if file:
            whole_file.write_text(file, text)
    return verdict.exit_code([each.judgement.verdict for each in outcomes])


def load(paths: Sequence[Path]) -> list[Run]:
    """The runs of `paths` that may be compared; says what is left out. Errors: HvdbError if none is left."""
    selection = efficiency.select(runs.load(paths))
    for line in selection.left_out:
        print(printable.terminal(f"left out: {line}"))
    if not selection.runs:
        raise HvdbError(f"{', '.join(map(str, paths))}: no complete, untraced, measured run to compare")
    return selection.runs


def judge_unpaired(cells: Sequence[Cell], threshold: float, expected: Sequence[str]) -> list[Outcome]:
    """Judges cells whose sides were measured apart. expected: patterns of facts that may differ between the sides.

    Errors: NotComparable where anything else that can change the result differs.
    """
    for cell in cells:
        sides.require_same_work(cell)
        unexpected = [
            difference
            for difference in sides.differences(cell)
            if difference.in_fingerprint and not any(fnmatch.fnmatch(difference.key, each) for each in expected)
        ]
        if unexpected:
            shown = "; ".join(f"{d.key}: '{d.first}' in A, '{d.second}' in B" for d in unexpected[:6])
            more = f" and {len(unexpected) - 6} more" if len(unexpected) > 6 else ""
            raise NotComparable(
                f"{cell.name}: A and B differ in what can change the result: {shown}{more}; if that is what you "
                f"compare, say so: --expect {unexpected[0].key}"
            )
    costs = {cell.name: tuple(np.array([*map(sides.log_cost, runs)]) for runs in (cell.a, cell.b)) for cell in cells}
    judged = verdict.judge_unpaired(costs, {cell.name: threshold for cell in cells})
    return [verdict_report.outcome(cell, judged[cell.name]) for cell in cells]


def _of_a_gate(file: Path) -> list[Outcome]:
    """The verdicts of the gate that filled the store `file`, recomputed from its pairs. Errors: HvdbError."""
    found = load([file])
    plans = {run.fact(sides.PLAN) for run in found}
    if plans == {""}:
        raise HvdbError(f"{file}: holds no pairs of a gate; name the store of side B as well")
    if len(plans) > 1:
        raise NotComparable(f"{file}: holds runs of {len(plans)} plans; give a store of one gate")
    return gate_plan.outcomes(gate_plan.read(plans.pop()), sides.labelled(found))


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="scripts/compare",
        description="Judges whether B is slower than A by more than a threshold, from what has been recorded: the "
        "pairs of one store that a gate filled, or two stores. Sessions that were measured apart are compared by an "
        "exact rank-sum test, which needs at least four of each; only pairs measured in turn (gate) cancel drift.",
        epilog=EXIT_CODES,
    )
    made.add_argument("a", type=Path, metavar="A.db", help="a gate's store, or side A")
    made.add_argument("b", type=Path, metavar="B.db", nargs="?", help="side B")
    made.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="KEY",
        help="a fact that may differ between A and B, such as lib.file.onednn or build.* (may be given several times)",
    )
    add_judging(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Prints the verdicts; returns the exit code. Errors: HvdbError."""
    arguments = parser().parse_args(argv)
    require_free_outputs(arguments)
    if arguments.b is None:
        if arguments.threshold is not None:
            raise HvdbError("--threshold: the pairs of a gate are judged by the threshold that it was planned with")
        return show(_of_a_gate(arguments.a), arguments, "compare")
    cells, missing = sides.by_configuration(load([arguments.a]), load([arguments.b]))
    for line in missing:
        print(printable.terminal(f"left out: {line}"))
    if not cells:
        raise NotComparable(f"{arguments.a} and {arguments.b} have no configuration in common")
    threshold = DEFAULT_THRESHOLD if arguments.threshold is None else arguments.threshold
    newest = [sides.newest(cell, MOST_RUNS) for cell in cells]
    return show(judge_unpaired(newest, threshold, arguments.expect), arguments, "compare")
