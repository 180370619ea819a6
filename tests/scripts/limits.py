"""Limits that hold on any processor, slow or busy."""

from __future__ import annotations

import time

# A program that has not ended after so many seconds hangs. A test that passes never waits so long.
HANG = 600.0

_USUAL_SECONDS = 0.04  # of the loop below, on a core of an AMD EPYC of 2025


def slowness() -> float:
    """Returns how many times the usual processor time a fixed loop takes here and now, at least 1.

    A limit on processor time is multiplied by this.
    """
    begin = time.process_time()
    total = 0
    for i in range(1_000_000):
        total += i * i % 7
    return max(1.0, (time.process_time() - begin) / _USUAL_SECONDS)
