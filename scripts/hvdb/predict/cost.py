"""The time of a collective on worlds of any size, from its times on a few worlds. Pure arithmetic on numpy arrays.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict.steps import World, hidden_latencies, nodes_text, steps, title

MIN_WORLDS, MIN_SIZES, MAX_SIZES = 3, 6, 512
# Standard deviation of the drift of h per doubling of the nodes, before any is measured.
DRIFT = 0.02
NEAR = 2.0  # sizes within this factor tell together how far worlds lie apart
MAX_T = 8.0  # of Student's t
START = 4.0  # the smallest step and one with this many times its bytes give the slope below the smallest step
FALL = (0.5, 1.5)  # range of that slope, as a factor, because nothing is measured there
# Standard deviation of the logarithm of times of which only one mean is known, for all sizes together.
# Assumed: such files say nothing about it.
ONE_MEAN = 0.1
# Part of a hierarchical collective that is spent between nodes, at least. If most sizes have less, there is no split.
MIN_BETWEEN = 0.1
MAX_DOUBLINGS = 20  # from 1 to 1,048,576 nodes


@dataclass(frozen=True)
class CollectiveTimes:
    """The times of one collective in one session. size: bytes, as nccl-tests counts them. samples: seconds, of the
    slowest rank, shape (samples,). imported: another program measured them, and one sample is a mean."""

    world: World
    size: int
    samples: np.ndarray
    session: str = ""
    imported: bool = False


def step_seconds(operation: str, algorithm: str, world: World, seconds: Sequence[float]) -> np.ndarray:
    """Returns the seconds of a step from those of collectives of ascending sizes, of which the first tells the
    latency. The inverse of collective_seconds()."""
    count, hidden = steps(operation, algorithm, world)[0], hidden_latencies(operation, algorithm, world)
    return (np.asarray(seconds) + hidden * seconds[0] / (count - hidden)) / count


def collective_seconds(operation: str, algorithm: str, world: World, curve: Curve, size: float) -> float:
    """Returns the seconds of a collective of `size` bytes, of whose steps `curve` has the seconds."""
    count, share = steps(operation, algorithm, world)
    hidden = hidden_latencies(operation, algorithm, world)
    a_step = curve.at(size * share)
    return count * a_step - hidden * min(a_step, float(curve.seconds[0]))


@dataclass(frozen=True)
class Curve:
    """Seconds of a step against its bytes, both ascending, at least one point. Between two points it is a line, which
    is exact for a latency plus a time per byte. Above the last one it grows in proportion to the bytes. Below the first
    one it falls `fall` times as steeply as from the point at START times its bytes, but not faster than in proportion
    to the bytes."""

    bytes: np.ndarray
    seconds: np.ndarray
    fall: float = 1.0

    def at(self, step_bytes: float) -> float:
        if step_bytes > self.bytes[-1]:
            return float(self.seconds[-1] * step_bytes / self.bytes[-1])
        if step_bytes < self.bytes[0]:
            first, lowest = float(self.bytes[0]), float(self.seconds[0])
            slope = self.fall * (self.at(START * first) - lowest) / ((START - 1) * first)
            return lowest - min(slope, lowest / first) * (first - step_bytes)
        return float(np.interp(step_bytes, self.bytes, self.seconds))

    def covers(self, step_bytes: float) -> bool:
        """Returns True if a step of so many bytes was measured, or lies between two that were."""
        return bool(self.bytes[0] <= step_bytes <= self.bytes[-1])


def ascending(values: Sequence[float]) -> np.ndarray:
    """Returns the ascending sequence that is nearest to `values` (least squares), by pooling adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    return np.array([mean for mean, count in blocks for _ in range(count)])


@dataclass(frozen=True)
class Spread:
    """How far the worlds' curves lie apart, as standard deviations of the logarithm of h.

    apart: at each point of the common curve, from `worlds` curves and the points within a factor of NEAR. Worlds may
    agree on large steps, which the wire decides, and not on small ones. drift, drift_error: mean and standard deviation
    of the change per doubling of the nodes.
    """

    worlds: int
    apart: np.ndarray
    drift: float
    drift_error: float


@dataclass(frozen=True)
class Drawn:
    """One draw of the cost of an operation. own: of each measured world, its curve. common: of all other worlds.

    walk: logarithm of a factor beyond the `largest` number of measured nodes, after 0, 1, 2, ... doublings. inner: the
    part inside a node, which comes on top of the steps between nodes; None if there is none.
    """

    operation: str
    algorithm: str
    own: Mapping[World, Curve]
    common: Curve
    largest: int
    walk: np.ndarray
    inner: OneWorldDrawn | None = None

    def seconds(self, world: World, size: float) -> float:
        """Returns the seconds of the collective of `size` bytes; 0 on one node."""
        if world.nodes == 1:
            return 0.0
        share = steps(self.operation, self.algorithm, world)[1]
        inner = self.inner.curve.at(size) if self.inner else 0.0
        if (mine := self.own.get(world)) and (share == 0 or mine.covers(size * share)):
            return inner + collective_seconds(self.operation, self.algorithm, world, mine, size)
        doublings = max(0.0, math.log2(world.nodes / self.largest))
        factor = math.exp(float(np.interp(doublings, np.arange(len(self.walk)), self.walk)))
        return inner + factor * collective_seconds(self.operation, self.algorithm, world, self.common, size)


@dataclass
class Cost:
    """The cost of one operation by one algorithm, with equally many ranks on each node. Make it with fit(). inner: the
    cost of the part inside a node, if that is known; without it, this part counts as steps between nodes."""

    operation: str
    algorithm: str
    cells: dict[World, dict[int, list[CollectiveTimes]]]
    inner: OneWorldCost | None = None
    spread: Spread = field(init=False)

    def __post_init__(self) -> None:
        medians = {world: [_median(cells) for _, cells in self._sizes(world)] for world in self.worlds}
        inside = self.inner.middle() if self.inner else None
        if inside:
            too_long = [
                inside.curve.at(size) > (1 - MIN_BETWEEN) * median
                for world in self.worlds
                for (size, _), median in zip(self._sizes(world), medians[world], strict=True)
            ]
            if 2 * sum(too_long) > len(too_long):
                self.inner = inside = None
        self._inside = inside
        self._own = {world: self._curve(world, medians[world], inside) for world in self.worlds}
        self._common, self.spread = _pool(self._own)

    def _sizes(self, world: World) -> list[tuple[int, list[CollectiveTimes]]]:
        return sorted(self.cells[world].items())

    def _curve(self, world: World, medians: Sequence[float], inside: OneWorldDrawn | None) -> Curve:
        """Returns the curve of h."""
        share = steps(self.operation, self.algorithm, world)[1]
        medians = between_nodes([size for size, _ in self._sizes(world)], medians, inside)
        sizes = np.array([size * share for size, _ in self._sizes(world)])
        if share == 0:
            sizes, medians = sizes[:1], [float(np.median(medians))]
        return Curve(sizes, step_seconds(self.operation, self.algorithm, world, ascending(medians)))

    @property
    def worlds(self) -> list[World]:
        return sorted(self.cells)

    def covers(self, world: World, size: float) -> bool:
        """Returns True if a step of this message on `world` has as many bytes as steps that were measured."""
        share = steps(self.operation, self.algorithm, world)[1]
        return share == 0 or self._common.covers(size * share)

    def middle(self) -> Drawn:
        """Returns the cost from the medians of all samples, without any error of the form."""
        still = np.arange(MAX_DOUBLINGS + 1) * self.spread.drift
        return Drawn(self.operation, self.algorithm, self._own, self._common, self.largest(), still, self._inside)

    def draw(self, random: np.random.Generator) -> Drawn:
        """Returns a draw: every cell's session and samples are resampled, and the error of the form is drawn."""
        inside = self.inner.draw(random) if self.inner else None
        own = {
            world: self._curve(world, _resampled([cells for _, cells in self._sizes(world)], random), inside)
            for world in self.worlds
        }
        common, _ = _pool(own)
        spread = self.spread
        # A world that was not measured lies anywhere among those that were, at all sizes alike. The mean over few
        # worlds is uncertain, too, and so is their spread: Student's t with worlds - 1 degrees of freedom.
        # Its ends, which no percentile of the band sees, are cut off, for they have no bound.
        tail = float(np.clip(random.standard_t(spread.worlds - 1), -MAX_T, MAX_T))
        aside = math.sqrt(1 + 1 / spread.worlds) * tail
        apart = ascending(common.seconds * np.exp(aside * spread.apart))
        # The drift is one number that is not known exactly, the same for each doubling.
        walk = random.normal(spread.drift, spread.drift_error) * np.arange(MAX_DOUBLINGS + 1)
        common = Curve(common.bytes, apart, random.uniform(*FALL))
        return Drawn(self.operation, self.algorithm, own, common, self.largest(), walk, inside)

    def largest(self) -> int:
        """Returns the largest number of nodes on which it was measured."""
        return max(world.nodes for world in self.cells)


def between_nodes(sizes: Sequence[float], seconds: Sequence[float], inside: OneWorldDrawn | None) -> Sequence[float]:
    """Returns the seconds less the part inside a node. Less than half of MIN_BETWEEN counts as an error of samples."""
    if inside is None:
        return seconds
    return [max(s - inside.curve.at(size), MIN_BETWEEN / 2 * s) for size, s in zip(sizes, seconds, strict=True)]


def _median(cells: Sequence[CollectiveTimes]) -> float:
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


def only_means(cells: Iterable[CollectiveTimes]) -> bool:
    """Returns True if no cell tells how times vary."""
    return all(len(cell.samples) == 1 for cell in cells)


def _pool(curves: Mapping[World, Curve]) -> tuple[Curve, Spread]:
    """Returns the common curve of all worlds, and how far the worlds' curves lie from it."""
    grid = np.unique(np.concatenate([curve.bytes for curve in curves.values()]))
    worlds = sorted(curves)
    logs = np.full((len(worlds), len(grid)), np.nan)
    for row, world in enumerate(worlds):
        for column, size in enumerate(grid):
            if curves[world].covers(size):
                logs[row, column] = math.log(curves[world].at(size))
    common = np.nanmean(logs, axis=0)
    from_common = logs - common
    freedom = np.sum(~np.isnan(logs), axis=0) - 1  # 0: the only world of this size is compared with itself
    if not freedom.any():
        raise TooLittle("no two worlds have steps of equal bytes: measure the same sizes on all of them")
    places = np.log2(np.maximum(grid, 1.0))
    squares = np.nansum(from_common**2, axis=0)
    apart = np.empty(len(grid))
    for column, place in enumerate(places):
        near = np.abs(places - place) <= math.log2(NEAR)
        if not freedom[near].any():
            near = np.full(len(grid), True)
        apart[column] = math.sqrt(squares[near].sum() / freedom[near].sum())
    weights = np.where(freedom > 0, 1 / (apart**2 + DRIFT**2), 0.0)  # of the sizes, in the mean of a whole curve
    known = ~np.isnan(from_common) * weights
    means = np.nansum(from_common * weights, axis=1) / np.maximum(known.sum(axis=1), np.finfo(float).tiny)
    return Curve(grid, ascending(np.exp(common))), Spread(len(worlds), apart, *_drift(worlds, means))


def _drift(worlds: Sequence[World], means: np.ndarray) -> tuple[float, float]:
    """Returns mean and standard deviation of the change of log h per doubling of the nodes.

    The slope over the measured worlds is weighed against a drift of 0 +- DRIFT, since few worlds show little of it. How
    far the worlds lie from their own slope tells how much it is worth.
    """
    doublings = np.log2([world.nodes for world in worlds])
    doublings -= doublings.mean()
    wide = float(np.sum(doublings**2))
    if wide == 0:
        return 0.0, DRIFT
    slope = float(np.sum(doublings * means)) / wide
    rest = means - means.mean() - slope * doublings
    error = float(np.sum(rest**2)) / max(1, len(worlds) - 2) / wide
    trust = DRIFT**2 / (DRIFT**2 + error)
    return trust * slope, DRIFT


def fit(operation: str, algorithm: str, cells: Iterable[CollectiveTimes], inner: OneWorldCost | None = None) -> Cost:
    """Returns the cost of an operation from cells of at least MIN_WORLDS worlds of several nodes. inner: of the part
    inside a node.

    Errors: TooLittle if there are fewer worlds, or fewer than MIN_SIZES sizes in one of them; HvdbError for unlike
    numbers of ranks per node.
    """
    by_world: dict[World, dict[int, list[CollectiveTimes]]] = {}
    for cell in cells:
        if cell.world.nodes > 1 and len(cell.samples):
            by_world.setdefault(cell.world, {}).setdefault(cell.size, []).append(cell)
    what = title(operation, algorithm)
    if len(by_world) < MIN_WORLDS:
        have = ", ".join(str(world.nodes) for world in sorted(by_world)) or "none"
        raise TooLittle(
            f"{what} was measured on {len(by_world)} numbers of nodes ({have}), and {MIN_WORLDS} are needed: run "
            "hvd_bench coll --db on others, or describe the link by --link-gbit and --latency-us"
        )
    if len({world.ranks_per_node for world in by_world}) > 1:
        raise HvdbError(f"{what} was measured with unlike numbers of ranks on a node: name the stores of one number")
    for world, sizes in sorted(by_world.items()):
        if len(sizes) > MAX_SIZES:
            raise HvdbError(
                f"{what} on {world.nodes} nodes has {len(sizes)} sizes, and at most {MAX_SIZES} are possible"
            )
        if operation != "barrier" and len(sizes) < MIN_SIZES:
            raise TooLittle(f"{what} on {world.nodes} nodes has {len(sizes)} sizes, and {MIN_SIZES} are needed")
    return Cost(operation, algorithm, by_world, inner)


@dataclass(frozen=True)
class OneWorldCost:
    """The cost of one operation on one measured world, which says nothing about others. cells: by size, ascending."""

    operation: str
    algorithm: str
    world: World
    cells: Mapping[int, Sequence[CollectiveTimes]]

    def covers(self, world: World, size: float) -> bool:
        return world == self.world and min(self.cells) <= size <= max(self.cells)

    def middle(self) -> OneWorldDrawn:
        """Returns the cost from the medians of all samples."""
        return self._drawn([_median(cells) for cells in self.cells.values()])

    def draw(self, random: np.random.Generator) -> OneWorldDrawn:
        """Returns a draw: every cell's session and samples are resampled."""
        return self._drawn(_resampled(list(self.cells.values()), random))

    def _drawn(self, medians: Sequence[float]) -> OneWorldDrawn:
        return OneWorldDrawn(self.world, Curve(np.array(list(self.cells), dtype=float), ascending(medians)))


@dataclass(frozen=True)
class OneWorldDrawn:
    """One draw of OneWorldCost. curve: seconds of the whole collective against the bytes of its message."""

    world: World
    curve: Curve

    def seconds(self, world: World, size: float) -> float:
        if world != self.world:
            raise ValueError(f"{world} is not {self.world}")
        return self.curve.at(size)


def one_world(operation: str, algorithm: str, world: World, cells: Iterable[CollectiveTimes]) -> OneWorldCost:
    """Returns the cost on `world` alone. Errors: TooLittle if fewer than MIN_SIZES sizes were measured there."""
    by_size: dict[int, list[CollectiveTimes]] = {}
    for cell in cells:
        if cell.world == world and len(cell.samples):
            by_size.setdefault(cell.size, []).append(cell)
    needed = 1 if operation == "barrier" else MIN_SIZES
    if len(by_size) < needed:
        raise TooLittle(
            f"{title(operation, algorithm)} on {world.ranks} ranks of {nodes_text([world])} has {len(by_size)} sizes, "
            f"and {needed} are needed: run hvd_bench coll --collective {operation} --db there"
        )
    return OneWorldCost(operation, algorithm, world, dict(sorted(by_size.items())))
