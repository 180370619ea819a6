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
MIN_SAMPLES = 3  # below that an interval of a median says nothing
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


def lag_one_autocorrelation(series: np.ndarray) -> float:
    """Autocorrelation at lag one of the samples' ranks (outliers do not hide it), in [0, 0.9]; 0 below 8 samples.

    Corrected for its bias at small counts. Source: Kendall, Biometrika 41 (1954).
    """
    count = len(series)
    if count < 8:
        return 0.0
    centred = np.empty(count)
    centred[np.argsort(series, kind="stable")] = np.arange(count) - (count - 1) / 2
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
    rho = lag_one_autocorrelation(series)
    length = block_length(count, rho)
    starts = rng.integers(0, count, size=(replicates, -(-count // length)))
    indices = (starts[:, :, None] + np.arange(length)) % count
    drawn = np.median(series[indices.reshape(replicates, -1)[:, :count]], axis=1)
    middle = np.median(series)
    # a widened deviation may not pass zero: times and rates are positive
    return np.maximum(middle + (drawn - middle) * widening(count, rho, length), 1e-3 * middle)


def _interval(value: float, replicates: np.ndarray, confidence: float) -> Estimate:
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(replicates, [tail, 100.0 - tail])
    return Estimate(value, float(low), float(high))


def _inverse_median(series: np.ndarray, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    return 1.0 / float(np.median(series)), 1.0 / median_replicates(series, rng)


def pooled_rate(
    sessions: Sequence[np.ndarray], scale: float = 1.0, confidence: float = CONFIDENCE, seed: int = 1
) -> Estimate:
    """`scale` / median of each session's series (seconds), then the median over sessions.

    sessions[i] is (count_i), count_i >= 1. With scale = images per step the result is images per second.
    """
    rng = np.random.default_rng(seed)
    parts = [_inverse_median(series, rng) for series in sessions]
    return _pool(parts, [len(series) for series in sessions], rng, confidence).scaled(scale)


def pooled_ratio(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], confidence: float = CONFIDENCE, seed: int = 1
) -> Estimate:
    """median(first) / median(second) of each session, then the median over sessions; dimensionless.

    pairs[i] holds two series of seconds measured in one session; each has at least one sample.
    """
    rng = np.random.default_rng(seed)
    parts = []
    for first, second in pairs:
        first_replicates = median_replicates(first, rng)
        second_replicates = median_replicates(second, rng)
        parts.append((float(np.median(first) / np.median(second)), first_replicates / second_replicates))
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
    drawn = rng.integers(0, len(parts), size=(replicates.shape[1], len(parts)))
    within = rng.integers(0, replicates.shape[1], size=drawn.shape)
    return _interval(value, np.median(replicates[drawn, within], axis=1), confidence)
