"""Renders the judgements of a comparison as tables and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from . import cells, judge, libraries
from .judge import Judgement
from .record import Launch, Plan, block_of
from hvdb import tables

BANDS = (("up to 4 KiB", 4 << 10), ("up to 256 KiB", 256 << 10), ("above", cells.MOST_BYTES))
BANDS_HEADER = ("bytes of a call", "cells", "mean ours / best peer", "lowest", "highest", *reversed(judge.ORDER))
HEADER = ("cell", "ours us", "best peer us", "best peer", "ours / peer [95 %]", "rounds", "verdict")


def rounds_of(launches: Sequence[Launch], kind: str, library: str, cell: str) -> dict[int, float]:
    """Returns round -> median seconds of a sample. If any result of the cell was wrong, the cell is not
    compared, so the map is empty."""
    found = [
        (one.round, one.results[cell])
        for one in launches
        if (one.kind, one.library) == (kind, library) and cell in one.results
    ]
    if any(result.wrong for _, result in found):
        return {}
    return {number: float(np.median(result.seconds)) for number, result in found if result.seconds}


def judgements(plan: Plan, launches: Sequence[Launch], kind: str, ours: str) -> list[Judgement]:
    """Judges each cell that both ours and a peer have. Losses come first."""
    peers = [name for name in plan.libraries if name not in libraries.OURS]
    made = []
    for cell in plan.cells:
        others = {name: rounds_of(launches, kind, name, cell) for name in peers}
        made.append(judge.judge(cell, rounds_of(launches, kind, ours, cell), others))
    return judge.losses_first(one for one in made if one)


def not_judged(
    plan: Plan, launches: Sequence[Launch], kind: str, ours: str, found_there: Sequence[Judgement]
) -> list[tuple[str, str]]:
    """Returns (cell, reason) for each cell without an interval. found_there: judgements() for the same arguments."""
    judged = {one.cell: one for one in found_there}
    wrong = wrong_results(launches)
    found = []
    for cell in plan.cells:
        if cell in judged:
            if not judged[cell].bounded:
                found.append((cell, f"too few rounds for an interval: {judged[cell].rounds}"))
        elif (kind, ours, cell) in wrong:
            found.append((cell, f"{ours} was wrong"))
        elif not rounds_of(launches, kind, ours, cell):
            found.append((cell, f"{ours} has no result"))
        else:
            found.append((cell, "no peer has results in the same rounds"))
    return found


def wrong_results(launches: Sequence[Launch]) -> dict[tuple[str, str, str], int]:
    """Returns (class, library, cell) -> number of wrong elements, without zeros."""
    found: dict[tuple[str, str, str], int] = {}
    for one in launches:
        for cell, result in one.results.items():
            if result.wrong:
                key = (one.kind, one.library, cell)
                found[key] = found.get(key, 0) + result.wrong
    return found


def failures(launches: Sequence[Launch]) -> dict[tuple[str, str], list[str]]:
    """Returns (class, library) -> the reasons why launches of the library failed."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in launches:
        if one.failure is not None:
            found.setdefault((one.kind, one.library), []).append(one.failure)
    return found


def _ratio(one: Judgement) -> str:
    return f"{one.ratio:.2f}" + (f" [{one.low:.2f}, {one.high:.2f}]" if one.bounded else "")


def _row(one: Judgement) -> tuple[str, ...]:
    calls = int(one.cell.rpartition("/")[2])
    times = [tables.number(1e6 * seconds / calls) for seconds in (one.ours_seconds, one.peer_seconds)]
    verdict = one.verdict if one.bounded else "too few rounds"
    return (cells.title(one.cell), *times, one.peer, _ratio(one), str(one.rounds), verdict)


def _size(cell: str) -> int:
    parsed = cells.parse(cell)
    return parsed[2] if parsed else 0


def bands(found: Sequence[Judgement]) -> list[tuple[str, list[Judgement]]]:
    """Groups the judgements by the bytes of a call. A barrier has no bytes and goes into the first group."""
    made, above = [], -1
    for name, most in BANDS:
        made.append((name, [one for one in found if above < _size(one.cell) <= most]))
        above = most
    return made


def _band_rows(found: Sequence[Judgement]) -> list[tuple[str, ...]]:
    rows = []
    for name, inside in [*bands(found), ("all", list(found))]:
        mean = judge.mean_ratio(inside)
        if mean is not None:
            ratios = [one.ratio for one in inside]
            verdicts = judge.counts(inside, len(inside)).verdicts
            figures = [f"{ratio:.2f}" for ratio in (mean, min(ratios), max(ratios))]
            rows.append((name, str(len(inside)), *figures, *(str(verdicts[word]) for word in reversed(judge.ORDER))))
    return rows


def _headline(found: Sequence[Judgement], planned: int) -> str:
    counts = judge.counts(found, planned)
    verdicts = ", ".join(f"{word} {count}" for word, count in counts.verdicts.items())
    return (
        f"{verdicts}, of {planned} planned cells. Of all planned cells {100 * counts.share_not_above():.0f} % have an "
        f"interval that does not lie above 1 (undecided ones count), and {100 * counts.share_shown():.0f} % are shown "
        "to be not slower within 5 %"
    )


def _gradients(found: Sequence[Judgement]) -> list[str]:
    """Returns a line per network: ours beside one flat call of the best peer."""
    lines = []
    for network, size in cells.GRADIENTS.items():
        for one in found:
            if _size(one.cell) == size and one.cell.startswith("all_reduce/"):
                words = f"{network}'s gradients as one flat call: ours / {one.peer} = {_ratio(one)}"
                lines.append(f"{words}, {1e3 * one.ours_seconds:.1f} ms beside {1e3 * one.peer_seconds:.1f} ms")
    return lines


def _not_judged_lines(found: Sequence[tuple[str, str]], planned: int) -> list[str]:
    """Returns a line per reason. Leaves out cells with too few rounds, because the table has these cells."""
    reasons: dict[str, list[str]] = {}
    for cell, why in found:
        if not why.startswith("too few"):
            reasons.setdefault(why, []).append(cell)
    named = ((why, "all cells" if len(these) == planned else ", ".join(these)) for why, these in reasons.items())
    return [f"not judged: {why}: {these}" for why, these in named]


def text(plan: Plan, launches: Sequence[Launch]) -> str:
    """Returns lines for a terminal: a table per class and memory of ours, then wrong results and failures. The caller
    must make the lines printable."""
    block = len(block_of(plan))
    lines = [f"{plan.machine}; {len(launches)} of {block * plan.rounds} launches, {block} a round"]
    lines += [f"{name}: {version}" for name, version in plan.libraries.items()]
    for kind, ranks in plan.classes.items():
        for ours in (name for name in libraries.OURS if name in plan.libraries):
            found = judgements(plan, launches, kind, ours)
            lines += ["", f"{kind} ({ranks} ranks), {ours}: {_headline(found, len(plan.cells))}"]
            if found:
                lines += [*tables.text_table(BANDS_HEADER, _band_rows(found)).splitlines(), *_gradients(found), ""]
                lines += tables.text_table(HEADER, [_row(one) for one in found]).splitlines()
            lines += _not_judged_lines(not_judged(plan, launches, kind, ours, found), len(plan.cells))
    lines += [""]
    for (kind, library, cell), wrong in wrong_results(launches).items():
        lines.append(f"WRONG: {library}, {kind}, {cell}: {wrong} elements; not compared")
    for (kind, library), reasons in failures(launches).items():
        lines.append(f"failed: {library}, {kind}: {len(reasons)} launches; the last one {reasons[-1]}")
    return "\n".join(lines).rstrip()


def series(plan: Plan, launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Returns each library's median over all its rounds in each cell, and the median's interval, or None."""
    made = []
    for kind, library in block_of(plan):
        for cell in plan.cells:
            seconds = list(rounds_of(launches, kind, library, cell).values())
            if seconds:
                low, high = judge.median_interval(seconds) or (None, None)
                row = {"class": kind, "library": library, "cell": cell, "seconds": float(np.median(seconds))}
                made.append({**row, "low": low, "high": high, "rounds": len(seconds)})
    return made


def document(plan: Plan, launches: Sequence[Launch]) -> dict[str, Any]:
    """Returns the document for JSON. seconds: per sample of CALLS calls. Infinite ends of intervals become null."""
    rows, summaries = [], []
    for kind in plan.classes:
        for ours in (name for name in libraries.OURS if name in plan.libraries):
            found = judgements(plan, launches, kind, ours)
            for one in found:
                row = {"class": kind, "ours": ours, **asdict(one), "verdict": one.verdict if one.bounded else None}
                rows.append(row if one.bounded else {**row, "low": None, "high": None})
            counts = judge.counts(found, len(plan.cells))
            summary = {"class": kind, "ours": ours, **asdict(counts), "share_not_above_1": counts.share_not_above()}
            means = {name: judge.mean_ratio(inside) for name, inside in bands(found)}
            unjudged = [list(pair) for pair in not_judged(plan, launches, kind, ours, found)]
            summary |= {"share_shown": counts.share_shown(), "mean_ratios": means, "not_judged": unjudged}
            summaries.append(summary)
    wrong = [[*key, count] for key, count in wrong_results(launches).items()]
    failed = [[*key, reasons] for key, reasons in failures(launches).items()]
    made = {"plan": asdict(plan), "summaries": summaries, "cells": rows, "series": series(plan, launches)}
    return {**made, "wrong": wrong, "failures": failed}
