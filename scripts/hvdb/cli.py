"""The program hvdb: finds the command in the table COMMANDS and imports only the module of this command.

numpy and matplotlib are slow to import, and `hvdb campaign` must work where neither is installed. This module and
hvdb.campaign therefore use only the standard library.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from hvdb.base import edge
from hvdb.base.data import called
from hvdb.base.errors import EXIT_USAGE, HvdbError
from hvdb.commands import COMMANDS, module, program_parser


def _run(command: str, argv: Sequence[str]) -> int:
    try:
        chosen = module(command)
        return chosen.run(chosen.parser().parse_args(argv))
    except ModuleNotFoundError as error:
        if (error.name or "hvdb").startswith("hvdb"):
            raise  # a module of hvdb itself is missing, which is a bug
        raise HvdbError(
            f"Python {platform.python_version()} ({sys.executable}) has no module {error.name}: {called('campaign')} "
            "needs Python 3.11, the other commands numpy and matplotlib; HVD_PYTHON names a Python that has them"
        ) from error


def _usage(argv: Sequence[str]) -> int:
    if argv and not argv[0].startswith("-"):
        raise HvdbError(f"there is no command '{argv[0]}'; commands: {', '.join(COMMANDS)}")
    program_parser().parse_args(argv)  # exits the program for --help and --version
    program_parser().print_help(sys.stderr)
    return EXIT_USAGE


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code. An error becomes one line on standard error."""
    if argv and argv[0] in COMMANDS:
        return edge.run(called(argv[0]), lambda: _run(argv[0], argv[1:]))
    return edge.run("hvdb", lambda: _usage(argv))


def entry() -> int:
    """The entry point of the program that pip installs."""
    return main(sys.argv[1:])
