"""A training that torchrun starts for the tests: its compute is a sleep. Arguments: store, fault, seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hvdb.base.errors import HvdbError
from hvdb.torch_efficiency import measure

DB, FAULT, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Layer(nn.Module):
    def __init__(self, late: float) -> None:
        super().__init__()
        self.weight, self.late = nn.Parameter(torch.randn(64, 64) / 100), late
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sleep.apply(self.norm(x), 0.02, 0.04 + self.late) + self.weight.sum() * 1e-6


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    rank = dist.get_rank()
    late = 0.2 if FAULT == "backward" and rank == 1 else 0.0
    network = nn.Sequential(*(Layer(late if place == 1 else 0.0) for place in range(5)))
    model = nn.parallel.DistributedDataParallel(
        network, find_unused_parameters=FAULT == "unused", gradient_as_bucket_view=True
    )
    if FAULT == "hook":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    scale = nn.Parameter(torch.ones(()))  # of the loss: only the optimizer has it
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=1e-3)
    begun: list[str] = []
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())

    def batches() -> Iterator[torch.Tensor]:
        count = 0
        while FAULT != "ends" or count < 9:
            count += 1
            if FAULT == "input":
                time.sleep(0.16)  # a third of the step
            yield torch.randn(4 if FAULT == "unlike" and rank else 8, 4)

    def loss(given: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        phase = "full" if isinstance(given, nn.parallel.DistributedDataParallel) else "none"
        begun.append(phase)
        if f"kill-{phase}" == FAULT and rank == 1 and begun.count(phase) > 12:
            os.kill(os.getpid(), 9)
        if FAULT == "kill-solo" and rank == 0 and begun.count("full") > 12 and begun[-2:] == ["full", "none"]:
            os.kill(pids[1], 9)  # the first step of phase solo, in which rank 1 sleeps
        if FAULT == "raises" and rank == 1 and len(begun) > 12:
            raise ZeroDivisionError("a fault of mine")
        with torch.autocast("cpu", torch.bfloat16, enabled=FAULT == "autocast"):
            made = {"closure": model, "raw": network}.get(FAULT, given)(batch)
        return made.mean() * scale * (float("nan") if FAULT == "nan" else 1.0)

    for _ in range(2):  # then gradients view the final buckets, which every reduction writes
        model.zero_grad()
        model(torch.ones(8, 4)).mean().backward()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in network.parameters()]
    seed = torch.get_rng_state()
    try:
        accumulate = 2 if FAULT == "accumulate" else 1
        units = None if FAULT == "unlike" else 8 * accumulate
        done = measure(
            *(model, batches(), loss, optimizer, DB),
            unit="sequences",
            units=units,
            name="slept",
            seconds=SECONDS,
            accumulate=accumulate,
            deadline=20,
        )
        print(done, end="")
    except (HvdbError, ZeroDivisionError, RuntimeError) as error:
        print(f"rank {rank}: {type(error).__name__}: {error}")
    after = network.state_dict()
    same = all(torch.equal(before[name], after[name]) for name in before)
    same = same and scale.item() == 1 and scale.grad is None
    same = same and all(map(torch.equal, gradients, (parameter.grad for parameter in network.parameters())))
    print(f"rank {rank} as before: {same and not optimizer.state and torch.equal(seed, torch.get_rng_state())}")


if __name__ == "__main__":
    main()
