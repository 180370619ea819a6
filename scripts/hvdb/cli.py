"""The program hvdb: finds the command in the table COMMANDS and imports only the module of this command.

numpy and matplotlib are slow to import, and `hvdb campaign` must work where neither is installed. This module and
hvdb.campaign therefore use only the standard library.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from types import ModuleType

from hvdb import __version__, edge
from hvdb.data import called
from hvdb.errors import EXIT_USAGE, HvdbError

# Command -> its line in the help. The module of a command is hvdb.commands.<command>.
COMMANDS = {
    "efficiency": "how well training scales, with intervals, beside the published points",
    "ranks": "which rank or node of a stored run is slow",
    "gate": "did it get worse? two sides measured in pairs until that is known",
    "compare": "the same question about what has been recorded",
    "history": "the newest session against its series; where a series changed",
    "plot": "scaling, loss waterfall and per-layer profiles as figures",
    "collectives": "time and bandwidth of collective operations as figures",
    "merge": "several stores, and what killed jobs left, into one",
    "report": "stores as one HTML file, or as a Markdown page",
    "rerun": "how a stored run was made; the same run again, compared",
    "reproduce": "a published claim, held against what was measured",
    "campaign": "scaling studies on Slurm, LSF or one machine, resumed until done",
    "completion": "completion of all this for bash, zsh or tcsh",
}


def module(command: str) -> ModuleType:
    """Imports hvdb.commands.<command>. Errors: ModuleNotFoundError if a package that the command needs is missing."""
    return importlib.import_module(f"hvdb.commands.{command}")


def parser() -> argparse.ArgumentParser:
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
    parser().parse_args(argv)  # exits the program for --help and --version
    parser().print_help(sys.stderr)
    return EXIT_USAGE


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code. An error becomes one line on standard error."""
    if argv and argv[0] in COMMANDS:
        return edge.run(called(argv[0]), lambda: _run(argv[0], argv[1:]))
    return edge.run("hvdb", lambda: _usage(argv))


def entry() -> int:
    """The entry point of the program that pip installs."""
    return main(sys.argv[1:])
