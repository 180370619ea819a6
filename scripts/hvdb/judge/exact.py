"""Exact tests, estimates and intervals for a few observations. No normal distribution is assumed.

Paired observations are log ratios of runs that were measured in turn. Paired observations are assumed to be independent
and symmetric about their centre. The paired test counts all 2^n ways of giving signs to the ranks of their deviations
from the centre.
Unpaired observations are two groups of independent runs, whose distributions are assumed to have the same shape. The
unpaired test counts all ways to choose the second group from the pooled ranks.

scipy has the paired and the unpaired test, but treats tied observations as if they were not tied. scipy has neither the
estimates nor the intervals. The intervals of this module come from inverting the test for observations without ties.
Source: Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963); Lehmann, Nonparametrics (1975).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from hvdb.base.interval import Interval


def growth(log_ratio: float) -> float:
    """Returns exp(log_ratio) - 1, also for an infinite `log_ratio`, which may be an end of an interval."""
    return log_ratio if math.isinf(log_ratio) else math.expm1(log_ratio)


def doubled_ranks(values: np.ndarray) -> np.ndarray:
    """Returns twice the rank of each of `values` (n,). All results are whole: equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[place]


def _sums_of_signs(doubled: np.ndarray) -> np.ndarray:
    """Returns an array whose element s is the fraction of the 2^n subsets of `doubled` (n,) whose sum is s."""
    share = np.zeros(int(doubled.sum()) + 1)
    share[0] = 1.0
    for value in map(int, doubled):
        with_it = np.zeros_like(share)
        with_it[value:] = share[: len(share) - value]
        share = (share + with_it) / 2
    return share


def signed_rank_p(differences: np.ndarray) -> float:
    """Returns the one-sided p-value of the hypothesis "the centre of `differences` (n,) is at most 0".

    This is the exact sign-flip test on ranks. A difference of exactly 0 keeps its rank but has no sign. Returns 1 if
    n = 0.
    """
    doubled = doubled_ranks(np.abs(differences))
    observed = int(doubled[differences > 0].sum())
    return float(_sums_of_signs(doubled[differences != 0])[observed:].sum())


def sign_p(fewer: int, more: int) -> float:
    """Returns the one-sided p-value of the hypothesis "one of two events is at most as likely as the other".

    fewer, more: in how many of the pairs with exactly one of them each occurred. This is the exact sign test. Returns 1
    if there is no such pair.
    """
    count = fewer + more
    return sum(math.comb(count, k) for k in range(more, count + 1)) / 2**count


@cache
def _most_outside(count: int, tail: float) -> int | None:
    """Returns the largest c with P(sum of the ranks of positive differences <= c) <= tail; None if there is no such c.

    The differences are `count` numbers with centre 0.
    """
    below = np.cumsum(_sums_of_signs(np.arange(1, count + 1)))
    return _last_within(below, tail)


def _last_within(below: np.ndarray, tail: float) -> int | None:
    within = int(np.searchsorted(below, tail * (1 + 1e-12), side="right"))
    return within - 1 if within else None


def walsh_averages(differences: np.ndarray) -> np.ndarray:
    """Returns the sorted means (..., n (n + 1) / 2) of all pairs of `differences` (..., n).

    Each difference also forms a pair with itself.
    """
    first, second = np.triu_indices(differences.shape[-1])
    return np.sort((differences[..., first] + differences[..., second]) / 2, axis=-1)


def paired_lower_bounds(differences: np.ndarray, tail: float) -> np.ndarray:
    """Returns, for each row of `differences` (..., n), the highest shift that the sign-flip test rejects at `tail`."""
    outside = _most_outside(differences.shape[-1], tail)
    if outside is None:
        return np.full(differences.shape[:-1], -math.inf)
    return walsh_averages(differences)[..., outside]


# The signed-rank test and its interval, for four differences:
#
#   differences             -0.2   0.5   0.9   1.1
#   ranks of their sizes       1     2     3     4        sum of the ranks of the positive ones: 9
#
# If the centre were 0, each difference could as well have the other sign. All 2^4 = 16 ways of giving signs to the
# ranks would be equally likely, and two of them have a sum of 9 or more: 2 + 3 + 4 and 1 + 2 + 3 + 4. So p = 2/16. The
# distribution need not be known, only symmetric.
#
# The interval contains each shift s that the test does not reject for the differences less s, on either side. Nobody
# has to try shifts: the sum of the positive ranks equals the number of Walsh averages (means of two differences, or of
# one with itself) above s. Here 9 of 10 lie above 0:
#
#   -0.2   [ 0.15   0.35   0.45   0.5   0.7   0.8   0.9   1.0 ]   1.1
#
# So when s moves to the right, the sum falls by one at each average. Let c be the largest number such that a sum of at
# most c has a probability of at most `tail`; then c averages are left out at each end. For tail = 2/16, c is 1 and the
# interval is [0.15, 1.0]. The median of the averages, 0.6, is the estimate. With so few differences that even a sum of
# 0, which has the probability 2^-n, is likelier than `tail`, the test rejects no shift and the ends are infinite.
def paired_effect(differences: np.ndarray, confidence: float) -> Interval:
    """Returns the Hodges-Lehmann estimate of the centre of `differences` (n,), n >= 1, with its exact interval."""
    tail = (1 - confidence) / 2
    return Interval(
        float(np.median(walsh_averages(differences))),
        float(paired_lower_bounds(differences, tail)),
        -float(paired_lower_bounds(-differences, tail)),
    )


def paired_ratio(ratios: Sequence[float], confidence: float) -> Interval:
    """Returns the Hodges-Lehmann estimate of the centre of `ratios` (n,), n >= 1, which are above 0 and symmetric on a
    logarithmic scale. The interval is exact. Its ends are None if there are too few ratios."""
    effect = paired_effect(np.log(ratios), confidence)
    ends = (math.exp(effect.low), math.exp(effect.high)) if math.isfinite(effect.low) else (None, None)
    return Interval(math.exp(effect.value), *ends)


def fewest_pairs(level: float) -> int:
    """Returns the smallest number n of pairs with which the sign-flip test can reject at `level`: 2^-n <= level."""
    return max(1, math.ceil(-math.log2(level * (1 + 1e-12))))


def _sums_of_choices(doubled: np.ndarray, chosen: int) -> np.ndarray:
    """Returns an array: element s is the fraction of subsets of `doubled` (n,) with `chosen` elements and the sum s."""
    ways = np.zeros((chosen + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for value in map(int, doubled):
        ways[1:, value:] += ways[:-1, : ways.shape[1] - value].copy()
    return ways[chosen] / math.comb(len(doubled), chosen)


def rank_sum_p(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the one-sided p-value of "`second` (m,) does not lie above `first` (n,)" by the exact rank-sum test."""
    doubled = doubled_ranks(np.concatenate((first, second)))
    observed = int(doubled[len(first) :].sum())
    return float(_sums_of_choices(doubled, len(second))[observed:].sum())


@cache
def _most_pairs_outside(first: int, second: int, tail: float) -> int | None:
    """Returns the largest c with P(number of pairs <= c) <= tail; None if there is no such c.

    The groups have `first` and `second` observations. A pair counts if its second observation is above its first.
    """
    sums = _sums_of_choices(np.arange(1, first + second + 1), second)
    return _last_within(np.cumsum(sums[second * (second + 1) // 2 :]), tail)


def unpaired_effect(first: np.ndarray, second: np.ndarray, confidence: float) -> Interval:
    """Returns the Hodges-Lehmann estimate of the shift from `first` (n,) to `second` (m,).

    The interval of the estimate is exact and two-sided.
    """
    shifts = np.sort((second[:, None] - first[None, :]).ravel())
    outside = _most_pairs_outside(len(first), len(second), (1 - confidence) / 2)
    ends = (-math.inf, math.inf) if outside is None else (shifts[outside], shifts[-1 - outside])
    return Interval(float(np.median(shifts)), float(ends[0]), float(ends[1]))
