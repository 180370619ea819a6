"""Code that the commands gate, compare and history share: options for thresholds and output files, and printing."""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hvdb.base import edge, whole_file
from hvdb.base.errors import HvdbError
from hvdb.commands import add_several, selection
from hvdb.judge import efficiency, thresholds
from hvdb.judge.outcomes import Report
from hvdb.judge.thresholds import Thresholds
from hvdb.read import metrics, others
from hvdb.read.others import Results
from hvdb.read.runs import Run
from hvdb.read.store import is_database
from hvdb.show import verdict_report

EXIT_CODES = (
    "exit codes: 0 every cell passes, 1 a cell is slower than its threshold allows, 2 usage or I/O, 3 inconclusive, or "
    "a cell was measured on one side only, 4 not comparable, 7 interrupted"
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
    parser.add_argument(
        "--explain", action="store_true", help="say why each verdict is what it is, and what would decide it"
    )
    parser.add_argument(
        "--fail-on",
        choices=("inconclusive", "regression"),
        default="inconclusive",
        help="regression: INCONCLUSIVE ends with 0, for shared runners (default: inconclusive, which ends with 3)",
    )


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
    """Adds --row, --metric and --higher-is-better."""
    what = "only this row of another program, such as 'all_reduce float 1048576'; * and ? stand for other characters"
    add_several(parser, "--row", what, default=[], metavar="NAME")
    what = (
        "with command: what its output says, by a regular expression with one group, or a path in JSON: 'us=$.a[0].b'"
    )
    add_several(parser, "--metric", what, default=[], metavar="NAME=PATTERN")
    add_several(parser, "--higher-is-better", "more of this metric is better", default=[], metavar="NAME")


def require_metrics(arguments: argparse.Namespace, wanted: bool) -> None:
    """Checks --metric and --higher-is-better before a run. Errors: HvdbError, also if there are metrics or none though
    the results are `wanted` to be some."""
    if bool(arguments.metric) != wanted:
        raise HvdbError(
            "--tool command: say what to read from its output: --metric 'latency_us=Latency: ([0-9.]+)'"
            if wanted
            else "--metric: is for --tool command; the other tools' results name their rows"
        )
    metrics.read_options(arguments.metric, arguments.higher_is_better)


def printed(file: Path, arguments: argparse.Namespace) -> Results:
    """Returns what `file` holds of another program; with --metric what its lines say. Errors: HvdbError."""
    require_metrics(arguments, bool(arguments.metric))
    if not arguments.metric:
        return others.read(file)
    content = whole_file.read_at_most(file, others.MAX_BYTES)
    return metrics.parse(content, metrics.read_options(arguments.metric, arguments.higher_is_better))


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
    report = replace(report, pardons=arguments.fail_on == "regression")
    for file, text in (
        (arguments.json, verdict_report.json_text),
        (arguments.junit, verdict_report.junit),
        (arguments.markdown, verdict_report.markdown),
    ):
        if file:
            whole_file.write_text(file, text(report))
    if arguments.github:
        text = verdict_report.github(report, secrets.token_hex(16), explain=arguments.explain)
    else:
        text = verdict_report.text(report, explain=arguments.explain)
    for line in text.splitlines():
        edge.tell(report.title, line)
    return report.exit_code


def load(paths: Sequence[Path], command: str = "compare") -> list[Run]:
    """Returns the runs of the stores `paths` that may be compared, and prints which runs are left out. A row of
    `hvd_bench coll` is a run.

    Errors: HvdbError if no run is left.
    """
    chosen = efficiency.select(selection.load(paths, collectives=True))
    for line in chosen.left_out:
        edge.tell(command, f"left out: {re.sub(r' [(]--.*?[)]', '', line)}")
    if not chosen.runs:
        raise HvdbError(f"{', '.join(map(str, paths))}: no complete, untraced, measured run or collective to compare")
    return chosen.runs
