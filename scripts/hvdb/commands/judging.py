"""Code that the commands gate, compare and history share: options for thresholds and output files, and printing."""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import edge, whole_file
from hvdb.base.errors import HvdbError
from hvdb.commands import add_several, selection
from hvdb.judge import efficiency, thresholds
from hvdb.judge.thresholds import Thresholds
from hvdb.read.runs import Run
from hvdb.read.store import is_database
from hvdb.show import verdict_report
from hvdb.show.verdict_report import Report

EXIT_CODES = (
    "exit codes: 0 every cell passes, 1 a cell is slower than its threshold allows, 2 usage or I/O, 3 inconclusive, or "
    "a cell was measured on one side only, 4 not comparable"
)


def slowdown(text: str) -> float:
    """Converts a percentage, such as '3' or '3%', to a ratio (0.03). Errors: ArgumentTypeError."""
    try:
        return thresholds.tolerated(float(text.removesuffix("%")) / 100)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage above 0, up to 100") from None


def add_thresholds(parser: argparse.ArgumentParser, what: str = "slowdown of B") -> None:
    """Adds --threshold and --thresholds, which tolerances() reads. what: the measured change, for the help."""
    parser.add_argument(
        "--threshold",
        type=slowdown,
        metavar="PERCENT",
        help=f"{what} that is tolerated (default: {100 * thresholds.DEFAULT:g})",
    )
    parser.add_argument(
        "--thresholds", type=Path, metavar="FILE", help="other thresholds by network and ranks (TOML, docs/gate.md)"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options on thresholds and output files that the commands gate and compare share."""
    add_thresholds(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write them as JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write them for a merge request's comment")
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub Actions (docs/gate.md)")


def tolerances(arguments: argparse.Namespace, metric: str = thresholds.COST) -> Thresholds:
    """Returns the thresholds of `metric` from --threshold and --thresholds. Errors: HvdbError, OSError."""
    rules = thresholds.read(arguments.thresholds, metric) if arguments.thresholds else ()
    return Thresholds(thresholds.DEFAULT if arguments.threshold is None else arguments.threshold, rules)


def one_threshold(arguments: argparse.Namespace) -> float:
    """Returns the threshold for rows of other programs. Errors: HvdbError for --thresholds."""
    if arguments.thresholds:
        raise HvdbError("--thresholds: its rules are for networks and ranks; rows of other programs take --threshold")
    return tolerances(arguments).default


def add_row(parser: argparse.ArgumentParser) -> None:
    """Adds --row."""
    what = "only this row of another program, such as 'all_reduce float 1048576'; * and ? stand for other characters"
    add_several(parser, "--row", what, default=[], metavar="NAME")


def require_free_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Checks the output files. Call this before measuring.

    Errors: HvdbError if one of `outputs` cannot be written or is one of `inputs`.
    """
    taken = {os.path.realpath(file) for file in inputs}
    for file in outputs:
        if os.path.realpath(file) in taken:
            raise HvdbError(f"{file}: is named twice; give each file a name of its own")
        if file.is_dir() or is_database(file):
            kind = "a folder" if file.is_dir() else "a database, which would be replaced"
            raise HvdbError(f"{file}: is {kind}; name another file")
        if not file.parent.is_dir():
            raise HvdbError(f"{file}: there is no folder {file.parent}; make it, or name another file")
        if not os.access(file.parent, os.W_OK):
            raise HvdbError(f"{file}: nothing can be written into the folder {file.parent}; name another file")
        taken.add(os.path.realpath(file))


def outputs(arguments: argparse.Namespace) -> list[Path]:
    """Returns the files that show() writes."""
    return [file for file in (arguments.json, arguments.junit, arguments.markdown) if file]


def show(report: Report, arguments: argparse.Namespace) -> int:
    """Writes the requested files, prints the verdicts and returns the exit code.

    The exit code does not change if nobody reads the output.
    """
    for file, text in (
        (arguments.json, verdict_report.json_text),
        (arguments.junit, verdict_report.junit),
        (arguments.markdown, verdict_report.markdown),
    ):
        if file:
            whole_file.write_text(file, text(report))
    text = verdict_report.github(report, secrets.token_hex(16)) if arguments.github else verdict_report.text(report)
    for line in text.splitlines():
        edge.tell(report.title, line)
    return report.exit_code


def load(paths: Sequence[Path], command: str = "compare") -> list[Run]:
    """Returns the runs of the stores `paths` that may be compared, and prints which runs are left out.

    Errors: HvdbError if no run is left.
    """
    chosen = efficiency.select(selection.load(paths))
    for line in chosen.left_out:
        edge.tell(command, f"left out: {re.sub(r' [(]--.*?[)]', '', line)}")
    if not chosen.runs:
        raise HvdbError(f"{', '.join(map(str, paths))}: no complete, untraced, measured run to compare")
    return chosen.runs
