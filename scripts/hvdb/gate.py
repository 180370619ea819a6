"""Measures two sides in pairs, in one allocation, until it is known whether B is slower than A."""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdb import edge, efficiency, gate_plan, process, progress, runs, side_command, sides, tables
from hvdb.errors import HvdbError, NotComparable
from hvdb.gate_plan import Plan
from hvdb.runs import Run
from hvdb.side_command import Side
from hvdb.sides import Cell
from hvdb.verdict_report import Outcome

# Of each run's median. The spread between runs is larger than this on most machines, so that longer runs gain little.
TARGET_INTERVAL = 0.005


@dataclass(frozen=True)
class Bench:
    """How runs are made. programs: side -> the hvd_bench of it."""

    plan: Plan
    sides: Mapping[str, Side]
    programs: Mapping[str, Path]
    db: Path
    directory: Path | None
    timeout_seconds: float

    def words(self, cell: str, side: str, pair: int) -> list[str]:
        """The command of one run. Options of the side come last, and so win over those of the cell."""
        own = self.sides[side]
        work = side_command.split_options(self.plan.cells[cell], "--cell")
        given = {word.partition("=")[0].replace("_", "-") for word in (*work, *own.options)}
        defaults = [
            f"{option}={value:g}"
            for option, value in (("--max-time", self.plan.seconds), ("--target-interval", TARGET_INTERVAL))
            if option not in given
        ]
        labels = {"cell": cell, "side": side, "pair": str(pair), "plan": self.plan.text()}
        return side_command.with_modules(
            own,
            [
                *shlex.split(self.plan.launch),
                str(self.programs[side]),
                *work,
                *own.options,
                *defaults,
                "--quiet",
                f"--db={self.db.absolute()}",
                *(f"--label=gate.{key}={value}" for key, value in labels.items()),
            ],
        )


def measured(db: Path, plan: Plan) -> tuple[list[Cell], int]:
    """The pairs that `db` holds, and the number of the next one. A pair with a lone side is not completed later.

    Errors: HvdbError if they are of another plan.
    """
    stored = runs.load([db]) if db.exists() else []
    for run in stored:
        if run.fact(sides.PLAN) != plan.text():
            raise HvdbError(
                f"{db}: run {run.short_id} was measured for another plan (other sides, cells, threshold, pairs, "
                "seconds or seed); give the same options to go on, or another --db to begin anew"
            )
    cells = sides.labelled(efficiency.select(stored).runs)
    for cell in cells:
        _require_one_program(cell)
    return cells, max((sides.pair_number(run) for run in stored), default=0) + 1


def _require_one_program(cell: Cell) -> None:
    for side, found in (("a", cell.a), ("b", cell.b)):
        if len({run.fact("build.binary_hash") for run in found}) > 1:
            raise NotComparable(
                f"cell {cell.name}: the program of side {side} was rebuilt since the first pair; begin anew with "
                "another --db"
            )


def _measure(bench: Bench, cell: str, side: str, pair: int) -> Run:
    """One run, as it stands in the store. Errors: HvdbError if it failed or counts for nothing."""
    what = f"side {side} of pair {pair} of cell {cell}"
    with tempfile.TemporaryFile() as output:
        try:
            words = bench.words(cell, side, pair)
            process.run(words, bench.sides[side].variables, bench.timeout_seconds, bench.directory, output)
        except (HvdbError, OSError) as error:
            output.seek(0)
            said = output.read().decode("utf-8", "replace").strip().splitlines()
            raise HvdbError(
                f"{what} failed{f': {said[-1].strip()}' if said else ''} ({error}); {bench.db} keeps the pairs so far, "
                "and the same command goes on from there"
            ) from error
    stored = runs.load([bench.db]) if bench.db.exists() else []
    labels = (cell, side, str(pair))
    mine = [run for run in stored if (run.fact(sides.CELL), run.fact(sides.SIDE), run.fact(sides.PAIR)) == labels]
    if not mine:
        raise HvdbError(f"{what} ended well and stored nothing in {bench.db}")
    kept = efficiency.select(mine)
    if not kept.runs:
        raise HvdbError(f"{what} counts for nothing: {'; '.join(kept.left_out)}")
    return sides.sessions(kept.runs)[0]


def _measure_pair(bench: Bench, cell: str, pair: int) -> str:
    """Both sides of one pair; returns a line on them. Errors: HvdbError if a side fails."""
    made = {side: _measure(bench, cell, side, pair) for side in gate_plan.order(bench.plan, pair)}
    rates = [tables.number(efficiency.images_per_second(made[side])) for side in ("a", "b")]
    slower = math.expm1(sides.log_cost(made["b"]) - sides.log_cost(made["a"]))
    return f"cell {cell}: A {rates[0]}, B {rates[1]} images/s, B slower by {100 * slower:+.1f} %"


def measure(bench: Bench) -> list[Outcome]:
    """Measures pairs until every cell is decided or the last look is over; returns the outcomes. Errors: HvdbError."""
    plan = bench.plan
    begun, made = time.monotonic(), 0
    cells, number = measured(bench.db, plan)
    while due := gate_plan.replay(plan, cells)[1]:
        for name in gate_plan.cells_in_turn(due, plan, number):
            line = _measure_pair(bench, name, number)
            made += 1
            counts = {cell.name: len(cell.a) for cell in measured(bench.db, plan)[0]}
            left = sum(plan.looks[-1] - counts.get(cell, 0) for cell in due) * (time.monotonic() - begun) / made
            count = f"pair {counts[name]} of at most {plan.looks[-1]}"
            edge.tell("gate", f"{count}, {line}; at most {progress.duration(left)} left", sys.stderr)
        cells, number = measured(bench.db, plan)
    return gate_plan.outcomes(plan, cells)
