"""Where the level of a series of observations changes, found by ruptures (optional: `hvdb[history]`).

PELT finds the partition with the least sum of squares about the segments' means plus a penalty for each change point.
It works on ranks, so that no distribution is assumed and outliers weigh little, and what a series without a change
would show follows from the number of observations alone: FALSE_ALARMS of such series have any change point.
Sources: Killick, Fearnhead and Eckley, JASA 107 (2012) (PELT); Lung-Yut-Fong, Levy-Leduc and Cappe, Journal de la SFdS
156 (2015) (ranks); Truong, Oudre and Vayatis, Signal Processing 167 (2020) (ruptures).
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from hvdb import exact

FALSE_ALARMS = 0.05
# Share of series whose best single change point is found. In some others two together are, where none alone would be.
# Simulated with 30 to 500 observations: any in 3.8 to 4.6 %.
OF_ONE = 0.04
CONFIDENCE = 0.95
LEAST = 4  # observations on each side of a change point
MOST = 500  # newest observations that are looked at
SIMULATED = 10_000
# Nearest observations on each side that the size is estimated from: the exact interval of more takes long.
MOST_COMPARED = 50


@dataclass(frozen=True)
class Change:
    """index: of the first observation behind it. size: growth of the observations, the logs of costs.

    The interval of `size` does not allow for the search, which takes the place where the change looks largest.
    """

    index: int
    size: exact.Effect

    @property
    def growth(self) -> tuple[float, float, float]:
        """By how much the cost grew, as a ratio (0.03: 3 %), with the ends of its interval."""
        ends = (self.size.value, self.size.low, self.size.high)
        value, low, high = (end if math.isinf(end) else math.expm1(end) for end in ends)
        return value, low, high


def available() -> bool:
    """Whether this Python has ruptures."""
    return importlib.util.find_spec("ruptures") is not None


def _standard_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks with mean 0 and variance 1; all 0 where all values are equal."""
    ranks = exact.doubled_ranks(values).astype(float)
    ranks -= ranks.mean()
    spread = ranks.std()
    return ranks / spread if spread > 0 else ranks


@cache
def penalty(count: int) -> float:
    """The gain of the best single change point that OF_ONE of series of `count` without a change exceed."""
    rng = np.random.default_rng(1)
    ranks = _standard_ranks(np.arange(count))
    before = np.cumsum(rng.permuted(np.tile(ranks, (SIMULATED, 1)), axis=1), axis=1)
    split = np.arange(LEAST, count - LEAST + 1)
    gains = before[:, split - 1] ** 2 * count / (split * (count - split))
    return float(np.quantile(gains.max(axis=1), 1 - OF_ONE, method="higher"))


def find(values: np.ndarray) -> list[Change]:
    """The change points of `values` (n,) in their order; of the newest MOST only. Errors: ModuleNotFoundError."""
    skipped = max(0, len(values) - MOST)
    values = values[skipped:]
    if len(values) < 2 * LEAST:
        return []
    from ruptures.detection import KernelCPD  # slow to import

    search = KernelCPD(kernel="linear", min_size=LEAST).fit(_standard_ranks(values)[:, None])
    ends = search.predict(pen=penalty(len(values)) * (1 + 1e-9))
    changes = []
    for (begin, middle), (_, end) in pairwise(pairwise([0, *ends])):
        before = values[max(begin, middle - MOST_COMPARED) : middle]
        after = values[middle : min(end, middle + MOST_COMPARED)]
        changes.append(Change(skipped + middle, exact.unpaired_effect(before, after, CONFIDENCE)))
    return changes
