"""One module per command of hvdb, with the command's name. Each module has

parser(): returns the command line as an argparse.ArgumentParser. Reads and runs nothing.
run(arguments): does the work and returns the exit code. Errors: HvdbError.

hvdb/cli.py has the table of commands. It imports a module only when a person uses its command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from hvdb import data

EXIT_CODES = "exit codes: 0 good, 2 usage or I/O, 4 not comparable"


def number(holds: Callable[[float], bool], fault: str, kind: type = float) -> Callable[[str], Any]:
    """Returns a parser of a number for argparse. Its error is `fault`, with the option's text in place of {}."""

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
    """Returns a parser for `command` without options. The parser's name is what a person types: data.called()."""
    return argparse.ArgumentParser(prog=data.called(command), description=description, epilog=epilog)
