"""Of which steps a collective between nodes consists (docs/algorithms.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.base.errors import TooLittle
from hvdb.predict.curve import Curve

BARRIER = "barrier"


@dataclass(frozen=True, order=True)
class World:
    """Nodes with equally many ranks each."""

    nodes: int
    ranks_per_node: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Steps:
    """count: steps one after another. share: bytes of a step / bytes of the message. hidden: how many of the steps run
    beside others as far as latency goes. odd: the steps differ from those of other worlds, because an exchange in pairs
    has a number of nodes that is no power of two."""

    count: int
    share: float
    hidden: int = 0
    odd: bool = False

    @property
    def latencies(self) -> int:
        """How many latencies an empty message takes."""
        return self.count - self.hidden

    def seconds(self, step: Curve, size: float) -> float:
        """Returns the seconds of a collective of `size` bytes. step: seconds of a step against its bytes."""
        a_step = step.at(size * self.share)
        return self.count * a_step - self.hidden * min(a_step, float(step.seconds[0]))

    def of_a_step(self, seconds: Sequence[float]) -> np.ndarray:
        """Returns the seconds of a step from those of collectives of ascending sizes, of which the first tells the
        latency. The inverse of seconds()."""
        return (np.asarray(seconds) + self.hidden * seconds[0] / self.latencies) / self.count


def title(operation: str, algorithm: str) -> str:
    """Returns a name for texts: `all_reduce by 'ring'`, or `barrier`."""
    return f"{operation} by '{algorithm}'" if algorithm else operation


def count_text(count: int, what: str) -> str:
    """Returns `1 session` or `3 sessions`."""
    return f"{count} {what}{'s' * (count != 1)}"


def nodes_text(worlds: Iterable[World]) -> str:
    """Returns the numbers of nodes of `worlds`: `1 node`, or `2, 3, 4 nodes`."""
    counts = sorted({world.nodes for world in worlds})
    return f"{', '.join(map(str, counts))} node{'s' * (counts != [1])}"


def are_known(operation: str, algorithm: str) -> bool:
    """Returns True if steps() knows the algorithm."""
    if operation == "all_reduce":
        return algorithm in ("ring", "flat ring", "doubling")
    return operation == BARRIER or (algorithm == "ring" and operation in ("reduce_scatter", "all_gather"))


def steps(operation: str, algorithm: str, world: World) -> Steps:
    """Returns the steps between the nodes of a world of several nodes.

    In an all-reduce several ranks of a node share the message, and each carries its part between the nodes.
    reduce_scatter, all_gather and a flat ring run over all ranks. Errors: TooLittle unless are_known().
    """
    if not are_known(operation, algorithm):
        raise TooLittle(
            f"{title(operation, algorithm)}: how its time grows with the nodes is not known: run hvd_bench coll --db "
            "on as many nodes as are to be predicted"
        )
    nodes, ranks = world.nodes, world.ranks
    if algorithm == "flat ring":
        return Steps(2 * (ranks - 1), 1.0 / ranks)
    if algorithm == "ring":
        rounds = {"all_reduce": 2 * (nodes - 1), "reduce_scatter": ranks, "all_gather": ranks - 1}
        return Steps(rounds[operation], 1.0 / ranks)
    # Doubling on N nodes that are no power of two begins and ends with an exchange of N - P pairs. Their partners begin
    # one latency later, but the others' messages are there already when they come. Place p has everything after
    # max(start[q] + number of bits in which p and q differ) latencies, over all places q, where the first `pairs`
    # places start one latency late. So those at the end of the order end late, and a pair among them adds one more.
    doublings = nodes.bit_length() - 1  # log2 of P, the largest power of two that is not above `nodes`
    pairs = nodes - (1 << doublings)
    hidden = 1 if 0 < 2 * pairs <= 1 << doublings else 0
    share = 0.0 if operation == BARRIER else 1.0 / world.ranks_per_node
    return Steps(doublings + (2 if pairs else 0), share, hidden, odd=pairs > 0)
