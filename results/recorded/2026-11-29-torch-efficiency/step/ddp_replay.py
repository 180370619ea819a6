"""Plays a replay profile under DistributedDataParallel: PROFILE OUT.jsonl SECONDS, a rank for each process of torchrun.

What hvd_bench --replay does with a profile without factors: forward, backward and update sleep, and each gradient is
ready at its time. Adds a line with the times of the steps (s), the longest over ranks, to OUT.jsonl. The averages of the
first steps are checked.
"""

import json
import sys
import time

import torch
from torch import distributed, nn


def profile(file):
    """Returns the header, and (elements, seconds of backward when it is ready) of each gradient, in that order."""
    header, gradients = {}, []
    for line in open(file, encoding="utf-8").read().splitlines()[1:]:
        key, _, value = line.partition(" ")
        if key == "gradient":
            elements, _, ready, _ = value.split(" ", 3)
            gradients.append((int(elements), float(ready)))
        else:
            header[key] = value
    return header, gradients


class Layer(torch.autograd.Function):
    """Backward sleeps until the gradient of `weight` is ready."""

    @staticmethod
    def forward(ctx, x, weight, step, ready, rank, gradient):
        ctx.kept = step, ready, rank, gradient
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        step, ready, rank, own = ctx.kept
        own.fill_(rank)  # as hvd_bench does in each step
        step.until(ready)
        return gradient, own.detach(), None, None, None, None  # detach(): a tensor that AccumulateGrad may keep, uncopied


class Step:
    """The clock of one step."""

    def begin(self):
        self.zero = time.perf_counter()

    def until(self, seconds):
        left = self.zero + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Network(nn.Module):
    """Parameters of the profile's gradients; the last one is ready first, as in any chain of layers."""

    def __init__(self, header, gradients, rank):
        super().__init__()
        self.rank, self.step, self.forward_seconds = float(rank), Step(), float(header["forward_seconds"])
        self.weights = nn.ParameterList(torch.zeros(elements) for elements, _ in reversed(gradients))
        self.ready = [ready for _, ready in reversed(gradients)]
        self.gradients = [torch.empty(elements) for elements, _ in reversed(gradients)]

    def forward(self, x):
        self.step.until(self.forward_seconds)
        for weight, ready, gradient in zip(self.weights, self.ready, self.gradients, strict=True):
            x = Layer.apply(x, weight, self.step, ready, self.rank, gradient)
        return x.sum()


def main(file, out, seconds):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    header, gradients = profile(file)
    network = Network(header, gradients, rank)
    model = nn.parallel.DistributedDataParallel(network)
    end, update = float(header["backward_end_seconds"]), float(header["update_seconds"])
    one = torch.ones(1, requires_grad=True)

    def step():
        network.step.begin()
        begun = network.step.zero
        model(one).backward()
        network.step.until(end)
        network.step.begin()
        network.step.until(update)
        return time.perf_counter() - begun

    for number in range(4):  # DistributedDataParallel makes its buckets anew after the first step
        step()
        for weight in network.weights:
            if not torch.all(weight.grad == (size - 1) / 2):
                raise SystemExit(f"step {number}: an average is wrong")
            weight.grad = None
    times, begun = [], time.perf_counter()
    go_on = torch.ones(1)
    while go_on.item():
        distributed.barrier()
        for _ in range(5):
            times.append(step())
            for weight in network.weights:
                weight.grad = None
        go_on.fill_(float(time.perf_counter() - begun < float(seconds)))
        distributed.broadcast(go_on, 0)
    longest = torch.tensor(times, dtype=torch.float64)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    if rank == 0:
        with open(out, "a", encoding="utf-8") as opened:
            print(json.dumps({"ranks": size, "torch": torch.__version__, "step_seconds": longest.tolist()}), file=opened)
    distributed.destroy_process_group()


main(*sys.argv[1:])
