"""Measures the sides A and B in pairs, in one allocation, until it is clear whether B is slower than A."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hvdb.base import edge, locks, process, progress
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.judge import efficiency, sides
from hvdb.judge.sides import BothSides, Outcome
from hvdb.read.runs import GrowingStore, Run
from hvdb.run import gate_plan, side_command
from hvdb.run.gate_plan import GatePlan
from hvdb.run.side_command import Side
from hvdb.show import tables

# Default --target-interval of each run. Two runs of one side mostly differ by more than this, so a narrower interval
# (a longer run) would gain little.
TARGET_INTERVAL = 0.005
MAX_SAID = 1000  # bytes of the end of a failed run's output in which its last line is looked for


@dataclass(frozen=True)
class Bench:
    """How to make runs. programs: side -> its hvd_bench. launch: the words of the command line before the program.

    store: keeps the runs. lock: the descriptor from locked().
    """

    plan: GatePlan
    sides: Mapping[str, Side]
    programs: Mapping[str, Path]
    launch: Sequence[str]
    store: GrowingStore
    directory: Path | None
    timeout_seconds: float
    lock: int

    def words(self, cell: str, side: str, pair: int) -> list[str]:
        """Returns the command of one run. The side's options follow the cell's options and therefore override them."""
        own = self.sides[side]
        work = side_command.split_options(self.plan.cells[cell], "--cell")
        given = {side_command.option_of(word) for word in (*work, *own.options)}
        defaults = [
            f"{option}={value:g}"
            for option, value in (("--max-time", self.plan.seconds), ("--target-interval", TARGET_INTERVAL))
            if option not in given
        ]
        labels = {"cell": cell, "side": side, "pair": str(pair), "plan": self.plan.text()}
        program = [
            str(self.programs[side]),
            *work,
            *own.options,
            *defaults,
            "--quiet",
            f"--db={self.store.path.absolute()}",
            *(f"--label=gate.{key}={value}" for key, value in labels.items()),
        ]
        return [*self.launch, *side_command.in_surroundings(own, program)]


def locked(db: Path) -> AbstractContextManager[int]:
    """Locks `db` against other gates. Yields the lock's descriptor. A run that outlives its gate keeps the lock.

    Errors: HvdbError if another gate, or a run that it started, holds the lock; OSError.
    """
    taken = HvdbError(f"{db}: another gate, or a run that it left behind, writes to it; wait, or end it")
    target = Path(os.path.realpath(db))  # two names of one file have one lock
    return locks.held(target.with_name(f"{target.name}.lock"), taken)


def measured(store: GrowingStore, plan: GatePlan) -> tuple[list[BothSides], int]:
    """Returns the cells with the pairs in `store`, and the number of the next pair. Incomplete pairs stay incomplete.

    Errors: HvdbError if `store` contains runs that are not part of `plan`.
    """
    stored = store.load()
    db, text = store.path, plan.text()
    for run in stored:
        if sides.PLAN not in run.provenance:
            raise HvdbError(f"{db}: holds run {run.short_id}, which no gate made; name a new store with --db")
        if run.fact(sides.PLAN) != text:
            raise HvdbError(
                f"{db}: run {run.short_id} was measured for another plan (other sides, cells, threshold, pairs, "
                "seconds or seed); give the same options to go on, or another --db to begin anew"
            )
    cells = sides.labelled(stored)
    for cell in cells:
        _require_one_program(cell)
    return cells, max((sides.pair_number(run) for run in stored), default=0) + 1


def _require_one_program(cell: BothSides) -> None:
    for side, measured in (("a", cell.a), ("b", cell.b)):
        if len({run.fact("build.binary_hash") for run in measured}) > 1:
            raise NotComparable(
                f"cell {cell.name}: the program of side {side} was rebuilt since the first pair; begin anew with "
                "another --db"
            )


def run_side(bench: Bench, cell: str, side: str, pair: int) -> None:
    """Makes one run. Errors: HvdbError if the run fails."""
    words, variables = bench.words(cell, side, pair), bench.sides[side].variables
    with tempfile.TemporaryFile() as output:
        try:
            process.run(words, variables, bench.timeout_seconds, bench.directory, output, (bench.lock,))
        except (process.RunFailed, OSError) as error:
            raise HvdbError(
                f"side {side} of pair {pair} of cell {cell} {failure(error, output)}; {kept(bench.store.path)}"
            ) from error


def failure(error: HvdbError | OSError, *outputs: IO[bytes]) -> str:
    """Returns why a run failed, and the last line of the first of `outputs` that is not empty."""
    why = error.why if isinstance(error, process.RunFailed) else str(error)
    for output in outputs:
        output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_SAID))
        if said := output.read().decode("utf-8", "replace").strip().splitlines():
            return f"{why}, and said: {said[-1].strip()}"
    return why


def kept(file: Path) -> str:
    """Returns what a person reads after the failure of a run. file: keeps the pairs."""
    if not file.exists():
        return "no pair was measured yet"
    return f"{file} keeps the pairs so far, and the same command goes on from there"


def _newest_pair(bench: Bench, cells: Sequence[BothSides], name: str, pair: int) -> tuple[Run, Run]:
    """Returns the two runs of the newest pair of the cell `name`. pair: the number of this pair.

    Errors: HvdbError if a run is missing.
    """
    cell = next((cell for cell in cells if cell.name == name), None)
    if cell and cell.a and sides.pair_number(cell.a[-1]) == pair:
        return cell.a[-1], cell.b[-1]
    stored = [run for run in bench.store.load() if sides.pair_number(run) == pair]
    for side in ("a", "b"):
        mine = [run for run in stored if (run.fact(sides.CELL), run.fact(sides.SIDE)) == (name, side)]
        if not mine:
            raise HvdbError(
                f"side {side} of pair {pair} of cell {name} ended with exit code 0 and stored no run in "
                f"{bench.store.path}; is there --help or --version among its options?"
            )
        if left_out := efficiency.select(mine).left_out:
            raise HvdbError(f"side {side} of pair {pair} of cell {name} cannot be used: {'; '.join(left_out)}")
    raise HvdbError(f"pair {pair} of cell {name} is not whole in {bench.store.path}")


def measure(bench: Bench) -> list[Outcome]:
    """Measures pairs until every cell has a verdict or the last look is done. Returns the outcomes of all cells.

    Errors: HvdbError.
    """
    plan = bench.plan
    begun, made = time.monotonic(), 0
    cells, number = measured(bench.store, plan)
    while due := gate_plan.replay(plan, cells)[1]:
        for name in gate_plan.cells_in_turn(due, plan, number):
            for side in gate_plan.order(plan.seed, number):
                run_side(bench, name, side, number)
            cells, following = measured(bench.store, plan)
            a, b = _newest_pair(bench, cells, name, number)
            made += 1
            counts = {cell.name: len(cell.a) for cell in cells}
            left = sum(plan.looks[-1] - counts.get(cell, 0) for cell in due) * (time.monotonic() - begun) / made
            slower = math.expm1(sides.log_cost(b) - sides.log_cost(a))
            rates = [tables.number(efficiency.images_per_second(run)) for run in (a, b)]
            edge.tell(
                "gate",
                f"pair {counts[name]} of at most {plan.looks[-1]}, cell {name}: A {rates[0]}, B {rates[1]} {a.unit}/s, "
                f"B slower by {100 * slower:+.1f} %; at most {progress.duration(left)} left",
                sys.stderr,
            )
        number = following
    return gate_plan.outcomes(plan, cells)
