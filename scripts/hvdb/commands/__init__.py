"""The commands of hvdb. Each command has a module with its name and these two functions:

parser(): returns the parser of the command line. Reads no file and runs nothing.
run(arguments): does the work and returns the exit code. Errors: HvdbError.

The module of a command is imported only when a person uses the command. Uses only the standard library.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from hvdb import __version__
from hvdb.base import data, printable

# Command -> its line in the help. The module of a command is hvdb.commands.<command>.
COMMANDS = {
    "efficiency": "how well training scales, with intervals, beside the published points",
    "ranks": "which rank or node of a stored run is slow",
    "gate": "did it get worse? two sides measured in pairs until that is known",
    "compare": "the same question about what has been recorded",
    "history": "the newest session against its series; where a series changed",
    "plot": "scaling, loss waterfall and per-layer profiles as figures",
    "collectives": "time and bandwidth of collective operations as figures",
    "predict": "step time and efficiency on ranks that were not measured, with a band",
    "merge": "several stores, and what killed jobs left, into one",
    "report": "stores as one HTML file, or as a Markdown page",
    "export": "the newest runs for Prometheus, all runs as lines of JSON for a log",
    "rerun": "how a stored run was made; the same run again, compared",
    "reproduce": "a published claim, held against what was measured",
    "campaign": "scaling studies on Slurm, LSF or one machine, resumed until done",
    "completion": "completion of all this for bash, zsh or tcsh",
}


def module(command: str) -> ModuleType:
    """Imports hvdb.commands.<command>. Errors: ModuleNotFoundError if a package that the command needs is missing."""
    return importlib.import_module(f"hvdb.commands.{command}")


def program_parser() -> argparse.ArgumentParser:
    """Returns the parser of hvdb's own options, --help and --version. It does not know the options of the commands."""
    made = argparse.ArgumentParser(
        prog="hvdb",
        usage="hvdb [--help] [--version] COMMAND ...",
        description="Reads the stores of hvd_bench, and runs the studies that fill them.",
        epilog="commands:\n"
        + "\n".join(f"  {command:<12} {text}" for command, text in COMMANDS.items())
        + "\n\nhvdb COMMAND --help explains one of them",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"hvdb {__version__}")
    return made


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
