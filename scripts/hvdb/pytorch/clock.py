"""Clocks that mark the moments of a training step: the host's, and a GPU's by events on its stream."""

from __future__ import annotations

import time
from typing import Any


class HostClock:
    """Marks moments of a step by the host's clock. The last mark of a key counts."""

    def __init__(self) -> None:
        self._marks: dict[int, float] = {}
        self._start = 0.0

    def begin(self) -> None:
        self._marks = {}
        self._start = time.perf_counter()

    def mark(self, key: int) -> None:
        self._marks[key] = time.perf_counter()

    def seconds(self) -> dict[int, tuple[float, float]]:
        """Returns, in seconds since begin(), when each key was marked and when the work before the mark was done."""
        return {key: (at - self._start, at - self._start) for key, at in self._marks.items()}


class DeviceClock(HostClock):
    """Also marks moments of a GPU, by events on the current stream. cuda: torch.cuda. seconds() waits for the GPU."""

    _START = -100

    def __init__(self, cuda: Any, device: Any) -> None:
        super().__init__()
        self._cuda, self._device = cuda, device
        self._events: dict[int, Any] = {}  # used again in each step

    def begin(self) -> None:
        self._cuda.synchronize(self._device)
        super().begin()
        self._record(self._START)

    def mark(self, key: int) -> None:
        super().mark(key)
        self._record(key)

    def seconds(self) -> dict[int, tuple[float, float]]:
        self._cuda.synchronize(self._device)
        start = self._events[self._START]
        marks = super().seconds()
        return {key: (at, start.elapsed_time(self._events[key]) / 1e3) for key, (at, _) in marks.items()}

    def _record(self, key: int) -> None:
        if key not in self._events:
            self._events[key] = self._cuda.Event(enable_timing=True)
        self._events[key].record(self._cuda.current_stream(self._device))
