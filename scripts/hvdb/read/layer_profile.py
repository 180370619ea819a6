"""Computes figures of a profiled step: totals by kind of operation, rates, and bounds from the device's peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.read.runs import Operation, Run, grouped


def takes_time(run: Run) -> bool:
    """Returns True if the run has a profile in which at least one operation takes time."""
    return any(o.seconds > 0 for o in run.operations)


def newest(runs: Sequence[Run]) -> list[Run]:
    """Returns the newest profiled run of each network. runs: sorted by time, oldest first."""
    return list({run.model: run for run in runs if takes_time(run)}.values())


@dataclass(frozen=True)
class KindShare:
    """The totals of all operations of one kind: seconds, flops and bytes per step, and the number of operations."""

    kind: str
    seconds: float
    flops: float
    bytes: float
    count: int


def shares(operations: Sequence[Operation]) -> list[KindShare]:
    """Returns the totals of each kind of operation. The kind that takes the most time comes first."""
    totals = []
    for kind, members in grouped(operations, lambda o: o.kind).items():
        sums = (sum(getattr(o, figure) for o in members) for figure in ("seconds", "flops", "bytes"))
        totals.append(KindShare(kind, *sums, len(members)))
    return sorted(totals, key=lambda share: -share.seconds)


def library_fraction(operations: Sequence[Operation]) -> float:
    """Returns the fraction (0..1) of the profiled time that is spent in primitives of the compute library."""
    total = sum(o.seconds for o in operations)
    return sum(o.seconds for o in operations if o.library) / total if total > 0 else 0.0


def rate(flops: float, moved: float, seconds: float) -> str:
    """Returns the rate of arithmetic as text, or the rate of memory traffic if there are less than 4 flops per byte."""
    if seconds <= 0 or (flops <= 0 and moved <= 0):
        return ""
    if flops < 4 * moved:
        return f"{moved / seconds / 1e9:,.1f} GB/s"
    return f"{flops / seconds / 1e9:,.0f} GFLOP/s"


@dataclass(frozen=True)
class Peaks:
    """The peaks of a device from its data sheet: floating-point operations per second, and bytes per second."""

    flops: float
    bytes: float

    def bound(self, work: KindShare | Operation) -> float:
        """Returns the least seconds for `work` by the roofline: the time of its arithmetic or of its memory traffic,
        whichever is longer."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


def peaks(run: Run) -> Peaks | None:
    """Returns the peaks stored with the run. Returns None if none are stored, as in all runs on CPUs."""
    flops, moved = run.number("bound.peak_flops"), run.number("bound.peak_bytes_per_second")
    return Peaks(flops, moved) if flops and moved else None
