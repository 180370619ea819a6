"""The commands of hvdb. Each command has a module with its name and these two functions:

parser(): returns the parser of the command line. Reads no file and runs nothing.
run(arguments): does the work and returns the exit code. Errors: HvdbError.

table.py has the table of commands; the module of a command is imported only when a person uses the command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hvdb.base import data, printable

EXIT_CODES = "exit codes: 0 good, 2 usage or I/O, 4 not comparable"


def number(holds: Callable[[float], bool], fault: str, kind: type = float) -> Callable[[str], Any]:
    """Returns a function that parses a number, for argparse. holds: returns True for an allowed number.

    fault: the error's text, in which {} stands for the user's text in quotes.
    """

    def parse(text: str) -> Any:
        try:
            value = kind(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not holds(value):
            raise argparse.ArgumentTypeError(fault.format(f"'{text}'"))
        return value

    return parse


class _Parser(argparse.ArgumentParser):
    """Shows what a person typed with control characters as escapes, and refuses '--' as a value."""

    def error(self, message: str) -> NoReturn:
        super().error(printable.terminal(message))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            self.error(f"argument {'/'.join(action.option_strings)}: '--' is no value")
        return super()._get_values(action, arg_strings)


def new_parser(command: str, description: str, epilog: str = EXIT_CODES) -> argparse.ArgumentParser:
    """Returns a parser without options for `command`. The parser's name, data.called(), is what a person types."""
    return _Parser(prog=data.called(command), description=description, epilog=epilog)


def add_several(parser: argparse.ArgumentParser, option: str, help: str, **settings: Any) -> None:
    """Adds an option that a person may give several times. settings: as for add_argument()."""
    parser.add_argument(option, action="append", help=f"{help} (may be given several times)", **settings)


def add_figures(parser: argparse.ArgumentParser, out: Path | None, what: str) -> None:
    """Adds --out and --format for figures. out: the default folder; None: no figures. what: the help of --out."""
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=what)
    parser.add_argument("--format", choices=("png", "svg"), action="append", help="png (default), svg or both")


def draw(figures: Sequence[tuple[Callable[..., Path], tuple]]) -> None:
    """Draws figures, (a function, its arguments) each, shows the progress, and prints the paths that are returned."""
    from hvdb.base import progress  # hvdb --help does not need it

    drawn = []
    with progress.shown(f"drawing {len(figures)} figures") as step:
        for function, arguments in figures:
            drawn.append(function(*arguments))
            step(len(drawn), len(figures))
    for path in drawn:
        printable.say(path)
