"""Renders comparisons of training speed as text: rows, their bounds on a GPU, and a verdict per network and type."""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from .training import Ratio, Row
from hvdb.base.errors import StoreError
from hvdb.read import store as stores

HEADING = "model      type  threads    ours img/s batch    peer img/s batch  ratio [95 %]        peer"
# The bounds of the runs on GPUs, per image. A text from the store becomes a number when it is divided.
QUERY = """
SELECT model, compute_type, batch_size, max(value) FILTER (WHERE key = 'gpu.name'),
  max(value) FILTER (WHERE key = 'bound.step_seconds') / batch_size AS roofline,
  max(value) FILTER (WHERE key = 'bound.flops_per_step') / batch_size AS flops,
  max(value) FILTER (WHERE key = 'bound.peak_flops') + 0.0 AS peak
FROM run JOIN provenance ON run_uuid = uuid WHERE device = 'cuda' AND origin = 'measured'
GROUP BY uuid HAVING roofline > 0 AND flops > 0 AND peak > 0 ORDER BY started_utc"""
Bound = tuple[str, str, int, str, float, float, float]
"""Network, type, batch, GPU, seconds of the unfused operations at the rates of the data sheet (docs/measurement.md),
FLOP, and the GPU's peak in FLOP/s. Seconds and FLOP are those of an image."""


def read_bounds(store: Path) -> list[Bound]:
    """Reads the bounds that hvd_bench stored with its runs. Errors: StoreError if `store` is not a store."""
    stores.require_ours(store)
    try:
        with contextlib.closing(sqlite3.connect(f"{store.resolve().as_uri()}?immutable=1", uri=True)) as connection:
            return connection.execute(QUERY).fetchall()
    except sqlite3.Error as error:
        raise StoreError(f"{store}: {error}") from error


def bound_lines(row: Row, bounds: Sequence[Bound]) -> list[str]:
    """Compares our speed with the bound at the nearest batch, if there is one. Weights are read once a step, so the
    bound per image depends only a little on the batch."""
    ours, speed = row.sides[0], row.sides[0].images_per_second()
    fitting = [bound for bound in bounds if bound[:2] == (row.model, row.dtype)]
    nearest = sorted(fitting, key=lambda bound: abs(math.log(bound[2] / ours.batch)))[:1]
    return [
        f"unfused roofline {1 / seconds:.1f} img/s (batch {batch}, data sheet of {gpu}): ours is "
        f"{100 * speed * seconds:.1f} % of it; model FLOP utilisation {100 * speed * flops / peak:.1f} %"
        for _, _, batch, gpu, seconds, flops, peak in nearest
    ]


def row_lines(row: Row, bounds: Sequence[Bound] = ()) -> list[str]:
    """Returns one line under HEADING, and indented lines that explain this line."""
    start = f"{row.model:<11}{row.dtype:<6}{row.threads or '-':>7}"
    below = []
    if row.sides:
        ours, peer, *others = row.sides
        speeds = "".join(f"{side.images_per_second():>14.2f}{side.batch:>6}" for side in (ours, peer))
        start += f"{speeds}  {row.ratio().text():<20}{peer.name}"
        for number, side in enumerate(others, start=2):
            below.append(f"{side.name}: {side.images_per_second():.2f} img/s, {row.ratio(number).text()} x the peer")
        below += bound_lines(row, bounds)
    else:
        start += f"{'-':>14}{'-':>6}{'-':>14}{'-':>6}  not measured"
    ran = ", ".join(f"{name} {speed:.1f}" for name, speed in row.variants.items())
    below += [f"chosen from, img/s alone: {ran}"] if len(row.variants) > 1 else []
    below += row.troubles + [f"left out: {why}" for why in row.missing]
    return [start, *(f"    {line}" for line in below)]


def verdict(ratio: Ratio, target: float) -> str:
    """Decides by the interval alone. If the interval contains the target, the result is undecided."""
    if ratio.low is None or ratio.high is None or ratio.low < target <= ratio.high:
        return "undecided"
    return "reached" if ratio.low >= target else "not reached"


def required(models: Sequence[str], dtypes: Sequence[str], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns the (network, type) pairs that the options --models and --dtypes name. The type is "-" if a network may
    have any type and has none in `rows`. Types without networks are required of every network in `rows`."""
    measured = list(dict.fromkeys(row.model for row in rows))
    if dtypes:
        return list(itertools.product(models or measured, dtypes))
    return [(model, "-") for model in models if model not in measured]


def verdict_lines(rows: Sequence[Row], expected: Sequence[tuple[str, str]], target: float) -> list[str]:
    """Returns one line for each (network, type) in `expected` or in `rows`. The row with the fastest peer decides. Rows
    with trouble, for example a loss that collapsed, do not count."""
    lines = [f"against {target:.2f} x the fastest peer, by the 95 % interval (undecided: it holds {target:.2f}):"]
    for model, dtype in dict.fromkeys([*expected, *((row.model, row.dtype) for row in rows)]):
        own = [row for row in rows if (row.model, row.dtype) == (model, dtype)]
        good = [row for row in own if row.sides and not row.troubles]
        if not good:
            why = "; ".join(text for row in own for text in row.troubles)
            lines.append(f"{model:<11}{dtype:<6}not measured {why}".rstrip())
            continue
        row = max(good, key=lambda row: row.sides[1].images_per_second())
        ran = ", ".join(dict.fromkeys(name.removeprefix("torch ") for row in own for name in row.variants))
        ratio, peer = row.ratio(), row.sides[1].name
        shown = ratio.text().replace(" ", " x ", 1)
        lines.append(f"{model:<11}{dtype:<6}{verdict(ratio, target):<13}{shown} beside {peer} (of {ran})")
    return lines
