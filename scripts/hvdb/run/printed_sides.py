"""The sides of a gate of another program: commands that print results (hvdb.read.others).

One run prints many rows, and each row gets a verdict. The pairs are kept in a JSON file, because a store holds runs of
hvd_bench. A launch is one observation of a row: the median of what it printed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hvdb.base import process, record, whole_file
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Count, Malformed, Range, Text
from hvdb.judge import inert
from hvdb.judge.sides import Outcome
from hvdb.judge.verdict import Judgement, plan_looks
from hvdb.read import metrics, others
from hvdb.read.others import Results
from hvdb.run import gate, gate_plan
from hvdb.run.gate import SideFailed
from hvdb.run.gate_plan import Pairs, Plan, Row

FORMAT, OLD_FORMAT = "hvdb-pairs 2", "hvdb-pairs 1"
MAX_FILE_BYTES = 16 << 20  # room for others.MAX_CELLS rows of gate_plan.MAX_PAIRS pairs
CELL = "all rows"  # the one cell of such a plan
_Cost = Annotated[float, Range(0, 1e300, inner=True)]
_Pair = Annotated[list[_Cost], Count(2)]
_Row = Annotated[str, Text(300)]
_Why = Annotated[str, Text(4096)]


@dataclass
class Kept:
    """What the file holds. costs: row -> the costs [of A, of B] of each pair; [] for a void one.

    facts: Results.facts of all runs. units: row -> the unit that it is printed in. missing: a line for each row that
    only one side has. failed: for each pair side -> why it failed. ended: the time limit ended the gate.
    """

    plan: Plan
    facts: dict[str, Annotated[str, Text(300)]] = field(default_factory=dict)
    units: dict[_Row, Annotated[str, Text(40)]] = field(default_factory=dict)
    missing: Annotated[list[_Why], Count(others.MAX_CELLS)] = field(default_factory=list)
    failed: Annotated[list[dict[str, _Why]], Count(gate_plan.MAX_PAIRS)] = field(default_factory=list)
    costs: Annotated[dict[_Row, list[_Pair]], Count(others.MAX_CELLS)] = field(default_factory=dict)
    ended: bool = False
    format: str = FORMAT

    def add(self, results: Mapping[str, Results], failed: Mapping[str, str]) -> None:
        """Adds a pair. results: side -> what it printed, of the sides that did not fail.

        Errors: HvdbError if a row that was asked for is not there; NotComparable if the runs did different work.
        """
        if not any(any(pairs) for pairs in self.costs.values()):
            self._begin(results)
        for side, run in results.items():
            about = f"side {side} of pair {len(self.failed) + 1}"
            if run.facts != self.facts:
                raise NotComparable(f"{about} says {run.facts}, and the first run of A said {self.facts}")
            for name in self.costs:
                now, first = (units.get(name) or "no unit" for units in (run.units, self.units))
                if name in run.costs and now != first:
                    raise NotComparable(f"{about} prints {name} in {now}, and the first run of A in {first}")
        self.failed.append(dict(failed))
        for name, pairs in self.costs.items():
            whole = not failed and all(name in run.costs for run in results.values())
            pairs.append([float(np.median(results[side].costs[name])) for side in "ab"] if whole else [])

    def _begin(self, results: Mapping[str, Results]) -> None:
        """Takes the rows of the first whole pair; before there is one, those of A. Names tell the rows, never times."""
        a = results["a"]  # a gate whose side A fails in the first pair has ended
        names = list(a.costs)
        if "b" in results:
            names, self.missing = others.matched(a, results["b"], self.plan.rows)
        try:
            plan_looks(len(names), self.plan.most, more=1)
        except HvdbError as error:
            raise HvdbError(f"{error}, or choose rows with --row") from error
        self.facts = a.facts
        self.units = {name: a.units[name] for name in names if a.units.get(name)}
        self.costs = {name: [[] for _ in self.failed] for name in names}

    def pairs(self) -> Pairs:
        """Returns the pairs so far."""
        threshold = self.plan.thresholds.default
        if self.costs:
            rows = {name: Row(CELL, _ratios(pairs), threshold) for name, pairs in self.costs.items()}
        else:
            rows = {CELL: Row(CELL, np.full(len(self.failed), np.nan), threshold)}
        failed = ["".join(side for side in "ab" if side in one) for one in self.failed]
        newest = [
            f"side {side} of pair {number} {why}"
            for number, one in enumerate(self.failed, 1)
            for side, why in sorted(one.items())
        ]
        return Pairs(
            rows=rows,
            failed={CELL: failed},
            said=newest[-1] if newest else "",
            missing=self.missing,
            ended=self.ended,
            outcome=self._outcome,
            following=len(failed) + 1,
            notes=inert.notes([], self.plan.a, self.plan.b),
        )

    def _outcome(self, name: str, judgement: Judgement) -> Outcome:
        whole = [pair for pair in self.costs[name] if pair]
        a, b = np.median(whole[: judgement.observations[0]], axis=0)
        metric = (self.units.get(name, ""), name in self.plan.higher) if self.plan.metrics else None
        return Outcome(name, judgement, (float(1 / a), float(1 / b)), paired=True, foreign=True, metric=metric)


def _ratios(pairs: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([np.log(pair[1] / pair[0]) if pair else np.nan for pair in pairs])


def holds_pairs(file: Path) -> bool:
    """Returns True if `file` ends as a file that a gate wrote. Errors: HvdbError if it cannot be read."""
    return b'"format": "hvdb-pairs ' in whole_file.read_at_most(file, MAX_FILE_BYTES)[-40:]


def stored(file: Path) -> Kept:
    """Returns what a gate kept in `file`. Errors: HvdbError if it holds anything else."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES)
    with record.faults_of(f"{file}: does not hold the pairs of a gate with --tool"):
        document = record.json_object(record.decoded(content, MAX_FILE_BYTES), MAX_FILE_BYTES)
        kept = record.read(Kept, _of_today(document))
        if kept.format != FORMAT or list(kept.plan.cells) != [CELL]:
            raise Malformed("another format")
        if any(len(pairs) != len(kept.failed) for pairs in kept.costs.values()) or len(kept.failed) > kept.plan.most:
            raise Malformed("a row has too few or too many pairs", "costs")
        if any(len(pair) not in (0, 2) for pairs in kept.costs.values() for pair in pairs):
            raise Malformed("a cost is missing", "costs")
        if not (kept.costs and {side for one in kept.failed for side in one} <= {"a", "b"}):
            raise Malformed("no pair of a gate")
    return kept


def _of_today(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document of OLD_FORMAT in today's format. Errors: Malformed."""
    if document.get("format") != OLD_FORMAT:
        return document
    plan, seconds = document.get("plan"), document.get("seconds")
    if not isinstance(plan, dict) or not isinstance(seconds, dict) or not seconds:
        raise Malformed("no plan, or no times")
    counts = {len(pairs) if isinstance(pairs, list) else -1 for pairs in seconds.values()}
    most = record.value(Annotated[int, Range(1, gate_plan.MAX_PAIRS)], plan.get("pairs"), "plan.pairs")
    try:
        looks = plan_looks(len(seconds), most)
    except HvdbError as error:
        raise Malformed(str(error)) from error
    if len(counts) != 1 or not 0 < (count := counts.pop()) <= most:
        raise Malformed("a row has too few or too many pairs", "seconds")
    taken = {key: plan[key] for key in ("a", "b", "seed", "tool", "rows", "resolved", "directory") if key in plan}
    return {
        "plan": taken
        | {
            "launch": "",
            "cells": {CELL: ""},
            "thresholds": {"default": plan.get("threshold"), "rules": []},
            "looks": list(looks),
            "seconds": 0.0,
        },
        **{key: document[key] for key in ("facts", "missing") if key in document},
        "failed": [{}] * count,
        "costs": seconds,
        "format": FORMAT,
    }


def begin(file: Path, plan: Plan) -> Kept:
    """Returns what was measured of `plan` so far. Errors: HvdbError if `file` holds anything else."""
    if not file.exists():
        return Kept(plan)
    try:
        kept = stored(file)
    except HvdbError as error:
        raise HvdbError(f"{error}; name a new file with --db") from error
    if kept.plan != plan:
        raise HvdbError(
            f"{file}: was measured for another plan (other commands, programs, folder, rows, metrics, threshold, "
            "pairs, seed); give the same options to go on, or another --db to begin anew"
        )
    return kept


@dataclass
class PrintedSides:
    """How to make runs. commands: side -> its words. file: keeps the pairs. lock: the descriptor from gate.locked()."""

    commands: Mapping[str, Sequence[str]]
    file: Path
    kept: Kept
    directory: Path | None
    timeout_seconds: float
    lock: int
    _results: dict[str, Results] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.kept.plan

    def run(self, cell: str, side: str, pair: int) -> None:
        """Makes one run. Errors: SideFailed if it fails, or prints no result; HvdbError if it was called wrongly."""
        self._results.pop(side, None)
        why = ""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process.run(
                    *(self.commands[side], {}, self.timeout_seconds, self.directory, output, (self.lock,), errors),
                    max_bytes=gate.MAX_OUTPUT,
                )
            except (process.RunFailed, OSError) as error:
                why = gate.failure(error, errors, output)
                if gate.is_usage(error):
                    raise HvdbError(f"side {side} of pair {pair} {why}; {gate.kept(self.file)}") from error
            output.seek(0)
            try:
                results = self._read(output.read(gate.MAX_OUTPUT + 1))
            except (Malformed, HvdbError) as error:  # nccl-tests ends with an exit code above 0 after wrong elements
                why = (
                    f"{why}, and printed no result to judge: {error}" if why else f"printed no result to judge: {error}"
                )
        if not why and (lost := [name for name in self.kept.costs if name not in results.costs]):
            why = f"printed no row '{lost[0]}', which the first pair has"
        if why:
            raise SideFailed(why)
        self._results[side] = results

    def _read(self, content: bytes) -> Results:
        if self.plan.metrics:
            wanted = metrics.read_options(self.plan.metrics, self.plan.higher)
            return others.chosen(metrics.parse(content, wanted), self.plan.rows, "its output")
        return others.chosen(others.parse(content, self.plan.tool), self.plan.rows, "its output")

    def keep(self, cell: str, pair: int, failed: dict[str, str]) -> None:
        """Keeps the pair. Errors: NotComparable if the sides did different work; HvdbError."""
        whole = {side: results for side, results in self._results.items() if side not in failed}
        self.kept.add(whole, {side: why[:4096] for side, why in failed.items()})
        self._write()

    def end(self) -> None:
        """Keeps that the time limit has ended the gate."""
        self.kept.ended = True
        self._write()

    def _write(self) -> None:
        document = asdict(self.kept) | {"plan": self.plan.document()}
        document["format"] = document.pop("format")  # last, where holds_pairs() looks for it
        whole_file.write_text(self.file, json.dumps(document, allow_nan=False) + "\n")

    def measured(self) -> Pairs:
        """Returns the pairs so far."""
        return self.kept.pairs()
