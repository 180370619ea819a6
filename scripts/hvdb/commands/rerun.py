"""hvdb rerun: shows how a stored run was made, or makes the run again and compares the two runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from hvdb.base import data, printable, process
from hvdb.base.errors import EXIT_GOOD, EXIT_NOT_COMPARABLE, HvdbError
from hvdb.commands import new_parser, number, selection
from hvdb.judge import efficiency
from hvdb.read import runs
from hvdb.run import rerun, side_command
from hvdb.show import tables

_seconds = number(lambda value: 0 < value < 1e8, "{} is not a positive number of seconds")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "rerun",
        "Shows how a stored run was made; with --execute, runs it again and compares. Of the recorded command line, "
        "known options of hvd_bench and known variables are taken, none of which names a file. "
        "The launcher, the program and all files are yours; no shell reads the record.",
    )
    made.add_argument("run", metavar="RUN_ID", help="start of the run's UUID")
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE")
    made.add_argument("--execute", action="store_true", help="run it again and compare")
    made.add_argument("--db", type=Path, metavar="STORE", help="keep the new run in this store (it must not exist)")
    made.add_argument(
        "--launch",
        default="",
        metavar="WORDS",
        help="launcher of the run, such as 'mpirun -n 2'; needed for ranks in several processes",
    )
    made.add_argument("--directory", type=Path, metavar="FOLDER", help="run it there (default: here)")
    made.add_argument(
        "--program",
        type=Path,
        metavar="FILE",
        help="run this hvd_bench (default: HVD_BENCH, the one built in this checkout or installed with this command, "
        "or the one of the PATH)",
    )
    made.add_argument(
        "--replay",
        metavar="FILE",
        help="for a run that replays: the recorded step (default: the step that ships, if the run replayed this one)",
    )
    made.add_argument("--tuning-folder", type=Path, metavar="FOLDER", help="for a run that had one: yours")
    made.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Shows the stored run, or makes it again and compares the two runs. Returns the exit code."""
    stored = selection.load(arguments.stores)
    first = runs.find(stored, arguments.run)
    printable.say(f"run {first.uuid} ({first.phase}, {first.status}), session of {first.session['started_utc']}")
    printable.say(f"command: {first.session['command_line']}")
    launch = tuple(side_command.split_words(arguments.launch, "--launch"))
    replay = data.step(arguments.replay) if arguments.replay else None
    place = rerun.Place(arguments.directory, launch, arguments.program, replay, arguments.tuning_folder)
    if not arguments.execute:
        printable.say(rerun.built_from(first))
        try:
            _show_command(rerun.command_at(place, first, arguments.db or Path("rerun.db")))
            print("--execute runs it again and compares")
        except HvdbError as error:
            if place != rerun.Place():
                raise
            printable.say(f"--execute does not run it: {error}")
        return EXIT_GOOD
    process.end_in_order_when_told()
    with tempfile.TemporaryDirectory(prefix="hvdb-rerun-") as scratch:
        store_file = arguments.db or Path(scratch) / "rerun.db"
        if store_file.exists():
            raise HvdbError(f"{store_file}: exists already; --db takes a new file")
        command = rerun.command_at(place, first, store_file)
        _show_command(command)
        process.run(command.words, command.variables, arguments.timeout, arguments.directory)
        made = runs.load([store_file])
        second = rerun.counterpart(first, made)
        result = rerun.compare(first, stored, second, made)
        _print_comparison(first, second, result)
    return EXIT_GOOD if result.comparable else EXIT_NOT_COMPARABLE


def _show_command(command: rerun.Command) -> None:
    printable.say(f"runs: {command}")
    for line in command.left_out:
        printable.say(f"left out: {line}")
    sys.stdout.flush()


def _print_comparison(first: runs.Run, second: runs.Run, result: rerun.Comparison) -> None:
    rates = [tables.number(efficiency.images_per_second(run)) for run in (first, second)]
    print(f"{first.unit}/s: {rates[0]} then, {rates[1]} now")
    print(
        f"ratio now / then: {tables.estimate(result.ratio, 1.0, lambda v: f'{v:.3f}')} "
        "(95 % interval over the steps of one run each; it holds no run-to-run variation)"
    )
    if result.same_answer is not None:
        print(f"reduced gradients: {'bit-identical' if result.same_answer else 'differ'}")
    elif result.steps[0] != result.steps[1]:
        printable.say(
            f"reduced gradients: not compared, after other numbers of steps ({result.steps[0]} then, "
            f"{result.steps[1]} now); --num-warmup-batches and --num-iters fix them"
        )
    for difference in (*result.configuration, *result.provenance):
        mark = "can change the result" if difference.in_fingerprint else "not in the fingerprint"
        printable.say(f"differs ({mark}): {difference.key}: '{difference.first}' then, '{difference.second}' now")
    if not result.comparable:
        print("not comparable: something that can change the result differs (above)")
