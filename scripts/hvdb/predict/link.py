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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hvdb.base.errors import HvdbError
from hvdb.predict.curve import Curve
from hvdb.read.predictions import ASSUMED, DATA_SHEET, SCALED, Label

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

    def curve(self, present: Curve, latencies: int, link: Link | None, rate: float, drawn: Quality) -> Curve:
        """Returns the curve on the changed link. latencies: how many an empty message takes in it. link: the present
        one, if a person has described it; the same parts of the new one are then used. rate: bytes per second that
        large messages get of the present link, if nobody has."""
        empty = present.at(0.0)
        slower, latency = self.oversubscription or 1.0, empty
        if self.link_gbit and link:
            slower *= link.gbit / self.link_gbit
        elif self.link_gbit:
            slower *= rate / (drawn.share * self.link_gbit * 1e9 / 8)
        if self.latency_us and link:
            latency = empty * self.latency_us / link.latency_us
        elif self.latency_us:
            latency = latencies * drawn.times * self.latency_us / 1e6
        seconds, sizes = latency + (present.seconds - empty) * slower, present.bytes
        if sizes[0] > 0:  # the curve goes on as a line from there
            sizes, seconds = np.insert(sizes, 0, 0.0), np.insert(seconds, 0, latency)
        return replace(present, bytes=sizes, seconds=np.maximum.accumulate(seconds))


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
