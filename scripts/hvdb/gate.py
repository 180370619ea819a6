"""`hvdb gate`: measures two sides in pairs, in one allocation, until it can say whether B is slower than A."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdb import compare, edge, efficiency, gate_plan, process, rerun, runs, side_command, sides, tables, verdict
from hvdb.errors import EXIT_GOOD, HvdbError, NotComparable
from hvdb.gate_plan import Plan
from hvdb.runs import Run
from hvdb.side_command import Side
from hvdb.sides import Cell
from hvdb.verdict_report import Outcome

DEFAULT_PAIRS, DEFAULT_SECONDS = 12, 5.0
# Of each run's median. The spread between runs is larger than this on most machines, so that longer runs gain little.
TARGET_INTERVAL = 0.005
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")


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


def run(bench: Bench) -> list[Outcome]:
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
            edge.tell("gate", f"{count}, {line}; at most {_duration(left)} left", sys.stderr)
        cells, number = measured(bench.db, plan)
    return gate_plan.outcomes(plan, cells)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _cells(texts: Sequence[str]) -> dict[str, str]:
    """name -> options of each --cell. Errors: HvdbError."""
    cells: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, options = f"cell-{number}", text
        if text and not text.startswith("-"):
            name, _, options = text.partition("=")
        if not _NAME.fullmatch(name):
            raise HvdbError(f"--cell '{text}': '{name}' is no name of up to 60 letters, digits, '_', '.' and '-'")
        if name in cells:
            raise HvdbError(f"--cell: two cells are named {name}")
        side_command.split_options(options, f"--cell {name}")
        cells[name] = options
    return cells


def _pairs(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of pairs from 1 to 999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds from 0.1 to 86400")
    return value


def _joined(argv: Sequence[str]) -> list[str]:
    """`--b --seed=2` as `--b=--seed=2`: argparse takes a value that begins with '-' for another option."""
    words = list(argv)
    for index in range(len(words) - 2, -1, -1):
        if words[index] in ("--a", "--b", "--cell", "--launch"):
            words[index : index + 2] = [f"{words[index]}={words[index + 1]}"]
    return words


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="scripts/gate",
        description="Measures two sides in pairs, in turn, until it can say whether B is slower than A by more than a "
        "threshold. All REGRESSION verdicts together are wrong in at most 5 % of gates, and so are all PASS verdicts. "
        "A side is '[NAME=value ...] [module:NAME ...] [PROGRAM | commit:REV] [options of hvd_bench]'; what is left "
        "out is the installed hvd_bench and nothing else.",
        epilog=f"{compare.EXIT_CODES}. A gate that was ended goes on where it stopped, given the same command.",
    )
    made.add_argument("--a", default="", metavar="SIDE", help="the side to compare with (default: the installed one)")
    made.add_argument("--b", required=True, metavar="SIDE", help="the side that may be slower")
    made.add_argument("--db", type=Path, required=True, help="store that keeps the pairs")
    made.add_argument(
        "--cell",
        action="append",
        metavar="[NAME=]OPTIONS",
        help="work of both sides: options of hvd_bench (may be given several times; default: none)",
    )
    made.add_argument("--launch", default="", metavar="WORDS", help="launcher of every run, such as 'mpirun -n 2'")
    made.add_argument("--pairs", type=_pairs, default=DEFAULT_PAIRS, help=f"pairs at most (default: {DEFAULT_PAIRS})")
    made.add_argument(
        "--seconds",
        type=_seconds,
        default=DEFAULT_SECONDS,
        help=f"cap on each run's measurement (default: {DEFAULT_SECONDS:g})",
    )
    made.add_argument("--seed", type=int, default=1, help="of the order within pairs (default: 1)")
    made.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="of one run (default: 3600)")
    made.add_argument("--directory", type=Path, help="run there (default: here)")
    made.add_argument(
        "--worktrees", type=Path, default=Path("build/gate"), help="where commits are built (default: build/gate)"
    )
    made.add_argument("--dry-run", action="store_true", help="say what would be run and what it would cost")
    compare.add_judging(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Measures and prints the verdicts; returns the exit code. Errors: HvdbError."""
    arguments = parser().parse_args(_joined(argv))
    compare.require_free_outputs(arguments)
    cells = _cells(arguments.cell or [""])
    parsed = {name: side_command.parse(vars(arguments)[name], f"--{name}") for name in ("a", "b")}
    plan = Plan(
        a=parsed["a"].text,
        b=parsed["b"].text,
        launch=arguments.launch,
        cells=cells,
        threshold=compare.DEFAULT_THRESHOLD if arguments.threshold is None else arguments.threshold,
        looks=verdict.plan_looks(len(cells), arguments.pairs),
        seconds=arguments.seconds,
        seed=arguments.seed,
    )
    _say_cost(plan, arguments.db)
    if arguments.dry_run:
        return EXIT_GOOD
    process.end_in_order_when_told()
    programs = {
        name: side_command.built(side, arguments.worktrees) if side.commit else rerun.find_program(side.program)
        for name, side in parsed.items()
    }
    bench = Bench(plan, parsed, programs, arguments.db, arguments.directory, arguments.timeout)
    return compare.show(run(bench), arguments, "gate")


def _say_cost(plan: Plan, db: Path) -> None:
    most = len(plan.cells) * plan.looks[-1]
    looks = ", ".join(map(str, plan.looks))
    lines = [
        f"A: {plan.a or 'the installed hvd_bench'}",
        f"B: {plan.b}",
        *(f"cell {name}: {options or '(defaults)'}" for name, options in plan.cells.items()),
        f"at most {most} pairs, {2 * most} runs of at most {plan.seconds:g} s each: "
        f"{_duration(2 * most * plan.seconds)} and the start of each run; verdicts after {looks} pairs, into {db}",
    ]
    for line in lines:
        edge.tell("gate", line, sys.stderr)
