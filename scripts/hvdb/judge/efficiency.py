"""Computes the weak-scaling efficiency of the sessions of a store.

efficiency(N) = (images/s(N) / N) / images/s(1). images/s(1) comes from the solo run of the *same session*: one rank of
the same allocation, measured in turn with the runs on all ranks. The work per rank is the same in both runs, so the
efficiency is the step time of one rank alone divided by the step time of all ranks together. hvd_bench computes this
ratio round by round and stores it. If the store has no ratio, this module divides the median step times. Efficiencies
are never averaged over models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hvdb.base import progress
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.interval import Interval
from hvdb.judge import comparable
from hvdb.judge.bootstrap import MIN_SESSIONS, Session, pool, ratio
from hvdb.read.names import MIN_TO_BELIEVE, NOT_RESOLVED, WIDEST_EFFICIENCY
from hvdb.read.runs import OPERATIONS, Run, by_session, grouped

# The backward pass as a fraction of forward plus backward pass. The backward pass costs as much arithmetic as two
# forward passes: one for the gradients of the data and one for the gradients of the weights.
BACKWARD_SHARE = 2.0 / 3.0
# Prefix of the facts that say why a run's figures are doubtful (add_caution() in bench/store/run_record.h).
CAUTION = "caution."
COLLAPSED = f"{CAUTION}collapsed_loss"
VALIDATION = "validate.turns"  # every run of `hvd_bench validate` has this fact


def resolved(figure: Interval) -> bool:
    """Returns True if the efficiency has an interval, or a range over sessions, of at most WIDEST_EFFICIENCY."""
    low, high = _ends(figure)
    return low is not None and high is not None and high - low <= WIDEST_EFFICIENCY


def bounded(figure: Interval) -> bool:
    """Returns True if the efficiency has an interval, or a range over sessions."""
    return None not in _ends(figure)


def unresolved(figure: Interval) -> str:
    """Returns the first answer about an efficiency that is not resolved: `not resolved: between 46 and 101 %`."""
    low, high = _ends(figure)
    if low is None or high is None:
        return NOT_RESOLVED["without_interval"]
    return NOT_RESOLVED["wide"].format(100 * low, 100 * high)


def _ends(figure: Interval) -> tuple[float | None, float | None]:
    return (figure.low, figure.high) if figure.lowest is None else (figure.lowest, figure.highest)


@dataclass(frozen=True)
class EfficiencyRow:
    """One row of the efficiency table.

    configuration: comparable.curve() of its runs.
    kind: 'solo' (the one-rank baseline, whose efficiency is 1 by definition) or 'full' (all ranks, with reductions).
    images_per_second: of the whole world, in `unit`. efficiency: relative to the solo run of the same session; None
    without solo.
    no_reduction: efficiency of phase none, in which nothing is reduced. It shows only the effect of interference.
    ring_bound: efficiency if the backward pass hid as much of the reductions as possible, see ring_bound().
    """

    configuration: dict[str, Any]
    kind: str
    ranks: int
    allocation: int  # ranks of the launch; more than `ranks` for a solo run, in which the other ranks sleep
    nodes: int
    sessions: int
    images_per_second: Interval
    unit: str
    efficiency: Interval | None
    no_reduction: Interval | None
    ring_bound: float | None
    run_ids: tuple[str, ...]

    @property
    def model(self) -> str:
        return self.configuration["model"]


@dataclass(frozen=True)
class Selection:
    """The selected runs, and a line for each reason why runs were left out."""

    runs: list[Run]
    left_out: list[str]


def select(
    runs: Iterable[Run],
    *,
    traced: bool = False,
    origin: str = "measured",
    incomplete: bool = False,
    validations: bool = False,
) -> Selection:
    """Selects complete runs of one origin, either only traced or only untraced runs, so that kinds of runs never mix.

    validations: also select runs of `hvd_bench validate`, whose ranks take turns and all train on one rank's batches.
    incomplete: also select runs that are not complete.

    Leaves out runs that compare settings of hvd_bench (gpu_check's label `way`), because such runs are not sessions of
    one cell. Leaves out runs whose loss collapsed: vanishing gradients take less power, so the steps may be too fast.
    """
    kept: list[Run] = []
    reasons: dict[str, int] = {}
    for run in runs:
        reason = None
        if run.status != "complete" and not incomplete:
            reason = f"{run.status} (--incomplete takes them)"
        elif not len(run.step_seconds_series()) and run.step_seconds is None:
            reason = "without samples"
        elif bool(run.traced) != traced:
            reason = "untraced" if traced else "traced or profiled (--traced shows them, alone)"
        elif run.origin != origin:
            reason = f"{run.origin} (--origin {run.origin} shows them, alone)"
        elif VALIDATION in run.provenance and not validations:
            reason = "of hvd_bench validate (hvdb ranks shows them)"
        elif "label.way" in run.provenance:
            reason = "that compare settings (label way; --run shows them, each way alone)"
        elif COLLAPSED in run.provenance:
            reason = f"whose loss collapsed ({COLLAPSED}; --run shows them)"
        if reason is None:
            kept.append(run)
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    return Selection(kept, [f"{count} {reason}" for reason, count in sorted(reasons.items())])


def step_time(run: Run) -> Session:
    """Returns the stored median step time in seconds. If no median is stored, returns the median of the samples.

    Errors: HvdbError if the run has neither median nor samples, which can happen if the run was cut short.
    """
    if run.step_seconds is not None:
        ends = (run.step_seconds_low, run.step_seconds_high)
        return Session(run.step_seconds, *ends, run.replicates_of("step_seconds"))
    values = run.step_seconds_series()
    if not len(values):
        raise HvdbError(f"run {run.short_id} holds no step times (status {run.status}); leave it out")
    return Session(float(np.median(values)))


def samples(run: Run) -> int:
    """Returns the number of samples behind the median step time."""
    return run.measured_steps // run.batches_per_iter


def images_per_second(run: Run) -> float:
    """Returns images (or the run's unit) per second of the whole world: world_size x batch_size / median step time.

    All ranks take part in one operation of a collective, so world_size does not count there.
    """
    workers = 1 if run.unit == OPERATIONS else run.world_size
    return workers * run.batch_size / step_time(run).value


def ring_bound(full: Run, solo: Run | None) -> float | None:
    """Returns the efficiency (0..1) that the run would have if reductions overlapped the backward pass perfectly.

    exposed = max(0, ring time - backward time), bound = T1 / (T1 + exposed), where T1 is the solo step time. The ring
    time is the median over steps of the engine's reduce_seconds on the fastest rank, because the reduce_seconds of
    slower ranks include waiting. The backward time is 2/3 of the run's compute_seconds. The bound is an estimate, since
    contention can lengthen the ring time and the backward time. Returns None if the samples are not stored.
    """
    reduce = full.lowest("reduce_seconds")
    compute = full.highest("compute_seconds")
    if solo is None or not len(reduce) or not len(compute) or not np.any(reduce > 0):
        return None
    alone = step_time(solo).value
    exposed = max(0.0, float(np.median(reduce)) - BACKWARD_SHARE * float(np.median(compute)))
    return alone / (alone + exposed)


def cells(
    runs: Sequence[Run], *, mix_fingerprints: bool = False, step: progress.Step = progress.silent
) -> list[EfficiencyRow]:
    """Returns the rows of the efficiency table, sorted by configuration and then by number of ranks.

    Each row pools the sessions of one configuration and number of ranks.

    step: called with (cells done, number of cells) after each cell.
    Errors: NotComparable if runs of one row differ in kind, or in fingerprint (allowed with mix_fingerprints).
    """
    rows: dict[tuple, list[dict[str, Run]]] = {}
    for members in by_session(runs).values():
        comparable.require_same_kind(members, "one session")
        for group in _by_launch(members):
            lead = group.get("full") or group.get("none") or group["solo"]
            key = tuple(comparable.curve(lead).items())
            for kind in ("solo", "full"):
                if kind in group:
                    run = group[kind]
                    rows.setdefault((key, kind, run.world_size, run.allocation_size), []).append(group)
    order = sorted(rows, key=lambda row: (tuple(str(value) for _, value in row[0]), row[2], row[1] == "full", row[3]))
    table = []
    for row in order:
        table.append(_cell(row, rows[row], mix_fingerprints))
        step(len(table), len(order))
    return table


def notes(cells: Sequence[EfficiencyRow], runs: Sequence[Run]) -> list[str]:
    """Returns lines to print under `cells`, which were computed from `runs`."""
    return (
        size_notes(runs) + precision_notes(cells, runs) + curve_notes(runs) + [f"caution: {c}" for c in cautions(runs)]
    )


def size_notes(runs: Sequence[Run]) -> list[str]:
    """Returns a line for each size of images but 224 that VGG-16 had: its first dense layer grows with the size."""
    other = {(run.image_size, run.parameters) for run in runs if run.model == "vgg16" and run.device != "replay"}
    return [
        f"vgg16 has {parameters / 1e6:.0f} million parameters with images of {image} pixels, 138 with 224"
        for image, parameters in sorted(size for size in other if all(size))
        if image != 224
    ]


def cautions(runs: Sequence[Run]) -> list[str]:
    """Returns one line for each caution of the runs: the caution's text, and the ids of the first runs that have it."""
    about: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for key, fact in run.provenance.items():
            if key.startswith(CAUTION):
                about.setdefault((key, fact.value), []).append(run)
    lines = []
    for (_, text), members in sorted(about.items(), key=lambda item: item[0]):
        ids = " ".join(run.short_id for run in members[:3])
        lines.append(f"{text} ({ids}{f' and {len(members) - 3} more' if len(members) > 3 else ''})")
    return lines


def curve_notes(runs: Sequence[Run]) -> list[str]:
    """Returns a line for each curve whose points differ in a fact that can change a result.

    Each point has its own baseline, so each efficiency is valid. But a line drawn through the points may mislead.
    """
    full = [run for run in runs if run.phase == "full"]
    curves = grouped(full, lambda run: tuple(comparable.curve(run).values()))
    notes = []
    for members in curves.values():
        keys = {d.key for other in members[1:] for d in comparable.differences(members[0], other) if d.in_fingerprint}
        if keys:
            worlds = ", ".join(str(world) for world in sorted({run.world_size for run in members}))
            notes.append(f"{members[0].model} on {worlds} ranks: the runs differ in {', '.join(sorted(keys))}")
    return notes


def precision_notes(cells: Sequence[EfficiencyRow], runs: Sequence[Run]) -> list[str]:
    """Returns warnings about the precision of the figures of `cells`, which were computed from `runs`."""
    by_id = {run.uuid: run for run in runs}
    notes = []
    for cell in cells:
        where = f"{cell.model} on {cell.ranks} rank{'s' if cell.ranks > 1 else ''}"
        members = [by_id[uuid] for uuid in cell.run_ids]
        fewest = min(map(samples, members))
        if fewest < MIN_TO_BELIEVE:
            notes.append(
                f"{where}: {fewest} samples only; intervals of fewer than {MIN_TO_BELIEVE} are not to be relied on"
            )
        if 1 < cell.sessions < MIN_SESSIONS:
            percent = 100 * (1 - 0.5 ** (cell.sessions - 1))
            notes.append(
                f"{where}: {cell.sessions} sessions are too few for an interval; (a .. b) are the lowest and the"
                f" highest of them, which hold the median of all possible sessions in {percent:g} % of cases"
            )
        unsteady = [run.short_id for run in members if "not steady" in run.fact("measurement.warm_up")]
        if unsteady and cell.kind == "full":
            notes.append(f"{where}: not steady when the measurement began: {' '.join(unsteady)}")
    return notes


def _by_launch(members: list[Run]) -> list[dict[str, Run]]:
    """Returns a dict (phase -> run) for each full run of the session.

    The session's solo run and its run of phase none are in every dict.
    """
    by_phase = grouped(members, lambda run: run.phase)
    shared = {phase: phase_runs[0] for phase, phase_runs in by_phase.items() if phase != "full"}
    for phase, phase_runs in by_phase.items():
        if phase != "full" and len(phase_runs) > 1:
            raise NotComparable(
                f"session {members[0].session_uuid}: {len(phase_runs)} runs of phase {phase}; expected one"
            )
    return [{**shared, "full": run} for run in by_phase.get("full", [])] or [shared]


def _efficiency(solo: Run, full: Run) -> Session:
    """Returns the stored efficiency. If none is stored, returns the ratio of the median step times.

    hvd_bench computes the stored efficiency round by round, so that disturbances of whole rounds cancel. This module
    cannot do the same, because the store does not tell which samples belong to one round.
    """
    part = full.decomposition.get("efficiency")
    if part is None:
        return ratio(step_time(solo), step_time(full))
    return Session(part.fraction.value, part.fraction.low, part.fraction.high, full.replicates_of("efficiency"))


def pooled_efficiency(sessions: Sequence[Session]) -> Interval:
    """Returns the pooled efficiency. A range over few sessions includes the interval of a session that is not resolved:
    two sessions of little worth may agree by chance."""
    pooled = pool(sessions)
    if pooled.lowest is None:
        return pooled
    doubtful = [s for s in sessions if not resolved(Interval(s.value, s.low, s.high))]
    ends = [end for s in doubtful for end in (s.low, s.high) if end is not None]
    return replace(pooled, lowest=min([pooled.lowest, *ends]), highest=max([pooled.highest, *ends]))


def _cell(row: tuple, groups: list[dict[str, Run]], mix_fingerprints: bool) -> EfficiencyRow:
    key, kind, ranks, allocation = row
    configuration = dict(key)
    members = [group[kind] for group in groups]
    if not mix_fingerprints:
        comparable.require_poolable(members, f"{configuration['model']} on {ranks} ranks")
    efficiency = no_reduction = bound = None
    if kind == "full":
        paired = [group for group in groups if "solo" in group]
        if paired:
            efficiency = pooled_efficiency([_efficiency(g["solo"], g["full"]) for g in paired])
        idle = [group for group in paired if "none" in group]
        if idle:
            no_reduction = pool([ratio(step_time(g["solo"]), step_time(g["none"])) for g in idle])
        bounds = [b for b in (ring_bound(g["full"], g.get("solo")) for g in groups) if b is not None]
        bound = float(np.median(bounds)) if bounds else None
    else:
        efficiency = Interval(1.0)
    used = [
        group[phase]
        for group in groups
        for phase in ("solo", "none", "full")
        if phase in group and (kind == "full" or phase == kind)
    ]
    return EfficiencyRow(
        configuration=configuration,
        kind=kind,
        ranks=ranks,
        allocation=allocation,
        nodes=max(run.nodes for run in members) if kind == "full" else 1,
        sessions=len(groups),
        images_per_second=pool([step_time(run).rate(ranks * configuration["batch_size"]) for run in members]),
        unit=members[0].unit,
        efficiency=efficiency,
        no_reduction=no_reduction,
        ring_bound=bound,
        run_ids=tuple(dict.fromkeys(run.uuid for run in used)),
    )
