"""Which slowdown is tolerated for which cell: one default, and rules from a file that a team keeps beside its code.

    [[threshold]]
    model = "vgg16"   # optional: only this network
    ranks = 2         # optional: only this number of ranks
    percent = 5
    reason = "its first layer is bound by memory, which spreads more on our runner"

The first rule that fits a cell counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.errors import HvdbError
from hvdb.runs import Run

DEFAULT = 0.02
_LARGEST_FILE = 100_000
_MOST_RULES = 100


@dataclass(frozen=True)
class Rule:
    """slowdown: 0.05 is 5 %. model, ranks: None for any."""

    slowdown: float
    model: str | None = None
    ranks: int | None = None
    reason: str = ""

    def fits(self, run: Run) -> bool:
        return self.model in (None, run.model) and self.ranks in (None, run.world_size)


@dataclass(frozen=True)
class Thresholds:
    """What is tolerated where no rule fits, and the rules."""

    default: float = DEFAULT
    rules: tuple[Rule, ...] = ()

    def rule(self, run: Run) -> Rule:
        """The rule for the cell that `run` belongs to."""
        return next((rule for rule in self.rules if rule.fits(run)), Rule(self.default))


def tolerated(value: object) -> float:
    """`value` as a slowdown above 0, up to 1 (100 %). Errors: ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 < value <= 1:
        raise ValueError(f"{value!r} is no slowdown above 0, up to 100 %")
    return float(value)


def rules(found: Sequence[Mapping[str, Any]], unit: str) -> tuple[Rule, ...]:
    """Rules from tables of plain values. unit: 'percent', or 'slowdown' for ratios. Errors: ValueError."""
    if len(found) > _MOST_RULES:
        raise ValueError(f"{len(found)} rules; {_MOST_RULES} are the most")
    made = []
    for number, table in enumerate(found, 1):
        if unknown := set(table) - {unit, "model", "ranks", "reason"}:
            raise ValueError(f"rule {number}: unknown key {sorted(unknown)[0]!r}")
        if unit not in table:
            raise ValueError(f"rule {number}: {unit} is missing")
        for key, kind in (("model", str), ("ranks", int), ("reason", str)):
            value = table.get(key)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ValueError(f"rule {number}: {key} is {value!r}")
        value = table[unit]
        if unit == "percent" and isinstance(value, int | float) and not isinstance(value, bool):
            value = value / 100
        made.append(Rule(tolerated(value), table.get("model"), table.get("ranks"), table.get("reason") or ""))
    return tuple(made)


def read(file: Path) -> tuple[Rule, ...]:
    """The rules of a TOML file. Errors: HvdbError, also with a Python older than 3.11; OSError."""
    try:
        import tomllib
    except ModuleNotFoundError:
        raise HvdbError(f"{file}: a file of thresholds needs Python 3.11 or newer (HVD_PYTHON names one)") from None
    with file.open("rb") as opened:
        content = opened.read(_LARGEST_FILE + 1)
    try:
        if len(content) > _LARGEST_FILE:
            raise ValueError("too long for a file of thresholds")
        found = tomllib.loads(content.decode())
        if unknown := set(found) - {"threshold"}:
            raise ValueError(f"unknown key {sorted(unknown)[0]!r}; a rule begins with [[threshold]]")
        tables = found.get("threshold", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ValueError("a rule begins with [[threshold]]")
        return rules(tables, "percent")
    except (ValueError, RecursionError) as error:
        raise HvdbError(f"{file}: {error}") from error
