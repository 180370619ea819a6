"""The link between nodes as a data sheet describes it, or as a what-if changes it.

A step of a collective takes h(bytes) = latency + bytes / rate. A data sheet has the line rate and the latency of one
message. What a step gets of them is drawn from SHARE and TIMES.

A what-if splits the measured h into its time at 0 bytes, which a new latency replaces, and the rest, which is scaled
with the rate of the link. The part of a collective inside a node stays as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict import cost
from hvdb.predict.cost import MAX_DOUBLINGS, Cost, Curve, Drawn, OneWorldCost, OneWorldDrawn, World
from hvdb.predict.labels import ASSUMED, DATA_SHEET, SCALED, Label

# Part of the line rate that messages get, drawn evenly. Headers alone cost some 5 %, and a ring waits for its slowest
# link. A host that cannot fill the link (one TCP connection at 100 Gbit/s) gets less, which is not in the range.
SHARE = (0.6, 1.0)
# Time of an empty step over the latency of the link, drawn log-evenly. 1 is a ping-pong between idle hosts. A step also
# waits until the library has noticed a message, has added it, and the slower neighbour is ready.
TIMES = (1.0, 3.0)
# What a what-if may change -> its range.
RANGES = {"link-gbit": (1e-3, 1e5), "latency-us": (1e-3, 1e6), "oversubscription": (1.0, 1e3)}


class Quality(NamedTuple):
    """One draw of SHARE and TIMES. All collectives of a draw share it."""

    share: float
    times: float


def quality(random: np.random.Generator | None = None) -> Quality:
    """Returns a draw; without `random`, its middle."""
    (least, most), (low, high) = SHARE, TIMES
    if random is None:
        return Quality((least + most) / 2, math.sqrt(low * high))
    return Quality(random.uniform(least, most), low * (high / low) ** random.random())


def _number(name: str, text: str) -> float:
    low, high = RANGES[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise HvdbError(f"{name}: '{text}' is not a number from {low:g} to {high:g}")
    return value


@dataclass(frozen=True)
class Link:
    """The link of a node. gbit: line rate in Gbit/s. latency_us: of one message, in microseconds."""

    gbit: float
    latency_us: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.gbit * 1e9 / 8

    def labels(self) -> list[Label]:
        """Returns where a cost from this link alone comes from."""
        assumed = f"{SHARE[0]:g} to {SHARE[1]:g} of the rate, {TIMES[0]:g} to {TIMES[1]:g} times the latency in a step"
        return [
            Label("link between nodes", DATA_SHEET, f"{self.gbit:g} Gbit/s, {self.latency_us:g} us, as options say"),
            Label("what collectives get of the link", ASSUMED, f"{assumed}, no jitter; hosts that can fill it"),
        ]


def declared(gbit: str | None, latency_us: str | None) -> Link | None:
    """Returns the link of --link-gbit and --latency-us, None without them. Errors: HvdbError."""
    if gbit is None and latency_us is None:
        return None
    if gbit is None or latency_us is None:
        raise HvdbError("--link-gbit and --latency-us describe a link together: name both")
    return Link(_number("link-gbit", gbit), _number("latency-us", latency_us))


@dataclass(frozen=True)
class LinkChange:
    """What a what-if changes of the link; None: nothing. oversubscription: by how much less of the rate is left when
    all nodes send at once."""

    link_gbit: float | None = None
    latency_us: float | None = None
    oversubscription: float | None = None

    def values(self) -> dict[str, float]:
        """Returns what is changed, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def change(pairs: Iterable[tuple[str, str]]) -> LinkChange:
    """Returns the change of (name, value) such as ("link-gbit", "100").

    Errors: HvdbError for an unknown name, a name that occurs twice, or a value out of its range.
    """
    found: dict[str, float] = {}
    for name, text in pairs:
        if name not in RANGES:
            raise HvdbError(f"'{name}' is not one of {', '.join(RANGES)}")
        key = name.replace("-", "_")
        if key in found:
            raise HvdbError(f"{name} occurs twice")
        found[key] = _number(name, text)
    return LinkChange(**found)


def senders(operation: str, algorithm: str, world: World) -> int:
    """Returns how many ranks of a node send over its link in one step. A ring over all ranks leaves a node once."""
    return world.ranks_per_node if operation == "all_reduce" and algorithm in ("ring", "doubling") else 1


@dataclass(frozen=True)
class DeclaredCost:
    """The cost of an operation between nodes, of which only the link is known. inner: of its part inside a node."""

    operation: str
    algorithm: str
    senders: int
    link: Link
    inner: OneWorldCost | None

    def covers(self, world: World, size: float) -> bool:
        return True

    def middle(self) -> Drawn:
        return self._drawn(quality(), self.inner.middle() if self.inner else None)

    def draw(self, random: np.random.Generator, drawn: Quality) -> Drawn:
        return self._drawn(drawn, self.inner.draw(random) if self.inner else None)

    def _drawn(self, drawn: Quality, inner: OneWorldDrawn | None) -> Drawn:
        latency, rate = drawn.times * self.link.latency_us / 1e6, drawn.share * self.link.rate / self.senders
        ends = np.array([0.0, 2.0**60])
        h = Curve(ends, latency + ends / rate)
        return Drawn(self.operation, self.algorithm, {}, h, 1 << MAX_DOUBLINGS, np.zeros(1), inner)


def declared_cost(operation: str, algorithm: str, world: World, link: Link, inner: OneWorldCost | None) -> DeclaredCost:
    """Returns the cost on worlds with as many ranks on a node as `world`. NCCL is taken for a ring over all ranks.
    Errors: HvdbError if the steps of the algorithm are not known."""
    if algorithm == "nccl":
        algorithm = "flat ring" if operation == "all_reduce" else "ring"
    cost.steps(operation, algorithm, world)
    return DeclaredCost(operation, algorithm, senders(operation, algorithm, world), link, inner)


def _by_steps(source: Cost | OneWorldCost, made: Drawn | OneWorldDrawn, inside: OneWorldDrawn | None) -> Drawn:
    """Returns a draw of `source` as one of steps between nodes, and of a part inside a node.
    Errors: HvdbError for unknown steps."""
    if isinstance(made, Drawn):
        return made
    share = cost.steps(source.operation, source.algorithm, made.world)[1]
    sizes = made.curve.bytes
    seconds = np.array(cost.between_nodes(sizes, made.curve.seconds, inside))
    seconds = np.maximum.accumulate(seconds)
    h = Curve(sizes * share, cost.step_seconds(source.operation, source.algorithm, made.world, seconds))
    return Drawn(source.operation, source.algorithm, {}, h, made.world.nodes, np.zeros(1), inside)


def measured_rate(source: Cost | OneWorldCost, world: World, inner: OneWorldCost | None) -> tuple[float, float]:
    """Returns (bytes, bytes per second) that the largest steps send over the link of a node; zeros if they do not tell.
    world: of several nodes, like those of `source`. Errors: HvdbError for unknown steps."""
    curve = _by_steps(source, source.middle(), inner and inner.middle()).common
    size, sent = float(curve.bytes[-1]), senders(source.operation, source.algorithm, world)
    longer = float(curve.seconds[-1]) - curve.at(size / 4)
    return (size * sent, 0.75 * size * sent / longer) if longer > 0 else (0.0, 0.0)


@dataclass(frozen=True)
class ChangedCost:
    """A measured cost on a changed link. present: the link of the measurement if a person has described it, so that
    the same parts of the new one are used. rate: bytes per second that the measurement reached. inner: of the part
    inside a node of a OneWorldCost."""

    cost: Cost | OneWorldCost
    change: LinkChange
    present: Link | None
    rate: float
    inner: OneWorldCost | None

    def covers(self, world: World, size: float) -> bool:
        return self.cost.covers(world, size)

    def middle(self) -> Drawn:
        return self._changed(_by_steps(self.cost, self.cost.middle(), self.inner and self.inner.middle()), quality())

    def draw(self, random: np.random.Generator, drawn: Quality) -> Drawn:
        made = self.cost.draw(random)
        return self._changed(_by_steps(self.cost, made, self.inner and self.inner.draw(random)), drawn)

    def _changed(self, made: Drawn, drawn: Quality) -> Drawn:
        own = {world: self._curve(curve, drawn) for world, curve in made.own.items()}
        return dataclasses.replace(made, own=own, common=self._curve(made.common, drawn))

    def _curve(self, curve: Curve, drawn: Quality) -> Curve:
        wanted, empty = self.change, curve.at(0.0)
        slower = wanted.oversubscription or 1.0
        latency = empty
        if wanted.link_gbit and self.present:
            slower *= self.present.gbit / wanted.link_gbit
        elif wanted.link_gbit:
            slower *= self.rate / (drawn.share * wanted.link_gbit * 1e9 / 8)
        if wanted.latency_us and self.present:
            latency = empty * wanted.latency_us / self.present.latency_us
        elif wanted.latency_us:
            latency = drawn.times * wanted.latency_us / 1e6
        return dataclasses.replace(curve, seconds=latency + (curve.seconds - empty) * slower)


LinkCost = (DeclaredCost, ChangedCost)  # whose draws also need a Quality


def changed_cost(
    source: Cost | OneWorldCost | DeclaredCost,
    wanted: LinkChange,
    present: Link | None,
    rate: float,
    inner: OneWorldCost | None = None,
) -> DeclaredCost | ChangedCost:
    """Returns the cost on the changed link.

    Errors: HvdbError if the steps of a collective are not known; TooLittle if the present rate of the link is not.
    """
    if isinstance(source, DeclaredCost):
        link = source.link
        gbit = (wanted.link_gbit or link.gbit) / (wanted.oversubscription or 1.0)
        return dataclasses.replace(source, link=Link(gbit, wanted.latency_us or link.latency_us))
    if isinstance(source, OneWorldCost):
        if not source.algorithm and source.operation != "barrier":
            raise HvdbError("a link can be changed below imported collectives only if --algorithm says their steps")
        cost.steps(source.operation, source.algorithm, source.world)
    if wanted.link_gbit and not (present or rate):
        raise TooLittle("link-gbit: no large collectives tell the present rate of the link: name it by --link-gbit")
    return ChangedCost(source, wanted, present, rate, inner)


def change_labels(wanted: LinkChange, present: Link | None, rate: float) -> list[Label]:
    """Returns how the costs on the changed link come from the measured ones."""
    made = []
    if wanted.link_gbit and (present or rate):
        had = f"{present.gbit:g} Gbit/s, as --link-gbit says" if present else f"the measured {rate * 8e-9:.3g} Gbit/s"
        share = "the same part of" if present else f"{SHARE[0]:g} to {SHARE[1]:g} of"
        made.append(Label("rate of the link", SCALED, f"from {had}, to {share} {wanted.link_gbit:g} Gbit/s"))
    if wanted.latency_us:
        source = f"{TIMES[0]:g} to {TIMES[1]:g} times {wanted.latency_us:g} us"
        if present:
            source = f"from {present.latency_us:g} us, as --latency-us says, in proportion to {wanted.latency_us:g} us"
        made.append(Label("time of an empty step", SCALED, source))
    if wanted.oversubscription:
        made.append(Label("rate of the link", SCALED, f"divided by the oversubscription {wanted.oversubscription:g}"))
    return made
