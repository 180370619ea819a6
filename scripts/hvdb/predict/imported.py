"""Times of collectives that nccl-tests or the OSU micro-benchmarks measured, as cells of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict.collective import MIN_SIZES, ONE_MEAN, CollectiveTimes, only_means
from hvdb.predict.link import Link
from hvdb.predict.steps import World
from hvdb.read import imported_collectives
from hvdb.read.imported_collectives import Imported

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")
ALGORITHMS = ("ring", "doubling")
MAX_RANKS = 1 << 16


@dataclass(frozen=True)
class File:
    """ranks: what a person says, None if the contents do."""

    file: Path
    ranks: int | None
    contents: Imported


@dataclass(frozen=True)
class Added:
    """What a person adds to the stores. algorithm: which one the imported collectives used; "": not known, so they say
    nothing about other worlds."""

    link: Link | None = None
    files: tuple[File, ...] = ()
    algorithm: str = ""


def read(text: str) -> File:
    """Reads FILE, or FILE=RANKS for a file that does not say its ranks. Errors: HvdbError."""
    name, equals, number = text.rpartition("=")
    stated = bool(equals) and number.isascii() and number.isdigit()
    file = Path(name if stated else text)
    contents = imported_collectives.read(file)
    ranks = int(number) if stated and len(number) < 9 else None
    if stated and not 2 <= (ranks or 0) <= MAX_RANKS:
        raise HvdbError(f"--imported: {number} is not a number of ranks from 2 to {MAX_RANKS}")
    if not (ranks or contents.ranks):
        raise HvdbError(f"{file} does not say on how many ranks it was measured: write --imported {file}=RANKS")
    if ranks and contents.ranks not in (None, ranks):
        raise HvdbError(f"{file} was measured on {contents.ranks} ranks, not on {ranks}")
    return File(file, ranks, contents)


def cells(one: File, kind: str, ranks_per_node: int) -> dict[str, list[CollectiveTimes]]:
    """Returns operation -> cells. kind: the type that the training reduces, in the words of nccl-tests.

    Errors: HvdbError for another type or unlike numbers of ranks on a node; TooLittle for too few sizes.
    """
    file, contents = one.file, one.contents
    ranks = one.ranks or contents.ranks or 0
    nodes = contents.nodes or -(-ranks // ranks_per_node)
    if ranks < 2 or ranks != nodes * ranks_per_node:
        raise HvdbError(f"{file}: {ranks} ranks on {nodes} nodes, but the training had {ranks_per_node} on each node")
    rows = [row for row in contents.rows if row.operation in OPERATIONS]
    if not rows:
        raise HvdbError(f"{file} has none of {', '.join(OPERATIONS)}")
    alike = [row for row in rows if row.type == kind and row.reduction in ("sum", "none")]
    if not alike:
        found = sorted({f"{row.type} by '{row.reduction}'" for row in rows})
        raise HvdbError(f"{file} has times of {', '.join(found)}, but the training sums {kind}")
    made: dict[str, list[CollectiveTimes]] = {}
    for operation in sorted({row.operation for row in alike}):
        mine = [row for row in alike if row.operation == operation]
        chosen = [row for row in mine if row.in_place] or mine  # training reduces in place
        # OSU counts what one rank gives to an all-gather, nccl-tests what it gets.
        factor = ranks if operation == "all_gather" and contents.program.startswith("OSU") else 1
        world = World(nodes, ranks_per_node)
        made[operation] = [
            CollectiveTimes(world, factor * row.size, np.array(row.seconds), imported=True) for row in chosen
        ]
        sizes = len({cell.size for cell in made[operation]})
        if sizes < MIN_SIZES:
            raise TooLittle(f"{file}: {operation} has {sizes} sizes, and {MIN_SIZES} are needed")
    return made


def note(one: File, found: dict[str, list[CollectiveTimes]]) -> list[str]:
    """Returns a line if the file says nothing about how times vary."""
    if not all(only_means(same) for same in found.values()):
        return []
    return [f"{one.file} has one mean for each size: no jitter is drawn, and +- {100 * ONE_MEAN:.0f} % is assumed"]
