"""Options that select runs from one or more stores. The commands efficiency, plot and report share them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import data, printable, progress
from hvdb.base.errors import HvdbError
from hvdb.commands import add_several
from hvdb.judge import efficiency
from hvdb.read import coll_results, coll_runs, runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the argument STORE... and the options that select runs. choose() reads the options."""
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db, or .partial)")
    add_kinds(parser)
    add_several(parser, "--model", "only this network")
    exactly = "exactly these runs, of one kind (start of the UUID); nothing is filtered"
    add_several(parser, "--run", exactly, metavar="ID")
    add_mix_fingerprints(parser, "runs")


def add_predicted(parser: argparse._ActionsContainer) -> None:
    """Adds --predicted."""
    what = "prediction to show beside what was measured, from predict --json"
    add_several(parser, "--predicted", what, type=Path, default=[], metavar="FILE")


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which kinds of runs are taken."""
    parser.add_argument("--traced", action="store_true", help="take traced and profiled runs, and only those")
    parser.add_argument("--origin", choices=("measured", "simulated"), default="measured")
    parser.add_argument("--incomplete", action="store_true", help="take runs that were cut short as well")


def add_mix_fingerprints(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds --mix-fingerprints. what: what is pooled."""
    although = f"pool {what} although something that can change the result differs"
    parser.add_argument("--mix-fingerprints", action="store_true", help=although)


def load(stores: Sequence[Path], *, may_be_none: bool = False, collectives: bool = False) -> list[runs.Run]:
    """Calls runs.load() and shows its progress on the terminal. collectives: also returns the rows of `hvd_bench coll`.

    Errors: HvdbError if the stores contain results of collectives but no run. With may_be_none, prints a line on
    standard error instead.
    """
    with progress.shown(f"reading {len(stores)} store{'' if len(stores) == 1 else 's'}") as step:
        stored = runs.load(stores, step)
        if collectives:
            stored += coll_runs.load(stores)
    if not stored and any(map(coll_results.in_store, stores)):
        why = (
            f"{', '.join(map(str, stores))}: no training runs, only results of collectives, which "
            f"{data.called('collectives')} draws"
        )
        if not may_be_none:
            raise HvdbError(why)
        printable.say(why, sys.stderr)
    return stored


def pick(arguments: argparse.Namespace, *, may_be_none: bool = False) -> tuple[list[runs.Run], efficiency.Selection]:
    """Returns all runs of the stores, and the selected runs. may_be_none: as in load().

    Errors: HvdbError, StoreError, NotComparable.
    """
    stored = load(arguments.stores, may_be_none=may_be_none)
    models = sorted({run.model for run in stored})
    for model in arguments.model or []:
        if model not in models:
            raise HvdbError(f"--model {model}: the stores hold no such runs, but of {', '.join(models) or 'no model'}")
    if arguments.run:
        selection = efficiency.Selection([runs.find(stored, prefix) for prefix in arguments.run], [])
        efficiency.comparable.require_same_kind(selection.runs, "--run")
        return stored, selection
    wanted = [run for run in stored if not arguments.model or run.model in arguments.model]
    return stored, efficiency.select(
        wanted, traced=arguments.traced, origin=arguments.origin, incomplete=arguments.incomplete
    )


def cells(chosen: Sequence[runs.Run], arguments: argparse.Namespace) -> list[efficiency.EfficiencyRow]:
    """Returns the rows of the efficiency table and shows progress on the terminal. Errors: HvdbError, NotComparable."""
    with progress.shown("computing intervals") as step:
        return efficiency.cells(chosen, mix_fingerprints=arguments.mix_fingerprints, step=step)


def choose(
    arguments: argparse.Namespace,
) -> tuple[list[runs.Run], efficiency.Selection, list[efficiency.EfficiencyRow]]:
    """Returns the two results of pick(), and the cells of the selected runs."""
    stored, selection = pick(arguments)
    return stored, selection, cells(selection.runs, arguments)


def require_cells(cells: Sequence[efficiency.EfficiencyRow], selection: efficiency.Selection) -> None:
    """Raises HvdbError if `cells` is empty. The error's text says which runs were left out."""
    if not cells:
        reasons = "; ".join(selection.left_out) or "the stores hold no runs"
        raise HvdbError(f"nothing to show: left out {reasons}" if selection.left_out else f"nothing to show: {reasons}")
