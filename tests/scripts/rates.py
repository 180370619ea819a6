"""Bounds for rates of events that tests count."""

from __future__ import annotations

from scipy import stats


def at_most(events: int, trials: int) -> float:
    """Returns the upper end of the exact one-sided 99.9 % interval of events / trials (Clopper and Pearson)."""
    return float(stats.beta.ppf(0.999, events + 1, trials - events))
