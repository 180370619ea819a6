"""Runs parts within their time limits, one after another, and reports progress."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Sequence
from dataclasses import replace

from .ledger import Ledger
from .parts import Part
from .schedule import Estimate, Outcome, Result, duration, next_part, plan, seconds_left, to_do
from .visit import CannotRun, CutShort, PartFailed, Visit

RUNNING = "gpu_check ended while it ran"


class Progress:
    """Prints lines with the elapsed time and the estimated time left."""

    def __init__(self, budget: float | None) -> None:
        self._begun = time.monotonic()
        self._budget = budget
        self.expected_end = 0.0

    def elapsed(self) -> float:
        """Returns the seconds since the start."""
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        """Prints one line without delay. Ignores errors, because the visit goes on even without a reader."""
        left = max(0.0, self.expected_end - self.elapsed())
        if self._budget is not None:
            left = min(left, max(0.0, self._budget - self.elapsed()))
        with contextlib.suppress(OSError):
            print(f"[{duration(self.elapsed()):>5}, about {duration(left)} left] {text}", flush=True)


def run_part(visit: Visit, part: Part, seconds: float) -> tuple[Result, float, str]:
    """Runs a part. Returns the part's result, its seconds and the reason. Never raises for a failure of a part."""
    begun = time.monotonic()
    visit.part, visit.part_ends, visit.shortened = part.estimate.part, begun + seconds, seconds < part.estimate.limit
    try:
        result, reason = Result.GOOD, part.run(visit)
    except PartFailed as error:
        result, reason = Result.FAILED, str(error)
    except CannotRun as error:
        result, reason = Result.CANNOT, str(error)
    except CutShort as error:
        result, reason = Result.CUT, str(error)
    except Exception as error:  # the other parts still run
        result, reason = Result.FAILED, f"{type(error).__name__}: {error}"
    took = time.monotonic() - begun
    if result is Result.FAILED and took >= seconds:
        result = Result.CUT if visit.shortened else result
        reason = f"time limit of {seconds:.0f} s; {reason}"
    return result, took, " ".join(reason.split())


def plan_text(chosen: Sequence[Estimate], budget: float | None) -> str:
    """Returns one line about the parts that a call is about to run."""
    total = sum(estimate.seconds for estimate in chosen)
    of = "" if budget is None else f" of {duration(budget)}"
    names = ", ".join(f"{estimate.part} {estimate.seconds:.0f} s" for estimate in chosen)
    return f"{len(chosen)} parts, about {duration(total)}{of} (estimates): {names or 'nothing'}"


def run_parts(
    visit: Visit, parts: list[Part], budget: float | None, progress: Progress, ledger: Ledger, again: bool
) -> None:
    """Runs the unfinished parts that fit, in order. The ledger records the beginning and the end of each part."""
    rest = to_do([part.estimate for part in parts], ledger.results(), again)
    planned = plan(rest, budget)
    progress.say(plan_text([estimate for estimate in rest if estimate.part in planned], budget))
    run = {part.estimate.part: part for part in parts}
    while estimate := next_part(rest, planned, left := seconds_left(progress.elapsed(), budget)):
        progress.expected_end = progress.elapsed() + sum(e.seconds for e in rest if e.part in planned)
        rest.remove(estimate)
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        begun = Outcome(estimate.part, Result.CUT, 0.0, RUNNING, estimate.seconds, started, ledger.call)
        ledger.put(begun)
        result, took, reason = run_part(visit, run[estimate.part], min(estimate.limit, left))
        ended = replace(begun, result=result, seconds=took, reason=reason)
        ledger.put(ended)
        progress.say(f"{ended.part}: {ended.result.value}: {ended.reason}")
