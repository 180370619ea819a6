"""hvdb collectives: draws figures of the results of `hvd_bench coll` and `scripts/maintain/peers collectives`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import printable
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import add_figures, add_several, draw, new_parser, number
from hvdb.read import coll_results
from hvdb.read.coll_results import Source
from hvdb.read.names import OPERATIONS, REDUCTIONS, TYPES

MAX_PANELS = 24  # maximum diagrams in one figure
MAX_SIDES = 48  # maximum sides in one diagram; the legend has no room for more sides
ID_LETTERS = 8  # a label shows this number of characters of a UUID


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "collectives",
        "Draws time and bus bandwidth of collective operations against size, a figure each operation: sides, their "
        "intervals, the bound, and other libraries.",
        "exit codes: 0 good, 2 usage or I/O",
    )
    made.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="store of 'hvd_bench coll --db', JSON of 'hvd_bench coll -J' or 'scripts/maintain/peers collectives', or "
        "output of nccl-tests (table or JSON) or of an OSU micro-benchmark",
    )
    made.add_argument(
        "--ranks",
        type=number(lambda n: 1 <= n <= 1 << 20, "{} is no number of ranks", int),
        metavar="N",
        help="ranks of tables that do not say on how many they were measured",
    )
    start = "read only this launch from stores (start of its UUID)"
    add_several(made, "--session", start, metavar="ID")
    for option, known in (("--collective", OPERATIONS), ("--type", TYPES), ("--redop", REDUCTIONS)):
        add_several(made, option, "draw only this", choices=known)
    add_figures(made, Path("plots"), "folder to write to (default: plots)")
    return made


def names_of(sources: Sequence[Source]) -> dict[int, str]:
    """Returns index in `sources` -> label of the source.

    The label is the file's name without folder and suffix if this name is unique, otherwise the whole path. If the
    store has several sessions, the label ends with the start of the session's UUID.
    """
    stems = Counter(file.stem for file in {source.file for source in sources})
    names = [source.file.stem if stems[source.file.stem] == 1 else str(source.file) for source in sources]
    return {
        place: f"{name} {source.session[:ID_LETTERS]}" if source.session else name
        for place, (name, source) in enumerate(zip(names, sources, strict=True))
    }


def run(arguments: argparse.Namespace) -> int:
    """Draws the figures and prints their paths; returns the exit code."""
    from hvdb.show import plot_coll  # matplotlib is slow to import

    results = coll_results.read(arguments.files, arguments.session or (), arguments.ranks)
    for line in results.left_out:
        printable.say(f"left out: {line}", sys.stderr)
    wanted = [
        series
        for series in results.series
        if (not arguments.collective or series.panel.operation in arguments.collective)
        and (not arguments.type or series.panel.type in arguments.type)
        and (not arguments.redop or series.panel.reduction in arguments.redop)
    ]
    if not wanted:
        raise HvdbError("nothing to draw: no cell of these files fits --collective, --type, --redop and --session")
    figures = list(coll_results.by_operation(wanted))
    for operation, panels in figures:
        if len(panels) > MAX_PANELS:
            raise HvdbError(
                f"{operation} has {len(panels)} diagrams, and a figure holds {MAX_PANELS}: choose with --type, --redop"
            )
        most = max(len(members) for members in panels.values())
        if most > MAX_SIDES:
            raise HvdbError(
                f"{operation} has {most} sides in one diagram, which holds {MAX_SIDES}: choose files, or --session"
            )
    names = names_of(results.sources)
    machines = list(dict.fromkeys(source.machine for source in results.sources if source.machine))
    draw(
        [
            (plot_coll.draw, (panels, names, machines, arguments.out / f"{operation}.{form}"))
            for form in arguments.format or ["png"]
            for operation, panels in figures
        ]
    )
    return EXIT_GOOD
