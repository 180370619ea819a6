"""Bounds of the rates that a test counts."""

from __future__ import annotations

from scipy import stats


def at_most(events: int, trials: int) -> float:
    """The upper end of the exact one-sided 99.9 % interval (Clopper and Pearson) of a rate."""
    return float(stats.beta.ppf(0.999, events + 1, trials - events))
