"""The schedule of the reductions, as a run had it or as a what-if changes it, and its simulation.

`hvd_bench simulate` simulates the schedule of hvd_bench itself. What it prints is checked here.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Malformed, Range
from hvdb.read.runs import Run

STATIC, SHARDED, NEGOTIATED = "static", "sharded", "negotiated"
MIB = 1 << 20
TYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}  # type of messages -> how nccl-tests and coll name it
_MOST_MIB = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """Only `negotiated` uses the threshold and the capacity, and only the others use the buckets."""

    name: str
    allreduce_type: str
    bucket_bytes: int
    fusion_threshold_bytes: int
    cache_capacity: int

    def options(self) -> list[str]:
        """Returns the options that hvd_bench takes for this schedule."""
        words = ["--schedule", self.name]
        if self.name == NEGOTIATED:
            words += ["--fusion-threshold-mb", f"{self.fusion_threshold_bytes / MIB:.17g}"]
            words += ["--cache-capacity", str(self.cache_capacity)]
        else:
            words += ["--bucket-mb", f"{self.bucket_bytes / MIB:.17g}"]
        return words if self.allreduce_type == "fp32" else [*words, "--allreduce-dtype", self.allreduce_type]

    def operations(self) -> tuple[str, ...]:
        """Returns the operations whose cost the schedule needs."""
        return ("reduce_scatter", "all_gather") if self.name == SHARDED else ("all_reduce",)

    def message(self, total: int) -> int:
        """Returns the bytes of a large message, of `total` bytes of gradients; a single gradient may be larger."""
        return min(total, self.fusion_threshold_bytes if self.name == NEGOTIATED else self.bucket_bytes) or total


def of_run(run: Run) -> Schedule:
    """Errors: HvdbError if the run does not say what its schedule was."""

    def fact(key: str) -> int:
        text = run.fact(key)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise HvdbError(f"run {run.short_id} does not say its {key}; measure it again with this version")
        return int(text)

    if run.schedule not in (STATIC, SHARDED, NEGOTIATED):
        raise HvdbError(f"run {run.short_id} has the schedule '{run.schedule}', which reduces nothing")
    facts = ("engine.bucket_bytes", "engine.fusion_threshold_bytes", "engine.cache_capacity")
    made = Schedule(run.schedule, run.allreduce_type, *map(fact, facts))
    if made.bucket_bytes == 0:
        raise HvdbError(f"run {run.short_id} says that its buckets have no bytes: its store is damaged")
    return made


def _mib(option: str, text: str) -> int:
    """Returns bytes. hvd_bench checks the same ranges. Errors: HvdbError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST_MIB or (option == "--bucket-mb" and value * MIB < 1):
        raise HvdbError(f"{option}: '{text}' is not a size in MiB")
    return int(value * MIB)


def changed(base: Schedule, options: Sequence[tuple[str, str]]) -> Schedule:
    """Returns the schedule with other options, (name, value) each.

    Errors: HvdbError for an unknown option or value, or for one that has no effect on the schedule.
    """
    made = base
    for option, text in options:
        if option == "--schedule" and text in (STATIC, SHARDED, NEGOTIATED):
            made = replace(made, name=text)
        elif option == "--allreduce-dtype" and text in TYPES:
            made = replace(made, allreduce_type=text)
        elif option == "--bucket-mb":
            made = replace(made, bucket_bytes=_mib(option, text))
        elif option == "--fusion-threshold-mb":
            made = replace(made, fusion_threshold_bytes=_mib(option, text))
        elif option in ("--schedule", "--allreduce-dtype"):
            raise HvdbError(f"{option}: '{text}' is not one of its values")
        else:
            raise HvdbError(f"{option} is no option of the schedule that predict knows")
    idle = "--bucket-mb" if made.name == NEGOTIATED else "--fusion-threshold-mb"
    if idle in dict(options):
        raise HvdbError(f"{idle} has no effect with --schedule {made.name}")
    return made


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
