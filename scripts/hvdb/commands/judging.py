"""What gate and compare share: the threshold, the files that verdicts are written to, and showing them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvdb import efficiency, printable, store, thresholds, verdict, verdict_report, whole_file
from hvdb.commands import selection
from hvdb.errors import HvdbError
from hvdb.runs import Run
from hvdb.thresholds import Thresholds
from hvdb.verdict_report import Outcome

EXIT_CODES = (
    "exit codes: 0 every cell passes, 1 a cell is slower, 2 usage or I/O, 3 inconclusive: more runs are needed, "
    "4 not comparable"
)


def slowdown(text: str) -> float:
    """'3' or '3%' as 0.03. Errors: ArgumentTypeError."""
    try:
        return thresholds.tolerated(float(text.removesuffix("%")) / 100)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no percentage above 0, up to 100") from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options on the threshold and on where verdicts go, which gate and compare share."""
    parser.add_argument(
        "--threshold",
        type=slowdown,
        metavar="PERCENT",
        help=f"slowdown of B that is tolerated (default: {100 * thresholds.DEFAULT:g})",
    )
    parser.add_argument(
        "--thresholds", type=Path, metavar="FILE", help="other thresholds by network and ranks (TOML, docs/gate.md)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts as JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write them as JUnit XML")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write them for a merge request's comment")


def tolerances(arguments: argparse.Namespace) -> Thresholds:
    """What --threshold and --thresholds say. Errors: HvdbError, OSError."""
    rules = thresholds.read(arguments.thresholds) if arguments.thresholds else ()
    return Thresholds(thresholds.DEFAULT if arguments.threshold is None else arguments.threshold, rules)


def require_free_outputs(arguments: argparse.Namespace) -> None:
    """Before anything is measured. Errors: HvdbError for a verdict's file that is a database or has no folder."""
    for file in (arguments.json, arguments.junit, arguments.markdown):
        if file and store.is_database(file):
            raise HvdbError(f"{file}: is a database, which the verdicts would replace; name another file")
        if file and not file.parent.is_dir():
            raise HvdbError(f"{file}: there is no folder {file.parent}; make it, or name another file")


def show(outcomes: Sequence[Outcome], arguments: argparse.Namespace, title: str) -> int:
    """Prints the verdicts, writes the files that were asked for; returns the exit code."""
    print(verdict_report.text(outcomes))
    print(f"\n{title}: {verdict_report.summary(outcomes)}")
    for file, text in (
        (arguments.json, verdict_report.json_text(outcomes)),
        (arguments.junit, verdict_report.junit(outcomes)),
        (arguments.markdown, verdict_report.markdown(outcomes, title)),
    ):
        if file:
            whole_file.write_text(file, text)
    return verdict.exit_code([each.judgement.verdict for each in outcomes])


def load(paths: Sequence[Path]) -> list[Run]:
    """The runs of `paths` that may be compared; says what is left out. Errors: HvdbError if none is left."""
    chosen = efficiency.select(selection.load(paths))
    for line in chosen.left_out:
        printable.say(f"left out: {line}")
    if not chosen.runs:
        raise HvdbError(f"{', '.join(map(str, paths))}: no complete, untraced, measured run to compare")
    return chosen.runs
