"""Exposed communication by hvdb.torch_efficiency and by PyTorch's profiler, of the same steps of the same run.

The profiler's: time in which a reduction is in flight and no function of backward runs; of a step the least over ranks,
as in the table. Variables: MEASURE_SECONDS, WIDTH, BUCKET_MB, DB, OUT (a line of JSON is added by rank 0).
"""

import json
import os
import re
import statistics
import tempfile
import time

import torch
from torch import distributed, profiler

from hvdb.torch_efficiency import measure


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, 64) / 100)

    def forward(self, x):
        return Sleep.apply(x, 0.02, 0.04) + self.weight.sum() * 1e-6


def union(intervals):
    """Returns the union of intervals (start, end) as a sorted list without overlaps."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def outside(intervals, others):
    """Returns the length of the union of `intervals` that lies outside `others`."""
    def length(pieces):
        return sum(end - start for start, end in pieces)

    return length(union([*intervals, *others])) - length(union(others))


def exposed_seconds(trace):
    """Returns the exposed seconds of every step that reduces, but for the first of each visit, which does not count."""
    spans = [(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in trace["traceEvents"] if e.get("ph") == "X"]
    starts = sorted(start for name, start, _ in spans if name == "a step begins")
    reductions = [(start, end) for name, start, end in spans if name.startswith("gloo:all_reduce")]
    backward = [(start, end) for name, start, end in spans if name.startswith("autograd::engine::evaluate_function")]
    found, reduced_before = [], False
    for begin, end in zip(starts, [*starts[1:], float("inf")]):
        mine = [span for span in reductions if begin <= span[0] < end]
        if mine and reduced_before:
            found.append(outside(mine, [span for span in backward if begin <= span[0] < end]))
        reduced_before = bool(mine)
    return found


def main():
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*(Layer(int(os.environ["WIDTH"])) for _ in range(5)))
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=float(os.environ["BUCKET_MB"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    def loss(network, batch):
        with profiler.record_function("a step begins"):
            pass
        return network(batch).mean()

    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as recorded:
        table = measure(model, iter(lambda: torch.ones(8, 4), None), loss, optimizer, os.environ["DB"], name="slept", seconds=float(os.environ["MEASURE_SECONDS"]))
    with tempfile.TemporaryDirectory() as folder:
        recorded.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json", encoding="utf-8") as opened:
            mine = exposed_seconds(json.load(opened))
    gathered = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    if distributed.get_rank() == 0:
        print(table, end="")
        steps = [min(step) for step in zip(*gathered, strict=True)]
        ((share, milliseconds),) = re.findall(r"exposed communication +(-?[\d.]+) %.* (-?[\d.]+) ms", table)
        step = float(milliseconds) / float(share) * 100
        made = {"steps": len(steps), "ours_percent": float(share), "profiler_percent": statistics.median(steps) * 1e5 / step}
        print(json.dumps(made))
        with open(os.environ["OUT"], "a", encoding="utf-8") as opened:
            print(json.dumps(made), file=opened)
    distributed.barrier()
    distributed.destroy_process_group()


main()
