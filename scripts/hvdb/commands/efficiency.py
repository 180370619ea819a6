"""hvdb efficiency: shows how well training scales, as a table or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from hvdb.base import data, printable
from hvdb.base.errors import EXIT_GOOD
from hvdb.commands import new_parser, selection
from hvdb.judge import beside_replay, efficiency
from hvdb.read import published
from hvdb.show import tables


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser("efficiency", "Weak-scaling efficiency with bootstrap intervals, beside the published points.")
    selection.add_options(made)
    made.add_argument("--json", action="store_true", help="one JSON document: rates in images/s, efficiencies 0..1")
    return made


def _document(cell: efficiency.EfficiencyRow) -> dict[str, Any]:
    """Returns the cell as JSON values, with the first answer about its efficiency as text (%).

    An efficiency without an interval is not a result, so its value is null.
    """
    document = dataclasses.asdict(cell)
    answer = tables.efficiency_text(cell.efficiency) if cell.kind == "full" else "100 (baseline)"
    if cell.kind == "full" and cell.efficiency is not None and not efficiency.bounded(cell.efficiency):
        document["efficiency"]["value"] = None
    return {**document, "answer": answer}


def run(arguments: argparse.Namespace) -> int:
    """Prints the table or JSON and returns the exit code."""
    _, chosen, cells = selection.choose(arguments)
    selection.require_cells(cells, chosen)
    models = list(dict.fromkeys(cell.model for cell in cells))
    points = [point for point in published.load() if point.model in models]
    if arguments.json:
        document = {
            "cells": [_document(cell) for cell in cells],
            "cautions": efficiency.cautions(chosen.runs),
            "left_out": chosen.left_out,
            "published": [dataclasses.asdict(point) for point in points],
        }
        print(json.dumps(document, indent=2))
        return EXIT_GOOD
    header, rows, notes = tables.efficiency_table(cells)
    print(tables.text_table(header, rows))
    print()
    for note in notes:
        print(note)
    for line in (*beside_replay.notes(cells, chosen.runs), *efficiency.notes(cells, chosen.runs)):
        printable.say(f"note: {line}")
    for line in chosen.left_out:
        printable.say(f"left out: {line}")
    beside = tables.published_rows(points, models)
    if beside:
        print()
        printable.say(f"published (other hardware; sources in {data.named(data.PUBLISHED)}):")
        print(tables.text_table(tables.PUBLISHED_HEADER, beside))
    return EXIT_GOOD
