"""The judgements of a comparison as tables and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from . import cells, judge, libraries
from .judge import Judgement
from .record import Launch, Plan
from hvdb import tables

HEADER = ("cell", "ours us", "best peer us", "best peer", "ours / peer [95 %]", "rounds", "verdict")


def rounds_of(launches: Sequence[Launch], kind: str, library: str, cell: str) -> dict[int, float]:
    """Round -> median seconds of a sample. Empty if one result of the cell was wrong: it is then not compared."""
    found = [
        (one.round, one.results[cell])
        for one in launches
        if (one.kind, one.library) == (kind, library) and cell in one.results
    ]
    if any(result.wrong for _, result in found):
        return {}
    return {number: float(np.median(result.seconds)) for number, result in found if result.seconds}


def judgements(plan: Plan, launches: Sequence[Launch], kind: str, ours: str) -> list[Judgement]:
    """Of each cell that ours and a peer have, losses first."""
    peers = [name for name in plan.libraries if name not in libraries.OURS]
    made = []
    for cell in plan.cells:
        others = {name: rounds_of(launches, kind, name, cell) for name in peers}
        made.append(judge.judge(cell, rounds_of(launches, kind, ours, cell), others))
    return judge.losses_first(one for one in made if one)


def wrong_results(launches: Sequence[Launch]) -> dict[tuple[str, str, str], int]:
    """(class, library, cell) -> wrong elements, for those that had some."""
    found: dict[tuple[str, str, str], int] = {}
    for one in launches:
        for cell, result in one.results.items():
            if result.wrong:
                key = (one.kind, one.library, cell)
                found[key] = found.get(key, 0) + result.wrong
    return found


def failures(launches: Sequence[Launch]) -> dict[tuple[str, str], list[str]]:
    """(class, library) -> why its launches failed."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in launches:
        if one.failure is not None:
            found.setdefault((one.kind, one.library), []).append(one.failure)
    return found


def _row(one: Judgement) -> tuple[str, ...]:
    calls = int(one.cell.rpartition("/")[2])
    times = [tables.number(1e6 * seconds / calls) for seconds in (one.ours_seconds, one.peer_seconds)]
    bounded = math.isfinite(one.high)
    interval = f" [{one.low:.2f}, {one.high:.2f}]" if bounded else ""
    verdict = one.verdict if bounded else "too few rounds"
    return (cells.title(one.cell), *times, one.peer, f"{one.ratio:.2f}{interval}", str(one.rounds), verdict)


def _summary(found: Sequence[Judgement]) -> str:
    share = judge.share_not_slower(found)
    if share is None:
        return f"cells: {len(found)}, with too few rounds for an interval (12 give one)"
    bounded = [one for one in found if math.isfinite(one.high)]
    counts = ", ".join(f"{sum(one.verdict == word for one in bounded)} {word}" for word in judge.ORDER)
    return f"cells with an interval: {len(bounded)} ({counts}); {100 * share:.0f} % are not slower"


def text(plan: Plan, launches: Sequence[Launch]) -> str:
    """Lines for a terminal: a table per class and memory of ours, then wrong results and failures. The caller makes
    them printable."""
    lines = [f"{plan.machine}; {len(launches)} of {len(plan.classes) * len(plan.libraries) * plan.rounds} launches"]
    lines += [f"{name}: {version}" for name, version in plan.libraries.items()]
    for kind, ranks in plan.classes.items():
        for ours in (name for name in libraries.OURS if name in plan.libraries):
            found = judgements(plan, launches, kind, ours)
            lines += ["", f"{kind} ({ranks} ranks), {ours}: {_summary(found)}"]
            if found:
                lines += tables.text_table(HEADER, [_row(one) for one in found]).splitlines()
    lines += [""]
    for (kind, library, cell), wrong in wrong_results(launches).items():
        lines.append(f"WRONG: {library}, {kind}, {cell}: {wrong} elements; not compared")
    for (kind, library), reasons in failures(launches).items():
        lines.append(f"failed: {library}, {kind}: {len(reasons)} launches; the last one {reasons[-1]}")
    return "\n".join(lines).rstrip()


def document(plan: Plan, launches: Sequence[Launch]) -> dict[str, Any]:
    """For JSON: seconds are of a sample of CALLS calls; an end of an interval that is infinite is null."""
    rows = []
    for kind in plan.classes:
        for ours in (name for name in libraries.OURS if name in plan.libraries):
            for one in judgements(plan, launches, kind, ours):
                bounded = math.isfinite(one.high)
                row = {"class": kind, "ours": ours, **asdict(one), "verdict": one.verdict if bounded else None}
                rows.append(row if bounded else {**row, "low": None, "high": None})
    wrong = [[*key, count] for key, count in wrong_results(launches).items()]
    failed = [[*key, reasons] for key, reasons in failures(launches).items()]
    return {"plan": asdict(plan), "cells": rows, "wrong": wrong, "failures": failed}
