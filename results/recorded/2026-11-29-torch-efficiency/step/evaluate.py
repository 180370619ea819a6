"""Ratio of the step's time, our engine / DistributedDataParallel: evaluate.py (with PYTHONPATH=scripts). The unit is the turn."""

import json
import math
import statistics

from hvdb.read import runs

QUANTILE = 2.571  # of Student's t with 5 degrees of freedom, 97.5 %

ours = {where: [statistics.median(run.step_seconds_series()) for run in runs.load(["step.db"]) if run.fact("label.where") == where] for where in ("host", "four")}
for where, own in ours.items():
    other = [statistics.median(json.loads(line)["step_seconds"]) for line in open(f"{where}.jsonl", encoding="utf-8")]
    logs = [math.log(a / b) for a, b in zip(own, other, strict=True)]
    assert len(logs) == 6
    middle, half = statistics.mean(logs), QUANTILE * statistics.stdev(logs) / math.sqrt(len(logs))
    ends = [math.exp(middle + sign * half) for sign in (0, -1, 1)]
    print(where, f"ours {1e3 * statistics.median(own):.1f} ms, DDP {1e3 * statistics.median(other):.1f} ms, ratio {ends[0]:.3f} [{ends[1]:.3f}, {ends[2]:.3f}]")
    print("  ", [round(math.exp(x), 4) for x in logs])
