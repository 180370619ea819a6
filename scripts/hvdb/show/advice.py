"""Suggests what to try next. Each rule turns evidence into one sentence with numbers, or returns None without evidence.

A part of the step counts as evidence only if its interval lies above 0 and the part is at least WORTHWHILE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.base import data
from hvdb.judge import bootstrap
from hvdb.judge.efficiency import Cell
from hvdb.judge.rank_work import Examined
from hvdb.read.runs import Component, Run
from hvdb.show import rank_report, tables

WORTHWHILE = 0.02  # fraction of the step
MIB = 1024.0 * 1024.0
FEW_BUCKETS = 2  # with so few buckets or fewer, reductions begin only when the backward pass is nearly over
EXPOSED = 0.8  # if at least this fraction of the reductions is exposed, the backward pass hides almost no reductions
CORES_TO_SPARE = 4  # a node with fewer cores than this cannot leave a core to the reductions
WIDE = 0.05  # an interval of the efficiency is called wide if it is at least this wide from end to end
FULL_MEMORY = 0.9  # a node's memory counts as full if its ranks together use at least this fraction of the memory
FAR_FROM_BOUND = 1.3  # a step is far from its bound if it takes at least this many times the roofline's step time
# DIFFERENT_SIZES: bucket sizes must differ by this factor to separate the cost per bucket from the cost per byte.
# MISFIT: largest relative error allowed between a measured time and the time that the two costs predict.
DIFFERENT_SIZES, MISFIT = 1.5, 0.2


@dataclass(frozen=True)
class Evidence:
    """The evidence about one configuration, from its runs on the largest number of ranks.

    run: a run of phase full, with its decomposition if the store has one. cell: the run's row of the efficiency table.
    peers: runs of phase full, `run` among them, with the transport and the numbers of ranks and nodes of `run`.
    examined: the comparison of the ranks of `run`, if there is one.
    """

    run: Run
    cell: Cell
    peers: Sequence[Run]
    examined: Examined | None

    @property
    def where(self) -> str:
        ranks = f"{self.run.world_size} rank{'s' if self.run.world_size > 1 else ''}"
        return f"{tables.title(self.run.model)} on {ranks} (run {self.run.short_id})"

    @property
    def ranks_per_node(self) -> int:
        return -(-self.run.world_size // self.run.nodes)


@dataclass(frozen=True)
class ReductionCost:
    """Seconds that a reduction takes per bucket and per byte, fitted to `runs` runs."""

    per_bucket: float
    per_byte: float
    runs: int


def reduce_seconds(run: Run) -> float | None:
    """Returns the median over steps of the seconds spent in reductions. None if these seconds were not measured.

    A step's value is that of the rank with the least seconds in reductions, which is the rank that waits least.
    """
    samples = run.lowest("reduce_seconds")
    return float(np.median(samples)) if len(samples) and np.any(samples > 0) else None


def reduction_cost(runs: Sequence[Run]) -> ReductionCost | None:
    """Fits time = (cost per bucket) x buckets + (cost per byte) x bytes by least squares of the relative errors.

    Returns None if bucket sizes differ too little, or if the costs misfit a run: see DIFFERENT_SIZES and MISFIT.
    """
    points = []
    for run in runs:
        seconds = reduce_seconds(run)
        if seconds and run.buckets and run.gradient_bytes:
            points.append((run.buckets / seconds, run.gradient_bytes / seconds))
    sizes = [moved / buckets for buckets, moved in points]
    if not sizes or max(sizes) < DIFFERENT_SIZES * min(sizes):
        return None
    matrix = np.array(points)
    scale = matrix.max(axis=0)
    costs, *_ = np.linalg.lstsq(matrix / scale, np.ones(len(points)), rcond=None)
    per_bucket, per_byte = map(float, costs / scale)
    if min(per_bucket, per_byte) < 0 or np.abs(matrix @ (per_bucket, per_byte) - 1).max() > MISFIT:
        return None
    return ReductionCost(per_bucket, per_byte, len(points))


def _part(run: Run, name: str) -> Component | None:
    part = run.decomposition.get(name)
    if part is None or part.low is None or part.low <= 0 or part.fraction < WORTHWHILE:
        return None
    return part


def share(part: Component) -> str:
    """Returns the part's fraction of the step, with its interval, as text: `31.0 % [29.1, 32.9]`."""
    span = "" if part.low is None or part.high is None else f" [{100 * part.low:.1f}, {100 * part.high:.1f}]"
    return f"{100 * part.fraction:.1f} %{span}"


def _power_of_two(value: float) -> int:
    return 1 << max(0, int(np.ceil(np.log2(value))))


def exposed_communication(evidence: Evidence) -> str | None:
    """Suggests another bucket size, type of the reductions, or batch size, depending on the cost of the reductions."""
    run, part, seconds = evidence.run, _part(evidence.run, "exposed_communication"), reduce_seconds(evidence.run)
    if part is None or seconds is None or run.schedule != "static" or not run.buckets or not run.gradient_bytes:
        return None
    size = run.gradient_bytes / run.buckets / MIB
    begin = f"exposed communication is {share(part)} of the step"
    if run.buckets <= FEW_BUCKETS and part.seconds >= EXPOSED * seconds:
        return (
            f"{begin}, and {100 * min(1.0, part.seconds / seconds):.0f} % of the reductions are exposed, because "
            f"{run.buckets} bucket{'s' if run.buckets > 1 else ''} of {size:.1f} MiB can begin only when backward is "
            f"nearly over: try smaller buckets, --bucket-mb {tables.number(size / 8)}"
        )
    cost = reduction_cost(evidence.peers)
    if cost is None:
        return (
            f"{begin}, with {run.buckets} buckets of {size:.1f} MiB; whether latency or bandwidth is to blame shows "
            f"with another size of buckets: measure --bucket-mb {_power_of_two(2 * size)} too"
        )
    latency = cost.per_bucket * run.buckets / (cost.per_bucket * run.buckets + cost.per_byte * run.gradient_bytes)
    fitted = (
        f"{1e3 * cost.per_bucket:.3g} ms per bucket and {1e3 * MIB * cost.per_byte:.3g} ms per MiB, fitted to "
        f"{cost.runs} runs"
    )
    if latency >= 0.5:
        return (
            f"{begin} and the buckets of {size:.1f} MiB are latency-bound ({100 * latency:.0f} % of their time; "
            f"{fitted}): try --bucket-mb {_power_of_two(2 * size)}"
        )
    begin = f"{begin} and the buckets are bandwidth-bound ({100 * (1 - latency):.0f} % of their time; {fitted})"
    if (run.device == "cuda" or run.nodes > 1) and run.allreduce_type == "fp32":
        return f"{begin}: try to halve the bytes with --allreduce-dtype bf16 or fp16"
    return f"{begin}: a larger --batch-size gives the same bytes more backward to hide behind"


def slow_ranks(evidence: Evidence) -> str | None:
    """Reports a rank or node that is slower than the other ranks or nodes, or step times that vary on all ranks."""
    findings = evidence.examined.findings if evidence.examined else None
    if findings and (findings.slow_nodes or findings.slow_ranks):
        said = rank_report.conclusions(evidence.examined, rank_report.THRESHOLD)[0]
        return f"{said}: look at that machine first ({data.called('ranks')} shows every rank)"
    part = _part(evidence.run, "stragglers")
    if part is None or findings is None or findings.unclear_ranks:
        return None
    return (
        f"waiting for stragglers is {share(part)} of the step, and no rank is slow all the time: steps vary on every "
        "rank, so keep other work off the machine and measure again"
    )


def interference(evidence: Evidence) -> str | None:
    """Reports ranks that slow one another down even in phase none, in which nothing is reduced."""
    run, part, cores = evidence.run, _part(evidence.run, "interference"), evidence.run.number("cpu.cores")
    if part is None or run.device != "cpu" or not cores:
        return None
    begin = f"interference of the ranks is {share(part)} of the step"
    ranks = evidence.ranks_per_node
    if ranks * run.threads > cores:
        return (
            f"{begin}, and {ranks} ranks of {run.threads} threads share {cores:.0f} cores: "
            f"try --threads {max(1, int(cores) // ranks)}, or fewer ranks on a node"
        )
    return (
        f"{begin}, with a core for each of {ranks} x {run.threads} threads: they share caches and memory bandwidth; "
        "try fewer ranks of more --threads, and see that ranks are bound to cores (mpirun --bind-to core)"
    )


def overlap_slowdown(evidence: Evidence) -> str | None:
    """Reports compute that is slowed because the reductions have no cores of their own."""
    run, part, cores = evidence.run, _part(evidence.run, "overlap_slowdown"), evidence.run.number("cpu.cores")
    busy = evidence.ranks_per_node * run.threads
    if part is None or run.device != "cpu" or not cores or cores < CORES_TO_SPARE or busy < cores:
        return None
    return (
        f"compute slowed by overlap is {share(part)} of the step, and {evidence.ranks_per_node} x {run.threads} "
        f"compute threads leave none of {cores:.0f} cores to the reductions: try one compute thread or rank fewer"
    )


def control_plane(evidence: Evidence) -> str | None:
    """Reports the time that negotiation takes. The static schedule does not negotiate."""
    part = _part(evidence.run, "control_plane")
    if part is None or evidence.run.schedule != "negotiated":
        return None
    return f"negotiation is {share(part)} of the step: try --schedule static, which has none"


def unexplained(evidence: Evidence) -> str | None:
    """Reports the time of the step that no measured component explains."""
    part = _part(evidence.run, "residual")
    if part is None:
        return None
    return f"{share(part)} of the step is not explained: record a trace of a few steps (--timeline-filename) and look"


def wide_interval(evidence: Evidence) -> str | None:
    """Reports an efficiency with a wide interval."""
    reached = evidence.cell.efficiency
    if reached is None or reached.low is None or reached.high is None or reached.high - reached.low < WIDE:
        return None
    more = "many sessions" if evidence.cell.sessions >= bootstrap.MIN_SESSIONS else "long (--max-time)"
    return (
        f"the interval of the efficiency is {100 * (reached.high - reached.low):.1f} points wide: measure four times "
        f"as {more}, which halves it, or on a quieter machine"
    )


def no_baseline(evidence: Evidence) -> str | None:
    """Reports that there is no efficiency because there is no baseline."""
    if evidence.cell.efficiency is not None or evidence.run.world_size == 1:
        return None
    return "there is no baseline of one rank in the session, so no efficiency: measure with --efficiency"


def full_memory(evidence: Evidence) -> str | None:
    """Reports a node whose memory its ranks together nearly fill."""
    total = evidence.run.number("memory.total_bytes")
    per_host = Counter(rank["host"] for rank in evidence.run.ranks)
    by_host: dict[str, int] = {}
    for rank in evidence.run.ranks:
        # Ranks of a node map one another's gradients, so a rank's peak also counts the gradients of the node's other
        # ranks.
        shared = (per_host[rank["host"]] - 1) * (evidence.run.gradient_bytes or 0)
        by_host[rank["host"]] = by_host.get(rank["host"], 0) + max(0, (rank["peak_bytes"] or 0) - shared)
    if not total or not by_host or evidence.run.device == "cuda" or max(by_host.values()) < FULL_MEMORY * total:
        return None
    return (
        f"the ranks of one node used {max(by_host.values()) / MIB:.0f} MiB at their peaks, of {total / MIB:.0f} MiB: "
        "a smaller --batch-size keeps the node from swapping"
    )


def untuned(evidence: Evidence) -> str | None:
    """Reports a GPU step that takes far longer than its roofline bound in a run without --tune.

    --tune makes hvd_bench time the engines.
    """
    run, bound = evidence.run, evidence.run.number("bound.step_seconds")
    if not bound or not run.step_seconds or run.fact("gpu.option.tune") != "no":
        return None
    if run.step_seconds < FAR_FROM_BOUND * bound:
        return None
    return (
        f"the step takes {run.step_seconds / bound:.1f} times its roofline bound, with engines that were not timed: "
        "try --tune"
    )


RULES: tuple[Callable[[Evidence], str | None], ...] = (
    no_baseline,
    slow_ranks,
    exposed_communication,
    interference,
    overlap_slowdown,
    control_plane,
    unexplained,
    untuned,
    full_memory,
    wide_interval,
)


def advise(evidence: Evidence) -> list[str]:
    """Returns one line of advice for each rule that finds evidence."""
    return [f"{evidence.where}: {said}" for rule in RULES if (said := rule(evidence))]
