"""Of which steps a collective between nodes consists (docs/algorithms.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hvdb.base.errors import TooLittle


@dataclass(frozen=True, order=True)
class World:
    """Nodes with equally many ranks each."""

    nodes: int
    ranks_per_node: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def title(operation: str, algorithm: str) -> str:
    """Returns a name for texts: `all_reduce by 'ring'`, or `barrier`."""
    return f"{operation} by '{algorithm}'" if algorithm else operation


def nodes_text(worlds: Iterable[World]) -> str:
    """Returns the numbers of nodes of `worlds`: `1 node`, or `2, 3, 4 nodes`."""
    counts = sorted({world.nodes for world in worlds})
    return f"{', '.join(map(str, counts))} node{'s' * (counts != [1])}"


def steps(operation: str, algorithm: str, world: World) -> tuple[int, float]:
    """Returns (number of steps, bytes of a step / bytes of the message) between the nodes of a world of several nodes.

    In an all-reduce several ranks of a node share the message, and each carries its part between the nodes.
    reduce_scatter, all_gather and a flat ring run over all ranks.
    Errors: TooLittle if the algorithm has no steps of equal size.
    """
    nodes, part = world.nodes, 1.0 / world.ranks_per_node
    if algorithm == "flat ring" and operation == "all_reduce":
        return 2 * (world.ranks - 1), 1.0 / world.ranks
    if algorithm == "ring":
        rounds = {"all_reduce": 2 * (nodes - 1), "reduce_scatter": world.ranks, "all_gather": world.ranks - 1}
        if operation in rounds:
            return rounds[operation], 1.0 / world.ranks
    whole = nodes.bit_length() - 1  # log2 of the largest power of two that is not above `nodes`
    rounds_of_doubling = whole + (2 if nodes > 1 << whole else 0)
    if operation == "barrier":
        return rounds_of_doubling, 0.0
    if algorithm == "doubling" and operation == "all_reduce":
        return rounds_of_doubling, part
    raise TooLittle(
        f"{operation} by '{algorithm}': how its time grows with the nodes is not known: run hvd_bench coll --db on as "
        "many nodes as are to be predicted"
    )


def hidden_latencies(operation: str, algorithm: str, world: World) -> int:
    """Returns how many of the steps run beside others as far as latency goes.

    Doubling on N nodes that are no power of two begins and ends with an exchange of N - P pairs. Their partners begin
    one latency later, but the others' messages are there already when they come.
    """
    if operation != "barrier" and algorithm != "doubling":
        return 0
    # Place p has everything after max(start[q] + number of bits in which p and q differ) latencies, over all places q,
    # where the first `pairs` places start one latency late. So those at the end of the order end late, and a pair among
    # them adds one more.
    whole = 1 << (world.nodes.bit_length() - 1)
    pairs = world.nodes - whole
    return 1 if 0 < 2 * pairs <= whole else 0
