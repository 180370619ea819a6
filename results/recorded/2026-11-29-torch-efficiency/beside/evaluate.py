"""Rows of each training beside those of its replay, turn by turn: evaluate.py STORE (with PYTHONPATH=scripts).

network: exposed communication and waiting for stragglers. framework: the other rows but input. In % of the step, with
95 % intervals of sums and differences by the method of variance estimates recovery.
"""

import sys

from hvdb.base.interval import Interval
from hvdb.judge.beside_replay import difference
from hvdb.read import runs

NETWORK = ("exposed_communication", "stragglers", "control_plane")
FRAMEWORK = ("interference", "overlap_slowdown", "update", "residual")


def total(run, names):
    whole = Interval(0.0, 0.0, 0.0)
    for part in (run.decomposition[name].fraction for name in names):
        whole = difference(whole, Interval(-part.value, -part.high, -part.low))
    return whole


full = [run for run in runs.load(sys.argv[1:]) if run.phase == "full" and run.status == "complete"]
for model in dict.fromkeys(run.model for run in full):
    mine, replays = ([run for run in full if (run.model, run.device) == (model, device)] for device in ("torch", "replay"))
    for turn, (own, replay) in enumerate(zip(mine, replays, strict=True), 1):
        print(
            f"{model} turn {turn}: efficiency {own.decomposition['efficiency'].fraction.text()} and {replay.decomposition['efficiency'].fraction.text()}; "
            f"input {own.decomposition['input'].fraction.text()}, framework {difference(total(own, FRAMEWORK), total(replay, FRAMEWORK)).text()}, "
            f"remainder (network) {difference(total(own, NETWORK), total(replay, NETWORK)).text()}"
        )
