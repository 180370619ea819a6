"""The bounds that hvd_bench stored with its runs on GPUs (docs/measurement.md), for the rows of compare_gpu.py."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KEYS = ("gpu.name", "bound.step_seconds", "bound.flops_per_step", "bound.peak_flops")
QUERY = f"""
SELECT run.uuid, run.model, run.compute_type, run.batch_size, provenance.key, provenance.value
FROM run JOIN provenance ON provenance.run_uuid = run.uuid
WHERE run.device = 'cuda' AND run.origin = 'measured' AND provenance.key IN ({", ".join("?" * len(KEYS))})
ORDER BY run.started_utc"""


@dataclass(frozen=True)
class Bound:
    """The bound of one GPU's training step at one batch: its unfused operations at the rates of the data sheet."""

    model: str
    dtype: str
    batch: int
    gpu: str
    seconds_per_image: float
    flops_per_image: float
    peak_flops: float  # in FLOP per second

    def img_s(self) -> float:
        """Returns the roofline's images per second."""
        return 1 / self.seconds_per_image

    def peak_seconds_per_image(self) -> float:
        """Returns the seconds per image of the arithmetic at the peak rate, which is a FLOP utilisation of 1."""
        return self.flops_per_image / self.peak_flops


def read_bounds(store: Path) -> list[Bound]:
    """Reads the bounds of the runs in the store. Errors: ValueError if `store` is not a store of hvd_bench."""
    try:
        connection = sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)
        try:
            lines = connection.execute(QUERY, KEYS).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(f"{store}: {error}") from None
    runs: dict[str, tuple[str, str, int]] = {}
    facts: dict[str, dict[str, str]] = {}
    for uuid, model, dtype, batch, key, value in lines:
        runs[uuid] = model, dtype, batch
        facts.setdefault(uuid, {})[key] = value
    return [_bound(*runs[uuid], fact) for uuid, fact in facts.items() if set(fact) == set(KEYS)]


def _bound(model: str, dtype: str, batch: int, fact: dict[str, str]) -> Bound:
    return Bound(
        model=model,
        dtype=dtype,
        batch=batch,
        gpu=fact["gpu.name"],
        seconds_per_image=float(fact["bound.step_seconds"]) / batch,
        flops_per_image=float(fact["bound.flops_per_step"]) / batch,
        peak_flops=float(fact["bound.peak_flops"]),
    )


def nearest(bounds: Sequence[Bound], model: str, dtype: str, batch: int) -> Bound | None:
    """Returns the bound at this batch, or else at the nearest batch. Weights are read once a step, so the bound per
    image depends only a little on the batch."""
    fitting = [bound for bound in bounds if (bound.model, bound.dtype) == (model, dtype)]
    return min(fitting, key=lambda bound: abs(math.log(bound.batch / batch)), default=None)
