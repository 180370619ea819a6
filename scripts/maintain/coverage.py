"""Counts how often intervals of repeated sessions contain the truth. `benchmarks DIR coverage` runs the sessions.

The truth is unknown, so for each session the median of the other sessions takes its place. This median also has an
error: with twenty sessions, intervals that contain the truth in 95 % of cases contain the median in about 94 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hvdb import comparable, edge, printable, runs
from hvdb.errors import HvdbError
from hvdb.runs import Component


@dataclass(frozen=True)
class Coverage:
    """One part of the step time. median, spread and half_width are fractions of the step time."""

    held: int  # number of intervals that contain the median of the other sessions
    sessions: int  # number of sessions with an interval
    median: float
    spread: float  # standard deviation over sessions
    half_width: float  # half of an interval's width, as the median over sessions


def coverage(parts: Sequence[Component]) -> Coverage | None:
    """Computes the coverage of `parts`, which are one part from each session. Parts without an interval do not count.

    Returns None if fewer than two parts count. Also returns None if all parts have one value and intervals of zero
    width, because such intervals always contain the value.
    """
    known = [(part.low, part.fraction, part.high) for part in parts if part.low is not None and part.high is not None]
    if len(known) < 2 or (len({value for _, value, _ in known}) == 1 and all(low == high for low, _, high in known)):
        return None
    values = [value for _, value, _ in known]
    held = 0
    for i, (low, _, high) in enumerate(known):
        others = statistics.median(values[:i] + values[i + 1 :])
        held += low <= others <= high
    widths = [(high - low) / 2 for low, _, high in known]
    return Coverage(held, len(known), statistics.median(values), statistics.stdev(values), statistics.median(widths))


def main() -> int:
    """Runs the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="of sessions with --efficiency, all with the same options")
    store = parser.parse_args().store
    sessions = [run for run in runs.load([store]) if run.phase == "full" and run.status == "complete"]
    if len(sessions) < 2:
        raise HvdbError(f"{store}: {len(sessions)} complete sessions with --efficiency: two at least are compared")
    comparable.require_poolable(sessions, str(store))
    print(f"{'part':<24}{'held':>10}{'median %':>10}{'spread %':>10}{'half width %':>14}")
    held, tried = 0, 0
    for name in dict.fromkeys(name for run in sessions for name in run.decomposition):
        found = coverage([run.decomposition[name] for run in sessions if name in run.decomposition])
        if found is None:
            print(f"{printable.terminal(name):<24}{'-':>10}")
            continue
        held, tried = held + found.held, tried + found.sessions
        figures = "".join(f"{100 * value:>10.2f}" for value in (found.median, found.spread))
        counted = f"{found.held} of {found.sessions}"
        print(f"{printable.terminal(name):<24}{counted:>10}{figures}{100 * found.half_width:>14.2f}")
    print(f"{'all':<24}{f'{held} of {tried}':>10}")
    return 0


if __name__ == "__main__":
    sys.exit(edge.run("coverage", main))
