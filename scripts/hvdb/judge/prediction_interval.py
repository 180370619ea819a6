"""Compares a new observation with the n earlier observations of its series, without assuming a distribution.

If nothing has changed, all n + 1 observations are exchangeable: each of them is the k-th largest with the same
probability. So the new observation lies above the k-th largest of the earlier observations with a probability of at
most k / (n + 1). With n < 19 this probability is always above 5 %, so no verdict at 5 % is possible.
Source: H. David and H. Nagaraja, Order Statistics, 2003, section 7.3 (prediction intervals).

Two one-sided tests decide, each with Holm's procedure over all series that one call judges.
The verdict is REGRESSION if the new observation lies above the prediction interval, and above the median of the earlier
observations by more than the threshold.
For PASS, the earlier observations are made slower by the threshold. The verdict is PASS if the new observation lies
below the prediction interval of these slower observations. Otherwise the verdict is INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hvdb.judge import exact, verdict
from hvdb.judge.verdict import ALPHA, Verdict

_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class NewestJudgement:
    """The result for the newest observation of one series. Observations are logs of costs.

    earlier: number of earlier observations. missing: number of additional observations that a verdict needs; 0 if there
    are enough observations.
    median: median of the earlier observations; None if there are none. low, high: prediction interval. If nothing has
    changed, the newest observation lies below `low` in at most ALPHA of cases, and above `high` in at most ALPHA of
    cases. low and high are infinite if there are too few earlier observations.
    slowdown: cost of the newest observation relative to `median` (0.03: 3 % more cost). slowdown_low, slowdown_high:
    the least and the largest slowdown of the earlier observations that would put the newest observation inside their
    prediction interval.
    p_worse: p-value of "the newest observation is no slower than the earlier observations". p_fine: p-value of "the
    newest observation is slower by the threshold". Both are p-values before Holm's correction.
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
    """Returns the least number n of earlier observations for a prediction interval at `level`: 1 / (n + 1) <= level."""
    return max(1, math.ceil(1 / (level * _ROUNDING)) - 1)


def p_above(earlier: np.ndarray, new: float) -> float:
    """Returns the p-value of "`new` has the distribution of `earlier` (n,)" against "`new` lies above `earlier`"."""
    return float(1 + np.count_nonzero(earlier >= new)) / (len(earlier) + 1)


def interval(earlier: np.ndarray, level: float) -> tuple[float, float]:
    """Returns (low, high), the prediction interval of a new observation. The ends are infinite if n is too small.

    If nothing has changed, a new observation lies below `low` with a probability of at most `level`, and likewise above
    `high`.
    """
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
) -> dict[str, NewestJudgement]:
    """Returns one judgement for each series.

    observed: series -> (log costs of the earlier sessions (n,), n >= 0, log cost of the new session). All are finite.
    thresholds: series -> the tolerated slowdown, above 0.
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
        reached = Verdict.INCONCLUSIVE
        if name in worse and slowdown is not None and slowdown > thresholds[name]:
            reached = Verdict.REGRESSION
        elif name in fine:
            reached = Verdict.PASS
        needed = 0 if name in together else fewest(alpha / (len(together) + 1))
        judged[name] = NewestJudgement(
            verdict=reached,
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
