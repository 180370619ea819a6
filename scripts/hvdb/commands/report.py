"""hvdb report: shows the runs of one or more stores as a Markdown page or as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdb.base import printable, progress, whole_file
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import new_parser, selection
from hvdb.judge import comparable, rank_work
from hvdb.read import predictions, store
from hvdb.show import document, html_page, markdown_page, rank_report, report

HTML = (".html", ".htm")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "report",
        "One or more stores as a page: answers with intervals and bounds, what to try next, tables, provenance. HTML "
        "is one file with figures that needs nothing else; Markdown has the same without figures.",
    )
    selection.add_options(made)
    selection.add_predicted(made)
    made.add_argument(
        "-o",
        "--output",
        type=Path,
        action="append",
        metavar="FILE",
        help="file to write, HTML if its name ends in .html, else Markdown; may be given several times "
        "(default: Markdown on standard output)",
    )
    return made


def build(arguments: argparse.Namespace) -> document.Document:
    """Returns the report that `arguments` ask for. Errors: HvdbError, StoreError, NotComparable."""
    predicted = list(map(predictions.read, arguments.predicted))
    stored, chosen = selection.pick(arguments, may_be_none=True)
    parts = [
        report.Measured(system, selection.cells(system.runs, arguments))
        for system in comparable.systems(chosen.runs, pooled=arguments.mix_fingerprints)
    ]
    reducing = [run for measured in parts for _, run in measured.reducing]
    with progress.shown("comparing the ranks"):
        ranks = {run.uuid: examined for run, examined in rank_work.examine_all(reducing, rank_report.THRESHOLD)}
    profiled = [
        run
        for run in stored
        if run.origin == arguments.origin and (not arguments.model or run.model in arguments.model)
    ]
    return report.document(stored, chosen, parts, ranks, profiled, predicted)


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes the page and returns the exit code."""
    files = arguments.output or []
    for file in files:
        if store.is_database(file):
            raise HvdbError(f"{file}: is a database, which -o would replace; name another file")
        if file.resolve() in {prediction.resolve() for prediction in arguments.predicted}:
            raise HvdbError(f"{file}: is a prediction, which -o would replace; name another file")
    page = build(arguments)
    for file in files:
        writer = html_page if file.suffix.lower() in HTML else markdown_page
        with progress.shown("writing the page"):
            text = writer.text(page)
        whole_file.write_text(file, text)
        printable.say(file)
    if not files:
        print(markdown_page.text(page), end="")
    return EXIT_GOOD
