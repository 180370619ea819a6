"""hvdb merge: merges several stores into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdb.base import printable, progress
from hvdb.base.errors import EXIT_GOOD
from hvdb.commands import new_parser
from hvdb.read import merge


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser("merge", "Merges stores, and what killed jobs left beside them, into one. Inputs are only read.")
    made.add_argument(
        "-o", "--output", type=Path, required=True, metavar="STORE", help="store to add to; made if it is not there"
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="a store, or a folder of them (*.db)")
    made.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out what is damaged, half-written, foreign or in use, and say so (default: merge nothing then); "
        "different contents of one UUID are refused nevertheless",
    )
    return made


def run(arguments: argparse.Namespace) -> int:
    """Merges the stores, prints a summary, and returns the exit code."""
    with progress.shown("merging") as step:
        outcome = merge.merge(arguments.output, arguments.stores, skip_damaged=arguments.skip_damaged, step=step)
    for note in outcome.notes:
        printable.say(note)
    for line in outcome.left_out:
        printable.say(f"left out: {line}")
    extras = [f"{outcome.incomplete} incomplete"] if outcome.incomplete else []
    extras += [f"{outcome.superseded} completed"] if outcome.superseded else []
    cut = f" ({', '.join(extras)})" if extras else ""
    line = f"{arguments.output}: {outcome.added} runs added{cut}, {outcome.present} were there already"
    if outcome.coll_added or outcome.coll_present:
        line += f"; {outcome.coll_added} sessions of collectives added, {outcome.coll_present} were there already"
    printable.say(line)
    return EXIT_GOOD
