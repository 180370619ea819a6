"""Computes error rates and power of gates from recorded pairs.

Gates are drawn one after another from the pairs in their order of time. Each gate judges its pairs as `hvdb gate` does,
and ends at the look that decides. The next gate begins with the next pair. The gates that are counted in one rate share
no pairs, so these gates are as independent as the pairs are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from . import packed
from .collect import LEVELS, PAIRS, slow_store
from hvdb import exact, runs, sides, tables, thresholds, verdict
from hvdb.errors import HvdbError
from hvdb.verdict import Trial, Verdict

THRESHOLD = thresholds.DEFAULT
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Series:
    """ratios: log(B / A) of the cost per image, one per pair, in the order of time. state: name of the folder."""

    state: str
    cell: str
    ratios: np.ndarray


@dataclass(frozen=True)
class Rate:
    """A fraction of gates: `hits` of `count`."""

    hits: int
    count: int

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.hits + other.hits, self.count + other.count)

    @property
    def interval(self) -> tuple[float, float]:
        """The exact two-sided 95 % interval of the probability. Source: Clopper and Pearson, Biometrika 26 (1934)."""
        found = stats.binomtest(self.hits, self.count).proportion_ci(CONFIDENCE)
        return float(found.low), float(found.high)

    @property
    def share(self) -> str:
        return f"{100 * self.hits / self.count:.1f} % of {self.count}" if self.count else "-"

    def __str__(self) -> str:
        if not self.count:
            return "-"
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.hits / self.count:.1f} % [{low:.1f}, {high:.1f}] of {self.count}"


def gate(ratios: np.ndarray, pairs: int = PAIRS) -> tuple[Verdict, int]:
    """Runs one gate on `ratios` (one per pair). The gate uses at most the first `pairs` ratios. Returns the verdict and
    the number of used pairs."""
    looks = verdict.plan_looks(1, pairs)
    trial = Trial({"cell": THRESHOLD}, len(looks))
    for look in looks:
        judged = trial.look({"cell": ratios[:look]})["cell"]
        if not trial.undecided:
            break
    return judged.verdict, look


def gates(ratios: np.ndarray, pairs: int = PAIRS) -> list[Verdict]:
    """Draws gates one after another from `ratios`, one ratio per pair. Each gate has at most `pairs` pairs. Returns the
    verdicts."""
    found, begin = [], 0
    while begin + pairs <= len(ratios):
        judged, used = gate(ratios[begin:], pairs)
        found.append(judged)
        begin += used
    return found


def windows(ratios: np.ndarray, pairs: int, largest_spread: float) -> list[np.ndarray]:
    """Returns groups of `pairs` consecutive pairs whose standard deviation is at most `largest_spread`."""
    cut = [ratios[begin : begin + pairs] for begin in range(0, len(ratios) - pairs + 1, pairs)]
    return [some for some in cut if np.std(some, ddof=1) <= largest_spread]


def _share(verdicts: Sequence[Verdict], wanted: Verdict) -> Rate:
    return Rate(Counter(verdicts)[wanted], len(verdicts))


def read(folder: Path, name: str) -> list[Series]:
    """Reads the pairs of each cell from store `name` of `folder`, packed or not. Errors: HvdbError."""
    if name not in (found := packed.stores(folder)):
        raise HvdbError(f"{folder}: there is no {name}.db; measure with `gate_proof collect`")
    with packed.unpacked(found[name]) as plain:
        cells = sides.labelled(runs.load([plain]))
    return [Series(folder.name, cell.name, sides.log_ratios(cell)) for cell in cells]


def _named(level: float) -> str:
    return f"{100 * level:.0f} %"


def _spread(ratios: np.ndarray) -> str:
    """Returns the standard deviation, and in brackets its estimate from the quartiles, which ignores outliers."""
    quartiles = np.percentile(ratios, [25, 75])
    return f"{100 * np.std(ratios, ddof=1):.1f} ({100 * (quartiles[1] - quartiles[0]) / 1.349:.1f})"


def errors_table(series: Sequence[Series]) -> str:
    """Tabulates the verdicts on equal sides, and on pairs whose side B is slower by exactly the threshold. For these
    pairs, both PASS and REGRESSION are wrong.

    For the last column, a gate begins at every pair. These gates share pairs, so the column has no interval.
    """
    header = (
        "machine, cell",
        "pairs",
        "spread % (without outliers)",
        "correlation of neighbours",
        "REGRESSION, equal sides",
        "PASS, equal sides",
        "REGRESSION at the threshold",
        "PASS at the threshold",
        "REGRESSION at the threshold, gates from every pair on",
    )
    rows, totals, shared = [], [Rate(0, 0)] * 4, Rate(0, 0)
    for each in series:
        slowed = each.ratios + math.log1p(THRESHOLD)
        equal, edge = gates(each.ratios), gates(slowed)
        rates = [_share(found, wanted) for found in (equal, edge) for wanted in (Verdict.REGRESSION, Verdict.PASS)]
        from_every = [gate(slowed[begin:])[0] for begin in range(len(slowed) - PAIRS + 1)]
        overlapping = _share(from_every, Verdict.REGRESSION)
        totals = [total + rate for total, rate in zip(totals, rates, strict=True)]
        correlation = np.corrcoef(each.ratios[:-1], each.ratios[1:])[0, 1]
        cells = (
            f"{len(each.ratios)}",
            _spread(each.ratios),
            f"{correlation:+.2f}",
            *map(str, rates),
            overlapping.share,
        )
        rows.append((f"{each.state}, {each.cell}", *cells))
        shared += overlapping
    pairs = sum(len(each.ratios) for each in series)
    rows.append(("together", f"{pairs}", "", "", *map(str, totals), shared.share))
    return tables.markdown_table(header, rows)


def power_table(series: Sequence[Series], injected: Sequence[tuple[float, Series]]) -> str:
    """Tabulates how many gates give REGRESSION, for gates with pairs that were shifted by log(1 + x), and for gates
    with a real slowdown."""
    header = (
        "machine, cell",
        "slowdown",
        "REGRESSION, shifted pairs",
        "REGRESSION, real slowdown",
        "measured slowdown",
    )
    rows = []
    for each in series:
        for level in LEVELS:
            real = [
                other for x, other in injected if x == level and (other.state, other.cell) == (each.state, each.cell)
            ]
            shifted = _share(gates(each.ratios + math.log1p(level)), Verdict.REGRESSION)
            found = ("-", "-")
            if real:
                effect = exact.paired_effect(real[0].ratios, CONFIDENCE)
                value, low, high = (100 * math.expm1(end) for end in (effect.value, effect.low, effect.high))
                rate = _share(gates(real[0].ratios), Verdict.REGRESSION)
                found = (str(rate), f"{value:.2f} % [{low:.2f}, {high:.2f}]")
            rows.append((f"{each.state}, {each.cell}", _named(level), str(shifted), *found))
    return tables.markdown_table(header, rows)


def shape_table(series: Sequence[Series]) -> str:
    """Tabulates the power by distance of the slowdown from the threshold, in standard deviations of a gate's pairs."""
    header = ("pairs", "example", "standard deviations above the threshold", "REGRESSION")
    rows = []
    for pairs, level, spread in ((12, 0.03, 0.008), (10, 0.05, 0.015)):
        distance = (math.log1p(level) - math.log1p(THRESHOLD)) / spread
        groups = [group for each in series for group in windows(each.ratios, pairs, math.inf)]
        moved = [group + math.log1p(THRESHOLD) + distance * np.std(group, ddof=1) for group in groups]
        rate = _share([gates(group, pairs)[0] for group in moved], Verdict.REGRESSION)
        rows.append((f"{pairs}", f"{_named(level)} at a spread of {100 * spread:.1f} %", f"{distance:.2f}", str(rate)))
    return tables.markdown_table(header, rows)


def spread_table(series: Sequence[Series]) -> str:
    """Tabulates the power by spread of the pairs. Groups of pairs with a limited spread are shifted by log(1 + x)."""
    header = ("pairs", "spread at most", *(f"REGRESSION at {_named(level)}" for level in LEVELS))
    rows = []
    for pairs, spread in ((12, 0.008), (10, 0.015), (12, 0.015), (12, 0.03), (12, math.inf)):
        groups = [group for each in series for group in windows(each.ratios, pairs, spread)]
        rates = []
        for level in LEVELS:
            found = [gates(group + math.log1p(level), pairs)[0] for group in groups]
            rates.append(str(_share(found, Verdict.REGRESSION)))
        rows.append((f"{pairs}", f"{100 * spread:.1f} %" if spread < math.inf else "any", *rates))
    return tables.markdown_table(header, rows)


def page(folders: Sequence[Path]) -> str:
    """Returns all tables as Markdown, from the stores of `folders`. Errors: HvdbError."""
    series = [each for folder in folders for each in read(folder, "equal")]
    injected = [
        (level, each)
        for folder in folders
        for level in LEVELS
        if slow_store(level) in packed.stores(folder)
        for each in read(folder, slow_store(level))
    ]
    looks = ", ".join(map(str, verdict.plan_looks(1, PAIRS)))
    return (
        "\n\n".join(
            (
                f"Gates of one cell with at most {PAIRS} pairs (looks at {looks}), threshold {_named(THRESHOLD)}.",
                "## False alarms\n\n" + errors_table(series),
                "## Power\n\n" + power_table(series, injected),
                "## Power by spread\n\n" + spread_table(series),
                "## Power by distance from the threshold\n\n" + shape_table(series),
            )
        )
        + "\n"
    )
