"""Which parts fit into the time that there is, and what became of each. Pure: time is a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

CLOSING_SECONDS = 15.0  # for the tables and the archive


class Result(Enum):
    """How a part ended."""

    GOOD = "good"
    FAILED = "FAILED"
    CANNOT = "cannot run"
    NO_TIME = "no time"


@dataclass(frozen=True)
class Outcome:
    """One line of the closing table."""

    part: str
    result: Result
    seconds: float
    reason: str


@dataclass(frozen=True)
class Estimate:
    """What a part usually takes, and what it may take at most."""

    part: str
    seconds: float
    limit: float


def plan(parts: Sequence[Estimate], budget: float | None) -> list[str]:
    """The parts that fit, in their order, which is that of their value; one that does not fit makes room for the next.

    `budget` is in seconds, None for no bound.
    """
    if budget is None:
        return [estimate.part for estimate in parts]
    left = budget - CLOSING_SECONDS
    chosen = []
    for estimate in parts:
        if estimate.seconds <= left:
            chosen.append(estimate.part)
            left -= estimate.seconds
    return chosen


def limit_of(estimate: Estimate, elapsed: float, budget: float | None) -> float:
    """Seconds that a part which starts now may take; 0 if it should not start."""
    if budget is None:
        return estimate.limit
    left = budget - CLOSING_SECONDS - elapsed
    # Half of what it usually takes may be enough; less is not worth beginning.
    return min(estimate.limit, left) if left >= 0.5 * estimate.seconds else 0.0


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0: every part ran and is good; 1: one failed; 3: none failed, but some did not run."""
    if any(outcome.result is Result.FAILED for outcome in outcomes):
        return 1
    return 0 if outcomes and all(outcome.result is Result.GOOD for outcome in outcomes) else 3


def duration(seconds: float) -> str:
    """ "1:05" """
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Part, result, seconds, reason."""
    width = max([len(outcome.part) for outcome in outcomes] + [4])
    lines = [f"{'part':<{width}}  {'result':<10}  {'seconds':>7}  reason"]
    lines += [f"{o.part:<{width}}  {o.result.value:<10}  {o.seconds:>7.0f}  {o.reason}" for o in outcomes]
    return "\n".join(lines) + "\n"
