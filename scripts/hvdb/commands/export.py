"""hvdb export: writes runs for Prometheus and for log shippers."""

from __future__ import annotations

import argparse
from pathlib import Path

from hvdb.base import whole_file
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import judging, new_parser, selection
from hvdb.judge import efficiency, sides
from hvdb.read.runs import OPERATIONS
from hvdb.show import export

STANDARD_OUTPUT = Path("-")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "export",
        "Writes runs for a dashboard or a log (docs/export.md). A file is replaced as a whole, or stays as it is. The "
        "FILE - is standard output.",
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db, or .partial)")
    newest = "newest run of each cell for Prometheus: FILE.prom in the folder of node_exporter's textfile collector"
    made.add_argument("--prometheus", type=Path, metavar="FILE", help=newest)
    made.add_argument("--jsonl", type=Path, metavar="FILE", help="all runs, one line of JSON each, oldest first")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and returns the exit code. Errors: HvdbError, StoreError, NotComparable, OSError."""
    outputs = [file for file in (arguments.prometheus, arguments.jsonl) if file]
    files = [file for file in outputs if file != STANDARD_OUTPUT]
    if not outputs or len(outputs) - len(files) > 1:
        raise HvdbError("say what to write, and where: --prometheus FILE, --jsonl FILE")
    judging.require_free_outputs(files, arguments.stores)
    loaded = selection.load(arguments.stores, collectives=True)
    stored, collectives = ([run for run in loaded if (run.unit == OPERATIONS) is rows] for rows in (False, True))
    texts = []
    if arguments.prometheus:
        chosen = [
            efficiency.select(run for run in some if sides.CELL not in run.provenance).runs
            for some in (stored, collectives)
        ]
        if not any(chosen):
            raise HvdbError("nothing to show: no complete, untraced, measured run or collective outside of gates")
        texts.append(export.prometheus(*chosen))
    if arguments.jsonl:
        texts.append(export.json_lines(stored) + export.collective_lines(collectives))
    for file, text in zip(outputs, texts, strict=True):
        if file == STANDARD_OUTPUT:
            print(text, end="")
        else:
            whole_file.write_text(file, text)
    return EXIT_GOOD
