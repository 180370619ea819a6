"""Counts the verdicts of gates of equal sides and of slower ones. Arguments: folders of proof.sh."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from hvdb.commands import selection
from hvdb.judge import sides as of_sides
from hvdb.judge import verdict
from hvdb.run import gate_plan, printed_sides, stored_sides


def share(count: int, total: int) -> str:
    low = stats.beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return f"{count} of {total}: {100 * count / max(1, total):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def pairs_of(file: Path):
    if file.suffix == ".json":
        kept = printed_sides.stored(file)
        return kept.plan, kept.pairs()
    stored = selection.load([file], collectives=True)
    plan = gate_plan.read({run.fact(of_sides.PLAN) for run in stored}.pop())
    return plan, stored_sides.pairs_of(plan, stored, stored_sides.read_beside(file, plan))


def shifted(plan, pairs, slowdown: dict[str, float]):
    ratios = {name: row.ratios + math.log1p(slowdown.get(name, 0)) for name, row in pairs.rows.items()}
    tolerated = {name: row.threshold for name, row in pairs.rows.items()}
    return verdict.replay(ratios, tolerated, plan.looks_for(len(ratios)), lambda n: (0, 0), ended=True).judged


for folder in map(Path, sys.argv[1:]):
    print(f"{folder.name}:")
    for kind, suffix in (("coll", "db"), ("command", "json"), ("slower", "json")):
        documents = {}
        for file in sorted(folder.glob(f"{kind}-*.verdict"), key=lambda f: int(f.stem.split("-")[1])):
            documents[int(file.stem.split("-")[1])] = json.loads(file.read_text())
        gates = list(documents.values())
        for word in ("REGRESSION", "PASS"):
            hit = sum(any(cell["verdict"] == word for cell in gate["cells"]) for gate in gates)
            print(f"  {kind}: gates with any {word}: {share(hit, len(gates))}")
        rows = [cell for gate in gates for cell in gate["cells"]]
        spread = np.percentile([100 * cell["spread"] for cell in rows if cell["spread"]], (10, 50, 90))
        found = np.percentile([100 * cell["detectable"] for cell in rows if cell["detectable"]], (10, 50, 90))
        print(
            f"  {kind}: rows {len(rows)}; spread % (10th, median, 90th) {spread.round(1)}; detectable % {found.round(1)}"
        )
        if kind == "slower":
            continue
        hits = total = same = 0
        numbers = sorted(documents)
        for number, following in zip(numbers, numbers[1:], strict=False):
            slow = {cell["cell"]: cell["detectable"] for cell in documents[number]["cells"] if cell["detectable"]}
            for of, counted in ((number, "same"), (following, "next")):
                plan, pairs = pairs_of(folder / f"{kind}-{of}.{suffix}")
                if any(len(row.ratios) < plan.most for row in pairs.rows.values()):
                    continue
                judged = shifted(plan, pairs, slow)
                for name in slow:
                    if name in judged:
                        hit = judged[name].verdict is verdict.Verdict.REGRESSION
                        if counted == "next":
                            hits, total = hits + hit, total + 1
        print(f"  {kind}: rows shifted by what the gate before called detectable, found: {share(hits, total)}")
