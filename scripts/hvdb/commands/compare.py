"""hvdb compare: judges recorded runs. The runs are the pairs that a gate kept, the runs in two stores, or the samples
in two files of another program."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable
from hvdb.commands import add_several, judging, new_parser, selection
from hvdb.judge import reasons, sides, verdict
from hvdb.judge.comparable import Difference
from hvdb.judge.outcomes import Report
from hvdb.judge.sides import BothSides, Outcome
from hvdb.judge.thresholds import Thresholds
from hvdb.read import others
from hvdb.read.others import Results
from hvdb.read.store import is_database
from hvdb.run import gate_plan, printed_sides, stored_sides

# At most this number of runs of each side is used. With more runs, the exact test takes long and its answer is as good.
MAX_RUNS = 50
ONE_MEAN = (
    "a side has one mean and no samples, so nothing says how it varies: no verdict (gate --tool repeats the command; "
    "Google Benchmark has --benchmark_repetitions)"
)
ONE_PROCESS = (
    f"the samples of a side, of which {MAX_RUNS} at most are used, come from one process: interval and verdict cover "
    "what varies within a process, not what changes from one process to the next (gate --tool repeats the command)"
)


def judge_unpaired(cells: Sequence[BothSides], tolerances: Thresholds, expected: Sequence[str]) -> list[Outcome]:
    """Judges cells whose two sides were not measured in turn.

    expected: patterns of the names of facts that may differ between the sides.
    Errors: NotComparable if a fact that can change the result differs and matches none of the patterns.
    """
    for cell in cells:
        _require_expected(cell.name, sides.differences(cell), expected)
    costs = {cell.name: tuple(np.array([*map(sides.log_cost, runs)]) for runs in (cell.a, cell.b)) for cell in cells}
    rules = {cell.name: tolerances.rule(cell.a[0]) for cell in cells}
    judged = verdict.judge_unpaired(costs, {name: rule.slowdown for name, rule in rules.items()})
    return [sides.outcome_of(cell, judged[cell.name], rules[cell.name].reason) for cell in cells]


def _require_expected(name: str, differences: Sequence[Difference], expected: Sequence[str]) -> None:
    unexpected = [
        difference
        for difference in differences
        if difference.in_fingerprint and not any(fnmatch.fnmatch(difference.key, pattern) for pattern in expected)
    ]
    if unexpected:
        shown = "; ".join(f"{d.key}: '{d.first}' in A, '{d.second}' in B" for d in unexpected[:6])
        more = f" and {len(unexpected) - 6} more" if len(unexpected) > 6 else ""
        raise NotComparable(
            f"{name}: A and B differ in what can change the result: {shown}{more}; if that is what you "
            f"compare, say so: --expect {unexpected[0].key}"
        )


def judge_others(
    a: Results,
    b: Results,
    rows: Sequence[str],
    threshold: float,
    expected: Sequence[str],
    higher: Sequence[str] = (),
) -> Report:
    """Judges the rows of two results of one program. rows: as for others.matched(). higher: metrics of which more is
    better.

    Errors: NotComparable if the programs or their facts differ; HvdbError.
    """
    if a.program != b.program:
        raise NotComparable(f"A is a result of {a.program}, and B of {b.program}")
    keys = sorted(a.facts.keys() | b.facts.keys())
    facts = [Difference(key, a.facts.get(key), b.facts.get(key), True) for key in keys]
    differences = [fact for fact in facts if fact.first != fact.second]
    _require_expected(a.program, differences, expected)
    names, missing = others.matched(a, b, rows)
    samples = {name: (_evenly(a.costs[name]), _evenly(b.costs[name])) for name in names}
    means = {name for name, pair in samples.items() if min(map(len, pair)) == 1}
    for name in means:  # one observation a side gives no verdict: a mean is no sample like those of the other side
        samples[name] = tuple(np.array([np.median(values)]) for values in samples[name])
    costs = {name: (np.log(first), np.log(second)) for name, (first, second) in samples.items()}
    judged = verdict.judge_unpaired(costs, dict.fromkeys(names, threshold))
    outcomes = []
    for name, judgement in judged.items():
        rates = (float(1 / np.median(a.costs[name])), float(1 / np.median(b.costs[name])))
        notes = [ONE_MEAN if name in means else ONE_PROCESS]
        outcomes.append(
            Outcome(
                *(name, judgement, rates),
                paired=False,
                differences=differences,
                foreign=True,
                notes=notes,
                metric=(a.units.get(name, ""), name in higher) if a.program == others.TOOLS["command"] else None,
            )
        )
    return _unpaired(outcomes, missing)


def _unpaired(outcomes: Sequence[Outcome], missing: Sequence[str]) -> Report:
    level = verdict.ALPHA / max(1, len(outcomes))
    return Report("compare", outcomes, tuple(missing), explained=tuple(reasons.explained(outcomes, level)))


def _evenly(values: Sequence[float]) -> np.ndarray:
    """Returns at most MAX_RUNS of `values`, evenly spaced."""
    return np.array(values)[np.linspace(0, len(values) - 1, min(len(values), MAX_RUNS)).astype(int)]


def _of_a_gate(file: Path) -> Report:
    """Recomputes the verdicts of a gate from the pairs in its store `file`. Errors: HvdbError."""
    stored = selection.load([file], collectives=True)
    plans = {run.fact(sides.PLAN) for run in stored}
    if plans <= {""}:
        raise HvdbError(f"{file}: holds no pairs of a gate; name the store of side B as well")
    if len(plans) > 1:
        raise NotComparable(f"{file}: holds runs of {len(plans)} plans; give a store of one gate")
    plan = gate_plan.read(plans.pop())
    pairs = stored_sides.pairs_of(plan, stored, stored_sides.read_beside(file, plan))
    return gate_plan.report(plan, pairs, "compare")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "compare",
        "Judges whether B is slower than A by more than a threshold, from what has been recorded: the pairs that a "
        "gate kept (a store; with --tool a JSON file), or two stores, or two files of nccl-tests, the OSU micro- "
        "benchmarks or Google Benchmark (JSON). Sessions that were measured apart are compared by an exact rank-sum "
        "test, which needs at least three of each for one configuration and more for several. Only pairs measured in "
        "turn (gate) cancel drift.",
        judging.EXIT_CODES,
    )
    made.add_argument("a", type=Path, metavar="A.db", help="what a gate kept, or side A")
    made.add_argument("b", type=Path, metavar="B.db", nargs="?", help="side B")
    may_differ = "a fact that may differ between A and B, such as lib.file.onednn or build.*"
    add_several(made, "--expect", may_differ, default=[], metavar="KEY")
    judging.add_row(made)
    judging.add_options(made)
    return made


def _is_foreign(file: Path) -> bool:
    """Returns True for a file that is no store. What is wrong with a store is said where stores are read."""
    return file.is_file() and not is_database(file)


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdicts and returns the exit code. Errors: HvdbError."""
    judging.require_free_outputs(judging.outputs(arguments), [file for file in (arguments.a, arguments.b) if file])
    if arguments.b is None:
        if arguments.row or arguments.metric:
            raise HvdbError("--row, --metric: are for two files of another program")
        if arguments.threshold is not None or arguments.thresholds:
            raise HvdbError("--threshold: the pairs of a gate are judged by the threshold that it was planned with")
        if _is_foreign(arguments.a):
            kept = printed_sides.stored(arguments.a)
            return judging.show(gate_plan.report(kept.plan, kept.pairs(), "compare"), arguments)
        return judging.show(_of_a_gate(arguments.a), arguments)
    foreign = [_is_foreign(file) for file in (arguments.a, arguments.b)]
    for file in (file for file, is_foreign in zip((arguments.a, arguments.b), foreign, strict=True) if is_foreign):
        if printed_sides.holds_pairs(file):
            raise NotComparable(f"{file}: holds both sides of a gate; give it alone: compare {file}")
    if all(foreign):
        a, b = (judging.printed(file, arguments) for file in (arguments.a, arguments.b))
        judged = (judging.one_threshold(arguments), arguments.expect, arguments.higher_is_better)
        return judging.show(judge_others(a, b, arguments.row, *judged), arguments)
    if any(foreign):
        for file in (arguments.a, arguments.b):
            if not file.is_file():
                raise HvdbError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
        raise HvdbError(f"{arguments.a}, {arguments.b}: one is a store, and the other is not; compare like with like")
    if arguments.row or arguments.metric:
        raise HvdbError("--row, --metric: are for two files of another program")
    a, b = judging.load([arguments.a]), judging.load([arguments.b])
    for run in (*a, *b):
        if sides.CELL in run.provenance:
            raise NotComparable(f"{run.source}: holds both sides of a gate; give it alone: compare {run.source}")
    cells, missing = sides.by_configuration(a, b)
    if not cells:
        raise NotComparable(f"{arguments.a} and {arguments.b} have no configuration in common")
    newest = [sides.newest(cell, MAX_RUNS) for cell in cells]
    outcomes = judge_unpaired(newest, judging.tolerances(arguments), arguments.expect)
    return judging.show(_unpaired(outcomes, missing), arguments)
