"""Blocks of tests/testbed/validation under conditions that its plan does not have.

PYTHONPATH=scripts:tests/testbed python3 -B blocks.py 0 1 2
"""

import sys
import time
from pathlib import Path

from hvnet import network
from validation import __main__ as validation

ROOT = Path(__file__).resolve().parents[3]
OUT = Path("/tmp/development-blocks")
# Mbit/s, us added, reductions on 8 nodes over the compute, network whose step is replayed
CASES = [(75.0, 0.0, 1.0, "resnet101"), (120.0, 1000.0, 0.6, "vgg16"), (40.0, 0.0, 1.6, "inception3")]


class Development(validation.Block):
    """A block of CASES."""

    rate_mbit = property(lambda self: CASES[self.number][0])
    latency_us = property(lambda self: CASES[self.number][1])
    share = property(lambda self: CASES[self.number][2])
    profile = property(lambda self: CASES[self.number][3])
    is_odd = False


def shown(cell: dict) -> str:
    """Returns the line of a cell."""
    low, middle, high = (1e3 * cell["predicted"][name] for name in ("low", "middle", "high"))
    measured = 1e3 * cell["measured"]["step_seconds"]
    inside = "" if low <= measured <= high else "OUT "
    return (
        f"{cell['block']} {cell['ranks']} {cell['options'][11:60]:<50} {low:.1f} {middle:.1f} {high:.1f} measured "
        f"{measured:.1f} {inside}error {100 * (middle / measured - 1):+.1f}% width {100 * (high - low) / middle:.1f}%"
    )


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        sys.exit(network.enter([sys.executable, "-B", __file__, "--inside", *sys.argv[1:]]))
    scratch = network.prepare()
    for number in map(int, sys.argv[2:]):
        folder = OUT / f"{number}-{int(time.time())}"
        folder.mkdir(parents=True)
        bench = ROOT / "build/release/bin/hvd_bench"
        for cell in validation.NetworkMeasurement(Development(number), bench, scratch, folder).run():
            print(shown(cell), flush=True)
