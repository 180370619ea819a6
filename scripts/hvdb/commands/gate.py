"""hvdb gate: measures the sides A and B in pairs until the pairs show whether B is slower than A."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdb.base import data, edge, process, progress
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import add_several, judging, number
from hvdb.judge.thresholds import Thresholds
from hvdb.read import others
from hvdb.read.runs import GrowingStore
from hvdb.run import gate, gate_plan, printed_sides, side_command
from hvdb.run.gate_plan import Plan
from hvdb.run.printed_sides import PrintedSides
from hvdb.run.stored_sides import StoredSides, file_beside

DEFAULT_PAIRS, DEFAULT_SECONDS, DEFAULT_ROW_SECONDS = 12, 5.0, 0.5
# Options about runs of hvd_bench, and their defaults. They say nothing about the command of another program.
_OF_HVD_BENCH = {"cell": None, "launch": "", "seconds": None, "worktrees": Path("build/gate")}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")


def _cells(texts: Sequence[str]) -> dict[str, str]:
    """Parses the texts of the options --cell. Returns name -> options of hvd_bench. Errors: HvdbError."""
    cells: dict[str, str] = {}
    for place, text in enumerate(texts, 1):
        name, options = f"cell-{place}", text
        if text and not text.startswith("-") and text.split()[:1] != ["coll"]:
            name, _, options = text.partition("=")
        if not _NAME.fullmatch(name):
            raise HvdbError(f"--cell '{text}': '{name}' is not a name of up to 60 letters, digits, '_', '.' and '-'")
        if name in cells:
            raise HvdbError(f"--cell: two cells are named {name}")
        side_command.work_of(options, f"--cell {name}")
        cells[name] = options
    return cells


_pairs = number(
    lambda value: 1 <= value <= gate_plan.MAX_PAIRS,
    f"{{}} is not a number of pairs from 1 to {gate_plan.MAX_PAIRS}",
    int,
)
_seconds = number(lambda value: 0.1 <= value <= 86400, "{} is not a number of seconds from 0.1 to 86400")
_minutes = number(lambda value: 0.1 <= value <= 10080, "{} is not a number of minutes from 0.1 to 10080")


class _Parser(argparse.ArgumentParser):
    """Reads `--b --seed=2` as `--b=--seed=2`. argparse alone would take the value '--seed=2' for an option."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        for index in range(len(words) - 2, -1, -1):
            if words[index] in ("--a", "--b", "--cell", "--launch"):
                words[index : index + 2] = [f"{words[index]}={words[index + 1]}"]
        return super().parse_args(words, namespace)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = _Parser(
        prog=data.called("gate"),
        description="Measures two sides in pairs, in turn, until it can say whether B is slower than A by more than a "
        "threshold. If pairs are independent and symmetric, at most 5 % of gates give a wrong REGRESSION, and at most "
        "5 % a wrong PASS. A side is '[NAME=value ...] [module:NAME ...] [PROGRAM | commit:REV] [options of "
        "hvd_bench]'; without PROGRAM and commit it runs $HVD_BENCH, else this checkout's release build or the "
        "installed hvd_bench. With --tool a side is '[NAME=value ...] [module:NAME ...] COMMAND', run without a shell. "
        "A side that fails voids its pair; that B fails where A does not is a REGRESSION too, once the pairs show it.",
        epilog=f"{judging.EXIT_CODES}. A gate that was ended goes on where it stopped, given the same command.",
    )
    made.add_argument("--a", default="", metavar="SIDE", help="the side to compare with (default: the installed one)")
    made.add_argument("--b", required=True, metavar="SIDE", help="the side that may be slower")
    made.add_argument("--db", type=Path, required=True, help="store that keeps the pairs (with --tool: a JSON file)")
    made.add_argument(
        "--tool", choices=tuple(others.TOOLS), help="the sides are commands that print its results; command: any"
    )
    judging.add_row(made)
    work = "work of both sides: options of hvd_bench, or 'coll' and its options; by default one cell without options"
    add_several(made, "--cell", work, metavar="[NAME=]OPTIONS")
    made.add_argument("--launch", default="", metavar="WORDS", help="launcher of every run, such as 'mpirun -n 2'")
    made.add_argument("--pairs", type=_pairs, default=DEFAULT_PAIRS, help=f"pairs at most (default: {DEFAULT_PAIRS})")
    made.add_argument(
        "--seconds",
        type=_seconds,
        help=f"cap on each run (default: {DEFAULT_SECONDS:g}) or row of coll (default: {DEFAULT_ROW_SECONDS:g})",
    )
    made.add_argument("--seed", type=int, default=1, help="seed of the order within pairs (default: 1)")
    made.add_argument(
        "--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="cap on one run (default: 3600)"
    )
    made.add_argument(
        "--time-limit", type=_minutes, metavar="MINUTES", help="judge by what fits into this time (default: no limit)"
    )
    made.add_argument("--directory", type=Path, metavar="FOLDER", help="run hvd_bench in this folder (default: here)")
    made.add_argument(
        "--worktrees",
        type=Path,
        default=_OF_HVD_BENCH["worktrees"],
        help="where commits are built (default: build/gate)",
    )
    made.add_argument("--dry-run", action="store_true", help="say what would be run and what it would cost")
    judging.add_options(made)
    return made


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints the verdicts and returns the exit code. Errors: HvdbError."""
    judging.require_free_outputs(judging.outputs(arguments), [arguments.db])
    for folder in (arguments.directory, arguments.db.parent):
        if folder and not folder.is_dir():
            raise HvdbError(f"{folder}: there is no such folder; make it, or name another one")
    if arguments.tool:
        return _run_tool(arguments)
    if arguments.row or arguments.metric:
        raise HvdbError("--row, --metric: are for other programs (--tool)")
    launch = side_command.split_words(arguments.launch, "--launch")
    cells = _cells(arguments.cell or [""])
    parsed = {name: side_command.parse(vars(arguments)[name], f"--{name}") for name in ("a", "b")}
    of_coll = [bool(side_command.work_of(options, name)[0]) for name, options in cells.items()]
    if any(of_coll) != all(of_coll):
        raise HvdbError("--cell: trainings and rows of coll have different --seconds; give each a gate of its own")
    plan = Plan(
        a=parsed["a"].text,
        b=parsed["b"].text,
        launch=arguments.launch,
        cells=cells,
        thresholds=judging.tolerances(arguments),
        looks=(),
        seconds=arguments.seconds or (DEFAULT_ROW_SECONDS if any(of_coll) else DEFAULT_SECONDS),
        seed=arguments.seed,
        pairs=arguments.pairs,
    )
    if len(plan.text()) > gate_plan.MAX_TEXT_LENGTH:
        raise HvdbError(
            f"the plan (sides, cells, thresholds) has {len(plan.text())} characters, "
            f"and {gate_plan.MAX_TEXT_LENGTH} are the most; split the gate"
        )
    plan.looks_for(len(cells))  # raises an error before a program is built if the pairs are too few for any verdict
    store = GrowingStore(arguments.db)
    programs = {name: side.program or data.find_program() for name, side in parsed.items() if not side.commit}
    made = (plan, parsed, programs, launch, store, arguments.directory, arguments.timeout)
    StoredSides(*made, 0).measured()  # raises an error about the store
    _say_cost(plan, arguments.db)
    if arguments.dry_run:
        return EXIT_GOOD
    process.end_in_order_when_told()
    with gate.locked(arguments.db) as lock:
        if not arguments.db.exists():  # a file beside it is of a store that somebody removed
            file_beside(arguments.db).unlink(missing_ok=True)
        for name, side in parsed.items():
            if side.commit:
                programs[name] = side_command.built(side, arguments.worktrees)
        return judging.show(gate.measure(StoredSides(*made, lock), _limit(arguments)), arguments)


def _limit(arguments: argparse.Namespace) -> float | None:
    return arguments.time_limit * 60 if arguments.time_limit else None


def _run_tool(arguments: argparse.Namespace) -> int:
    """Does what run() does, with commands of another program. Errors: HvdbError."""
    for name, default in _OF_HVD_BENCH.items():
        if vars(arguments)[name] != default:
            raise HvdbError(f"--{name}: is for runs of hvd_bench; with --tool the commands of --a and --b say it")
    judging.require_metrics(arguments, arguments.tool == "command")
    commands = {name: side_command.tool_command(vars(arguments)[name], f"--{name}") for name in ("a", "b")}
    plan = Plan(
        a=arguments.a,
        b=arguments.b,
        launch="",
        cells={printed_sides.CELL: ""},
        thresholds=Thresholds(judging.one_threshold(arguments)),
        looks=(),
        seconds=0.0,
        seed=arguments.seed,
        pairs=arguments.pairs,
        tool=arguments.tool,
        rows=tuple(arguments.row),
        metrics=tuple(arguments.metric),
        higher=tuple(arguments.higher_is_better),
        resolved={name: shlex.join(words) for name, words in commands.items()},
        directory=os.path.realpath(arguments.directory or "."),
    )
    plan.looks_for(1)  # raises an error before the first run if the pairs are too few for any row
    printed_sides.begin(arguments.db, plan)  # raises an error about the file
    for line in (
        f"A: {plan.a}",
        f"B: {plan.b}",
        f"rows: {', '.join(plan.rows) or 'all'}",
        f"at most {plan.pairs} pairs, {2 * plan.pairs} runs, into {arguments.db}",
    ):
        edge.tell("gate", line, sys.stderr)
    if arguments.dry_run:
        return EXIT_GOOD
    process.end_in_order_when_told()
    with gate.locked(arguments.db) as lock:
        kept = printed_sides.begin(arguments.db, plan)
        sides = PrintedSides(commands, arguments.db, kept, arguments.directory, arguments.timeout, lock)
        return judging.show(gate.measure(sides, _limit(arguments)), arguments)


def _say_cost(plan: Plan, db: Path) -> None:
    most = len(plan.cells) * plan.most
    of_coll = any(side_command.work_of(options, name)[0] for name, options in plan.cells.items())
    what = "each row" if of_coll else "each"
    lines = [
        f"A: {plan.a or 'the installed hvd_bench'}",
        f"B: {plan.b or 'the installed hvd_bench'}",
        *(f"cell {name}: {options or '(defaults)'}" for name, options in plan.cells.items()),
        f"at most {most} pairs, {2 * most} runs of at most {plan.seconds:g} s {what}: "
        f"{progress.duration(2 * most * plan.seconds)} and the start of each run (if no option says otherwise)",
        f"into {db}; "
        + (
            "each row gets a verdict; more rows need more pairs"
            if of_coll
            else f"verdicts after {', '.join(map(str, plan.looks_for(len(plan.cells))))} pairs"
        ),
    ]
    for line in lines:
        edge.tell("gate", line, sys.stderr)
