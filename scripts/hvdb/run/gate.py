"""Measures the sides A and B in pairs, in one allocation, until it is clear whether B is slower than A.

The kinds of sides (stored_sides.py: runs of hvd_bench; printed_sides.py: what another program prints) say how a run is
made and what the pairs say. The loop here is the same for all.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from hvdb.base import edge, locks, process, progress
from hvdb.base.errors import HvdbError
from hvdb.judge import verdict
from hvdb.judge.outcomes import Report
from hvdb.run import gate_plan
from hvdb.run.gate_plan import Pairs, Plan

MAX_SAID = 4000  # bytes of the end of a failed run's output in which its last line is looked for
MAX_LINE = 300  # characters of that line
MAX_OUTPUT = 64 << 20  # bytes that a run may print
ENOUGH_TO_ESTIMATE = 3  # pairs after which a gate with a time limit says what it can find in its time
# Exit codes with which a launcher or a program says that it was called wrongly, whatever the machine does: usage (as
# hvd_bench has it), no permission, no such program. Source: POSIX, Shell Command Language 2.8.2.
_USAGE = (126, 127)


class SideFailed(Exception):
    """A side of a pair failed. The pair is void, and the gate goes on. The text says why, without naming the side."""


class Sides(Protocol):
    """Both sides of a gate. file: keeps the pairs."""

    plan: Plan

    @property
    def file(self) -> Path: ...

    def run(self, cell: str, side: str, pair: int) -> None:
        """Makes one run. Errors: SideFailed; HvdbError if no later run could succeed."""

    def keep(self, cell: str, pair: int, failed: dict[str, str]) -> None:
        """Keeps the pair whose sides have run. failed: side -> why it failed. Errors: NotComparable, HvdbError."""

    def end(self) -> None:
        """Keeps that the time limit has ended the gate."""

    def measured(self) -> Pairs:
        """Returns the pairs so far. Errors: HvdbError if there is something else."""


def locked(db: Path) -> AbstractContextManager[int]:
    """Locks `db` against other gates. Yields the lock's descriptor. A run that outlives its gate keeps the lock.

    Errors: HvdbError if another gate, or a run that it started, holds the lock; OSError.
    """
    taken = HvdbError(f"{db}: another gate, or a run that it left behind, writes to it; wait, or end it")
    target = Path(os.path.realpath(db))  # two names of one file have one lock
    return locks.held(target.with_name(f"{target.name}.lock"), taken)


def failure(error: HvdbError | OSError, *outputs: IO[bytes]) -> str:
    """Returns why a run failed, and what the first of `outputs` that is not empty says at its end."""
    why = error.why if isinstance(error, process.RunFailed) else str(error)
    for output in outputs:
        output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_SAID))
        if said := _last_words(output.read().decode("utf-8", "replace").splitlines()):
            return f"{why}, and said: {said}"
    return why


def _last_words(lines: Sequence[str]) -> str:
    """Returns the last line that tells something. mpirun frames what it says of its own between lines of dashes, at the
    end: that a process ended is known, and what the process said stands before the frame."""
    words = [line.strip() for line in lines]
    frames = [place for place, line in enumerate(words) if len(line) > 20 and not line.strip("-")]
    before = words[: frames[0]] if frames else words
    own, every = ([line for line in some if re.search(r"[A-Za-z]", line)] for some in (before, words))
    return (own or every or [""])[-1][:MAX_LINE]


def is_usage(error: HvdbError | OSError, *codes: int) -> bool:
    """Returns True if a run failed because it was called wrongly. codes: more exit codes that say so."""
    return isinstance(error, OSError) or (isinstance(error, process.RunFailed) and error.code in (*_USAGE, *codes))


def measure(sides: Sides, limit_seconds: float | None = None) -> Report:
    """Measures pairs until every row has a verdict, B fails, the last look is done, or the time is up.

    limit_seconds: no pair begins that would probably end later. Errors: HvdbError.
    """
    begun, made, plan = time.monotonic(), 0, sides.plan
    pairs = sides.measured()

    def pair_seconds() -> float:
        return (time.monotonic() - begun) / made

    while due := gate_plan.judge(plan, pairs).lacking:
        number = pairs.following
        cells = list(dict.fromkeys(pairs.rows[name].cell for name in due))
        for cell in gate_plan.cells_in_turn(cells, plan, number):
            if limit_seconds and made and time.monotonic() - begun + pair_seconds() > limit_seconds:
                sides.end()
                edge.tell("gate", f"the time limit of {progress.duration(limit_seconds)} ends the gate", sys.stderr)
                break
            failed = _run_pair(sides, cell, number, pairs)
            sides.keep(cell, number, failed)
            pairs = sides.measured()
            made += 1
            counts = {name: len(pairs.failed.get(name, ())) for name in cells}
            left = sum(plan.most - count for count in counts.values()) * pair_seconds()
            _tell(f"pair {counts[cell]} of at most {plan.most}, cell {cell}: {_newest(pairs, cell, failed)}", left)
            if limit_seconds and number == ENOUGH_TO_ESTIMATE and cell == cells[-1]:
                fits = int(limit_seconds / pair_seconds() / len(cells))
                edge.tell("gate", _reachable(plan, pairs, min(fits, plan.most), limit_seconds), sys.stderr)
        pairs = sides.measured()
    return gate_plan.report(plan, pairs, "gate", pair_seconds() * len(plan.cells) if made else None)


def _run_pair(sides: Sides, cell: str, number: int, pairs: Pairs) -> dict[str, str]:
    """Runs both sides. Returns side -> why it failed. Errors: HvdbError where going on would tell nothing."""
    failed: dict[str, str] = {}
    for side in gate_plan.order(sides.plan.seed, number):
        try:
            sides.run(cell, side, number)
        except SideFailed as error:
            failed[side] = str(error)
            earlier = [sides for voided in pairs.failed.values() for sides in voided]
            count = sum("a" in sides for sides in earlier) + 1
            most = count >= 2 and 2 * count > len(earlier)
            if side == "a" and (most or not any(sides == "" for sides in earlier)):
                raise HvdbError(
                    f"side a of pair {number} of cell {cell} {error}; it failed in {count} of {len(earlier) + 1} "
                    f"pairs, so there is nothing to compare with; {kept(sides.file)}"
                ) from error
    return failed


def kept(file: Path) -> str:
    """Returns what a person reads after the failure of a run. file: keeps the pairs."""
    if not file.exists():
        return "no pair was measured yet"
    return f"{file} keeps the pairs so far, and the same command goes on from there"


def _tell(what: str, left_seconds: float) -> None:
    edge.tell("gate", f"{what}; at most {progress.duration(left_seconds)} left", sys.stderr)


def _newest(pairs: Pairs, cell: str, failed: dict[str, str]) -> str:
    """Returns what the newest pair of `cell` says."""
    if failed:
        return "void: " + "; ".join(f"side {side} {why}" for side, why in sorted(failed.items()))
    newest = [100 * math.expm1(row.ratios[-1]) for row in pairs.rows.values() if row.cell == cell and len(row.ratios)]
    newest = [one for one in newest if math.isfinite(one)]
    if len(newest) < 2:
        return f"B slower by {newest[0]:+.1f} %" if newest else "no row that both sides have"
    return (
        f"B slower by {np.median(newest):+.1f} % in the median of {len(newest)} rows, {min(newest):+.1f} to "
        f"{max(newest):+.1f} %"
    )


def _reachable(plan: Plan, pairs: Pairs, fits: int, limit_seconds: float) -> str:
    """Returns which slowdown `fits` pairs can find at the noise of the first pairs."""
    looks, time_text = plan.looks_for(len(pairs.rows)), progress.duration(limit_seconds)
    if fits < looks[0]:
        return (
            f"about {fits} pairs fit into {time_text}, and the first verdict needs {looks[0]}: allow more time, "
            "shorter runs or fewer rows"
        )
    level = verdict.ALPHA / len(looks) / (len(pairs.rows) + 1)
    found = {
        name: verdict.detectable(row.ratios[np.isfinite(row.ratios)], row.threshold, level, fits)
        for name, row in pairs.rows.items()
    }
    known = sorted((slowdown, name) for name, slowdown in found.items() if slowdown is not None)
    if not known:
        return f"too few whole pairs to say what can be found in {time_text}"
    return f"at this noise {_least(known)} can be found in {time_text} ({fits} pairs), nine times in ten"


def _least(known: Sequence[tuple[float, str]]) -> str:
    worst = f"a slowdown of {100 * known[-1][0]:.3g} %"
    return worst if len(known) == 1 else f"{worst} in the noisiest of {len(known)} rows ({known[-1][1]})"
