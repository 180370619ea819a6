"""A figure with its interval, as stores, judgements and predictions have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def one_decimal(value: float) -> str:
    """Returns `value` as text with one decimal."""
    return f"{value:.1f}"


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its interval. The function or field that has it says which interval that is.

    low, high: None if no interval is known; infinite if an exact test has too few observations for an end.
    lowest, highest: range over the sessions if there are at least two sessions but too few for an interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def known(self) -> bool:
        """True if the figure has both ends."""
        return self.low is not None and self.high is not None

    @property
    def width(self) -> float:
        """The length of the interval, which must be known."""
        return self.high - self.low

    def holds(self, value: float) -> bool:
        """Returns True if the interval, which must be known, contains `value`."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Interval:
        """Returns the figure and its ends multiplied by `factor` > 0, for another unit."""
        ends = (self.low, self.high, self.lowest, self.highest)
        return Interval(self.value * factor, *(None if end is None else end * factor for end in ends))

    def text(self, factor: float = 100.0, form: Callable[[float], str] = one_decimal, unit: str = "") -> str:
        """Returns the figure times `factor` as text: `84.1 [80.0, 87.3]`. unit: text after the figure, such as " %".

        Without an interval, returns `value (lowest .. highest)` for several sessions and `value` for one session.
        """
        shown = self.scaled(factor)
        value = f"{form(shown.value)}{unit}"
        if shown.lowest is not None and shown.highest is not None:
            return f"{value} ({form(shown.lowest)} .. {form(shown.highest)})"
        return f"{value} [{form(shown.low)}, {form(shown.high)}]" if shown.known else value
