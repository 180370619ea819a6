"""The sides of a gate of hvd_bench: trainings, and rows of `hvd_bench coll`. A store keeps the runs.

Each run has labels with its cell, side, pair and the plan. A file beside the store, NAME.gate.json, keeps what a store
cannot: which sides failed, and whether the time limit ended the gate.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from hvdb.base import process, record, whole_file
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Count, Malformed, Range, Text, Words
from hvdb.judge import efficiency, inert, sides
from hvdb.judge.sides import BothSides, Outcome
from hvdb.judge.verdict import Judgement
from hvdb.read import coll_runs
from hvdb.read.runs import GrowingStore, Run
from hvdb.run import gate, gate_plan, side_command
from hvdb.run.gate import SideFailed
from hvdb.run.gate_plan import Pairs, Plan, Row
from hvdb.run.side_command import Side

# Default --target-interval of each training. Two runs of one side mostly differ by more than this, so a narrower
# interval (a longer run) would gain little.
TARGET_INTERVAL = 0.005
FORMAT = "hvdb-gate 1"
MAX_FAILURES = 10_000
_MAX_FILE_BYTES = 16 << 20
_EXIT_USAGE = 2  # of hvd_bench


@dataclass(frozen=True)
class Failed:
    """A side that failed. why: without the name of the side."""

    cell: Annotated[str, Text(100)]
    pair: Annotated[int, Range(1, 10**6)]
    side: Annotated[str, Words(("a", "b"))]
    why: Annotated[str, Text(4096)]


@dataclass
class Beside:
    """The file beside the store. plan: Plan.text()."""

    plan: Annotated[str, Text(gate_plan.MAX_TEXT_LENGTH)]
    failed: Annotated[list[Failed], Count(MAX_FAILURES)] = field(default_factory=list)
    ended: bool = False
    format: Annotated[str, Words((FORMAT,))] = FORMAT


def file_beside(db: Path) -> Path:
    """Returns the name of the file beside the store `db`."""
    return db.with_name(f"{db.name}.gate.json")


def read_beside(db: Path, plan: Plan) -> Beside:
    """Returns what the file beside `db` holds, or nothing of `plan` if there is no such file. Errors: HvdbError."""
    file = file_beside(db)
    if not (db.exists() and file.exists()):
        return Beside(plan.text())
    content = whole_file.read_at_most(file, _MAX_FILE_BYTES)
    with record.faults_of(f"{file}: is not what a gate keeps beside its store"):
        beside = record.read(Beside, record.json_object(record.decoded(content, _MAX_FILE_BYTES), _MAX_FILE_BYTES))
        if beside.plan != plan.text():
            raise Malformed(f"it is of another plan than {db.name}")
        if any(one.cell not in plan.cells or one.pair > plan.most for one in beside.failed):
            raise Malformed("a failure of a cell or pair that the plan does not have", "failed")
    return beside


@dataclass(frozen=True)
class StoredSides:
    """How to make runs. programs: side -> its hvd_bench. launch: the words of the command line before the program.

    store: keeps the runs. lock: the descriptor from gate.locked().
    """

    plan: Plan
    sides: Mapping[str, Side]
    programs: Mapping[str, Path]
    launch: Sequence[str]
    store: GrowingStore
    directory: Path | None
    timeout_seconds: float
    lock: int

    @property
    def file(self) -> Path:
        return self.store.path

    def words(self, cell: str, side: str, pair: int) -> list[str]:
        """Returns the command of one run. The side's options follow the cell's options and therefore override them."""
        own = self.sides[side]
        command, work = side_command.work_of(self.plan.cells[cell], "--cell")
        given = {side_command.option_of(word) for word in (*work, *own.options)}
        defaults = (
            {"--max-time": f"{self.plan.seconds:g}", "--place": "out", "--no-bound": ""}
            if command
            else {"--max-time": f"{self.plan.seconds:g}", "--target-interval": f"{TARGET_INTERVAL:g}", "--quiet": ""}
        )
        labels = {"cell": cell, "side": side, "pair": str(pair), "plan": self.plan.text()}
        program = [
            *(str(self.programs[side]), *command, *work, *own.options),
            *(f"{option}={value}" if value else option for option, value in defaults.items() if option not in given),
            f"--db={self.store.path.absolute()}",
            *(f"--label=gate.{key}={value}" for key, value in labels.items()),
        ]
        return [*self.launch, *side_command.in_surroundings(own, program)]

    def run(self, cell: str, side: str, pair: int) -> None:
        """Makes one run. Errors: SideFailed; HvdbError if the program was called wrongly."""
        about = f"side {side} of pair {pair} of cell {cell}"
        words, variables = self.words(cell, side, pair), self.sides[side].variables
        with tempfile.TemporaryFile() as output:
            try:
                process.run(
                    *(words, variables, self.timeout_seconds, self.directory, output, (self.lock,)),
                    max_bytes=gate.MAX_OUTPUT,
                )
            except (process.RunFailed, OSError) as error:
                why = gate.failure(error, output)
                if gate.is_usage(error, _EXIT_USAGE):
                    raise HvdbError(f"{about} {why}; {gate.kept(self.file)}") from error
                raise SideFailed(why) from error
        mine = [run for run in self._stored() if _place(run) == (cell, side, pair)]
        if not mine:
            raise HvdbError(
                f"{about} ended with exit code 0 and stored no run in {self.file}; is there --help or --version among "
                "its options?"
            )
        usable = efficiency.select(mine)
        if not usable.runs:
            raise SideFailed(f"cannot be used: {'; '.join(usable.left_out)}")

    def keep(self, cell: str, pair: int, failed: dict[str, str]) -> None:
        """Keeps which sides failed. Errors: NotComparable if the program of a side was rebuilt; HvdbError."""
        if failed:
            beside = read_beside(self.file, self.plan)
            beside.failed += [Failed(cell, pair, side, why[:4096]) for side, why in sorted(failed.items())]
            self._write(beside)

    def end(self) -> None:
        """Keeps that the time limit has ended the gate."""
        beside = read_beside(self.file, self.plan)
        beside.ended = True
        self._write(beside)

    def _write(self, beside: Beside) -> None:
        if self.file.exists():  # without a store there is nothing to go on from
            whole_file.write_text(file_beside(self.file), json.dumps(asdict(beside)) + "\n")

    def measured(self) -> Pairs:
        """Returns the pairs in the store. Errors: HvdbError if it contains runs that are not part of the plan."""
        db, text, stored = self.file, self.plan.text(), self._stored()
        for run in stored:
            if sides.PLAN not in run.provenance:
                raise HvdbError(f"{db}: holds run {run.short_id}, which no gate made; name a new store with --db")
            if run.fact(sides.PLAN) != text:
                raise HvdbError(
                    f"{db}: run {run.short_id} was measured for another plan (other sides, cells, threshold, pairs, "
                    "seconds or seed); give the same options to go on, or another --db to begin anew"
                )
        return pairs_of(self.plan, stored, read_beside(db, self.plan))

    def _stored(self) -> list[Run]:
        stored = self.store.load()
        if self.file.exists() and any(side_command.work_of(one, "--cell")[0] for one in self.plan.cells.values()):
            stored += coll_runs.load([self.file])
        return stored


def _place(run: Run) -> tuple[str, str, int]:
    return run.fact(sides.CELL), run.fact(sides.SIDE), sides.pair_number(run)


def pairs_of(plan: Plan, stored: Sequence[Run], beside: Beside) -> Pairs:
    """Returns the pairs of a store's runs. Errors: NotComparable for a cell that the plan does not have, or for sides
    that did different work, or were rebuilt."""
    cells = {cell.name: cell for cell in sides.labelled(stored)}
    of_row = {sides.cell_name(run): run.fact(sides.CELL) for run in stored if sides.CELL in run.provenance}
    for name in of_row.values():
        if name not in plan.cells:
            raise NotComparable(f"the store holds pairs of cell {name}, which its plan does not have")
    for cell in cells.values():
        _require_one_program(cell)
    rows: dict[str, Row] = {}
    failed: dict[str, list[str]] = {}
    missing: list[str] = []
    for name in plan.cells:
        numbers = sorted(
            {sides.pair_number(run) for run in stored if run.fact(sides.CELL) == name}
            | {one.pair for one in beside.failed if one.cell == name}
        )
        mine = {row: cells[row] for row, of in of_row.items() if of == name}
        whole = [row for row, cell in mine.items() if cell.a]
        if not whole:
            _require_common_rows(name, [run for run in stored if run.fact(sides.CELL) == name])
        missing += [f"{row}: {'; '.join(cells[row].left_out)}" for row in mine if whole and row not in whole]
        for row in whole or mine or [name]:
            rows[row] = Row(name, *_ratios(cells.get(row), numbers, plan))
        failing = {(one.pair, one.side) for one in beside.failed if one.cell == name}
        failed[name] = ["".join(side for side in "ab" if (number, side) in failing) for number in numbers]

    def outcome(row: str, judgement: Judgement) -> Outcome:
        cell = cells[row]
        used = sides.first(cell, judgement.observations[0])
        return sides.outcome_of(used, judgement, plan.thresholds.rule(cell.a[0]).reason)

    every = [sides.pair_number(run) for run in stored] + [one.pair for one in beside.failed]
    newest = beside.failed[-1] if beside.failed else None
    said = f"side {newest.side} of pair {newest.pair} of cell {newest.cell} {newest.why}" if newest else ""
    notes = inert.notes([cell for cell in cells.values() if cell.a], plan.a, plan.b)
    return Pairs(rows, failed, said, missing, beside.ended, outcome, max(every, default=0) + 1, notes)


def _ratios(cell: BothSides | None, numbers: Sequence[int], plan: Plan) -> tuple[np.ndarray, float]:
    """Returns the log ratios of the pairs `numbers`, NaN where the pair is not whole, and the tolerated slowdown."""
    if not cell or not cell.a:
        return np.full(len(numbers), np.nan), plan.thresholds.default
    by_pair = dict(zip(map(sides.pair_number, cell.a), sides.log_ratios(cell), strict=True))
    return np.array([by_pair.get(number, np.nan) for number in numbers]), plan.thresholds.rule(cell.a[0]).slowdown


def _require_common_rows(name: str, runs: Sequence[Run]) -> None:
    """Errors: NotComparable if both sides of a pair of the cell `name` have runs, but no whole pair of any row."""
    usable = {run.uuid for run in efficiency.select(runs).runs}
    first: dict[tuple[int, str], Run] = {}
    for run in runs:
        if run.uuid in usable:
            first.setdefault((sides.pair_number(run), run.fact(sides.SIDE)), run)
    for (number, side), run in first.items():
        other = first.get((number, "b"))
        if side == "a" and other and sides.cell_name(run) != sides.cell_name(other):
            raise NotComparable(
                f"cell {name}: A and B have no row in common; A has '{run.model}', B has '{other.model}'"
            )


def _require_one_program(cell: BothSides) -> None:
    for side, measured in (("a", cell.a), ("b", cell.b)):
        if len({run.fact("build.binary_hash") for run in measured}) > 1:
            raise NotComparable(
                f"cell {cell.name}: the program of side {side} was rebuilt since the first pair; begin anew with "
                "another --db"
            )
