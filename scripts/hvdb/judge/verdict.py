"""Decides whether side B is slower than side A by more than a threshold. The probability of a wrong verdict is bounded.

A cell is one configuration. Its observations are log ratios of the cost per image, B to A: a positive observation means
that B is slower. Two one-sided exact tests decide. The verdict is REGRESSION if the hypothesis "B is slower by at most
the threshold" is rejected, and PASS if the hypothesis "B is slower by at least the threshold" is rejected. Otherwise
the verdict is INCONCLUSIVE.

The cells are judged at several looks at the data. The number of looks is planned beforehand. Between two looks,
undecided cells get more pairs. Each look may use up alpha / looks, and Holm's procedure divides this share among the
cells. So the probability that any REGRESSION verdict is wrong is at most alpha, over all cells and looks, and likewise
for PASS, if the observations meet the assumptions in exact.py.
Source: Holm, Scandinavian Journal of Statistics 6 (1979); Schuirmann 1987 for two one-sided tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError
from hvdb.base.interval import Interval
from hvdb.judge import exact

ALPHA = 0.05
CONFIDENCE = 0.95
LOOKS = 3
_FAILURES = "\0failures"  # the hypothesis on failures among those on cells, whose names print
# A slowdown counts as detectable if the test finds it with this probability.
POWER = 0.9
RESAMPLES = 1000


class Verdict(Enum):
    PASS = "PASS"
    REGRESSION = "REGRESSION"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Judgement:
    """The result for one cell. Ratios are slowdowns of B: 0.03 means that B takes 3 % longer per image.

    slowdown: Hodges-Lehmann estimate. low, high: its exact 95 % interval; low and high are infinite with too few pairs.
    p_worse: p-value of "B is slower by at most the threshold". p_fine: p-value of "B is slower by at least the
    threshold". Both are p-values before Holm's correction.
    find_detectable: computes `detectable`.
    spread: standard deviation of the pairs' log ratios; None for one pair or for unpaired runs.
    observations: number of used runs of A, number of used runs of B.
    """

    verdict: Verdict
    threshold: float
    slowdown: float
    low: float
    high: float
    p_worse: float
    p_fine: float
    find_detectable: Callable[[], float | None]
    spread: float | None
    observations: tuple[int, int]

    @property
    def interval(self) -> Interval:
        """The slowdown with its interval."""
        return Interval(self.slowdown, self.low, self.high)

    @cached_property
    def detectable(self) -> float | None:
        """The smallest slowdown that the test would have found with probability POWER; None if there is none."""
        return self.find_detectable()


def plan_looks(cells: int, cap: int, more: int = 0, alpha: float = ALPHA, looks: int = LOOKS) -> tuple[int, ...]:
    """Returns the numbers of pairs after which the cells are judged (the looks), ascending. The last number is `cap`.

    Each look has enough pairs for a verdict. If `cap` is too small for `looks` such looks, fewer looks are planned.
    more: the number of hypotheses that share alpha with those on the cells.
    Errors: HvdbError if even `cap` pairs are too few for a verdict.
    """
    hypotheses = cells + more
    for count in range(looks, 0, -1):
        fewest = exact.fewest_pairs(alpha / (hypotheses * count))
        if fewest + count - 1 <= cap:
            return tuple(round(pairs) for pairs in np.linspace(fewest, cap, count)) if count > 1 else (cap,)
    fewest = exact.fewest_pairs(alpha / hypotheses)
    raise HvdbError(
        f"{cap} pairs can never lead to a verdict on {cells} cell{'s' if cells > 1 else ''}: {cap} pairs that all "
        f"agree are not significant; ask for at least {fewest} pairs"
    )


def holm(p_values: Mapping[str, float], level: float) -> set[str]:
    """Returns the hypotheses that Holm's procedure rejects at the family-wise error rate `level`."""
    rejected: set[str] = set()
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        if p_values[name] > level / (len(p_values) - rank) * (1 + 1e-12):  # 1e-12 allows for the rounding of 1/20
            break
        rejected.add(name)
    return rejected


class Trial:
    """Judges cells at one look after another and remembers the decisions of earlier looks. For one thread.

    b_fails: True once the hypothesis "B fails at most as often as A" is rejected.
    """

    def __init__(
        self, thresholds: Mapping[str, float], looks: int, alpha: float = ALPHA, *, counts_failures: bool = False
    ) -> None:
        """thresholds: cell -> tolerated slowdown, above 0 (0.02: 2 %). looks: number of planned looks.

        counts_failures: True if the hypothesis on failures shares alpha with those on slowdowns.
        """
        self._thresholds = dict(thresholds)
        self._level = alpha / looks
        self._decided: dict[str, Judgement] = {}
        self._counts_failures = counts_failures
        self.b_fails = False

    @property
    def undecided(self) -> list[str]:
        """The cells that have neither PASS nor REGRESSION yet, in the order of the thresholds."""
        return [cell for cell in self._thresholds if cell not in self._decided]

    def look(self, ratios: Mapping[str, np.ndarray], failed: tuple[int, int] = (0, 0)) -> dict[str, Judgement]:
        """Judges the undecided cells at the next look. Returns the judgements of all cells that have a ratio.

        ratios: undecided cell -> log ratios B / A of the cost per image (pairs,), all finite. failed: in how many pairs
        only A failed, and only B.
        """
        hypotheses = len(self._thresholds) + self._counts_failures
        least = self._level / hypotheses  # the lowest level at which Holm's procedure may test a cell
        measured = {
            cell: _measure(ratios[cell], self._thresholds[cell], least) for cell in self.undecided if len(ratios[cell])
        }
        others = {cell: 1.0 for cell in self.undecided if cell not in measured}
        if self._counts_failures:
            others[_FAILURES] = 0.0 if self.b_fails else exact.sign_p(*failed)
        judged, worse = _decide(self._decided | measured, self._level, others)
        self.b_fails = _FAILURES in worse
        self._decided = {
            cell: judgement for cell, judgement in judged.items() if judgement.verdict is not Verdict.INCONCLUSIVE
        }
        return {cell: judged[cell] for cell in self._thresholds if cell in judged}


@dataclass(frozen=True)
class Replayed:
    """What the pairs so far say. judged: of every cell with a whole pair, at the last look that was possible.

    lacking: the cells that need more pairs for the next look; empty if every cell has a verdict, B fails, or the last
    look is done. b_fails: Trial.b_fails. level: at which Holm's procedure tests the least of the hypotheses of a look.
    """

    judged: dict[str, Judgement]
    lacking: list[str]
    b_fails: bool
    level: float


def replay(
    ratios: Mapping[str, np.ndarray],
    thresholds: Mapping[str, float],
    looks: Sequence[int],
    failed: Callable[[int], tuple[int, int]] | None = None,
    *,
    ended: bool = False,
) -> Replayed:
    """Judges cells at the planned `looks`, one after another, until a look needs more pairs than there are.

    ratios: cell -> log ratios of its pairs, in the order of time; NaN for a pair that is void. thresholds: cell ->
    tolerated slowdown. failed: returns in how many of the first n pairs only A failed, and only B; None: failures are
    no hypothesis. ended: the time is up, so that the next look takes what is there, and is the last one.
    """
    trial = Trial(thresholds, len(looks), counts_failures=failed is not None)
    judged: dict[str, Judgement] = {}
    lacking: list[str] = []
    for pairs in looks:
        lacking = [name for name in trial.undecided if len(ratios[name]) < pairs]
        if lacking and not ended:
            break
        taken = {name: ratios[name][:pairs] for name in trial.undecided}
        finite = {name: some[np.isfinite(some)] for name, some in taken.items()}
        judged = trial.look(finite, failed(pairs) if failed else (0, 0)) or judged
        if lacking or trial.b_fails or not trial.undecided:
            lacking = []
            break
    least = ALPHA / len(looks) / (len(thresholds) + (failed is not None))
    return Replayed(judged, lacking, trial.b_fails, least)


def judge_unpaired(
    costs: Mapping[str, tuple[np.ndarray, np.ndarray]], thresholds: Mapping[str, float], alpha: float = ALPHA
) -> dict[str, Judgement]:
    """Judges cells whose sides were not measured in turn. There is only one look.

    costs: cell -> (log costs per image of the runs of A (n,), those of B (m,)). n and m must be at least 1, and all
    costs must be finite.
    """
    measured = {cell: _measure_unpaired(a, b, thresholds[cell], alpha / len(costs)) for cell, (a, b) in costs.items()}
    return _decide(measured, alpha, {})[0]


def _decide(
    measured: Mapping[str, Judgement], level: float, others: Mapping[str, float]
) -> tuple[dict[str, Judgement], set[str]]:
    """Adds verdicts by Holm's procedure, once for REGRESSION and once for PASS. A judgement with a verdict keeps it.

    others: p-values of hypotheses that share `level` with the cells' of REGRESSION. Also returns the names of all
    hypotheses of REGRESSION that are rejected. A hypothesis that was rejected at an earlier look counts as p = 0,
    because its error counts at the earlier look.
    """

    def p_value(judgement: Judgement, direction: Verdict) -> float:
        if judgement.verdict is Verdict.INCONCLUSIVE:
            return judgement.p_worse if direction is Verdict.REGRESSION else judgement.p_fine
        return 0.0 if judgement.verdict is direction else 1.0

    worse, fine = (
        holm(shared | {cell: p_value(judgement, direction) for cell, judgement in measured.items()}, level)
        for direction, shared in (
            (Verdict.REGRESSION, dict(others)),
            (Verdict.PASS, {name: 1.0 for name in others if name != _FAILURES}),
        )
    )
    judged = {}
    for cell, judgement in measured.items():
        verdict = judgement.verdict
        if verdict is Verdict.INCONCLUSIVE:
            verdict = Verdict.REGRESSION if cell in worse else Verdict.PASS if cell in fine else verdict
        judged[cell] = dataclasses.replace(judgement, verdict=verdict)
    return judged, worse


def _undecided(effect: Interval, threshold: float, **others: Any) -> Judgement:
    """Returns a judgement without a verdict. effect: the estimated log ratio. others: the other fields of Judgement."""
    return Judgement(
        verdict=Verdict.INCONCLUSIVE,
        threshold=threshold,
        slowdown=exact.growth(effect.value),
        low=exact.growth(effect.low),
        high=exact.growth(effect.high),
        **others,
    )


def _measure(ratios: np.ndarray, threshold: float, level: float) -> Judgement:
    shifted = ratios - math.log1p(threshold)
    return _undecided(
        exact.paired_effect(ratios, CONFIDENCE),
        threshold,
        p_worse=exact.signed_rank_p(shifted),
        p_fine=exact.signed_rank_p(-shifted),
        find_detectable=lambda: detectable(ratios, threshold, level),
        spread=float(np.std(ratios, ddof=1)) if len(ratios) > 1 else None,
        observations=(len(ratios), len(ratios)),
    )


def _measure_unpaired(a: np.ndarray, b: np.ndarray, threshold: float, level: float) -> Judgement:
    shifted = a + math.log1p(threshold)
    return _undecided(
        exact.unpaired_effect(a, b, CONFIDENCE),
        threshold,
        p_worse=exact.rank_sum_p(shifted, b),
        p_fine=exact.rank_sum_p(-shifted, -b),
        find_detectable=lambda: _detectable_unpaired(a, b, threshold, level),
        spread=None,
        observations=(len(a), len(b)),
    )


def _detectable_unpaired(a: np.ndarray, b: np.ndarray, threshold: float, level: float, seed: int = 1) -> float | None:
    """Does the same as detectable(), but for two groups of runs that were not measured in turn."""
    if math.isinf(exact.unpaired_effect(a, b, 1 - 2 * level).low):
        return None
    rng = np.random.default_rng(seed)
    deviations = [(side - np.median(side)) * math.sqrt(len(side) / max(1, len(side) - 1)) for side in (a, b)]
    lows = [
        exact.unpaired_effect(*(rng.choice(side, len(side)) for side in deviations), 1 - 2 * level).low
        for _ in range(RESAMPLES)
    ]
    return math.expm1(math.log1p(threshold) - float(np.quantile(lows, 1 - POWER)))


def detectable(
    ratios: np.ndarray, threshold: float, level: float, pairs: int | None = None, seed: int = 1
) -> float | None:
    """Returns the smallest slowdown that is judged REGRESSION with probability POWER, or None with too few pairs.

    Assumes new pairs, equal to `ratios` (at least two) in spread. Resamples the deviations of `ratios` from their
    centre with random signs. level: of the one-sided test. pairs: how many new pairs; None: as many as `ratios`.
    """
    count = len(ratios)
    pairs = pairs or count
    if count < 2 or pairs < exact.fewest_pairs(level):
        return None
    rng = np.random.default_rng(seed)
    deviations = (ratios - np.median(exact.walsh_averages(ratios))) * math.sqrt(count / (count - 1))
    drawn = rng.choice(deviations, (RESAMPLES, pairs)) * rng.choice((-1.0, 1.0), (RESAMPLES, pairs))
    lows = np.concatenate([exact.paired_lower_bounds(some, level) for some in np.array_split(drawn, 20)])
    # A resample shows a slowdown x if the lower bound of the resample + log(1 + x) is above log(1 + threshold).
    return math.expm1(math.log1p(threshold) - float(np.quantile(lows, 1 - POWER)))


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Returns 1 if any verdict is REGRESSION, else 3 if any is INCONCLUSIVE, else 0. Errors: ValueError if none."""
    if not verdicts:
        raise ValueError("a verdict on no cell would pass whatever happened")
    if Verdict.REGRESSION in verdicts:
        return EXIT_CHECK_FAILED
    return EXIT_INCONCLUSIVE if Verdict.INCONCLUSIVE in verdicts else EXIT_GOOD
