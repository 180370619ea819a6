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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.base import toml_tables
from hvdb.read.runs import Run

DEFAULT = 0.02
# "cost": seconds per image. "efficiency": seconds per image / seconds per image of one rank alone = 1 / efficiency.
COST, EFFICIENCY = METRICS = ("cost", "efficiency")
_MAX_RULES = 100


@dataclass(frozen=True)
class Rule:
    """slowdown: 0.05 is 5 %. model: None for any network. ranks: None for any number of ranks."""

    slowdown: float
    model: str | None = None
    ranks: int | None = None
    reason: str = ""

    def fits(self, run: Run) -> bool:
        return self.model in (None, run.model) and self.ranks in (None, run.world_size)


@dataclass(frozen=True)
class Thresholds:
    """default: the tolerated slowdown of a cell that no rule fits. rules: the first rule that fits a cell counts."""

    default: float = DEFAULT
    rules: tuple[Rule, ...] = ()

    def rule(self, run: Run) -> Rule:
        """Returns the first rule that fits `run`. If no rule fits, returns a rule with the default slowdown."""
        return next((rule for rule in self.rules if rule.fits(run)), Rule(self.default))


def tolerated(value: object) -> float:
    """Returns `value` if it is a slowdown above 0 and at most 1 (100 %). Errors: ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= 1:
        raise ValueError(f"{value!r} is not a slowdown above 0, up to 100 %")
    return float(value)


def rules(entries: Sequence[Mapping[str, Any]], unit: str, metric: str = COST) -> tuple[Rule, ...]:
    """Returns the rules of `metric` from tables of plain values.

    unit: the key of the slowdown in a table; 'percent' for percentages, 'slowdown' for ratios.
    Errors: ValueError for any faulty rule, even if the rule belongs to another metric.
    """
    if len(entries) > _MAX_RULES:
        raise ValueError(f"{len(entries)} rules; {_MAX_RULES} are the most")
    made = []
    for number, table in enumerate(entries, 1):
        where = f"rule {number}"
        kinds = {unit: object, "model": str, "ranks": int, "metric": str, "reason": str}
        toml_tables.check_types(table, kinds, where)
        if unit not in table:
            raise ValueError(f"{where}: {unit} is missing")
        own = table.get("metric", COST)
        if own not in METRICS:
            raise ValueError(f"{where}: metric is {own!r}, and not one of {', '.join(METRICS)}")
        value = table[unit]
        if unit == "percent" and isinstance(value, int | float):
            value = value / 100
        rule = Rule(tolerated(value), table.get("model"), table.get("ranks"), table.get("reason") or "")
        if own == metric:
            made.append(rule)
    return tuple(made)


def read(file: Path, metric: str = COST) -> tuple[Rule, ...]:
    """Returns the rules of `metric` in the TOML file `file`. Errors: HvdbError, OSError."""
    with toml_tables.faults_of(file):
        return rules(toml_tables.tables(toml_tables.content(file), "threshold"), "percent", metric)
