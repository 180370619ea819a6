"""Decides which peer is the best in a cell, and whether the engine ("ours") is slower than that peer. Pure.

In a round, each library is launched once. The result of a launch is the median over its samples. The best peer of a
cell is chosen on the even rounds and compared on the odd rounds. Choosing and comparing on the same rounds would count
the luck of the chosen peer against ours. The ratio of a round is ours / peer. The interval of the ratio over rounds is
exact (sign-flip test on ranks, hvdb.exact). With fewer than six odd rounds, the interval is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from hvdb import exact

CONFIDENCE = 0.95
MARGIN = 1.05  # a cell whose interval ends at or below this ratio is at most 5 % slower
FASTER, WITHIN, UNDECIDED, SLOWER = "faster", "not slower within 5 %", "undecided", "slower"
NOT_JUDGED = "not judged"
ORDER = (SLOWER, UNDECIDED, WITHIN, FASTER)  # order of display: losses first

Rounds = Mapping[int, float]
"""Round -> seconds of a sample: the median over the samples of the launch in this round."""


@dataclass(frozen=True)
class Judgement:
    """ratio: ours / peer; low, high: its 95 % interval. rounds: number of compared rounds. Seconds are medians."""

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
        """FASTER if the interval is below 1, SLOWER if above 1, else WITHIN if high is <= MARGIN, else UNDECIDED."""
        if self.high < 1 or self.low > 1:
            return FASTER if self.high < 1 else SLOWER
        return WITHIN if self.high <= MARGIN else UNDECIDED

    @property
    def bounded(self) -> bool:
        """True if there were enough rounds for an interval."""
        return math.isfinite(self.high)


def best_peer(peers: Mapping[str, Rounds]) -> str | None:
    """Returns the peer with the lowest median over the even rounds. A peer must have at least half as many even rounds
    as the peer with the most even rounds."""
    even = {name: [s for i, s in rounds.items() if i % 2 == 0] for name, rounds in peers.items()}
    most = max((len(seconds) for seconds in even.values()), default=0)
    medians = {name: float(np.median(s)) for name, s in even.items() if s and 2 * len(s) >= most}
    return min(medians, key=lambda name: (medians[name], name)) if medians else None


def judge(cell: str, ours: Rounds, peers: Mapping[str, Rounds]) -> Judgement | None:
    """Compares ours with the best peer. Returns None if no peer has the cell, or no odd round has both sides."""
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
    """Returns slower cells first; within each verdict, the largest ratio first."""
    return sorted(judgements, key=lambda j: (ORDER.index(j.verdict), -j.ratio, j.cell))


@dataclass(frozen=True)
class Counts:
    """Cells by verdict. planned: number of all cells, also of cells that were wrong, failed or have no interval."""

    verdicts: Mapping[str, int]
    planned: int

    def share_not_above(self) -> float:
        """Returns the fraction of the planned cells that have an interval that does not lie above 1."""
        return self.share_shown() + self.verdicts[UNDECIDED] / self.planned

    def share_shown(self) -> float:
        """Returns the fraction of the planned cells that are faster or within the margin."""
        return (self.verdicts[FASTER] + self.verdicts[WITHIN]) / self.planned


def counts(judgements: Iterable[Judgement], planned: int) -> Counts:
    """Counts the cells by verdict. planned: number of planned cells, above 0."""
    bounded = [one.verdict for one in judgements if one.bounded]
    verdicts = {verdict: bounded.count(verdict) for verdict in reversed(ORDER)}
    return Counts({**verdicts, NOT_JUDGED: planned - len(bounded)}, planned)


def mean_ratio(judgements: Iterable[Judgement]) -> float | None:
    """Returns the geometric mean of ours / best peer; None if there are no cells."""
    logs = [math.log(one.ratio) for one in judgements]
    return math.exp(sum(logs) / len(logs)) if logs else None


def median_interval(values: Iterable[float]) -> tuple[float, float] | None:
    """Returns the order-statistics interval of the median (of any distribution); None for fewer than six values.

    The interval from the k-th lowest to the k-th highest value misses the median if one side of it has fewer than k.
    """
    ordered = sorted(values)
    count, outside, below = len(ordered), 0, 0.0
    while 2 * (below + math.comb(count, outside) / 2**count) <= 1 - CONFIDENCE:
        below += math.comb(count, outside) / 2**count
        outside += 1
    return (ordered[outside - 1], ordered[-outside]) if outside else None
