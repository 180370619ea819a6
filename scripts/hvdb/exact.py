"""Exact tests, estimates and intervals for a few observations, without a normal distribution.

Paired: the observations are log ratios of runs that were measured in turn. They are assumed to be independent and
symmetric about their centre. The test counts all 2^n ways of giving signs to the ranks of the deviations from the
centre.
Unpaired: the observations are two groups of independent runs, assumed to have distributions of one shape. The test
counts all ways to choose the second group from the pooled ranks.

scipy has both tests, but treats tied observations as if they were not tied, and has neither estimates nor intervals.
The intervals here come from inverting the test for observations without ties.
Source: Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963); Lehmann, Nonparametrics (1975).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Effect:
    """An estimate with the ends of its interval. An end is infinite if there are too few observations."""

    value: float
    low: float
    high: float


def growth(log_ratio: float) -> float:
    """Returns exp(log_ratio) - 1. An infinite end of an interval stays infinite."""
    return log_ratio if math.isinf(log_ratio) else math.expm1(log_ratio)


def doubled_ranks(values: np.ndarray) -> np.ndarray:
    """Returns twice the ranks of `values` (n,), as integers from 2 on. Equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[place]


def _sums_of_signs(doubled: np.ndarray) -> np.ndarray:
    """Returns, for each s from 0 on, the fraction of the 2^n subsets of `doubled` (n,) whose sum is s."""
    share = np.zeros(int(doubled.sum()) + 1)
    share[0] = 1.0
    for value in map(int, doubled):
        with_it = np.zeros_like(share)
        with_it[value:] = share[: len(share) - value]
        share = (share + with_it) / 2
    return share


def signed_rank_p(differences: np.ndarray) -> float:
    """The exact sign-flip test on ranks. Returns the one-sided p-value of "`differences` (n,) have no centre above 0".

    A difference of exactly 0 keeps its rank but has no sign. Without differences, returns 1.
    """
    doubled = doubled_ranks(np.abs(differences))
    observed = int(doubled[differences > 0].sum())
    return float(_sums_of_signs(doubled[differences != 0])[observed:].sum())


@cache
def _most_outside(count: int, tail: float) -> int | None:
    """Returns the largest c with P(sum of the positive ranks <= c) <= tail for `count` differences, or None."""
    below = np.cumsum(_sums_of_signs(np.arange(1, count + 1)))
    return _last_within(below, tail)


def _last_within(below: np.ndarray, tail: float) -> int | None:
    within = int(np.searchsorted(below, tail * (1 + 1e-12), side="right"))
    return within - 1 if within else None


def walsh_averages(differences: np.ndarray) -> np.ndarray:
    """Returns the sorted means (..., n (n + 1) / 2) of all pairs of `differences` (..., n) and of each itself."""
    first, second = np.triu_indices(differences.shape[-1])
    return np.sort((differences[..., first] + differences[..., second]) / 2, axis=-1)


def paired_lower_bounds(differences: np.ndarray, tail: float) -> np.ndarray:
    """Returns, for each row of `differences` (..., n), the highest shift that the sign-flip test rejects at `tail`."""
    outside = _most_outside(differences.shape[-1], tail)
    if outside is None:
        return np.full(differences.shape[:-1], -math.inf)
    return walsh_averages(differences)[..., outside]


def paired_effect(differences: np.ndarray, confidence: float) -> Effect:
    """Returns the Hodges-Lehmann estimate of the centre of `differences` (n,), n >= 1, with its exact interval."""
    tail = (1 - confidence) / 2
    return Effect(
        float(np.median(walsh_averages(differences))),
        float(paired_lower_bounds(differences, tail)),
        -float(paired_lower_bounds(-differences, tail)),
    )


def fewest_pairs(level: float) -> int:
    """Returns the fewest pairs with which the sign-flip test can reject at `level`: 2^-n <= level."""
    return max(1, math.ceil(-math.log2(level * (1 + 1e-12))))


def _sums_of_choices(doubled: np.ndarray, chosen: int) -> np.ndarray:
    """Returns, for each s from 0 on, the fraction of subsets of `chosen` elements of `doubled` (n,) whose sum is s."""
    ways = np.zeros((chosen + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for value in map(int, doubled):
        ways[1:, value:] += ways[:-1, : ways.shape[1] - value].copy()
    return ways[chosen] / math.comb(len(doubled), chosen)


def rank_sum_p(first: np.ndarray, second: np.ndarray) -> float:
    """The exact rank-sum test. Returns the one-sided p-value of "`second` (m,) is not above `first` (n,)"."""
    doubled = doubled_ranks(np.concatenate((first, second)))
    observed = int(doubled[len(first) :].sum())
    return float(_sums_of_choices(doubled, len(second))[observed:].sum())


@cache
def _most_pairs_outside(first: int, second: int, tail: float) -> int | None:
    """Returns the largest c with P(number of pairs with the second above the first <= c) <= tail, or None."""
    sums = _sums_of_choices(np.arange(1, first + second + 1), second)
    return _last_within(np.cumsum(sums[second * (second + 1) // 2 :]), tail)


def unpaired_effect(first: np.ndarray, second: np.ndarray, confidence: float) -> Effect:
    """Returns the Hodges-Lehmann estimate of `second` (m,) - `first` (n,), with its two-sided exact interval."""
    shifts = np.sort((second[:, None] - first[None, :]).ravel())
    outside = _most_pairs_outside(len(first), len(second), (1 - confidence) / 2)
    ends = (-math.inf, math.inf) if outside is None else (shifts[outside], shifts[-1 - outside])
    return Effect(float(np.median(shifts)), float(ends[0]), float(ends[1]))
