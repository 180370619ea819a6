#!/usr/bin/env python3
"""Counts how often gates on recorded pairs give each verdict: docs/gate.md, "Error rates on real pairs".

A folder holds stores of pairs that were measured in turn, compressed with xz or not: equal.db has pairs of equal sides,
plus-N.db has pairs whose side B is N % slower. Gates are drawn from the pairs one after another, in their order of
time. Each gate judges its pairs as `hvdb gate` does, and ends at the look that decides. The next gate begins with the
next pair, so that no pair serves two gates.

    gate_rates.py results/recorded/2026-11-23-gate-proof/{quiet,load,busy} --shift 2

Exit codes: 0 done, 2 usage, input or output.
"""

from __future__ import annotations

import argparse
import lzma
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.append(str(Path(__file__).resolve().parents[1]))
from hvdb.base import edge
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.judge import exact, sides, thresholds, verdict
from hvdb.judge.verdict import Trial, Verdict
from hvdb.read import runs
from hvdb.show import tables

PAIRS = 12  # of one gate, at most
CONFIDENCE = 0.95
SUFFIX = ".db.xz"


@dataclass(frozen=True)
class Rate:
    """A fraction of gates: `hits` of `count`."""

    hits: int
    count: int

    def __str__(self) -> str:
        """Returns the percentage with its exact 95 % interval. Source: Clopper and Pearson, Biometrika 26 (1934)."""
        if not self.count:
            return "-"
        interval = stats.binomtest(self.hits, self.count).proportion_ci(CONFIDENCE)
        low, high = 100 * interval.low, 100 * interval.high
        return f"{100 * self.hits / self.count:.1f} % [{low:.1f}, {high:.1f}] of {self.count}"


def gate(ratios: np.ndarray) -> tuple[Verdict, int]:
    """Runs one gate on the first PAIRS of `ratios`, one log(B / A) of the cost per image for each pair.

    Returns the verdict and the number of pairs that the gate used.
    """
    looks = verdict.plan_looks(1, PAIRS)
    trial = Trial({"cell": thresholds.DEFAULT}, len(looks))
    for look in looks:
        judged = trial.look({"cell": ratios[:look]})["cell"]
        if not trial.undecided:
            break
    return judged.verdict, look


def gates(ratios: np.ndarray) -> list[Verdict]:
    """Draws gates one after another until fewer than PAIRS pairs are left. Returns their verdicts."""
    verdicts, begin = [], 0
    while begin + PAIRS <= len(ratios):
        judged, used = gate(ratios[begin:])
        verdicts.append(judged)
        begin += used
    return verdicts


def read(store: Path) -> dict[str, np.ndarray]:
    """Returns the log ratios of each cell's pairs, in their order of time. Errors: HvdbError, OSError."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = store
        if store.name.endswith(SUFFIX):
            plain = Path(scratch) / store.stem
            try:
                plain.write_bytes(lzma.decompress(store.read_bytes()))
            except lzma.LZMAError as error:
                raise HvdbError(f"{store}: is damaged ({error})") from None
        return {cell.name: sides.log_ratios(cell) for cell in sides.labelled(runs.load([plain]))}


def rates_table(folders: Sequence[Path], shift: float = 0.0) -> str:
    """Returns a Markdown table of verdicts, one row for each store and cell, and one for all stores of equal sides.

    shift: side B of every pair is made slower by this fraction. Errors: HvdbError, OSError.
    """
    header = ("pairs of", "cell", "number", "slowdown", "REGRESSION", "PASS")
    rows, equal = [], Counter[Verdict]()

    def rates(verdicts: Counter[Verdict]) -> list[str]:
        return [str(Rate(verdicts[wanted], verdicts.total())) for wanted in (Verdict.REGRESSION, Verdict.PASS)]

    for folder in folders:
        stores = sorted([*folder.glob(f"*{SUFFIX}"), *folder.glob("*.db")])
        if not stores:
            raise HvdbError(f"{folder}: there is no store of pairs")
        for store in stores:
            name = store.name.partition(".")[0]
            for cell, recorded in read(store).items():
                ratios = recorded + math.log1p(shift)
                judged = Counter(gates(ratios))
                if name == "equal":
                    equal += judged
                effect = exact.paired_effect(ratios, CONFIDENCE)
                value, low, high = (100 * math.expm1(end) for end in (effect.value, effect.low, effect.high))
                slowdown = f"{value:.2f} % [{low:.2f}, {high:.2f}]"
                rows.append((f"{folder.name}/{name}", cell, f"{len(ratios)}", slowdown, *rates(judged)))
    rows.append(("equal sides together", "", "", "", *rates(equal)))
    return tables.markdown_table(header, rows)


def main(words: Sequence[str]) -> int:
    """Prints the table. Errors: HvdbError, OSError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="stores of pairs")
    parser.add_argument("--shift", type=float, default=0.0, metavar="PERCENT", help="make side B slower (default: 0)")
    arguments = parser.parse_args(words)
    for line in rates_table(arguments.folders, arguments.shift / 100).splitlines():
        edge.tell("gate_rates", line)
    return EXIT_GOOD


if __name__ == "__main__":
    sys.exit(edge.run("gate_rates", lambda: main(sys.argv[1:])))
