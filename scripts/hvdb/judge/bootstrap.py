"""Pools the figures of sessions. Assumes no distribution. The seed is an argument, so equal input gives equal output.

hvd_bench computes the interval of a figure within one session by a bootstrap, and stores the interval and bootstrap
replicates of the figure (bench/measure/resample.h). This module resamples whole sessions, and draws one replicate from
each resampled session.
Source: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems, SC15 (medians, intervals, no
assumed normality).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hvdb.base.interval import Interval

CONFIDENCE = 0.95
REPLICATES = 2000
# With fewer sessions than this, far fewer than 95 % of the bootstrap intervals at 95 % contain the true value.
# Simulated: in 60 % with two sessions, in 78 % with three. docs/measurement.md has the values from five sessions on.
MIN_SESSIONS = 5


@dataclass(frozen=True)
class Session:
    """One session's result for a figure. low, high: the interval that the program stored, or None.

    replicates: bootstrap replicates of `value`; empty if the store has none. All figures have equally many replicates.
    """

    value: float
    low: float | None = None
    high: float | None = None
    replicates: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def bounded(self) -> bool:
        """True if the figure has an interval and the whole interval is above zero.

        With few samples, the interval of a time may reach below zero.
        """
        return self.low is not None and self.high is not None and self.low > 0

    def rate(self, work: float) -> Session:
        """Converts a time in seconds to `work` per second. The rate has an interval only if the time is `bounded`."""
        ends = (work / self.high, work / self.low) if self.bounded else (None, None)
        return Session(work / self.value, *ends, work / self.replicates)


def ratio(first: Session, second: Session) -> Session:
    """Returns `first` / `second` for two independent figures above zero.

    On a logarithmic scale, an end of the interval of the ratio lies sqrt(x^2 + y^2) from the ratio, where x and y are
    the distances from the two figures to an end of their own intervals. Source: Zou and Donner, Statistics in
    Medicine 27 (2008), the method of variance estimates recovery.
    """
    value = first.value / second.value
    ends = (None, None)
    if first.bounded and second.bounded:
        below = math.hypot(math.log(first.low / first.value), math.log(second.high / second.value))
        above = math.hypot(math.log(first.high / first.value), math.log(second.low / second.value))
        ends = (value * math.exp(-below), value * math.exp(above))
    # hvd_bench draws the replicates of two runs with one seed, so replicates of equal index may come from the same
    # steps. If one of the two lists is shifted by one place, replicates of equal index come from different steps.
    replicates = np.empty(0)
    if len(first.replicates) == len(second.replicates):
        replicates = first.replicates / np.roll(second.replicates, 1)
    return Session(value, *ends, replicates)


def pool(sessions: Sequence[Session], confidence: float = CONFIDENCE, seed: int = 1) -> Interval:
    """Returns the median over sessions. The interval is the session's own if there is only one session.

    For two to four sessions there is no interval. For five or more sessions there is a bootstrap interval.
    A session without replicates contributes only its value, which contains the noise within the session.
    """
    values = [session.value for session in sessions]
    value = float(np.median(values))
    if len(sessions) == 1:
        return Interval(value, sessions[0].low, sessions[0].high)
    if len(sessions) < MIN_SESSIONS:
        return Interval(value, lowest=min(values), highest=max(values))
    count = max(1, *(len(session.replicates) for session in sessions))
    replicates = np.stack([s.replicates if len(s.replicates) else np.full(count, s.value) for s in sessions])
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(sessions), size=(REPLICATES, len(sessions)))
    within = rng.integers(0, count, size=drawn.shape)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(np.median(replicates[drawn, within], axis=1), [tail, 100.0 - tail])
    return Interval(value, float(low), float(high))
