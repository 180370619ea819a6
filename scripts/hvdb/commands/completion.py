"""hvdb completion: prints a shell script that completes commands, options and files. shtab makes the script."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdb import commands
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import new_parser

SHELLS = ("bash", "zsh", "tcsh")
# Corrections of the bash code that shtab 1.5.5 (Debian 12) makes. Without them bash offers only the first choice of an
# argument. The code of later versions of shtab differs and is not corrected.
REPAIRS = {
    '="${current_action}_choices"': '="${current_action}_choices[@]"',
    '$(compgen -W "${current_action_choices}"': '$(IFS=" "; compgen -W "${current_action_choices}"',
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "completion", "Prints the completion of hvdb for a shell.", 'bash: eval "$(hvdb completion bash)"'
    )
    made.add_argument("shell", choices=SHELLS)
    return made


def run(arguments: argparse.Namespace) -> int:
    """Prints the completion and returns the exit code. Errors: HvdbError without shtab."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise HvdbError("needs shtab: apt-get install python3-shtab, or pip install shtab") from error
    whole = _whole()
    _mark_files(whole, shtab.FILE, shtab.DIRECTORY)
    text = shtab.complete(whole, arguments.shell)
    for fault, repaired in REPAIRS.items():
        text = text.replace(fault, repaired)
    print(text)
    return EXIT_GOOD


def _whole() -> argparse.ArgumentParser:
    """Returns the parser of hvdb with the options of all its commands."""
    made = commands.program_parser()
    subparsers = made.add_subparsers(metavar="COMMAND")
    for command, text in commands.COMMANDS.items():
        own = commands.module(command).parser()
        subparsers.add_parser(command, help=text, description=own.description, parents=[own], add_help=False)
    return made


def _mark_files(parser: argparse.ArgumentParser, file: dict[str, str], folder: dict[str, str]) -> None:
    """Tells shtab which arguments are files and which are folders, according to the argument's type and metavar."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for subparser in action.choices.values():
                _mark_files(subparser, file, folder)
        elif action.type is Path:
            action.complete = folder if action.metavar == "FOLDER" else file
