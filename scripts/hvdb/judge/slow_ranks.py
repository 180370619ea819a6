"""Finds ranks or nodes that are slower than the other ranks or nodes, from arrays of times.

A member is a rank or a node. Every time of a member is divided by the median time of all members in the same step, so
that noise common to all members cancels. The time of a member is the median of these ratios over the steps, times the
usual time of a step. The slowness of a member compares that time with the median of the others' times. Its interval
comes from the ratios to the median time of the other members in the same step. A member is called slow only if both
conditions hold:

- The member is an outlier: its modified z-score (by median and MAD over members) is above critical_score().
- The slowness matters: the lower end of the interval of the slowness is at or above a threshold.

Sources: B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers, 1993 (the modified z-score); P. Westfall and
S. Young, Resampling-Based Multiple Testing, 1993 (the largest score of a healthy run as reference for every score);
H. David and H. Nagaraja, Order Statistics, 2003, section 7.1 (the interval of a median).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.99
DEVIATE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# Fraction of healthy runs in which any member is called slow. Only runs with four or more members have scores, so at
# most one healthy member in a hundred is called slow.
FALSE_ALARMS = 0.03
MAJORITY = 4
MIN_STEPS = 10
MANY = 8  # the middle of so many members or more is their median, of fewer their mean
PIECE = 2**20  # arrays are processed in pieces of so many numbers, so that large arrays need little additional memory
# critical_score() simulates MIN_RUNS to MAX_RUNS runs. Within these bounds it draws about DRAWN random numbers.
MIN_RUNS, MAX_RUNS, DRAWN = 2**13, 2**16, 2**22
MAD_TO_DEVIATION = 1.4826  # ratio of the standard deviation to the MAD of a normal distribution
# Standard errors below 0.01 % are raised to 0.01 %. Only times without any noise have such small errors.
MIN_ERROR = 1e-4


@dataclass(frozen=True)
class Finding:
    """One member (rank or node) compared with the other members. slower: 0.05 means 5 % slower than the others.

    seconds: the member's time of a step; `slower` compares it with the median of the others' `seconds`. low, high:
    interval of `slower` with CONFIDENCE. score: modified z-score; None with fewer than MAJORITY members. slow: True if
    the member is called slow. unclear: True if the member is slower by the threshold or more, but is not called slow.
    """

    seconds: float
    slower: float
    low: float
    high: float
    score: float | None
    slow: bool
    unclear: bool


@dataclass(frozen=True)
class Findings:
    """The findings about one run. ranks: by rank. nodes: by host; empty with one node, or with one rank per node.

    slow_nodes: slow hosts whose ranks are all slower by the threshold or more. slow_ranks, unclear_ranks: slow and
    unclear ranks on the hosts that are not in slow_nodes.
    """

    ranks: list[Finding]
    nodes: dict[str, Finding]
    slow_nodes: list[str]
    slow_ranks: list[int]
    unclear_ranks: list[int]

    @property
    def slowest_first(self) -> list[int]:
        """The numbers of all ranks, sorted by slowness. The slowest rank comes first."""
        return sorted(range(len(self.ranks)), key=lambda rank: -self.ranks[rank].slower)


def _medians_of_others(values: np.ndarray) -> np.ndarray:
    """Returns, for each of `values` (members, steps), the median of the other members' values in the same step."""
    members = len(values)
    low = (members - 2) // 2
    # At most three places of the sorted order are needed. Finding these is much faster than sorting all values.
    ordered = np.partition(values, range(low, min(low + 3, members)), axis=0)

    def among_others(position: int) -> np.ndarray:
        return np.where(values > ordered[position], ordered[position], ordered[min(position + 1, members - 1)])

    return (among_others(low) + among_others((members - 1) // 2)) / 2


def log_ratios(seconds: np.ndarray) -> np.ndarray:
    """Returns, for each time in `seconds`, log(time / median time of the other members in the same step).

    seconds: (members, steps), above zero, of two or more members.
    """
    ratios = np.log(seconds)
    at_once = max(1, PIECE // len(seconds))
    for first in range(0, ratios.shape[1], at_once):
        piece = ratios[:, first : first + at_once]
        piece -= _medians_of_others(piece)
    return ratios


def _typical_times(seconds: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the logarithm of the usual time, and the place (members,) of each member: log(its time / usual time)."""
    logs = np.log(seconds)
    # The median of three or five members is the noise of one of them, and hides a part of its slowness.
    middles = np.mean(logs, axis=0) if len(logs) < MANY else np.median(logs, axis=0)
    logs -= middles
    return float(np.median(middles)), np.median(logs, axis=1)


def _lag_one_autocorrelation(series: np.ndarray) -> float:
    """Returns the lag-one autocorrelation of `series` (steps,), limited to [0, 0.9]. Returns 0 for fewer than 8 steps.

    The values are replaced by their statistical ranks, so that outliers do not hide the correlation. The bias of short
    series is corrected.
    Source: Kendall, Biometrika 41 (1954).
    """
    count = len(series)
    if count < 8:
        return 0.0
    centred = np.empty(count)
    centred[np.argsort(series, kind="stable")] = np.arange(count) - (count - 1) / 2
    sample = float(centred[1:] @ centred[:-1]) / float(centred @ centred)
    return min(0.9, max(0.0, (count * sample + 1) / (count - 3)))


def _median_intervals(series: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns three arrays (rows,): lower end and upper end of the interval of each row's median; True for long rows.

    A row is long if it has enough steps for an interval.
    The ends are order statistics, as in the sign test, which assumes no distribution. Autocorrelated steps count as
    fewer independent steps, as in an AR(1) series of the same lag-one autocorrelation.
    Simulated: an interval at 99 % contains the true median in at least 98 % of series, but in only 94 % of series with
    ten steps and autocorrelation 0.6.
    """
    steps = series.shape[1]
    rho = np.array([0.0 if row.min() == row.max() else _lag_one_autocorrelation(row) for row in series])
    reach = DEVIATE / 2 * np.sqrt(steps * (1 + rho) / (1 - rho))
    middle = (steps - 1) / 2
    ordered = np.sort(series, axis=1)
    rows = np.arange(len(series))
    low = ordered[rows, np.floor(np.maximum(middle - reach, 0)).astype(int)]
    high = ordered[rows, np.ceil(np.minimum(middle + reach, steps - 1)).astype(int)]
    return low, high, reach <= middle


def scores(values: np.ndarray, errors: np.ndarray | float = 0.0) -> np.ndarray:
    """Returns the modified z-scores of `values` along the last axis.

    A score is (value - median) / max(standard deviation estimated by the MAD, error). errors: standard errors of
    `values`; because of them, members that are equal within their errors get no large scores.
    """
    deviations = values - np.median(values, axis=-1, keepdims=True)
    spread = MAD_TO_DEVIATION * np.median(np.abs(deviations), axis=-1, keepdims=True)
    return deviations / np.maximum(spread, np.maximum(errors, MIN_ERROR))


@cache
def critical_score(members: int, seed: int = 1) -> float:
    """Returns the score that the largest score of `members` healthy members exceeds in a fraction FALSE_ALARMS of runs.

    Simulates healthy members, whose values have a normal distribution. The width of the distribution does not matter.
    """
    rng = np.random.default_rng(seed)
    runs = min(MAX_RUNS, max(MIN_RUNS, DRAWN // members))
    at_once = max(1, PIECE // members)
    largest = []
    for done in range(0, runs, at_once):
        drawn = rng.standard_normal((members, min(at_once, runs - done)))
        largest.append(scores((drawn - _medians_of_others(drawn)).T).max(axis=1))
    return float(np.quantile(np.concatenate(largest), 1 - FALSE_ALARMS))


def compare(seconds: np.ndarray, threshold: float, seed: int = 1) -> list[Finding]:
    """Returns one finding for each member. seconds: (members, steps), above zero, of two or more members.

    threshold: a slow member is slower by at least this fraction. Fewer than MAJORITY members do not show which speed is
    usual. The slowest of so few members is called slow if its interval lies above the threshold and above the intervals
    of all other members.
    """
    usual, places = _typical_times(seconds)
    middle = places - _medians_of_others(places[:, None])[:, 0]
    series = log_ratios(seconds)
    low, high, long_enough = _median_intervals(series)
    shift = middle - np.median(series, axis=1)  # 0 for two members, and small for more
    low, high = low + shift, high + shift
    members = len(series)
    score = None
    if members >= MAJORITY:
        score = scores(middle, (high - low) / (2 * DEVIATE))
        stands_out = score > critical_score(members, seed)
    else:
        stands_out = np.array([low[i] > np.delete(high, i).max() for i in range(members)])
    slower, low, high = np.expm1(middle), np.expm1(low), np.expm1(high)
    slow = stands_out & (low >= threshold) & long_enough
    return [
        Finding(
            seconds=float(np.exp(usual + places[i])),
            slower=float(slower[i]),
            low=float(low[i]),
            high=float(high[i]),
            score=None if score is None else float(score[i]),
            slow=bool(slow[i]),
            unclear=bool(slower[i] >= threshold and not slow[i]),
        )
        for i in range(members)
    ]


def examine(seconds: np.ndarray, hosts: Sequence[str], threshold: float, seed: int = 1) -> Findings:
    """Compares the ranks, and also the nodes if there are several nodes and a node has several ranks.

    seconds: (ranks, steps). hosts: the host of each rank; empty if unknown. The time of a node in a step is the median
    over the node's ranks.
    """
    ranks = compare(seconds, threshold, seed)
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    nodes: dict[str, Finding] = {}
    if 1 < len(members) < len(hosts):
        of_nodes = np.array([np.median(seconds[own], axis=0) for own in members.values()])
        nodes = dict(zip(members, compare(of_nodes, threshold, seed), strict=True))
    slow_nodes = [
        host
        for host, finding in nodes.items()
        if finding.slow and len(members[host]) > 1 and all(ranks[own].slower >= threshold for own in members[host])
    ]
    explained = {rank for host in slow_nodes for rank in members[host]}
    others = [rank for rank in range(len(ranks)) if rank not in explained]
    return Findings(
        ranks=ranks,
        nodes=nodes,
        slow_nodes=slow_nodes,
        slow_ranks=[rank for rank in others if ranks[rank].slow],
        unclear_ranks=[rank for rank in others if ranks[rank].unclear],
    )
