"""The commands of hvdb. Each command has a module with its name and these two functions:

parser(): returns the parser of the command line. Reads no file and runs nothing.
run(arguments): does the work and returns the exit code. Errors: HvdbError.

table.py has the table of commands; the module of a command is imported only when a person uses the command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from hvdb.base import data

EXIT_CODES = "exit codes: 0 good, 2 usage or I/O, 4 not comparable"


def number(holds: Callable[[float], bool], fault: str, kind: type = float) -> Callable[[str], Any]:
    """Returns a function that parses a number, for argparse. holds: returns True for an allowed number.

    fault: the error's text, in which {} stands for the user's text in quotes.
    """

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not holds(value):
            raise argparse.ArgumentTypeError(fault.format(f"'{text}'"))
        return value

    return parse


def new_parser(command: str, description: str, epilog: str = EXIT_CODES) -> argparse.ArgumentParser:
    """Returns a parser without options for `command`. The parser's name, data.called(), is what a person types."""
    return argparse.ArgumentParser(prog=data.called(command), description=description, epilog=epilog)
