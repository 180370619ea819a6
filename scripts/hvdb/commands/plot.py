"""hvdb plot: draws figures of scaling, of the loss of efficiency (a waterfall) and of per-layer profiles."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hvdb.base import printable
from hvdb.base.errors import EXIT_GOOD
from hvdb.commands import add_figures, draw, new_parser, selection
from hvdb.read import layer_profile, predictions, published


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser("plot", "Draws scaling, loss waterfall and per-layer profiles of one or more stores.")
    selection.add_options(made)
    add_figures(made, Path("plots"), "folder to write to (default: plots)")
    made.add_argument("--no-published", action="store_true", help="leave the published points out")
    selection.add_predicted(made)
    return made


def run(arguments: argparse.Namespace) -> int:
    """Draws the figures, prints their paths and returns the exit code."""
    from hvdb.show import plot_profile, plot_scaling, plot_waterfall  # matplotlib is slow to import

    forms = arguments.format or ["png"]
    predicted = list(map(predictions.read, arguments.predicted))
    stored, chosen, cells = selection.choose(arguments)
    traced = [run for run in stored if run.operations and (not arguments.model or run.model in arguments.model)]
    explained = [run for run in chosen.runs if "efficiency" in run.decomposition]
    if not layer_profile.newest(traced):
        selection.require_cells(cells, chosen)
    figures: list = []
    points = [] if arguments.no_published else published.load()
    for form in forms:
        if cells:
            figures.append((plot_scaling.draw, (cells, points, arguments.out / f"scaling.{form}", predicted)))
        if explained:
            figures.append((plot_waterfall.draw, (explained, arguments.out / f"waterfall.{form}")))
        for run in layer_profile.newest(traced):
            file = printable.file_in(arguments.out, "profile_", run.model, f".{form}")
            figures.append((plot_profile.draw, (run, file)))
    draw(figures)
    for prediction in predicted:
        if (model := prediction.profile.model) not in {cell.model for cell in cells}:
            printable.say(f"left out: {prediction.file}: no measured {model} to draw it beside", sys.stderr)
    for line in chosen.left_out:
        printable.say(f"left out of scaling and waterfall: {line}", sys.stderr)
    for run in traced:
        if not layer_profile.takes_time(run):
            printable.say(f"left out: the profile of run {run.short_id}: its operations take no time", sys.stderr)
    return EXIT_GOOD
