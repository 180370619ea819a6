"""The time of a collective on worlds of any size, from its times on a few worlds or from the link between nodes.

An algorithm is a number of steps, in each of which a rank sends some bytes (docs/algorithms.md). A ring all-reduce of
S bytes over N nodes takes 2 (N - 1) steps of S / N bytes:

    time(S, N) = steps(N) x h(S / N)

h, the time of one step of so many bytes, is what the fabric and the library do; it should not depend on N. So a step of
64 ranks of a large message is a step that 4 ranks have already made, of a message that is 16 times smaller:

    seconds of a step                 o  2 nodes         message of 8 MiB on 64 nodes = 126 steps of 128 KiB
        |                      x  o   x  3 nodes                                               ^
        |               x o +         +  4 nodes         each a step that 4 nodes make in a message of 512 KiB
        |      o x +
        +--------------------------- bytes of a step

h is measured on each world, as a curve over the bytes of a step. Where the curves of the worlds do not lie on one
another, the form is wrong by so much: their spread, and what it may grow to on larger worlds, is part of each draw.
Exchanges in pairs take other steps on worlds that are no power of two, which have a curve of their own.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict.curve import Curve, ascending, line
from hvdb.predict.link import Link, LinkChange, Quality, quality
from hvdb.predict.steps import BARRIER, Steps, World, are_known, nodes_text, steps, title

MIN_WORLDS, MIN_SIZES, MAX_SIZES = 3, 6, 512
# Standard deviations of the drift per doubling of the nodes, before any is measured: of all of h, and of the part of it
# that the smallest step takes, too. The wire has one rate, but the slowest of more ranks is later.
DRIFT, LATENCY_DRIFT = 0.02, 0.15
# How far worlds lie apart before any is measured: as if so many others had this standard deviation of log h. A few
# worlds that happen to agree do not say that all agree.
PRIOR_WORLDS, PRIOR_APART = 2, 0.02
# The same for two launches on one world. That a world differs from others, too, is taken for a launch of its own.
PRIOR_AGAIN = 0.01
NEAR = 2.0  # sizes within this factor tell together how far worlds lie apart
MAX_T = 8.0  # of Student's t, whose ends no percentile of a band sees
LEAST = 0.5  # part of the smallest step that is left on fewer nodes, however much its latency drifts
FALL = (0.5, 1.5)  # range of the slope below the smallest step, as a factor, because nothing is measured there
# Time of a step of a world that is no power of two over that of another, drawn log-evenly, while one is not measured.
ODD = (1.0, 1.5)
# Standard deviation of the logarithm of times of which only one mean is known, for all sizes together.
# Assumed: such files say nothing about it.
ONE_MEAN = 0.1
# Part of a hierarchical collective that is spent between nodes, at least. If most sizes have less, there is no split.
MIN_BETWEEN = 0.1
JITTER = 12  # samples of a cell in one draw


@dataclass(frozen=True)
class CollectiveTimes:
    """The times of one collective in one session. size: bytes, as nccl-tests counts them. samples: seconds, of the
    slowest rank, shape (samples,). imported: another program measured them, and one sample is a mean."""

    world: World
    size: int
    samples: np.ndarray
    session: str = ""
    imported: bool = False


Cells = Mapping[int, Sequence[CollectiveTimes]]  # by size, ascending


@dataclass(frozen=True)
class Spread:
    """How far the worlds' curves lie apart, as standard deviations of the logarithm of h.

    apart, again: of worlds, and of launches on one world, at each point of the common grid `bytes`, from the points
    within a factor of NEAR. Worlds may agree on large steps, which the wire decides, and not on small ones. freedom:
    degrees of it, PRIOR_WORLDS included. worlds: how many were measured, of each kind (Steps.odd). drift: see Drift.
    """

    bytes: np.ndarray
    apart: np.ndarray
    again: np.ndarray
    freedom: int
    worlds: tuple[int, int]
    drift: Drift


@dataclass(frozen=True)
class Drift:
    """By how much h changes per doubling of the nodes. all: of its logarithm, at all steps. latency: seconds that come
    on top of each step, over those of the smallest one; what is fitted is at least 0, because the slowest of more ranks
    is not earlier. covariance: of both, shape (2, 2)."""

    all: float = 0.0
    latency: float = 0.0
    covariance: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))

    @property
    def error(self) -> float:
        """The standard deviation of `all`."""
        return math.sqrt(self.covariance[0, 0])

    def drawn(self, random: np.random.Generator) -> Drift:
        """Returns a draw of the same, which is exact. The latency is not below 0, less the same in all draws, so that
        their mean is what is fitted: draws that can only rise would raise the middle of all."""
        all_steps, latency = random.multivariate_normal([self.all, self.latency], self.covariance)
        variance = self.covariance[1, 1]
        known = statistics.NormalDist(self.latency, math.sqrt(variance))
        return Drift(all_steps, max(0.0, latency) - variance * known.pdf(0.0) + self.latency * known.cdf(0.0))


@dataclass(frozen=True, eq=False)
class StepForm:
    """h on worlds that were not measured. curve: the mean of those that were. centre: mean of log2 of their nodes, at
    each point of the curve."""

    curve: Curve
    centre: np.ndarray
    drift: Drift = field(default_factory=Drift)
    _on: dict[int, Curve] = field(default_factory=dict, init=False)

    def on(self, nodes: int) -> Curve:
        """Returns the curve on so many nodes."""
        if nodes not in self._on:
            doublings, seconds = math.log2(nodes) - self.centre, self.curve.seconds
            later = np.maximum(doublings * self.drift.latency, LEAST - 1) * seconds[0]
            made = ascending((seconds + later) * np.exp(doublings * self.drift.all))
            self._on[nodes] = replace(self.curve, seconds=made)
        return self._on[nodes]

    def scaled(self, factor: float | np.ndarray, fall: float | None = None) -> StepForm:
        """Returns the form whose curve takes `factor` times as long."""
        fall = self.curve.fall if fall is None else fall
        return replace(self, curve=Curve(self.curve.bytes, ascending(self.curve.seconds * factor), fall))

    def changed(self, curve: Curve) -> StepForm:
        """Returns the form with another curve, which may begin with one point more."""
        more = len(curve.bytes) - len(self.centre)
        return replace(self, curve=curve, centre=np.concatenate([self.centre[:1]] * more + [self.centre]))


@dataclass(frozen=True)
class Drawn:
    """One draw of the time of a collective.

    measured: of each measured world, the seconds between nodes against the bytes of the message; of an opaque world,
    all seconds. launched: the same as in the launch that measured them, where another launch would differ. a_step:
    seconds of a step on other worlds, of each kind (Steps.odd); empty: unknown. inner: the part inside a node, which
    comes on top of the steps between nodes; None if there is none.
    """

    of: Collective
    measured: Mapping[World, Curve]
    launched: Mapping[World, Curve]
    a_step: tuple[StepForm, ...]
    inner: Curve | None

    def seconds(self, world: World, size: float) -> float:
        """Returns the seconds of the collective of `size` bytes on a world that Collective.require() accepts."""
        mine = self.measured.get(world)
        if mine and world in self.of.opaque:
            return mine.at(size)
        inner = self.inner.at(size) if self.inner else 0.0
        if mine and (mine.covers(size) or not self.a_step):
            return inner + mine.at(size)
        form = self.of.steps(world)
        return inner + form.seconds(self.a_step[form.odd].on(world.nodes), size)

    def same_launch(self) -> Drawn:
        """Returns the same draw, in the launch that measured each world."""
        return replace(self, measured={**self.measured, **self.launched})

    def on(self, change: LinkChange, present: Link | None, rate: float, drawn: Quality) -> Drawn:
        """Returns the same draw on a changed link (LinkChange.curve). The part inside a node keeps its time. Call only
        if Collective.require_steps() succeeds."""

        def changed(curve: Curve, latencies: int) -> Curve:
            return change.curve(curve, latencies, present, rate, drawn)

        measured = {
            world: changed(curve, self.of.steps(world).latencies) if world.nodes > 1 else curve
            for world, curve in self.measured.items()
        }
        a_step = tuple(form.changed(changed(form.curve, 1)) for form in self.a_step)
        return replace(self, measured=measured, a_step=a_step)


@dataclass(frozen=True)
class Collective:
    """What is known of one operation by one algorithm, with equally many ranks on each node. Make it with gather().

    algorithm: "" for a barrier. times: of each world of several nodes whose steps are known. opaque: of worlds that say
    nothing about others: one node, and algorithms whose steps are not known. inside: of the part inside a node; empty:
    not known, and this part then counts as steps between nodes. link: as a person describes it. few: worlds of which
    too few sizes were measured -> their number.
    """

    operation: str
    algorithm: str
    times: Mapping[World, Cells] = field(default_factory=dict)
    opaque: Mapping[World, Cells] = field(default_factory=dict)
    inside: Cells = field(default_factory=dict)
    link: Link | None = None
    few: Mapping[World, int] = field(default_factory=dict)
    ranks_per_node: int = 1

    @property
    def largest(self) -> int:
        """The largest number of nodes whose steps were measured. 0: none."""
        return max((world.nodes for world in self.times), default=0)

    def steps(self, world: World) -> Steps:
        """Returns the steps on `world`. NCCL is taken for a ring over all ranks. Errors: TooLittle if unknown."""
        ring = "flat ring" if self.operation == "all_reduce" else "ring"
        return steps(self.operation, ring if self.algorithm == "nccl" else self.algorithm, world)

    def require(self, world: World) -> None:
        """Errors: TooLittle if nothing tells the time on `world`: all worlds of several nodes together, this world
        alone, or the described link. One node is never derived from another world, nor others from it."""
        if world in self.times or world in self.opaque or (world.nodes > 1 and self.spread):
            return
        what = title(self.operation, self.algorithm)
        if world.nodes == 1:
            raise TooLittle(
                f"{what} on {world.ranks} ranks of 1 node has {self.few.get(world, 0)} sizes, and {MIN_SIZES} are "
                f"needed: run hvd_bench coll --collective {self.operation} --db there"
            )
        if self.link:
            self.steps(world)
            return
        if len(self.times) >= MIN_WORLDS:
            raise TooLittle(f"{what}: no two worlds have steps of equal bytes: measure the same sizes on all of them")
        if not are_known(self.operation, self.algorithm):
            steps(self.operation, self.algorithm, world)
        if self.few:
            few = min(self.few)
            raise TooLittle(f"{what} on {few.nodes} nodes has {self.few[few]} sizes, and {MIN_SIZES} are needed")
        have = ", ".join(str(known.nodes) for known in sorted(self.times)) or "none"
        told = sorted(known.nodes for known in self.opaque if known.nodes > 1)
        stated = f", say by --algorithm what the imported tables of {told} nodes used" if len(told) > 1 else ""
        raise TooLittle(
            f"{what} was measured on {len(self.times)} numbers of nodes ({have}), and {MIN_WORLDS} are needed: run "
            f"hvd_bench coll --db on others{stated}, or describe the link by --link-gbit and --latency-us"
        )

    def require_steps(self, world: World) -> None:
        """Errors: HvdbError if a changed link cannot be applied on `world`."""
        if world in self.opaque and any(cell.imported for same in self.opaque[world].values() for cell in same):
            raise HvdbError("a link can be changed below imported collectives only if --algorithm says their steps")
        steps(self.operation, self.algorithm, world)

    def covers(self, world: World, size: float) -> bool:
        """Returns True if this message on `world`, or a step of as many bytes, was measured, or lies between two that
        were. A described link covers everything."""
        middle = self.middle
        if (mine := middle.measured.get(world)) and mine.covers(size):
            return True
        return bool(middle.a_step) and middle.a_step[0].curve.covers(size * self.steps(world).share)

    def is_described(self, world: World) -> bool:
        """Returns True if the time on `world` comes from the described link."""
        return world.nodes > 1 and not (self.spread or world in self.times or world in self.opaque)

    @functools.cached_property
    def middle(self) -> Drawn:
        """The draw of the medians of all samples, without any error of the form."""
        return self.draw()

    def draw(self, random: np.random.Generator | None = None, of_link: Quality = quality()) -> Drawn:  # noqa: B008
        """Returns a draw: every cell's session and samples are resampled, and the error of the form is drawn. Without
        `random`, the middle. of_link: what collectives get of the described link in this draw."""
        inner, measured = self._between_nodes(random)
        a_step: tuple[StepForm, ...] = ()
        launched = {}
        if self.spread:
            a_step = self._drawn_form(self._pooled(measured), random)
            if random:
                launched, measured = measured, self._again(measured, random)
        elif self.link and (are_known(self.operation, self.algorithm) or self.algorithm == "nccl"):
            a_step = (StepForm(self._described(of_link), np.zeros(2)),) * 2
        measured |= {world: _message(cells, random) for world, cells in self.opaque.items()}
        return Drawn(self, measured, launched, a_step, inner)

    def _between_nodes(self, random: np.random.Generator | None = None) -> tuple[Curve | None, dict[World, Curve]]:
        """Returns the part inside a node, if it is known, and the seconds between nodes on each measured world."""
        inner = _message(self.inside, random) if self._is_split else None
        return inner, {world: _between(_message(cells, random), inner) for world, cells in self.times.items()}

    def _described(self, of_link: Quality) -> Curve:
        """Returns the curve of a step on the described link."""
        assert self.link
        rate = of_link.share * self.link.rate / senders(self.operation, self.algorithm, self.ranks_per_node)
        return line(of_link.times * self.link.latency_us / 1e6, rate)

    @functools.cached_property
    def _is_split(self) -> bool:
        """True if the part inside a node is known, and most collectives take longer than it."""
        if not self.inside:
            return False
        inside = _message(self.inside)
        too_long = [
            inside.at(size) > (1 - MIN_BETWEEN) * median_seconds(same)
            for cells in self.times.values()
            for size, same in cells.items()
        ]
        return 2 * sum(too_long) <= len(too_long)

    def step_curves(self) -> dict[World, Curve]:
        """Returns the curve of h of each measured world, from the medians of all samples."""
        return self._of_a_step({world: self.middle.measured[world] for world in self.times})

    def _of_a_step(self, measured: Mapping[World, Curve]) -> dict[World, Curve]:
        """Returns the curve of h of each world."""
        made = {}
        for world, curve in measured.items():
            form = self.steps(world)
            made[world] = Curve(curve.bytes * form.share, form.of_a_step(curve.seconds))
        return made

    def _pooled(self, measured: Mapping[World, Curve]) -> tuple[StepForm | None, StepForm | None]:
        """Returns the mean of h of each kind of worlds (Steps.odd); None if there is none of this kind."""
        grid, logs, odd = self._logs(self._of_a_step(measured))
        nodes = np.log2([world.nodes for world in measured])
        made = (_mean_form(grid, logs[odd == kind], nodes[odd == kind]) for kind in (False, True))
        return tuple(made)  # type: ignore[return-value]

    def _logs(self, curves: Mapping[World, Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the bytes of all points; log h there, NaN where a world has not measured it, (worlds, points); and
        which worlds are odd. In the order of `curves`."""
        grid = np.unique(np.concatenate([curve.bytes for curve in curves.values()]))
        logs = np.full((len(curves), len(grid)), np.nan)
        for row, curve in zip(logs, curves.values(), strict=True):
            there = (curve.bytes[0] <= grid) & (grid <= curve.bytes[-1])
            row[there] = np.log(np.interp(grid[there], curve.bytes, curve.seconds))
        return grid, logs, np.array([self.steps(world).odd for world in curves])

    @functools.cached_property
    def spread(self) -> Spread | None:
        """None if too few worlds were measured, or their sizes do not meet."""
        if len(self.times) < MIN_WORLDS:
            return None
        _, measured = self._between_nodes()
        grid, logs, odd = self._logs(self._of_a_step(measured))
        nodes = np.log2([world.nodes for world in self.times])
        from_mean, doublings, latency = (np.full(logs.shape, np.nan) for _ in range(3))
        freedom = np.zeros(len(grid), dtype=int)
        for kind in (False, True):
            mine = odd == kind
            if form := _mean_form(grid, logs[mine], nodes[mine]):
                there = np.isin(grid, form.curve.bytes)
                means = np.nanmean(logs[np.ix_(mine, there)], axis=0)
                from_mean[np.ix_(mine, there)] = logs[np.ix_(mine, there)] - means
                doublings[np.ix_(mine, there)] = nodes[mine][:, None] - form.centre
                latency[np.ix_(mine, there)] = np.exp(means[0] - means)
                freedom[there] += np.sum(~np.isnan(logs[np.ix_(mine, there)]), axis=0) - 1
        if not freedom.any():
            return None
        found, drift = from_mean, Drift()
        for _ in range(2):  # worlds that drift apart lie far apart only before the drift is known
            drift = _drift(grid, from_mean, doublings, latency, _apart(grid, found, freedom, PRIOR_APART))
            found = from_mean - doublings * (drift.all + latency * drift.latency)
        counts = (int(np.sum(~odd)), int(np.sum(odd)))
        free = len(odd) - sum(count > 0 for count in counts) + PRIOR_WORLDS
        apart, again = (_apart(grid, found, freedom, prior) for prior in (PRIOR_APART, PRIOR_AGAIN))
        return Spread(grid, apart, again, free, counts, drift)

    def _again(self, measured: Mapping[World, Curve], random: np.random.Generator) -> dict[World, Curve]:
        """Returns the curves of another launch on each world."""
        spread = self.spread
        assert spread
        made = {}
        for world, curve in measured.items():
            again = np.interp(curve.bytes * self.steps(world).share, spread.bytes, spread.again)
            aside = _student(spread.freedom, random) * again
            made[world] = replace(curve, seconds=ascending(curve.seconds * np.exp(aside)))
        return made

    def _drawn_form(
        self, pooled: tuple[StepForm | None, StepForm | None], random: np.random.Generator | None
    ) -> tuple[StepForm, StepForm]:
        """Returns h of each kind on worlds that were not measured; without `random`, the middle.

        Such a world lies anywhere among those that were, at all sizes alike. The mean over few worlds is uncertain,
        too, and so is their spread: Student's t. The drift is not known exactly, but is the same for each doubling.
        """
        spread = self.spread
        assert spread
        tail, fall = (_student(spread.freedom, random), random.uniform(*FALL)) if random else (0.0, 1.0)
        drift = spread.drift.drawn(random) if random else spread.drift
        usual, odd = (
            form
            and replace(form, drift=drift).scaled(
                np.exp(math.sqrt(1 + 1 / count) * tail * np.interp(form.curve.bytes, spread.bytes, spread.apart)), fall
            )
            for form, count in zip(pooled, spread.worlds, strict=True)
        )
        if usual and odd:
            return usual, odd
        # A kind that was not measured lies between both ends of ODD from the other.
        ratio = ODD[0] * (ODD[1] / ODD[0]) ** (random.random() if random else 0.5) if self.has_odd_worlds else 1.0
        if usual:
            return usual, usual.scaled(ratio)
        assert odd
        return odd.scaled(1 / ratio), odd

    @property
    def has_odd_worlds(self) -> bool:
        """True if worlds that are no power of two take other steps."""
        return self.algorithm == "doubling" or self.operation == BARRIER

    def jitter(self, world: World, size: float, random: np.random.Generator | None) -> np.ndarray:
        """Returns samples / median of a cell that is like this collective: of this world or else of the largest one,
        and of the nearest size by ratio; JITTER of them, drawn with replacement, or without `random` their mean. No
        cell, no jitter."""
        known = self._relative.get(world) or (self.times and self._relative[max(self.times)])
        if not known:
            return np.ones(1)
        relative = known[min(known, key=lambda there: abs(math.log(max(there, 1) / max(size, 1))))]
        return relative[random.integers(len(relative), size=JITTER)] if random else np.mean(relative, keepdims=True)

    @functools.cached_property
    def _relative(self) -> dict[World, dict[int, np.ndarray]]:
        """The samples of a cell of each world and size, over their median."""
        every = (*self.times.items(), *self.opaque.items())
        firsts = {world: {size: same[0].samples for size, same in cells.items()} for world, cells in every}
        return {
            world: {size: samples / np.median(samples) for size, samples in sizes.items()}
            for world, sizes in firsts.items()
        }


def gather(
    operation: str,
    algorithm: str,
    cells: Iterable[CollectiveTimes],
    opaque: Iterable[CollectiveTimes] = (),
    inside: Iterable[CollectiveTimes] = (),
    link: Link | None = None,
    ranks_per_node: int = 1,
) -> Collective:
    """Returns what `cells` tell. opaque: times of other programs whose algorithm nobody knows, which count for worlds
    that `cells` do not have. inside: times of the part inside a node.

    Errors: HvdbError for unlike numbers of ranks on a node, or too many sizes.
    """
    what = title(operation, algorithm)
    needed = 1 if operation == BARRIER else MIN_SIZES
    by_world, alone = _by_world(cells), {}
    for world, sizes in _by_world(opaque).items():
        if world not in by_world:
            alone[world] = sizes
    if len({world.ranks_per_node for world in by_world if world.nodes > 1}) > 1:
        raise HvdbError(f"{what} was measured with unlike numbers of ranks on a node: name the stores of one number")
    for world, sizes in (by_world | alone).items():
        if len(sizes) > MAX_SIZES:
            raise HvdbError(
                f"{what} on {nodes_text([world])} has {len(sizes)} sizes, and at most {MAX_SIZES} are possible"
            )
    few = {world: len(sizes) for world, sizes in by_world.items() if len(sizes) < needed}
    enough = {world: sizes for world, sizes in by_world.items() if world not in few}
    known = {world: sizes for world, sizes in enough.items() if world.nodes > 1 and are_known(operation, algorithm)}
    alone |= {world: sizes for world, sizes in enough.items() if world not in known}
    node = next(iter(_by_world(inside).values()), {})
    node = node if len(node) >= needed else {}
    return Collective(operation, algorithm, known, alone, node, link, few, ranks_per_node)


def senders(operation: str, algorithm: str, ranks_per_node: int) -> int:
    """Returns how many ranks of a node send over its link in one step. A ring over all ranks leaves a node once."""
    return ranks_per_node if operation == "all_reduce" and algorithm in ("ring", "doubling") else 1


def measured_rate(known: Collective) -> tuple[float, float]:
    """Returns (bytes, bytes per second) that the largest steps send over the link of a node; zeros if they do not
    tell."""
    if not known.times:
        return 0.0, 0.0
    world = max(known.times)
    curve = known.step_curves()[world]
    size, sent = float(curve.bytes[-1]), senders(known.operation, known.algorithm, known.ranks_per_node)
    longer = float(curve.seconds[-1]) - curve.at(size / 4)
    return (size * sent, 0.75 * size * sent / longer) if longer > 0 else (0.0, 0.0)


def only_means(cells: Iterable[CollectiveTimes]) -> bool:
    """Returns True if no cell tells how times vary."""
    return all(len(cell.samples) == 1 for cell in cells)


def _by_world(cells: Iterable[CollectiveTimes]) -> dict[World, dict[int, list[CollectiveTimes]]]:
    made: dict[World, dict[int, list[CollectiveTimes]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.world, cell.size)):
        if len(cell.samples):
            made.setdefault(cell.world, {}).setdefault(cell.size, []).append(cell)
    return made


def _message(cells: Cells, random: np.random.Generator | None = None) -> Curve:
    """Returns the seconds of collectives against their bytes."""
    sizes = [*cells.values()]
    medians = [*map(median_seconds, sizes)] if random is None else _resampled(sizes, random)
    return Curve(np.array([*cells], dtype=float), ascending(medians))


def _between(whole: Curve, inner: Curve | None) -> Curve:
    """Returns the seconds less the part inside a node. Less than half of MIN_BETWEEN counts as an error of samples."""
    if inner is None:
        return whole
    left = [max(s - inner.at(size), MIN_BETWEEN / 2 * s) for size, s in zip(whole.bytes, whole.seconds, strict=True)]
    return replace(whole, seconds=ascending(left))


def median_seconds(cells: Sequence[CollectiveTimes]) -> float:
    """Returns the median over sessions of the sessions' medians."""
    return float(np.median([np.median(cell.samples) for cell in cells]))


def _resampled(sizes: Sequence[Sequence[CollectiveTimes]], random: np.random.Generator) -> list[float]:
    """Returns for each size the median of resampled samples. A session is drawn for all sizes, since what makes it slow
    does so at all of them. Where there is nothing to resample, all sizes are by one factor slower or faster."""
    sessions = sorted({cell.session for cells in sizes for cell in cells})
    chosen = sessions[random.integers(len(sessions))]
    medians = []
    for cells in sizes:
        mine = [cell for cell in cells if cell.session == chosen] or cells
        samples = mine[random.integers(len(mine))].samples
        medians.append(float(np.median(samples[random.integers(len(samples), size=len(samples))])))
    if all(only_means(cells) for cells in sizes):
        factor = math.exp(random.normal(0, ONE_MEAN))
        medians = [factor * median for median in medians]
    return medians


def _mean_form(grid: np.ndarray, logs: np.ndarray, nodes: np.ndarray) -> StepForm | None:
    """Returns the mean of `logs` over worlds, at the points that a world has measured. nodes: log2 of each world's."""
    known = ~np.isnan(logs)
    there = known.any(axis=0)
    if not there.any():
        return None
    centre = (known * nodes[:, None]).sum(axis=0)[there] / known.sum(axis=0)[there]
    return StepForm(Curve(grid[there], ascending(np.exp(np.nanmean(logs[:, there], axis=0)))), centre)


def _student(freedom: int, random: np.random.Generator) -> float:
    return float(np.clip(random.standard_t(freedom), -MAX_T, MAX_T))


def _near(grid: np.ndarray) -> np.ndarray:
    """Returns which points lie within a factor of NEAR of which, shape (points, points)."""
    places = np.log2(np.maximum(grid, 1.0))
    return np.abs(places[:, None] - places) <= math.log2(NEAR)


def _apart(grid: np.ndarray, from_mean: np.ndarray, freedom: np.ndarray, prior: float) -> np.ndarray:
    """Returns the standard deviation of log h between worlds at each point, with that of the prior."""
    squares = np.nansum(from_mean**2, axis=0)
    made = np.empty(len(grid))
    for column, near in enumerate(_near(grid)):
        known = near if freedom[near].any() else np.full(len(grid), True)
        free = freedom[known].max()
        found = squares[known].sum() / freedom[known].sum()
        made[column] = math.sqrt((PRIOR_WORLDS * prior**2 + free * found) / (PRIOR_WORLDS + free))
    return made


def _drift(
    grid: np.ndarray, from_mean: np.ndarray, doublings: np.ndarray, latency: np.ndarray, apart: np.ndarray
) -> Drift:
    """Returns the drift that explains how far the worlds lie from the mean of their kind.

    from_mean, doublings, latency: of each world and point, NaN where it is not measured: log h and log2 of the nodes,
    both less the mean, and the seconds of the smallest step over h. A Bayesian linear regression on both numbers of
    Drift, whose prior is 0 +- (DRIFT, LATENCY_DRIFT). Its errors are those of a point, `apart`, and one of each whole
    world, since few worlds that happen to agree do not say that all do. Points that are near tell the same, and count
    together as one.
    """
    together = _near(grid).sum(axis=1) * apart**2
    precision, right = np.diag([DRIFT**-2, LATENCY_DRIFT**-2]), np.zeros(2)
    whole = min(PRIOR_APART, float(np.sqrt(np.mean(apart**2)))) ** 2
    for row, steps_of, share in zip(from_mean, doublings, latency, strict=True):
        known = ~np.isnan(row)
        terms = np.stack([steps_of[known], steps_of[known] * share[known]], axis=1)
        weights = np.linalg.inv(np.diag(together[known]) + whole)
        precision += terms.T @ weights @ terms
        right += terms.T @ weights @ row[known]
    covariance = np.linalg.inv(precision)
    all_steps, more = map(float, covariance @ right)
    return Drift(all_steps, max(0.0, more), covariance)
