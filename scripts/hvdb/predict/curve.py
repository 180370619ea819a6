"""A time against bytes, from a few measured points. Pure arithmetic on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

START = 4.0  # the smallest point and one with this many times its bytes give the slope below the smallest point


@dataclass(frozen=True)
class Curve:
    """Seconds against bytes, both ascending, at least one point. Between two points it is a line, which is exact for a
    latency plus a time per byte. Above the last one it grows in proportion to the bytes. Below the first one it falls
    `fall` times as steeply as from the point at START times its bytes, but not faster than in proportion to the
    bytes."""

    bytes: np.ndarray
    seconds: np.ndarray
    fall: float = 1.0

    def at(self, size: float) -> float:
        if size > self.bytes[-1]:
            return float(self.seconds[-1] * size / self.bytes[-1])
        if size < self.bytes[0]:
            first, lowest = float(self.bytes[0]), float(self.seconds[0])
            slope = self.fall * (self.at(START * first) - lowest) / ((START - 1) * first)
            return lowest - min(slope, lowest / first) * (first - size)
        return float(np.interp(size, self.bytes, self.seconds))

    def covers(self, size: float) -> bool:
        """Returns True if `size` was measured, or lies between two sizes that were."""
        return bool(self.bytes[0] <= size <= self.bytes[-1])


def line(empty: float, rate: float) -> Curve:
    """Returns the curve of a latency (seconds) and a rate (bytes per second)."""
    ends = np.array([0.0, 2.0**60])
    return Curve(ends, empty + ends / rate)


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
