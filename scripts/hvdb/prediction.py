"""Compares a new observation with earlier observations of its series, without assuming a distribution.

If nothing has changed, all n + 1 observations are exchangeable: each observation is the k-th largest with the same
probability. So a new observation lies above the k-th largest of the earlier observations with a probability of at most
k / (n + 1). Fewer than 19 earlier observations can never bound a new observation at 5 %.
Source: H. David and H. Nagaraja, Order Statistics, 2003, section 7.3 (prediction intervals).

There are two one-sided tests, each with Holm's procedure over all series of a call:
REGRESSION: the new observation lies above the prediction interval, and above the median of the earlier observations by
more than the threshold. PASS: the new observation lies below the prediction interval of the earlier observations after
these are made slower by the threshold. Otherwise INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hvdb import exact, verdict
from hvdb.verdict import ALPHA, Verdict

_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class Judgement:
    """The result for the newest observation of one series; observations are logs of costs.

    earlier: number of earlier observations. missing: number of further observations that a verdict needs; 0 if there
    are enough.
    median: of the earlier observations; None if there are none. low, high: prediction interval. An unchanged series
    passes each end in at most ALPHA of cases; an end is infinite if there are too few earlier observations.
    slowdown: relative to `median` (0.03: 3 % more cost). slowdown_low, slowdown_high: the shifts of the earlier
    observations that would put the newest observation inside the prediction interval.
    p_worse, p_fine: p-values of "no slower than before" and "slower by the threshold", before Holm's correction.
    """

    verdict: Verdict
    threshold: float
    earlier: int
    missing: int
    median: float | None
    low: float
    high: float
    slowdown: float | None
    slowdown_low: float
    slowdown_high: float
    p_worse: float
    p_fine: float


def fewest(level: float) -> int:
    """Returns the fewest earlier observations that bound a new observation at `level`: 1 / (n + 1) <= level."""
    return max(1, math.ceil(1 / (level * _ROUNDING)) - 1)


def p_above(earlier: np.ndarray, new: float) -> float:
    """Returns the p-value of "`new` has the distribution of `earlier` (n,)" against "`new` lies above `earlier`"."""
    return float(1 + np.count_nonzero(earlier >= new)) / (len(earlier) + 1)


def interval(earlier: np.ndarray, level: float) -> tuple[float, float]:
    """Returns bounds, infinite if n is small. A new observation passes each with a probability of at most `level`."""
    place = math.floor(level * (len(earlier) + 1) * _ROUNDING)
    if place < 1:
        return -math.inf, math.inf
    ordered = np.sort(earlier)
    return float(ordered[place - 1]), float(ordered[-place])


def judgeable(counts: Mapping[str, int], alpha: float = ALPHA) -> list[str]:
    """Returns the largest set of series that have enough earlier observations (`counts`) to be judged together.

    The choice depends only on the counts, so it does not change the error rates.
    """
    longest_first = sorted(counts, key=lambda name: -counts[name])
    return [name for place, name in enumerate(longest_first, 1) if counts[name] >= fewest(alpha / place)]


def judge(
    observed: Mapping[str, tuple[np.ndarray, float]], thresholds: Mapping[str, float], alpha: float = ALPHA
) -> dict[str, Judgement]:
    """Returns one judgement for each series.

    observed: series -> finite log costs of the earlier sessions (n,), n >= 0, and of the new session.
    thresholds: series -> slowdown that is tolerated, above 0.
    """
    counts = {name: len(earlier) for name, (earlier, _) in observed.items()}
    together = judgeable(counts, alpha)
    p_worse = {name: p_above(*observed[name]) for name in observed}
    p_fine = {name: p_above(-earlier - math.log1p(thresholds[name]), -new) for name, (earlier, new) in observed.items()}
    worse, fine = (verdict.holm({name: p[name] for name in together}, alpha) for p in (p_worse, p_fine))
    judged = {}
    for name, (earlier, new) in observed.items():
        low, high = interval(earlier, alpha)
        median = float(np.median(earlier)) if len(earlier) else None
        slowdown = None if median is None else math.expm1(new - median)
        found = Verdict.INCONCLUSIVE
        if name in worse and slowdown is not None and slowdown > thresholds[name]:
            found = Verdict.REGRESSION
        elif name in fine:
            found = Verdict.PASS
        needed = 0 if name in together else fewest(alpha / (len(together) + 1))
        judged[name] = Judgement(
            verdict=found,
            threshold=thresholds[name],
            earlier=len(earlier),
            missing=max(0, needed - len(earlier)),
            median=median,
            low=low,
            high=high,
            slowdown=slowdown,
            slowdown_low=exact.growth(new - high),
            slowdown_high=exact.growth(new - low),
            p_worse=p_worse[name],
            p_fine=p_fine[name],
        )
    return judged
