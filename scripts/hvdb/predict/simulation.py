"""Runs `hvd_bench simulate`, which simulates the schedule of hvd_bench itself, and checks what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Malformed, Range
from hvdb.predict.schedule import NEGOTIATED
from hvdb.read.runs import Run

PARTS = ("exposed", "stragglers", "control", "slowed")
_SECONDS = 1800.0  # that one simulation may take
_MAX_LINE = 2000
_STEP = Annotated[float, Range(0, 1e12, inner=True)]  # seconds
_PART = Annotated[float, Range(0, 1e12)]


def simulated(program: Path, options: Sequence[str], text: str, draws: int) -> list[dict[str, Any]]:
    """Returns what `hvd_bench simulate` prints for each of the `draws` in the text of costs. Errors: HvdbError."""
    words = [program, "simulate", *options, "--costs", "-"]
    try:
        done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise HvdbError(f"{program} simulate took longer than {_SECONDS:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise HvdbError(f"{program} simulate ended with exit code {done.returncode}: {said[-1]}")
    with record.faults_of(f"{program} simulate printed something else than results"):
        found = [record.json_object(line, _MAX_LINE) for line in done.stdout.decode(errors="replace").splitlines()]
        if len(found) != draws:
            raise Malformed(f"{len(found)} lines in place of {draws}")
        for result in found:
            record.value(_STEP, result.get("step"), "step")
            for name in (*PARTS, "overlapped"):
                record.value(_PART, result.get(name), name)
    return found


def require_plan(run: Run, plan_hash: object) -> None:
    """Errors: NotComparable if the simulator cut the gradients into other buckets than the run."""
    if run.schedule != NEGOTIATED and run.plan_hash and plan_hash != run.plan_hash:
        raise NotComparable(
            f"the buckets of run {run.short_id} (plan {run.plan_hash}) are not those of this profile and these options "
            f"({plan_hash}): the profile or the program is another one"
        )
