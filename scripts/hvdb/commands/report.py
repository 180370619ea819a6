"""hvdb report: one or more stores as a Markdown page."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdb import printable, progress, report, store, whole_file
from hvdb.commands import new_parser, selection
from hvdb.errors import EXIT_GOOD, HvdbError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = new_parser("report", "One or more stores as a Markdown page.")
    selection.add_options(made)
    made.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes the page; returns the exit code."""
    found, chosen, cells = selection.choose(arguments)
    with progress.shown("writing the page"):
        page = report.markdown(chosen, cells, found)
    if arguments.output:
        if store.is_database(arguments.output):
            raise HvdbError(f"{arguments.output}: is a database, which -o would replace; name another file")
        whole_file.write_text(arguments.output, page)
        printable.say(arguments.output)
    else:
        print(page, end="")
    return EXIT_GOOD
