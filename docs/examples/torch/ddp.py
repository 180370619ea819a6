"""Why does this training not scale? torchrun --nproc-per-node 2 ddp.py mine.db mine.replay

Measures a small network under DistributedDataParallel, and records the step of one rank for hvd_bench --replay.
"""

import sys
from collections.abc import Iterator

import torch
from torch import distributed, nn

from hvdb.torch_efficiency import measure
from hvdb.torch_profile import record


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Runs the forward pass."""
    return model(batch).square().mean()


def batches() -> Iterator[torch.Tensor]:
    """Yields batches without end, as a loader does."""
    while True:
        yield torch.randn(64, 1024)


def main(db: str, replay: str) -> None:
    """Measures on all ranks, and records on rank 0."""
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    network = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters())
    print(measure(model, batches(), loss, optimizer, db, unit="samples", name="mine"), end="")
    if distributed.get_rank() == 0:
        print(
            record(network, next(batches()), loss, replay, optimizer=optimizer, unit="samples", units=64, name="mine")
        )
    distributed.destroy_process_group()


main(*sys.argv[1:])
