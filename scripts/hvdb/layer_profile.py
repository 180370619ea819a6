"""A profiled step as numbers, by kind of operation and beside the bounds of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.runs import Operation, Run


def takes_time(run: Run) -> bool:
    """Returns whether the run has a profile with an operation that takes time."""
    return any(o.seconds > 0 for o in run.operations)


def newest(runs: Sequence[Run]) -> list[Run]:
    """Returns the newest profiled run of each network; `runs` are oldest first."""
    return list({run.model: run for run in runs if takes_time(run)}.values())


@dataclass(frozen=True)
class KindShare:
    """All operations of one kind: their number, and their seconds, flops and bytes per step."""

    kind: str
    seconds: float
    flops: float
    bytes: float
    count: int


def shares(operations: Sequence[Operation]) -> list[KindShare]:
    """Groups the operations by kind, the costliest first."""
    kinds: dict[str, list[Operation]] = {}
    for operation in operations:
        kinds.setdefault(operation.kind, []).append(operation)
    found = [
        KindShare(
            kind,
            sum(o.seconds for o in members),
            sum(o.flops for o in members),
            sum(o.bytes for o in members),
            len(members),
        )
        for kind, members in kinds.items()
    ]
    return sorted(found, key=lambda share: -share.seconds)


def library_fraction(operations: Sequence[Operation]) -> float:
    """Returns the fraction of the profiled time (0..1) that is spent in the library's compute primitives."""
    total = sum(o.seconds for o in operations)
    return sum(o.seconds for o in operations if o.library) / total if total > 0 else 0.0


def rate(flops: float, moved: float, seconds: float) -> str:
    """Returns the rate of arithmetic or, below four operations per byte, of memory traffic."""
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
        """Returns the least seconds that `work` takes: the longer of its arithmetic and its traffic (the roofline)."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


def peaks(run: Run) -> Peaks | None:
    """Returns the peaks that the program stored with the run; None if there are none, as for every CPU."""
    flops, moved = run.number("bound.peak_flops"), run.number("bound.peak_bytes_per_second")
    return Peaks(flops, moved) if flops and moved else None
