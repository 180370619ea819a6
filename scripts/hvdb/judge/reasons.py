"""Says why a verdict is what it is, and what would decide a cell that is INCONCLUSIVE."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hvdb.base import progress
from hvdb.judge.sides import Outcome
from hvdb.judge.verdict import POWER, Judgement, Verdict

# Code of a verdict -> what it means. docs/gate.md lists them.
CODES = {
    "slower": "B is slower by more than the threshold",
    "not-slower": "B is not slower by the threshold",
    "too-few-pairs": "so few pairs cannot show it, whatever they say",
    "too-noisy": "the pairs spread so much that they show neither",
    "near-threshold": "the slowdown lies so near to the threshold that the pairs show neither",
}
FAR_PAIRS = 1000  # more are as good as never


def code(judgement: Judgement) -> str:
    """Returns the key of CODES for a verdict on a cell."""
    if judgement.verdict is Verdict.REGRESSION:
        return "slower"
    if judgement.verdict is Verdict.PASS:
        return "not-slower"
    if judgement.detectable is None or not judgement.low <= judgement.threshold <= judgement.high:
        return "too-few-pairs"
    return "near-threshold" if judgement.detectable < 2 * judgement.threshold else "too-noisy"


def pairs_needed(judgement: Judgement, level: float) -> float | None:
    """Returns about how many pairs would decide the cell with probability POWER, if its slowdown is the estimate.

    None if the pairs do not say how they spread. By the normal approximation of the signed-rank test, whose efficiency
    is 3 / pi. level: of the one-sided test.
    """
    distance = abs(math.log1p(judgement.slowdown) - math.log1p(judgement.threshold))
    if judgement.spread is None:
        return None
    if distance == 0:
        return math.inf
    normal = statistics.NormalDist()
    quantiles = normal.inv_cdf(1 - level) + normal.inv_cdf(POWER)
    return math.pi / 3 * (quantiles * judgement.spread / distance) ** 2


def explained(
    outcomes: Sequence[Outcome], level: float, pair_seconds: float | None = None, ended: str = ""
) -> list[str]:
    """Returns a line for each cell: what was compared, the code, and what would decide an INCONCLUSIVE one.

    level: of the one-sided test. pair_seconds: how long a pair takes; None if unknown. ended: why the gate ended early.
    """
    return [f"{outcome.name}: {_explained(outcome, level, pair_seconds, ended)}" for outcome in outcomes]


def _explained(outcome: Outcome, level: float, pair_seconds: float | None, ended: str) -> str:
    judgement = outcome.judgement
    a, b = judgement.observations
    compared = f"{a} pairs in turn" if outcome.paired else f"{a} of A and {b} of B, not in turn"
    why = f"{code(judgement)} ({CODES[code(judgement)]}); compared: {compared}"
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        return why
    if ended:
        why += f"; {ended}"
    return f"{why}; {_decider(judgement, level, pair_seconds)}"


def _decider(judgement: Judgement, level: float, pair_seconds: float | None) -> str:
    needed = pairs_needed(judgement, level)
    if needed is None:  # also of runs that were not measured in turn, which have no spread of pairs
        return "more runs of each side, or a gate, which measures in turn, would decide"
    if needed > FAR_PAIRS:
        return "no number of pairs decides it soon: choose another threshold, or longer runs"
    count = max(math.ceil(needed), judgement.observations[0] + 1)
    time = f" ({progress.duration(count * pair_seconds)})" if pair_seconds else ""
    cure = f"--pairs {count}" if count <= 100 else "longer runs or a quieter machine, because 100 pairs are the most,"
    return f"about {count} pairs{time} would decide it in {POWER:.0%} of gates: {cure} and another --db"
