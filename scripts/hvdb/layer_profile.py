"""Figures of a profiled step: totals by kind of operation, rates, and bounds from the device's peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.runs import Operation, Run, grouped


def takes_time(run: Run) -> bool:
    """Returns True if the run has a profile with an operation that takes time."""
    return any(o.seconds > 0 for o in run.operations)


def newest(runs: Sequence[Run]) -> list[Run]:
    """Returns the newest profiled run of each network; `runs` are oldest first."""
    return list({run.model: run for run in runs if takes_time(run)}.values())


@dataclass(frozen=True)
class KindShare:
    """All operations of one kind together: seconds, flops and bytes per step, and the number of operations."""

    kind: str
    seconds: float
    flops: float
    bytes: float
    count: int


def shares(operations: Sequence[Operation]) -> list[KindShare]:
    """Groups the operations by kind, the costliest kind first."""
    found = []
    for kind, members in grouped(operations, lambda o: o.kind).items():
        sums = (sum(getattr(o, figure) for o in members) for figure in ("seconds", "flops", "bytes"))
        found.append(KindShare(kind, *sums, len(members)))
    return sorted(found, key=lambda share: -share.seconds)


def library_fraction(operations: Sequence[Operation]) -> float:
    """Returns the fraction (0..1) of the profiled time in the library's compute primitives."""
    total = sum(o.seconds for o in operations)
    return sum(o.seconds for o in operations if o.library) / total if total > 0 else 0.0


def rate(flops: float, moved: float, seconds: float) -> str:
    """Returns the rate of arithmetic as text; below four operations per byte, the rate of memory traffic."""
    if seconds <= 0 or (flops <= 0 and moved <= 0):
        return ""
    if flops < 4 * moved:
        return f"{moved / seconds / 1e9:,.1f} GB/s"
    return f"{flops / seconds / 1e9:,.0f} GFLOP/s"


@dataclass(frozen=True)
class Peaks:
    """Operations per second and bytes per second from a device's data sheet."""

    flops: float
    bytes: float

    def bound(self, work: KindShare | Operation) -> float:
        """Returns the least seconds of `work` by the roofline: the longer of arithmetic and memory traffic."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


def peaks(run: Run) -> Peaks | None:
    """Returns the peaks stored with the run; None if there are none, as for every CPU."""
    flops, moved = run.number("bound.peak_flops"), run.number("bound.peak_bytes_per_second")
    return Peaks(flops, moved) if flops and moved else None
