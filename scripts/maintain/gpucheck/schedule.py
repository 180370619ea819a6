"""Decides which parts fit into the time left, and tabulates their results. Pure: time is a number."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

CLOSING_SECONDS = 15.0  # reserved for the tables and the archive


class Result(Enum):
    """How a part ended."""

    GOOD = "good"
    FAILED = "FAILED"
    CANNOT = "cannot run"
    CUT = "cut off"  # the call ended while the part ran: killed, interrupted, or out of --minutes
    NOT_YET = "not yet"


FINISHED = (Result.GOOD, Result.FAILED)  # a later call does not repeat parts with these results


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part: one line of the closing table."""

    part: str
    result: Result
    seconds: float = 0.0
    reason: str = ""
    estimate_seconds: float = 0.0
    started_utc: str = ""
    call: int = 0  # number of the call of gpu_check on this folder, from 1


@dataclass(frozen=True)
class Estimate:
    """Expected time of a part and its limit, in seconds."""

    part: str
    seconds: float
    limit: float


def to_do(parts: Sequence[Estimate], before: Mapping[str, Result], again: bool) -> list[Estimate]:
    """Returns the parts that are not finished, in their order."""
    return [estimate for estimate in parts if again or before.get(estimate.part) not in FINISHED]


def plan(parts: Sequence[Estimate], budget: float | None) -> list[str]:
    """Returns the parts that fit. `parts` come in order of value. A part that does not fit is skipped.

    budget: in seconds; None: no limit.
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
    """Returns the first part of `rest` that may start with `left` seconds left; None if there is no such part.

    A planned part may start if half of its estimate is left. An unplanned part may start if the planned parts still fit
    after this part.
    """
    startable = [e for e in rest if e.part in planned and left >= 0.5 * e.seconds]
    spare = left - sum(e.seconds for e in startable)
    return next((e for e in rest if e in startable or (e.part not in planned and e.seconds <= spare)), None)


def seconds_left(elapsed: float, budget: float | None) -> float:
    """Returns the seconds left for the parts."""
    return math.inf if budget is None else budget - CLOSING_SECONDS - elapsed


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if every part ran and is good, 1 if a part failed, 3 if no part failed but a part did not run."""
    if any(outcome.result is Result.FAILED for outcome in outcomes):
        return 1
    return 0 if outcomes and all(outcome.result is Result.GOOD for outcome in outcomes) else 3


def duration(seconds: float) -> str:
    """Returns a text such as "1:05" (minutes and seconds)."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a table of part, result, measured and estimated seconds, and reason; then a line on what is missing."""
    width = max([len(outcome.part) for outcome in outcomes] + [4])
    lines = [f"{'part':<{width}}  {'result':<10}  {'seconds':>7}  {'estimate':>8}  reason"]
    lines += [
        f"{o.part:<{width}}  {o.result.value:<10}  {o.seconds:>7.0f}  {o.estimate_seconds:>8.0f}  {o.reason}".rstrip()
        for o in outcomes
    ]
    return "\n".join(lines) + "\n" + missing_text(outcomes)


def missing_text(outcomes: Collection[Outcome]) -> str:
    """Returns one line with the parts that did not run to their end; "" if there are none."""
    missing = [o for o in outcomes if o.result not in FINISHED]
    if not missing:
        return ""
    seconds = sum(o.estimate_seconds for o in missing)
    names = ", ".join(o.part for o in missing)
    return f"missing: {len(missing)} of {len(outcomes)} parts, about {duration(seconds)} by estimate: {names}\n"
