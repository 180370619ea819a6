"""Renders a comparison on a GPU as text: rows, their bounds, and a verdict per network and type. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_bounds import Bound, nearest
from gpu_rows import Found, Pair, Row, Turns
from serving import Ratio

TARGET = 1.15  # times the peer's images per second
HEADING = "model      type      ours img/s batch    peer img/s batch   ratio  95 % interval  peer"


def verdict(ratio: Ratio, target: float) -> str:
    """Decides by the interval alone. If the interval contains the target, the result is undecided."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if ratio.low >= target:
        return "reached"
    return "not reached" if ratio.high < target else "undecided"


def _percent(ratio: Ratio) -> str:
    interval = "too few turns" if ratio.low is None else f"[{100 * ratio.low:.1f}, {100 * ratio.high:.1f}]"
    return f"{100 * ratio.ratio:.1f} % {interval}"


def bound_text(pair: Pair, model: str, dtype: str, bounds: Sequence[Bound]) -> str:
    """Returns a text that compares our speed with the bound."""
    bound = nearest(bounds, model, dtype, pair.ours.batch)
    if bound is None:
        return "no bound: hvd_bench has stored none of this network in this type (--store)"
    return (
        f"unfused roofline {bound.img_s():.1f} img/s (batch {bound.batch}, data sheet of {bound.gpu}): ours is "
        f"{_percent(pair.share_of(bound.seconds_per_image))} of it; model FLOP utilisation "
        f"{_percent(pair.share_of(bound.peak_seconds_per_image()))}"
    )


def _speed(side: Turns | None) -> str:
    return f"{side.img_s():>14.1f}{side.batch:>6}" if side else f"{'-':>14}{'-':>6}"


def _refusals(found: Found) -> list[str]:
    return [f"{found.name}, batch {batch}: {text}" for batch, text in found.refused.items()]


def row_lines(row: Row, bounds: Sequence[Bound]) -> list[str]:
    """Returns one line under HEADING, and indented lines that explain this line."""
    pair = row.best
    found = pair.ratio() if pair else None
    ratio = f"{found.ratio:>8.2f}  {found.interval_text():<15}" if found else f"{'-':>8}  {'':<15}"
    peer = pair.peer.name if pair else ", ".join(f"{f.name} {f.img_s:.1f}" for f in row.variants if f.img_s)
    sides = _speed(pair.ours if pair else None) + _speed(pair.peer if pair else None)
    below = []
    if pair:
        if row.same:
            ours, other, same = row.same.ours, row.same.peer, row.same.ratio()
            below.append(
                f"both at batch {ours.batch}: {ours.img_s():.1f} and {other.img_s():.1f} img/s, {same.ratio:.2f} x "
                f"{same.interval_text()}"
            )
        below.append(bound_text(pair, row.model, row.dtype, bounds))
        below += [f"{side.name}: {side.clocks}" for side in (pair.ours, pair.peer) if side.clocks]
    for search in [*row.variants, *([row.ours_search] if row.ours_search else [])]:
        below += _refusals(search)
    below += row.troubles + row.missing_variants
    return [f"{row.model:<11}{row.dtype:<6}{sides}{ratio}{peer}", *(f"    {line}" for line in below)]


def decisive(rows: Iterable[Row]) -> Row | None:
    """Returns the row with the fastest peer among the rows of one network and type. Quick rows count only if all rows
    are quick.

    A row with trouble (for example a loss that collapsed) is not used."""
    measured = [row for row in rows if row.best and not row.troubles]
    thorough = [row for row in measured if not row.quick] or measured
    return max(thorough, key=lambda row: row.best.peer.img_s() if row.best else 0.0, default=None)


def verdict_lines(rows: Sequence[Row], expected: Sequence[tuple[str, str]], target: float) -> list[str]:
    """Returns one line for each (network, type) in `expected` or in `rows`."""
    cells = list(dict.fromkeys([*expected, *((row.model, row.dtype) for row in rows)]))
    lines = [f"against {target:.2f} x the fastest peer, by the 95 % interval (undecided: it holds {target:.2f}):"]
    for model, dtype in cells:
        own = [row for row in rows if (row.model, row.dtype) == (model, dtype)]
        row = decisive(own)
        start = f"{model:<11}{dtype:<6}"
        if row is None or row.best is None:
            lines.append(f"{start}{'not measured':<13}{'; '.join(t for r in own for t in r.troubles)}".rstrip())
            continue
        ratio = row.best.ratio()
        ran = ", ".join(dict.fromkeys(f.name.removeprefix("torch ") for r in own for f in r.variants if f.img_s))
        quick = "; quick: at one batch" if row.quick else ""
        peer = f"{row.best.peer.name} (of {ran}{quick})"
        lines.append(f"{start}{verdict(ratio, target):<13}{ratio.ratio:.2f} x {ratio.interval_text()} beside {peer}")
    return lines
