"""Tolerated slowdowns: a default, and rules for some cells. A team keeps such rules in a TOML file beside its code:

    [[threshold]]
    model = "vgg16"   # optional: only this network
    ranks = 2         # optional: only this number of ranks
    metric = "cost"   # optional: one of METRICS; "cost" is the default
    percent = 5
    reason = "its first layer is bound by memory, which spreads more on our runner"

The first rule that fits a cell counts. The commands gate and compare judge only the cost, so they ignore the rules of
other metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hvdb.base import record
from hvdb.base.record import Count, From, Words
from hvdb.read.runs import Run

DEFAULT = 0.02
# "cost": seconds per image. "efficiency": seconds per image / seconds per image of one rank alone = 1 / efficiency.
COST, EFFICIENCY = METRICS = ("cost", "efficiency")
_MAX_RULES = 100


def tolerated(value: float) -> float:
    """Returns `value` if it is a slowdown above 0 and at most 1 (100 %). Errors: ValueError."""
    if not 0 < value <= 1:
        raise ValueError(f"{value!r} is not a slowdown above 0, up to 100 %")
    return value


def _of_percent(percent: float) -> float:
    return tolerated(percent / 100)


Slowdown = Annotated[float, From(float, tolerated)]


@dataclass(frozen=True)
class Rule:
    """slowdown: 0.05 is 5 %. model: None for any network. ranks: None for any number of ranks."""

    slowdown: Slowdown
    model: str | None = None
    ranks: int | None = None
    reason: str = ""

    def fits(self, run: Run) -> bool:
        return self.model in (None, run.model) and self.ranks in (None, run.world_size)


@dataclass(frozen=True)
class Thresholds:
    """default: the tolerated slowdown of a cell that no rule fits. rules: the first rule that fits a cell counts."""

    default: Slowdown = DEFAULT
    rules: Annotated[tuple[Rule, ...], Count(_MAX_RULES)] = ()

    def rule(self, run: Run) -> Rule:
        """Returns the first rule that fits `run`. If no rule fits, returns a rule with the default slowdown."""
        return next((rule for rule in self.rules if rule.fits(run)), Rule(self.default))


@dataclass(frozen=True)
class _Entry:
    """A table of the TOML file. percent: of the file, becomes the ratio Rule.slowdown."""

    percent: Annotated[float, From(float, _of_percent)]
    model: str | None = None
    ranks: int | None = None
    reason: str = ""
    metric: Annotated[str, Words(METRICS)] = COST


def read(file: Path, metric: str = COST) -> tuple[Rule, ...]:
    """Returns the rules of `metric` in the TOML file `file`. Errors: HvdbError, also for rules of other metrics."""
    with record.faults_of(file):
        found = record.entries(_Entry, record.content(file), "threshold", _MAX_RULES)
    return tuple(Rule(one.percent, one.model, one.ranks, one.reason) for one in found if one.metric == metric)
