"""Decides which peer is the best of a cell, and whether ours is slower than it. Pure.

The unit is the round: one launch of each library, in which the median over its samples is one number. The best peer of
a cell is chosen on the even rounds and judged on the odd ones: a choice and a judgement on the same rounds would count
the luck of the chosen peer against ours. The ratio of a round is ours / peer; the interval over rounds is exact (the
sign-flip test on ranks, hvdb.exact) and infinite with fewer than six odd rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from hvdb import exact

CONFIDENCE = 0.95
FASTER, UNDECIDED, SLOWER = "faster", "undecided", "slower"
ORDER = (SLOWER, UNDECIDED, FASTER)  # losses first

Rounds = Mapping[int, float]
"""Round -> seconds of a sample, the median over the samples of that round's launch."""


@dataclass(frozen=True)
class Judgement:
    """ours / peer with its 95 % interval; rounds: how many it was judged on. seconds: medians over those rounds."""

    cell: str
    peer: str
    ours_seconds: float
    peer_seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> str:
        """Decided by the interval alone: it lies below 1, above 1, or holds 1."""
        return FASTER if self.high < 1 else SLOWER if self.low > 1 else UNDECIDED


def best_peer(peers: Mapping[str, Rounds]) -> str | None:
    """The lowest median over the even rounds, of those peers that have at least half as many of them as any has."""
    even = {name: [s for i, s in rounds.items() if i % 2 == 0] for name, rounds in peers.items()}
    most = max((len(seconds) for seconds in even.values()), default=0)
    medians = {name: float(np.median(s)) for name, s in even.items() if s and 2 * len(s) >= most}
    return min(medians, key=lambda name: (medians[name], name)) if medians else None


def judge(cell: str, ours: Rounds, peers: Mapping[str, Rounds]) -> Judgement | None:
    """None where no peer has the cell, or no odd round has both."""
    peer = best_peer(peers)
    if peer is None:
        return None
    shared = sorted(i for i in ours if i % 2 == 1 and i in peers[peer])
    if not shared:
        return None
    mine, its = (np.array([rounds[i] for i in shared]) for rounds in (ours, peers[peer]))
    effect = exact.paired_effect(np.log(mine / its), CONFIDENCE)
    ends = (math.exp(effect.low), math.exp(effect.high))
    return Judgement(
        cell, peer, float(np.median(mine)), float(np.median(its)), math.exp(effect.value), *ends, len(shared)
    )


def losses_first(judgements: Iterable[Judgement]) -> list[Judgement]:
    """Slower cells first, the largest ratio first within each verdict."""
    return sorted(judgements, key=lambda j: (ORDER.index(j.verdict), -j.ratio, j.cell))


def share_not_slower(judgements: Iterable[Judgement]) -> float | None:
    """The share of cells whose interval does not lie above 1; None without cells that have an interval."""
    bounded = [j for j in judgements if math.isfinite(j.high)]
    return sum(j.verdict != SLOWER for j in bounded) / len(bounded) if bounded else None
