"""Suggests what to try next. Each rule turns evidence into an action and its reason, or returns None without evidence.

A part of the step counts as evidence only if the part is at least WORTHWHILE and known within the factor KNOWN_WITHIN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hvdb.base import data
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.judge.rank_work import Examined, others_used
from hvdb.read.runs import TORCH, Component, Run
from hvdb.show import rank_report, tables

WORTHWHILE = 0.02  # fraction of the step
# A figure is evidence only if the upper end of its interval is at most this many times the lower end. Otherwise nobody
# knows what a change could gain, and the next run may show another largest part.
KNOWN_WITHIN = 2.0
FEW_RANKS = 2  # with so few ranks on a node, fewer ranks leave nothing to scale
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


class Advice(NamedTuple):
    """why: the evidence, with its figures. do: what to try. loss: fraction of the step that the advice is about."""

    why: str
    do: str
    loss: float = 0.0

    def __str__(self) -> str:
        return f"{self.why}: {self.do}"


@dataclass(frozen=True)
class Evidence:
    """The evidence about one configuration, from its runs on the largest number of ranks.

    run: a run of phase full, with its decomposition if the store has one. cell: the run's row of the efficiency table.
    peers: runs of phase full, `run` among them, with the transport and the numbers of ranks and nodes of `run`.
    examined: the comparison of the ranks of `run`, if there is one.
    """

    run: Run
    cell: EfficiencyRow
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


def _known(figure: Interval) -> bool:
    return bool(figure.low and figure.high) and 0 < figure.low <= figure.high <= KNOWN_WITHIN * figure.low


def _part(evidence: Evidence, name: str) -> Component | None:
    """Returns the part if it is evidence. No part is evidence if the run's speed or efficiency is not known."""
    part, cell = evidence.run.decomposition.get(name), evidence.cell
    rate, reached = cell.images_per_second, cell.efficiency
    known = (rate.low is None or _known(rate)) and (reached is None or efficiency.resolved(reached))
    return part if known and part and part.fraction.value >= WORTHWHILE and _known(part.fraction) else None


def share(part: Component) -> str:
    """Returns the part's fraction of the step, with its interval, as text: `31.0 % [29.1, 32.9]`."""
    return part.fraction.text(unit=" %")


def _power_of_two(value: float) -> int:
    return 1 << max(0, int(np.ceil(np.log2(value))))


def exposed_communication(evidence: Evidence) -> Advice | None:
    """Suggests another bucket size, type of the reductions, or batch size, depending on the cost of the reductions."""
    run, part, seconds = evidence.run, _part(evidence, "exposed_communication"), reduce_seconds(evidence.run)
    if part is None or seconds is None or run.schedule != "static" or not run.buckets or not run.gradient_bytes:
        return None
    size = run.gradient_bytes / run.buckets / MIB
    begin = f"exposed communication is {share(part)} of the step"
    larger = f"--bucket-mb {_power_of_two(2 * size)}"
    if run.buckets <= FEW_BUCKETS and part.seconds >= EXPOSED * seconds:
        exposed = f"{100 * min(1.0, part.seconds / seconds):.0f} % of the reductions are exposed"
        late = f"{run.buckets} bucket{'s' if run.buckets > 1 else ''} of {size:.1f} MiB begin only when backward ends"
        smaller = f"try smaller buckets, --bucket-mb {tables.number(size / 8)}"
        return Advice(f"{begin}, and {exposed}, because {late}", smaller, part.fraction.value)
    cost = reduction_cost(evidence.peers)
    if cost is None:
        why = f"{begin}, with buckets of {size:.1f} MiB; another size would show if latency or bandwidth is to blame"
        return Advice(why, f"measure {larger} too", part.fraction.value)
    latency = cost.per_bucket * run.buckets / (cost.per_bucket * run.buckets + cost.per_byte * run.gradient_bytes)
    fitted = f"{1e3 * cost.per_bucket:.3g} ms per bucket and {1e3 * MIB * cost.per_byte:.3g} ms per MiB"
    fitted = f"% of their time; {fitted}, fitted to {cost.runs} runs"
    if latency >= 0.5:
        why = f"{begin} and the buckets of {size:.1f} MiB are latency-bound ({100 * latency:.0f} {fitted})"
        return Advice(why, f"try {larger}", part.fraction.value)
    why = f"{begin} and the buckets are bandwidth-bound ({100 * (1 - latency):.0f} {fitted})"
    do = "try a larger --batch-size, which gives the same bytes more backward to hide behind"
    if (run.device == "cuda" or run.nodes > 1) and run.allreduce_type == "fp32":
        do = "try to halve the bytes with --allreduce-dtype bf16 or fp16"
    return Advice(why, do, part.fraction.value)


def slow_ranks(evidence: Evidence) -> Advice | None:
    """Reports a rank or node that is slower than the other ranks or nodes, or step times that vary on all ranks."""
    findings = evidence.examined.findings if evidence.examined else None
    if findings and (findings.slow_nodes or findings.slow_ranks):
        said = rank_report.conclusions(evidence.examined, rank_report.THRESHOLD)[0]
        return Advice(said, f"look at that machine first ({data.called('ranks')} shows every rank)", 1.0)
    part = _part(evidence, "stragglers")
    if part is None or findings is None or findings.unclear_ranks or others_used(evidence.run):
        return None
    why = f"waiting for stragglers is {share(part)} of the step, and no rank is slow all the time, but all ranks vary"
    return Advice(why, "keep other work off the machine and measure again", part.fraction.value)


def waiting_for_input(evidence: Evidence) -> Advice | None:
    """Reports steps that wait for their batch. The trainings of hvd_bench itself never do."""
    part = _part(evidence, "input")
    faster = "load faster: more workers of the loader, batches ahead of time (prefetch), or less work on a sample"
    return Advice(f"waiting for input is {share(part)} of the step", faster, part.fraction.value) if part else None


def not_replayed(evidence: Evidence) -> Advice | None:
    """Reports reductions that cost a training by PyTorch much: its replay tells whether the network takes the time."""
    parts = [part for name in ("exposed_communication", "overlap_slowdown") if (part := _part(evidence, name))]
    if not parts:
        return None
    most = max(parts, key=lambda part: part.fraction.value)
    why = f"reductions cost {share(most)} of the step, beside backward or after it"
    return Advice(
        why,
        "compare it with the replay of its step (docs/torch.md): that tells the network from the framework",
        most.fraction.value,
    )


def interference(evidence: Evidence) -> Advice | None:
    """Reports ranks that slow one another down even in phase none, in which nothing is reduced."""
    run, part, cores = evidence.run, _part(evidence, "interference"), evidence.run.number("cpu.cores")
    if part is None or run.device != "cpu" or not cores:
        return None
    why = f"interference of the ranks is {share(part)} of the step"
    ranks = evidence.ranks_per_node
    if ranks * run.threads > cores:
        why = f"{why}, and {ranks} ranks of {run.threads} threads share {cores:.0f} cores"
        actions = [f"--threads {int(cores) // ranks}"] if ranks <= cores else []
        actions += ["fewer ranks on a node"] if ranks > min(FEW_RANKS, cores) else []
        return Advice(why, f"try {', or '.join(actions)}", part.fraction.value)
    if others_used(evidence.run):
        return None  # busy_machine() says why
    why = f"{why}, with a core for each of {ranks} x {run.threads} threads, which share caches and memory"
    fewer = "; then try fewer ranks of more --threads" if ranks > FEW_RANKS else ""
    return Advice(
        why, f"stop other programs and bind ranks to cores (mpirun --bind-to core){fewer}", part.fraction.value
    )


def overlap_slowdown(evidence: Evidence) -> Advice | None:
    """Reports compute that is slowed because the reductions have no cores of their own."""
    run, part, cores = evidence.run, _part(evidence, "overlap_slowdown"), evidence.run.number("cpu.cores")
    ranks = evidence.ranks_per_node
    if part is None or run.device != "cpu" or not cores or cores < CORES_TO_SPARE or ranks * run.threads < cores:
        return None
    threads = f"{ranks} x {run.threads} compute threads leave none of {cores:.0f} cores to the reductions"
    why = f"compute slowed by overlap is {share(part)} of the step, and {threads}"
    return Advice(why, f"try one compute thread{' or rank' if ranks > FEW_RANKS else ''} fewer", part.fraction.value)


def control_plane(evidence: Evidence) -> Advice | None:
    """Reports the time that negotiation takes. The static schedule does not negotiate."""
    part = _part(evidence, "control_plane")
    if part is None or evidence.run.schedule != "negotiated":
        return None
    return Advice(
        f"negotiation is {share(part)} of the step", "try --schedule static, which has none", part.fraction.value
    )


def unexplained(evidence: Evidence) -> Advice | None:
    """Reports the time of the step that no measured component explains."""
    part = _part(evidence, "residual")
    look = "record a trace of a few steps (--timeline-filename) and look"
    return Advice(f"{share(part)} of the step is not explained", look, part.fraction.value) if part else None


def busy_machine(evidence: Evidence) -> Advice | None:
    """Reports other programs that ran during the measurement."""
    used = others_used(evidence.run)
    again = "stop other programs and measure again; the machine was busy"
    return Advice(f"other programs used {used} meanwhile", again, 1.0) if used else None


def wide_interval(evidence: Evidence) -> Advice | None:
    """Reports an efficiency that has a wide interval, or none because there are too few rounds."""
    reached, sessions = evidence.cell.efficiency, evidence.cell.sessions
    longer = f"as {'many sessions' if sessions >= MIN_SESSIONS else 'long (--max-time)'}"
    if reached and not efficiency.bounded(reached):
        return Advice(f"the efficiency is {efficiency.unresolved(reached)}", f"measure several times {longer}")
    if reached is None or reached.low is None or reached.width < WIDE:
        return None
    why = f"the interval of the efficiency is {100 * reached.width:.1f} points wide"
    return Advice(why, f"measure four times {longer}, which halves it, or on a quieter machine")


def no_baseline(evidence: Evidence) -> Advice | None:
    """Reports that there is no efficiency because there is no baseline."""
    if evidence.cell.efficiency is not None or evidence.run.world_size == 1:
        return None
    why = "there is no baseline of one rank in the session, so no efficiency"
    return Advice(why, "measure with --efficiency", 1.0)


def full_memory(evidence: Evidence) -> Advice | None:
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
    used = max(by_host.values())
    why = f"the ranks of one node used {used / MIB:.0f} MiB at their peaks, of {total / MIB:.0f} MiB"
    return Advice(why, "try a smaller --batch-size, which keeps the node from swapping")


def untuned(evidence: Evidence) -> Advice | None:
    """Reports a GPU step that takes far longer than its roofline bound in a run without --tune.

    --tune makes hvd_bench time the engines.
    """
    run, bound = evidence.run, evidence.run.number("bound.step_seconds")
    if not bound or not run.step_seconds or run.fact("gpu.option.tune") != "no":
        return None
    if run.step_seconds < FAR_FROM_BOUND * bound:
        return None
    why = f"the step takes {run.step_seconds / bound:.1f} times its roofline bound, with engines that were not timed"
    return Advice(why, "try --tune")


RULES: tuple[Callable[[Evidence], Advice | None], ...] = (
    no_baseline,
    busy_machine,
    slow_ranks,
    exposed_communication,
    waiting_for_input,
    interference,
    overlap_slowdown,
    control_plane,
    unexplained,
    untuned,
    full_memory,
    wide_interval,
)

# The rules for trainings by PyTorch, which have no options of hvd_bench.
TORCH_RULES = (busy_machine, slow_ranks, waiting_for_input, not_replayed)


def advise(evidence: Evidence) -> list[Advice]:
    """Returns the advice of each rule that finds evidence, first the advice about the largest loss."""
    rules = TORCH_RULES if evidence.run.device == TORCH else RULES
    found = [said for rule in rules if (said := rule(evidence))]
    return sorted(found, key=lambda said: -said.loss)
