"""Renders comparisons of training speed as text: rows, their bounds on a GPU, and a verdict per network and type."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .training import Ratio, Row, ratio_of
from hvdb.errors import HvdbError

HEADING = "model      type  threads    ours img/s batch    peer img/s batch  ratio [95 %]        peer"
KEYS = ("gpu.name", "bound.step_seconds", "bound.flops_per_step", "bound.peak_flops")
QUERY = f"""
SELECT run.uuid, run.model, run.compute_type, run.batch_size, provenance.key, provenance.value
FROM run JOIN provenance ON provenance.run_uuid = run.uuid
WHERE run.device = 'cuda' AND run.origin = 'measured' AND provenance.key IN ({", ".join("?" * len(KEYS))})
ORDER BY run.started_utc"""


class Bound(NamedTuple):
    """The bound of one GPU's training step, in seconds per image: its unfused operations at the rates of the data sheet
    (docs/measurement.md), and its arithmetic alone at the peak rate, which is a FLOP utilisation of 1."""

    model: str
    dtype: str
    batch: int
    gpu: str
    roofline: float
    arithmetic: float


def read_bounds(store: Path) -> list[Bound]:
    """Reads the bounds that hvd_bench stored with its runs. Errors: HvdbError if `store` is not a store."""
    runs: dict[tuple[str, str, str, int], dict[str, str]] = {}
    try:
        with contextlib.closing(sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            for *run, key, value in connection.execute(QUERY, KEYS):
                runs.setdefault(tuple(run), {})[key] = value
    except sqlite3.Error as error:
        raise HvdbError(f"{store}: {error}") from error
    bounds = []
    for (_, model, dtype, batch), facts in runs.items():
        if len(facts) == len(KEYS):
            gpu, seconds, flops, peak = (facts[key] for key in KEYS)
            per_image = (float(seconds) / batch, float(flops) / float(peak) / batch)
            bounds.append(Bound(model, dtype, batch, gpu, *per_image))
    return bounds


def bound_line(row: Row, bounds: Sequence[Bound]) -> str:
    """Compares our speed with the bound at the nearest batch; "" if there is none. Weights are read once a step, so the
    bound per image depends only a little on the batch."""
    ours = row.sides[0]
    fitting = [bound for bound in bounds if (bound.model, bound.dtype) == (row.model, row.dtype)]
    if not fitting:
        return ""
    bound = min(fitting, key=lambda one: abs(math.log(one.batch / ours.batch)))
    turns = len(ours.seconds_per_step)
    share, use = (ratio_of(ours, [s] * turns).text(100, 1) for s in (bound.roofline, bound.arithmetic))
    where = f"{1 / bound.roofline:.1f} img/s (batch {bound.batch}, data sheet of {bound.gpu})"
    return f"unfused roofline {where}: ours is {share} % of it; model FLOP utilisation {use} %"


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
        below += filter(None, [bound_line(row, bounds)])
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
        row = max(good, key=lambda one: one.sides[1].images_per_second())
        ran = ", ".join(dict.fromkeys(name.removeprefix("torch ") for one in own for name in one.variants))
        found, peer = row.ratio(), row.sides[1].name
        ratio = found.text().replace(" ", " x ", 1)
        lines.append(f"{model:<11}{dtype:<6}{verdict(found, target):<13}{ratio} beside {peer} (of {ran})")
    return lines
