"""Which parts fit into the time that there is, and what became of each. Pure: time is a number."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

CLOSING_SECONDS = 15.0  # for the tables and the archive


class Result(Enum):
    """How a part ended."""

    GOOD = "good"
    FAILED = "FAILED"
    CANNOT = "cannot run"
    CUT = "cut off"  # by the end of the call: killed, interrupted, or out of its --minutes
    NOT_YET = "not yet"


FINISHED = (Result.GOOD, Result.FAILED)  # a later call does not repeat these


@dataclass(frozen=True)
class Outcome:
    """One line of the closing table."""

    part: str
    result: Result
    seconds: float = 0.0
    reason: str = ""
    estimate_seconds: float = 0.0
    started_utc: str = ""
    call: int = 0  # which call of gpu_check on this folder, from 1


@dataclass(frozen=True)
class Estimate:
    """What a part usually takes, and what it may take at most."""

    part: str
    seconds: float
    limit: float


def to_do(parts: Sequence[Estimate], before: Mapping[str, Result], again: bool) -> list[Estimate]:
    """The parts that are not finished, in their order."""
    return [estimate for estimate in parts if again or before.get(estimate.part) not in FINISHED]


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


def next_part(rest: Sequence[Estimate], planned: Collection[str], left: float) -> Estimate | None:
    """The first of `rest` that may start with `left` seconds to go; None ends the call.

    A planned part may start if half of its estimate is left. An unplanned part may start if the planned ones still fit
    after it.
    """
    startable = [e for e in rest if e.part in planned and left >= 0.5 * e.seconds]
    spare = left - sum(e.seconds for e in startable)
    return next((e for e in rest if e in startable or (e.part not in planned and e.seconds <= spare)), None)


def seconds_left(elapsed: float, budget: float | None) -> float:
    """For the parts."""
    return math.inf if budget is None else budget - CLOSING_SECONDS - elapsed


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
    """Part, result, seconds measured and estimated, reason; and what is missing."""
    width = max([len(outcome.part) for outcome in outcomes] + [4])
    lines = [f"{'part':<{width}}  {'result':<10}  {'seconds':>7}  {'estimate':>8}  reason"]
    lines += [
        f"{o.part:<{width}}  {o.result.value:<10}  {o.seconds:>7.0f}  {o.estimate_seconds:>8.0f}  {o.reason}".rstrip()
        for o in outcomes
    ]
    return "\n".join(lines) + "\n" + missing_text(outcomes)


def missing_text(outcomes: Collection[Outcome]) -> str:
    """One line with the parts that did not run to their end; empty where all did."""
    missing = [o for o in outcomes if o.result not in FINISHED]
    if not missing:
        return ""
    seconds = sum(o.estimate_seconds for o in missing)
    names = ", ".join(o.part for o in missing)
    return f"missing: {len(missing)} of {len(outcomes)} parts, about {duration(seconds)} by estimate: {names}\n"
