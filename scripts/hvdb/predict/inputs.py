"""Turns stores and a replay profile into what a prediction needs: sessions of training like the profile's, and their
collectives. Every value is labelled: measured, or assumed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.judge import comparable, efficiency
from hvdb.predict import fabric
from hvdb.predict.fabric import Fabric
from hvdb.predict.imported import Added
from hvdb.predict.noise import BLOCK
from hvdb.predict.schedule import NEGOTIATED, Schedule, of_run
from hvdb.predict.steps import BARRIER, World, count_text, nodes_text
from hvdb.read import coll_samples, runs
from hvdb.read.coll_samples import CollSession
from hvdb.read.predictions import ASSUMED, MEASURED, Label
from hvdb.read.replay_profile import Profile
from hvdb.read.runs import UNKNOWN, Run

PHASES = ("solo", "none", "full")
MIN_STEPS = 20
# Gradients on CPUs begin at multiples of so many elements (kSlotAlign in models/onednn/parameters.cpp).
SLOT_ELEMENTS = 32
_CROWDED = "caution.more_threads_than_cores"


@dataclass(frozen=True)
class Figures:
    """What a session tells, from all of its samples or from resampled ones.

    compute, alone: seconds of a step of a rank among others without reductions, and of a rank alone. slowdown: seconds
    by which a second of reductions beside it delays compute. reduce: mean seconds of reductions in a step of the rank
    that waited least, as a simulation counts them.
    """

    compute: float
    alone: float
    slowdown: float
    reduce: float


@dataclass(frozen=True)
class Training:
    """A session with the phases solo, none and full. Arrays in seconds: [rank, step], or [step] of the solo rank.

    reduce, busy, exposed: minima over ranks. busy: the engine's thread reduces, copies or negotiates. hosts: ranks of
    each node, in their order.
    """

    solo: Run
    full: Run
    world: World
    hosts: tuple[tuple[int, ...], ...]
    solo_step: np.ndarray
    solo_compute: np.ndarray
    none_step: np.ndarray
    none_compute: np.ndarray
    full_compute: np.ndarray
    reduce: np.ndarray
    busy: np.ndarray
    exposed: np.ndarray

    def is_copy_of(self, other: Training) -> bool:
        """Returns True if both have the same samples, which no two measurements have."""
        mine, theirs = (np.concatenate([one.none_step, one.full_compute]) for one in (self, other))
        return bool(np.array_equal(mine, theirs) and np.ptp(mine, axis=1).max() > 0)

    def figures(self, random: np.random.Generator | None = None) -> Figures:
        """Returns the figures of all samples; with `random`, of resampled blocks. The phases took turns, so blocks of
        equal place are drawn together, and a slow spell of the machine cancels."""
        steps = len(self.solo_step)
        chosen = np.arange(steps)
        if random is not None:
            starts = random.integers(steps, size=-(-steps // BLOCK))
            chosen = (starts[:, None] + np.arange(BLOCK)).ravel()[:steps] % steps

        def middle(series: np.ndarray) -> float:
            return float(np.mean(np.median(series[..., chosen], axis=-1)))

        beside = middle(self.busy) - middle(self.exposed)
        slowed = middle(self.full_compute) - middle(self.none_compute)
        return Figures(
            compute=middle(self.none_step),
            alone=middle(self.solo_step),
            slowdown=float(np.clip(slowed / beside, 0, 1)) if beside > 0 else 0.0,
            reduce=float(np.mean(self.reduce[chosen])),
        )

    def together(self) -> float | None:
        """Returns the mean correlation of the compute times of two nodes, from 0 to 1: how much slow steps hit all
        nodes at once. None if there is one node, or nothing varies."""
        nodes = [np.mean(self.none_compute[list(ranks)], axis=0) for ranks in self.hosts]
        if len(nodes) < 2 or min(np.std(series) for series in nodes) == 0:
            return None
        pairs = np.corrcoef(nodes)[np.triu_indices(len(nodes), 1)]
        return float(np.clip(np.mean(pairs), 0, 1))

    def noise(self) -> list[list[np.ndarray]]:
        """Returns [node][rank of the node]: compute times of successive steps over the typical one of all ranks."""
        typical = np.mean(np.median(self.none_compute, axis=1))
        return [[self.none_compute[rank] / typical for rank in ranks] for ranks in self.hosts]


@dataclass
class Inputs:
    """All that a prediction is drawn from. schedule: the one to predict, which a what-if may change. collectives: all
    that were read, of which `fabric` has those that fit. late: seconds by which a replay wakes late. copy: the range of
    the seconds for a byte into the fusion buffer, or out of it. layouts: sessions with other numbers of ranks on each
    node, by that number. files: name -> SHA-256."""

    profile: Profile
    sessions: list[Training]
    collectives: list[CollSession]
    fabric: Fabric
    schedule: Schedule
    late: float
    copy: tuple[float, float]
    labels: list[Label]
    notes: list[str]
    added: Added = field(default_factory=Added)
    layouts: dict[int, list[Training]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> Run:
        return self.sessions[0].full

    @property
    def ranks_per_node(self) -> int:
        return self.sessions[0].world.ranks_per_node

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations whose costs the schedule needs."""
        return (*self.schedule.operations(), *([BARRIER] if self.schedule.name == NEGOTIATED else []))

    @property
    def gradient_bytes(self) -> int:
        return self.profile.elements * {"fp32": 4}.get(self.schedule.allreduce_type, 2)

    @property
    def recorded(self) -> float:
        """Seconds of the profile's step. The sessions tell how long such a step takes in them."""
        return self.profile.step + self.late

    @property
    def latest(self) -> str:
        """When the newest of all input sessions began, as stores write it."""
        trained = [session.full.started_utc for session in self.sessions]
        used = set(self.fabric.sessions)
        return max(trained + [c.columns["started_utc"] for c in self.collectives if c.columns["uuid"] in used])

    def middle(self) -> Figures:
        """Returns the median over sessions of each figure."""
        found = [dataclasses.astuple(session.figures()) for session in self.sessions]
        return Figures(*map(float, np.median(found, axis=0)))

    def together(self) -> float:
        """Returns in which share of the draws all nodes play the same steps: as their times correlate, if measured."""
        known = [share for session in self.sessions if (share := session.together()) is not None]
        return float(np.mean(known)) if known else 0.5

    def nodes_text(self) -> str:
        """Returns on which numbers of nodes the sessions were: `2, 4 nodes`."""
        return nodes_text(session.world for session in self.sessions)


def _grouped_by_host(run: Run) -> tuple[tuple[int, ...], ...]:
    hosts = runs.grouped(run.ranks, lambda row: row["host"])
    return tuple(tuple(row["rank"] for row in rows) for rows in hosts.values())


def _series(run: Run, kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns kind -> samples of all ranks, (ranks, steps), cut to the fewest steps."""
    found = {}
    for kind, (_, samples) in zip(kinds, runs.samples_of_ranks([(run, kind) for kind in kinds]), strict=True):
        if len(samples) != run.world_size or sorted(samples) != list(range(len(samples))):
            raise TooLittle(f"run {run.short_id} has no {kind} of every rank")
        fewest = min(len(series) for series in samples.values())
        found[kind] = np.stack([samples[rank][:fewest] for rank in range(run.world_size)])
    return found


def _training(members: dict[str, Run]) -> Training:
    full = members["full"]
    hosts = _grouped_by_host(full)
    everybody = sorted(rank for ranks in hosts for rank in ranks)
    if len({len(ranks) for ranks in hosts}) != 1 or everybody != list(range(full.world_size)):
        raise HvdbError(f"run {full.short_id} has unlike numbers of ranks on its nodes, which predict does not know")
    solo = _series(members["solo"], ("step_seconds", "compute_seconds"))
    none = _series(members["none"], ("step_seconds", "compute_seconds"))
    whole = _series(full, ("compute_seconds", "reduce_seconds", "exposed_seconds"))
    steps = min(array.shape[1] for part in (solo, none, whole) for array in part.values())
    if steps < MIN_STEPS:
        raise TooLittle(f"session {full.session_uuid[:8]} has {steps} steps of each phase, and {MIN_STEPS} are needed")
    if not np.median(none["compute_seconds"], axis=1).min() > 0:
        raise HvdbError(f"run {members['none'].short_id} has steps whose compute takes no time")
    reduce = whole["reduce_seconds"][:, :steps].min(axis=0)
    negotiated = ("copy_seconds", "control_seconds") if full.schedule == NEGOTIATED else ()
    others = [series[:steps] for series in map(full.lowest, negotiated) if len(series) >= steps]
    return Training(
        solo=members["solo"],
        full=full,
        world=World(len(hosts), len(hosts[0])),
        hosts=hosts,
        solo_step=solo["step_seconds"][0, :steps],
        solo_compute=solo["compute_seconds"][0, :steps],
        none_step=none["step_seconds"][:, :steps],
        none_compute=none["compute_seconds"][:, :steps],
        full_compute=whole["compute_seconds"][:, :steps],
        reduce=reduce,
        busy=np.sum([reduce, *others], axis=0),
        exposed=whole["exposed_seconds"][:, :steps].min(axis=0),
    )


def _whole_sessions(stored: Sequence[Run]) -> list[dict[str, Run]]:
    """Returns phase -> run of every session of hvd_bench's own trainings that has all phases once."""
    found = []
    for members in runs.by_session(run for run in stored if run.device != runs.TORCH).values():
        phases = {run.phase: run for run in members}
        if set(phases) == set(PHASES) and len(members) == len(PHASES):
            found.append(phases)
    return found


def _fits(profile: Profile, run: Run) -> bool:
    mine = (profile.model, profile.compute_type, profile.units_per_step, profile.unit)
    return mine == (run.model, run.compute_type, run.batch_size, run.unit)


def _base(profile: Profile, stored: Sequence[Run]) -> tuple[dict[str, Run], list[dict[str, Run]], str, list[str]]:
    """Returns the session that the profile stands for, all whole sessions, what was found, and notes."""
    whole = _whole_sessions(stored)
    source = [run for run in stored if run.uuid == profile.source_run]
    if source and not _fits(profile, source[0]):
        run = source[0]
        raise HvdbError(
            f"{profile.file}: the profile is of {profile.model}, {profile.compute_type}, {profile.units_per_step} "
            f"{profile.unit} a step, but its run {run.short_id} is of {run.model}, {run.compute_type}, "
            f"{run.batch_size} {run.unit}"
        )
    for members in whole:
        if source and members["full"].session_uuid == source[0].session_uuid:
            return members, whole, f"session {source[0].session_uuid[:8]}, in which the profile was recorded", []
    like = [members for members in whole if _fits(profile, members["full"])]
    recordings = ("", UNKNOWN, profile.hash)
    others = [run for members in like if (run := members["full"]).replay not in recordings]
    like = [members for members in like if members["full"].replay in recordings]
    if others and not like:
        raise NotComparable(
            f"{profile.file}: is profile {profile.hash}, and run {others[-1].short_id} replayed {others[-1].replay}: "
            f"the stores hold sessions of another recording of {profile.model}"
        )
    if not like:
        raise TooLittle(
            f"no session with the phases solo, none and full of {profile.model}, {profile.compute_type}, "
            f"{profile.units_per_step} {profile.unit} a step: run hvd_bench --efficiency --db with this network"
        )
    newest = like[-1]
    short = newest["full"].session_uuid[:8]
    why = "has no phases solo, none and full" if source else "is not in these stores"
    run = "the profile names no run" if profile.source_run.startswith("none") else f"run {profile.source_run[:8]} {why}"
    note = f"{run}; session {short} of the same network stands for it"
    return newest, whole, f"session {short}, of the same network, type and batch as the profile", [note]


def _require_gradients(profile: Profile, run: Run) -> None:
    """Errors: NotComparable if the run's gradients are not those of the profile, each with less than
    SLOT_ELEMENTS more to where the next one begins."""
    more = [(run.gradient_bytes or 0) - size * profile.elements for size in (2, 4)]  # of an element
    if run.gradient_bytes and not any(0 <= m <= 4 * SLOT_ELEMENTS * profile.gradients for m in more):
        raise NotComparable(
            f"run {run.short_id} reduced {run.gradient_bytes} bytes of gradients, and this profile has "
            f"{profile.elements} elements of them: the profile is of another run"
        )


def _sha256(file: Path) -> str:
    """Returns the hash of a file that may be larger than the memory. Errors: OSError."""
    made = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            made.update(piece)
    return made.hexdigest()


def gather(
    profile: Profile,
    stores: Sequence[Path],
    stored: Sequence[Run],
    added: Added = Added(),  # noqa: B008 (frozen)
) -> Inputs:
    """Returns the inputs. stored: the runs of `stores`.

    Errors: HvdbError if something does not fit together, TooLittle if too little was measured, NotComparable if
    software or hardware differ.
    """
    chosen = efficiency.select(stored)
    base, whole, found, notes = _base(profile, chosen.runs)
    full = base["full"]
    crowded = "had more threads than cores"
    if full.fact(_CROWDED) and full.device != "replay":
        raise HvdbError(f"run {full.short_id} {crowded}, which says nothing about ranks that do not")
    if full.replay == UNKNOWN:
        notes.append(f"run {full.short_id} does not say which recording it replayed; it is taken for this profile")
    _require_gradients(profile, full)
    first = _training(base)
    sessions = [first]
    layouts: dict[int, list[Training]] = {}
    for members in whole:
        other = members["full"]
        if members is base or comparable.curve(other) != comparable.curve(full):
            continue
        if differing := [d.key for d in comparable.differences(full, other) if d.in_fingerprint]:
            notes.append(f"session {other.session_uuid[:8]} is not used: it differs in {', '.join(differing[:6])}")
            continue
        if other.fact(_CROWDED) and other.device != "replay":
            notes.append(f"session {other.session_uuid[:8]} is not used: it {crowded}")
            continue
        try:
            training = _training(members)
        except HvdbError as error:
            notes.append(f"session {other.session_uuid[:8]} is not used: {error}")
            continue
        per_node = training.world.ranks_per_node
        alike = sessions if per_node == first.world.ranks_per_node else layouts.setdefault(per_node, [])
        if copied := [known for known in alike if known.is_copy_of(training)]:
            of = copied[0].full.session_uuid[:8]
            notes.append(f"session {other.session_uuid[:8]} is not used: it has the samples of session {of}")
            continue
        alike.append(training)
    collectives = coll_samples.load(stores)
    cells = fabric.gather(collectives, full, first.world.ranks_per_node, full.allreduce_type, added)
    notes += [*(f"left out: {line}" for line in cells.left_out), *cells.notes]
    if full.on_gpus:
        notes.append("never validated on GPUs: no prediction for them was ever compared with a measurement")
    late = max(0.0, float(np.median(first.solo_compute)) - profile.backward_end) if full.device == "replay" else 0.0
    steps = sum(len(session.solo_step) for session in sessions)
    made = Inputs(profile, sessions, collectives, cells, of_run(full), late, (0.0, 0.0), [], notes, added, layouts)
    middle = made.middle()
    used = f"{count_text(len(sessions), 'session')} on {made.nodes_text()}"
    made.labels += [
        Label("shape of a step", MEASURED, f"the profile, of {profile.step:.4g} s"),
        Label("step of one rank", MEASURED, found, middle.alone),
        Label("interference", MEASURED, used, middle.compute / middle.alone),
        Label("slowdown by overlap", MEASURED, used, middle.slowdown),
        Label("noise", MEASURED, f"{steps} steps of {used}"),
    ]
    if any(session.together() is not None for session in sessions):
        source = f"the same steps on all nodes in so many draws, as they correlate in {used}"
        made.labels.append(Label("noise of several nodes", MEASURED, source, made.together()))
    else:
        source = "half of the draws: independent; half: the same steps on all nodes"
        made.labels.append(Label("noise of several nodes", ASSUMED, source))
    copied = full.lowest("copy_seconds")
    if full.schedule == NEGOTIATED and len(copied):
        made.copy = (float(np.median(copied)) / (2 * made.gradient_bytes),) * 2
        source = f"copy_seconds of run {full.short_id}, as if every gradient was copied"
        made.labels.append(Label("copies", ASSUMED, source))
    named = (*stores, *(one.file for one in added.files))
    made.files = {str(profile.file): profile.sha256, **{str(file): _sha256(file) for file in named}}
    if not (cells.cells or cells.link):
        raise TooLittle(
            "these stores hold no results of collectives that are like the reductions of this training: run hvd_bench "
            f"coll --db on the same ranks{''.join(f'; left out: {line}' for line in cells.left_out[:3])}"
        )
    return made
