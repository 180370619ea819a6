"""Finds where the level of a series of observations changes. Uses the optional package ruptures (`hvdb[history]`).

PELT splits a series into segments. It minimises the sum of squares about the segments' means plus a penalty for each
change point. This module gives PELT the ranks of the observations instead of the observations, so no distribution is
assumed and outliers have little weight. In a series without a change, the distribution of the result therefore depends
only on the number of observations. PELT finds a change point in a fraction FALSE_ALARMS of series without a change.
Sources: Killick, Fearnhead and Eckley, JASA 107 (2012) (PELT); Lung-Yut-Fong, Levy-Leduc and Cappe, Journal de la SFdS
156 (2015) (ranks); Truong, Oudre and Vayatis, Signal Processing 167 (2020) (ruptures).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from hvdb.base.interval import Interval
from hvdb.judge import exact

FALSE_ALARMS = 0.05
# PELT finds exactly one change point in this fraction of the series without a change, and two change points in a few
# other series without a change. Simulated with 30 to 500 observations: 3.8 to 4.6 % have one change point or more.
OF_ONE = 0.04
CONFIDENCE = 0.95
MIN_SEGMENT = 4  # least number of observations on each side of a change point
MAX_OBSERVATIONS = 500  # of a longer series, only this number of the newest observations is examined
SIMULATED = 10_000
# The size of a change is estimated from at most this number of observations on each side of the change, those nearest
# to the change. With more observations the estimate would take long.
MAX_COMPARED = 50


@dataclass(frozen=True)
class Change:
    """index: place of the first observation after the change. size: growth of the log cost from before to after.

    The interval of `size` ignores that the search picks the place where the change looks largest.
    """

    index: int
    size: Interval

    @property
    def growth(self) -> tuple[float, float, float]:
        """Growth of the cost (0.03: 3 %), then the lower and upper end of its interval."""
        return exact.growth(self.size.value), exact.growth(self.size.low), exact.growth(self.size.high)


def available() -> bool:
    """Returns True if the Python package ruptures is installed."""
    return importlib.util.find_spec("ruptures") is not None


def _standard_ranks(values: np.ndarray) -> np.ndarray:
    """Returns the ranks of `values`, scaled to mean 0 and variance 1. All ranks are 0 if all values are equal."""
    ranks = exact.doubled_ranks(values).astype(float)
    ranks -= ranks.mean()
    spread = ranks.std()
    return ranks / spread if spread > 0 else ranks


@cache
def penalty(count: int) -> float:
    """Returns the gain that the best change point exceeds in a fraction OF_ONE of series without a change.

    count: number of observations of each series. Gain: the reduction of the sum of squares by the change point.
    """
    rng = np.random.default_rng(1)
    ranks = _standard_ranks(np.arange(count))
    before = np.cumsum(rng.permuted(np.tile(ranks, (SIMULATED, 1)), axis=1), axis=1)
    split = np.arange(MIN_SEGMENT, count - MIN_SEGMENT + 1)
    gains = before[:, split - 1] ** 2 * count / (split * (count - split))
    return float(np.quantile(gains.max(axis=1), 1 - OF_ONE, method="higher"))


def find(values: np.ndarray) -> list[Change]:
    """Returns the change points among the newest MAX_OBSERVATIONS of `values` (n,), oldest first.

    Errors: ModuleNotFoundError without ruptures.
    """
    skipped = max(0, len(values) - MAX_OBSERVATIONS)
    values = values[skipped:]
    if len(values) < 2 * MIN_SEGMENT:
        return []
    from ruptures.detection import KernelCPD  # slow to import

    search = KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(_standard_ranks(values)[:, None])
    ends = search.predict(pen=penalty(len(values)) * (1 + 1e-9))
    changes = []
    for (begin, middle), (_, end) in pairwise(pairwise([0, *ends])):
        before = values[max(begin, middle - MAX_COMPARED) : middle]
        after = values[middle : min(end, middle + MAX_COMPARED)]
        changes.append(Change(skipped + middle, exact.unpaired_effect(before, after, CONFIDENCE)))
    return changes
