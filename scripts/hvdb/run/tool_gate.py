"""Measures the commands A and B of another benchmark in pairs, as gate.py does with hvd_bench.

One run of a command prints many rows, and each row is a cell. The pairs are kept in a JSON file, because a store holds
runs of hvd_bench.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from hvdb.base import edge, process, progress, record, whole_file
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import FINITE, Count, Malformed, Range, Text
from hvdb.judge import verdict
from hvdb.judge.sides import Outcome
from hvdb.judge.verdict import Judgement
from hvdb.read import others
from hvdb.read.collective_rows import MAX_SECONDS
from hvdb.read.others import MIN_SECONDS, Results
from hvdb.read.output_text import MAX_BYTES
from hvdb.run import gate, gate_plan
from hvdb.show.verdict_report import Report

FORMAT = "hvdb-pairs 1"
MAX_FILE_BYTES = 16 << 20  # room for others.MAX_CELLS rows of gate_plan.MAX_PAIRS pairs
Seconds = Annotated[float, Range(MIN_SECONDS, MAX_SECONDS)]


@dataclass(frozen=True)
class ToolGatePlan:
    """What is fixed before the first pair. tool: a key of others.TOOLS. a, b: commands, as a person wrote them.

    rows: names or patterns of rows; empty: all rows. pairs: how many at most. resolved: side -> the command with the
    path of its program. directory: where both run.
    """

    tool: str
    a: str
    b: str
    rows: list[str]
    threshold: Annotated[float, Range(0, 1)]
    pairs: Annotated[int, Range(1, gate_plan.MAX_PAIRS)]
    seed: Annotated[int, FINITE]
    resolved: dict[str, str]
    directory: str


@dataclass
class Pairs:
    """The pairs so far. The first pair tells the rows: by their names, never by their times.

    facts: Results.facts of all runs. missing: a line for each row that only one side has. failed: how many pairs A and
    B cut short. seconds: row -> [seconds of A, seconds of B] of each pair.
    """

    plan: ToolGatePlan
    facts: dict[str, Annotated[str, Text(300)]] = field(default_factory=dict)
    missing: Annotated[list[Annotated[str, Text(4096)]], Count(others.MAX_CELLS)] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    seconds: Annotated[dict[str, list[list[Seconds]]], Count(others.MAX_CELLS)] = field(default_factory=dict)
    format: str = FORMAT

    @property
    def count(self) -> int:
        """The number of whole pairs."""
        return len(next(iter(self.seconds.values()), []))

    def add(self, results: Mapping[str, Results]) -> None:
        """Adds a pair. results: side -> its run, whose observation is the median of a row's samples.

        Errors: HvdbError if a row is not there; NotComparable if the two runs, or the pairs, did different work.
        """
        if not self.seconds:
            both, self.missing = others.matched(results["a"], results["b"], self.plan.rows)
            try:
                verdict.plan_looks(len(both), self.plan.pairs)
            except HvdbError as error:
                raise HvdbError(f"{error}, or choose rows with --row") from error
            self.facts, self.seconds = results["a"].facts, {name: [] for name in both}
        for side, run in results.items():
            about = f"side {side} of pair {self.count + 1}"
            if run.facts != self.facts:
                raise NotComparable(f"{about} says {run.facts}, and side a of the first pair said {self.facts}")
            if lost := [name for name in self.seconds if name not in run.costs]:
                self.failed[side] += 1
                raise HvdbError(f"{about} printed no row '{lost[0]}', which the first pair has")
        for name, pairs in self.seconds.items():
            pairs.append([float(np.median(results[side].costs[name])) for side in ("a", "b")])

    def ratios(self) -> dict[str, np.ndarray]:
        """Returns row -> log(seconds of B / seconds of A) of each pair, (pairs,)."""
        return {name: np.diff(np.log(pairs), axis=1)[:, 0] for name, pairs in self.seconds.items()}

    def replay(self) -> tuple[dict[str, Judgement], list[str]]:
        """Returns the results of verdict.replay()."""
        looks = verdict.plan_looks(len(self.seconds), self.plan.pairs)
        return verdict.replay(self.ratios(), dict.fromkeys(self.seconds, self.plan.threshold), looks)

    def report(self, title: str) -> Report:
        """Returns the verdict on every row. title: the command. Errors: HvdbError if there are too few pairs."""
        judged = self.replay()[0]
        if not judged:
            raise HvdbError(
                f"{self.count} whole pairs are too few for a verdict: give the gate's command again, it goes on where "
                "it stopped"
            )
        cut = ", ".join(f"side {side} {count}" for side, count in self.failed.items() if count)
        left_out = [f"pairs that are not complete: {cut}"] if cut else []
        outcomes = []
        for name, judgement in judged.items():
            a, b = np.median(self.seconds[name][: judgement.observations[0]], axis=0)
            rates = (float(1 / a), float(1 / b))
            outcomes.append(Outcome(name, judgement, rates, paired=True, left_out=left_out, foreign=True))
        return Report(title, outcomes, tuple(self.missing))


@dataclass(frozen=True)
class Bench:
    """How to make runs. commands: side -> its words. file: keeps the pairs. lock: the descriptor from gate.locked()."""

    commands: Mapping[str, Sequence[str]]
    file: Path
    directory: Path | None
    timeout_seconds: float
    lock: int


def holds_pairs(file: Path) -> bool:
    """Returns True if `file` ends as a file that a gate wrote. Errors: HvdbError if it cannot be read."""
    return b'"format": "hvdb-pairs ' in whole_file.read_at_most(file, MAX_FILE_BYTES)[-40:]


def stored(file: Path) -> Pairs:
    """Returns the pairs that a gate kept in `file`. Errors: HvdbError if it holds anything else."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES)
    with record.faults_of(f"{file}: does not hold the pairs of a gate with --tool"):
        pairs = record.read(Pairs, record.json_object(record.decoded(content, MAX_FILE_BYTES), MAX_FILE_BYTES))
        if pairs.format != FORMAT or set(pairs.failed) != {"a", "b"}:
            raise Malformed("another format")
        if not pairs.seconds or {len(pair) for row in pairs.seconds.values() for pair in row} != {2}:
            raise Malformed("a time is missing", "seconds")
        if {len(row) for row in pairs.seconds.values()} != {pairs.count} or pairs.count > pairs.plan.pairs:
            raise Malformed("a row has too few or too many pairs", "seconds")
    return pairs


def begin(file: Path, plan: ToolGatePlan) -> Pairs:
    """Returns the pairs of `plan` so far. Errors: HvdbError if `file` holds anything else."""
    if not file.exists():
        return Pairs(plan)
    try:
        pairs = stored(file)
    except HvdbError as error:
        raise HvdbError(f"{error}; name a new file with --db") from error
    if pairs.plan != plan:
        raise HvdbError(
            f"{file}: was measured for another plan (other commands, programs, folder, rows, threshold, pairs, seed); "
            "give the same options to go on, or another --db to begin anew"
        )
    return pairs


def _keep(file: Path, pairs: Pairs) -> None:
    whole_file.write_text(file, json.dumps(asdict(pairs), allow_nan=False) + "\n")


def run_side(bench: Bench, tool: str, rows: Sequence[str], side: str, pair: int) -> Results:
    """Makes one run. Errors: HvdbError if it fails, or prints no result of `tool`."""
    about, words, limit = f"side {side} of pair {pair}", bench.commands[side], bench.timeout_seconds
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        failure = ""
        try:
            process.run(words, {}, limit, bench.directory, output, (bench.lock,), errors, MAX_BYTES)
        except (process.RunFailed, OSError) as error:
            failure = gate.failure(error, errors, output)
        output.seek(0)
        try:
            results = others.chosen(others.parse(output.read(MAX_BYTES + 1), tool), rows, "its output")
        except (Malformed, HvdbError) as error:  # nccl-tests ends with an exit code above 0 after wrong elements
            failure += f"{' and ' if failure else ''}printed no result of {others.TOOLS[tool]}: {error}"
    if failure:
        raise HvdbError(f"{about} {failure}; {gate.kept(bench.file)}")
    return results


def measure(bench: Bench, pairs: Pairs) -> Report:
    """Measures pairs until every row has a verdict or the last look is done. Errors: HvdbError, OSError."""
    begun, made, plan = time.monotonic(), 0, pairs.plan
    while not pairs.seconds or pairs.replay()[1]:
        number = pairs.count + 1
        results: dict[str, Results] = {}
        for side in gate_plan.order(plan.seed, number):
            try:
                results[side] = run_side(bench, plan.tool, plan.rows, side, number)
            except (HvdbError, KeyboardInterrupt):
                pairs.failed[side] += 1
                if pairs.seconds:
                    _keep(bench.file, pairs)
                raise
        try:
            pairs.add(results)
        finally:
            if pairs.seconds:
                _keep(bench.file, pairs)
        made += 1
        newest = [100 * math.expm1(ratios[-1]) for ratios in pairs.ratios().values()]
        left = (plan.pairs - number) * (time.monotonic() - begun) / made
        edge.tell(
            "gate",
            f"pair {number} of at most {plan.pairs}: B slower by {np.median(newest):+.1f} % in the median of "
            f"{len(newest)} row(s), {min(newest):+.1f} to {max(newest):+.1f} %; at most {progress.duration(left)} left",
            sys.stderr,
        )
    return pairs.report("gate")
