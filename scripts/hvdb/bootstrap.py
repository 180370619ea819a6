"""Intervals by bootstrap. No distribution is assumed; the seed is an argument, so equal input gives equal output.

Within one session the steps are correlated (clock drift, other tenants), so blocks of steps are resampled, not
steps. Between sessions the unit is the session: its steps are resampled within it, then whole sessions are.
Source: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems, SC15 (medians, intervals, no
assumed normality); Kuensch 1989 and Politis and Romano 1992 for the (circular) block bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
REPLICATES = 2000
FEWEST_REPLICATES = 200  # of one of many sessions, or of a very long series; the same as in bench/measure/median
MIN_SAMPLES = 3  # below that an interval of a median says nothing
# Up to this many samples every resample is made whole; beyond, only its part around the median is (_long_medians).
WHOLE_SAMPLES = 4096
PIECE_SAMPLES = 1 << 19  # made at once
DRAWN_SAMPLES = 100_000_000  # one by one for one series, some seconds; of series that drift fewer resamples are made
# With fewer sessions a bootstrap over them covers the truth far less often than it says: simulated, 60 % with two and
# 78 % with three where 95 % was asked, 95 % from five on.
MIN_SESSIONS = 5


@dataclass(frozen=True)
class Estimate:
    """A figure with its bootstrap interval; `low` and `high` are None where there is too little data for one.

    `lowest` and `highest`: of the sessions, where there are several and too few of them for an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    lowest: float | None = None
    highest: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit; `factor` > 0."""
        ends = (self.low, self.high, self.lowest, self.highest)
        return Estimate(self.value * factor, *(None if end is None else end * factor for end in ends))


def _ranks(series: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """The position of each sample among the sorted ones, 0 first; of equal ones the earlier is the lower."""
    ranks = np.empty(len(series), dtype=np.int64)
    ranks[np.argsort(series, kind="stable") if order is None else order] = np.arange(len(series))
    return ranks


def lag_one_autocorrelation(series: np.ndarray) -> float:
    """Autocorrelation at lag one of the samples' ranks (outliers do not hide it), in [0, 0.9]; 0 below 8 samples.

    Corrected for its bias at small counts. Source: Kendall, Biometrika 41 (1954).
    """
    count = len(series)
    if count < 8:
        return 0.0
    centred = _ranks(series) - (count - 1) / 2
    sample = float(centred[1:] @ centred[:-1]) / float(centred @ centred)
    return min(0.9, max(0.0, (count * sample + 1) / (count - 3)))


def block_length(count: int, rho: float) -> int:
    """Steps per block for `count` samples of lag-one autocorrelation `rho`; at most a quarter of them.

    Source: Carlstein, Annals of Statistics 14 (1986), the AR(1) rule. The same as in bench/measure/median.
    """
    length = 6 ** (1 / 3) * (rho / (1 - rho * rho)) ** (2 / 3) * count ** (1 / 3)
    return int(min(max(math.ceil(length), 1), max(1, count // 4)))


def widening(count: int, rho: float, length: int) -> float:
    """What blocks shorter than the correlation, and few samples, understate the standard error by; >= 1.

    The first factor is what an AR(1) series loses in blocks of `length`, the second n / (n - 1) of the effective
    sample size. The same as in bench/measure/median.
    """
    full = (1 + rho) / (1 - rho)
    block = 1 + sum(2 * (1 - lag / length) * rho**lag for lag in range(1, length))
    effective = max(3.0, count / full)
    return math.sqrt(full / block) * math.sqrt(effective / (effective - 1))


def median_replicates(series: np.ndarray, rng: np.random.Generator, replicates: int = REPLICATES) -> np.ndarray:
    """Medians of circular block resamples of `series` (count,), same unit; result (replicates,).

    Their deviations from the median of `series` are widened, see widening(). Simulated: a 95 % interval holds the
    true median in 95 to 97 % of independent series of 6 to 60 samples, 92 to 93 % at lag-one autocorrelation 0.3.
    """
    count = len(series)
    if replicates == 0:
        return np.empty(0)
    rho = lag_one_autocorrelation(series)
    length = block_length(count, rho)
    medians = _whole_medians if count <= WHOLE_SAMPLES else _long_medians
    drawn = medians(series, length, rng, replicates)
    middle = np.median(series)
    # a widened deviation may not pass zero: times and rates are positive
    return np.maximum(middle + (drawn - middle) * widening(count, rho, length), 1e-3 * middle)


def _whole_medians(series: np.ndarray, length: int, rng: np.random.Generator, replicates: int) -> np.ndarray:
    """Medians of resamples of `series` (count,) in circular blocks of `length`; result (replicates,)."""
    count = len(series)
    starts = rng.integers(0, count, size=(replicates, -(-count // length)))
    medians = np.empty(replicates)
    rows = max(1, PIECE_SAMPLES // count)
    for first in range(0, replicates, rows):
        some = starts[first : first + rows]
        indices = (some[:, :, None] + np.arange(length)) % count
        medians[first : first + rows] = np.median(series[indices.reshape(len(some), -1)[:, :count]], axis=1)
    return medians


class _Counts:
    """How many samples of each circular block have a property.

    marked: (count,) of bool. sums[i]: marked ones among the first i, the series going round once more for `length`.
    """

    def __init__(self, marked: np.ndarray, length: int) -> None:
        self.sums = np.concatenate(([0], np.cumsum(np.concatenate((marked, marked[:length])))))

    def of(self, starts: np.ndarray | int, length: int) -> np.ndarray:
        """Marked samples of the blocks of `length` that begin at `starts`."""
        return self.sums[starts + length] - self.sums[starts]


def _reach(marked: np.ndarray, length: int) -> float:
    """How far the number of marked samples in a resample may lie from its mean: farther in one of 10^12 resamples.

    Source: Bernstein's inequality for a sum of independent blocks, each of at most `length` samples.
    """
    exponent = math.log(1e12)
    per_block = _Counts(marked, length).of(np.arange(len(marked)), length)
    variance = -(-len(marked) // length) * float(np.var(per_block))
    part = exponent * length / 3
    return part + math.sqrt(part * part + 2 * exponent * variance)


def _band(ranks: np.ndarray, length: int) -> tuple[int, int]:
    """The ranks [low, high) between which the median of a resample lies, but for one of 10^12 resamples."""
    count = len(ranks)
    lower, upper = (count - 1) // 2, count // 2
    low, high = lower, upper + 1
    while low > 0 and (reach := math.ceil(_reach(ranks < low, length))) > lower + 1 - low:
        low = max(0, lower + 1 - reach - reach // 8)
    while high < count and (reach := math.ceil(_reach(ranks < high, length))) > high - upper:
        high = min(count, upper + reach + reach // 8)
    return low, high


def _long_medians(series: np.ndarray, length: int, rng: np.random.Generator, replicates: int) -> np.ndarray:
    """As _whole_medians(), in distribution, for long series: only samples near the median are drawn one by one.

    A median needs no more than how many samples lie below a band around it, and those inside. Blocks without a sample
    in the band differ only in how many of theirs lie below it, so one multinomial draw says how many of each kind a
    resample has; blocks that touch the band are drawn themselves. Time grows with the band, at most some
    8 sqrt(count * length), for each resample.
    """
    count = len(series)
    order = np.argsort(series, kind="stable")
    ranks = _ranks(series, order)
    low, high = _band(ranks, length)
    inside = (ranks >= low) & (ranks < high)
    below, within = _Counts(ranks < low, length), _Counts(inside, length)
    in_band = ranks[np.flatnonzero(inside)]  # in the order of time
    in_band = np.concatenate((in_band, in_band))  # blocks go round
    starts = np.arange(count)
    below_of, within_of = below.of(starts, length), within.of(starts, length)
    touching = np.flatnonzero(within_of)
    kinds = np.bincount(below_of[within_of == 0], minlength=length + 1)
    blocks, rest = divmod(count, length)  # the last block is cut where `rest` samples are left
    drawn = rng.multinomial(blocks, np.append(kinds, len(touching)) / count, size=replicates)
    far_below = drawn[:, :-1] @ np.arange(length + 1)
    last = rng.integers(0, count, size=replicates)
    values = series[order[low:high]]
    made = min(replicates, max(FEWEST_REPLICATES, DRAWN_SAMPLES // (high - low)))
    medians = np.empty(made)
    for i in range(made):
        near = touching[rng.integers(0, len(touching), size=drawn[i, -1])]
        begins = np.append(within.sums[near], within.sums[last[i]])
        sizes = np.append(within_of[near], within.of(last[i], rest))
        ends = np.cumsum(sizes)
        members = in_band[np.repeat(begins - ends + sizes, sizes) + np.arange(ends[-1])] - low
        before = far_below[i] + below_of[near].sum() + below.of(last[i], rest)
        middle = np.clip([(count - 1) // 2 - before, count // 2 - before], 0, len(members) - 1)
        medians[i] = values[np.partition(members, middle)[middle]].mean()
    return medians if made == replicates else medians[rng.integers(0, made, size=replicates)]


def _interval(value: float, replicates: np.ndarray, confidence: float) -> Estimate:
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(replicates, [tail, 100.0 - tail])
    return Estimate(value, float(low), float(high))


def _replicates_each(sessions: int) -> int:
    """How many medians each session is resampled for: of many sessions _pool() draws but few of each.

    0 for two to four, which have no interval.
    """
    if 1 < sessions < MIN_SESSIONS:
        return 0
    return max(FEWEST_REPLICATES, REPLICATES * MIN_SESSIONS // max(sessions, MIN_SESSIONS))


def pooled_rate(
    sessions: Sequence[np.ndarray], scale: float = 1.0, confidence: float = CONFIDENCE, seed: int = 1
) -> Estimate:
    """`scale` / median of each session's series (seconds), then the median over sessions.

    sessions[i] is (count_i), count_i >= 1. With scale = images per step the result is images per second.
    """
    rng = np.random.default_rng(seed)
    each = _replicates_each(len(sessions))
    parts = [(1.0 / float(np.median(series)), 1.0 / median_replicates(series, rng, each)) for series in sessions]
    return _pool(parts, [len(series) for series in sessions], rng, confidence).scaled(scale)


def pooled_ratio(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    confidence: float = CONFIDENCE,
    seed: int = 1,
    known: Sequence[float | None] | None = None,
) -> Estimate:
    """median(first) / median(second) of each session, then the median over sessions; dimensionless.

    pairs[i] holds two series of seconds measured in one session; each has at least one sample. known[i], where it is
    not None, is a better estimate of that session's ratio: it takes the place of the ratio of the medians.
    """
    rng = np.random.default_rng(seed)
    each = _replicates_each(len(pairs))
    parts = []
    for (first, second), better in zip(pairs, known or [None] * len(pairs), strict=True):
        replicates = median_replicates(first, rng, each) / median_replicates(second, rng, each)
        ratio = float(np.median(first) / np.median(second))
        value = ratio if better is None else better
        parts.append((value, replicates * (value / ratio)))
    return _pool(parts, [min(len(a), len(b)) for a, b in pairs], rng, confidence)


def _pool(
    parts: list[tuple[float, np.ndarray]], counts: list[int], rng: np.random.Generator, confidence: float
) -> Estimate:
    """The median over sessions of (value, replicates); sessions are resampled, and the steps within each."""
    value = float(np.median([part[0] for part in parts]))
    if len(parts) == 1:
        return _interval(value, parts[0][1], confidence) if counts[0] >= MIN_SAMPLES else Estimate(value)
    if len(parts) < MIN_SESSIONS:
        values = [part[0] for part in parts]
        return Estimate(value, lowest=min(values), highest=max(values))
    replicates = np.stack([part[1] for part in parts])  # (sessions, replicates)
    drawn = rng.integers(0, len(parts), size=(REPLICATES, len(parts)))
    within = rng.integers(0, replicates.shape[1], size=drawn.shape)
    return _interval(value, np.median(replicates[drawn, within], axis=1), confidence)
