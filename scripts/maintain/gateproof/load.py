"""Puts load on the machine during a measurement: processes that compute and pause in turn, for random times."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator

MEAN_SECONDS = 8.0
PROCESSES = 2


def _disturb(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        end = time.monotonic() + rng.expovariate(1 / MEAN_SECONDS)
        while time.monotonic() < end:
            sum(range(10_000))
        time.sleep(rng.expovariate(1 / MEAN_SECONDS))


@contextlib.contextmanager
def running(seed: int = 1) -> Iterator[None]:
    """Disturbs the machine inside the `with`: PROCESSES processes are busy, then idle, for MEAN_SECONDS on average."""
    made = [multiprocessing.Process(target=_disturb, args=(seed + i,), daemon=True) for i in range(PROCESSES)]
    for process in made:
        process.start()
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.join()
