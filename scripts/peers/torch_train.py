"""One PyTorch CPU training process, driven from outside: the peer that our steps are compared with.

It speaks the protocol of serving.py, and its ready line tells parameters and version. A step is forward, loss,
backward, SGD with momentum and weight decay.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from networks import DEFAULT_IMAGE, PUBLISHED_PARAMETERS, checked_network, parameter_count
from serving import answer
from torch import Tensor, nn

SLOWEST_BLAS_GFLOPS = 15.0


def matrix_gflops() -> float:
    """Speed of one fp32 matrix product, which PyTorch leaves to the system's BLAS."""
    n = 768
    a = torch.randn(n, n)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        torch.mm(a, a)
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds) * 1e-9


class CpuTrainer:
    """Training steps on synthetic images that stay in memory."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._image = options.image or DEFAULT_IMAGE[options.model]
        self._layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self._bf16 = options.dtype == "bf16"
        self._network = checked_network(options.model, self._image).to(memory_format=self._layout)
        self._optimiser = torch.optim.SGD(self._network.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self._loss_function = nn.CrossEntropyLoss()
        self._loss = torch.tensor(float("nan"))
        self.description = f"{parameter_count(self._network)} torch {torch.__version__}"
        self.batch(options.batch)

    def batch(self, images: int) -> str | None:
        self._images = torch.randn(images, 3, self._image, self._image).to(memory_format=self._layout)
        self._labels = torch.randint(0, 1000, (images,))
        self._step()  # memory, primitives
        return None

    def loss(self) -> float:
        return float(self._loss)

    def steps(self, count: int) -> list[float]:
        return [self._step() for _ in range(count)]

    def _step(self) -> float:
        start = time.perf_counter()
        self._optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            loss: Tensor = self._loss_function(self._network(self._images), self._labels)
        loss.backward()
        self._optimiser.step()
        self._loss = loss.detach()
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(PUBLISHED_PARAMETERS), required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", type=int, default=0, help="image side; 0: the network's own")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: CPU autocast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    # With one thread and a batch below 16 PyTorch 1.13 computes 1x1 convolutions with BLAS. The reference BLAS,
    # which is what Debian installs by itself, makes it ten times slower: not a peer to compare with.
    if (gflops := matrix_gflops()) < SLOWEST_BLAS_GFLOPS:
        print(
            f"this PyTorch multiplies matrices at {gflops:.1f} GFLOP/s: install a fast BLAS "
            "(Debian: apt-get install libopenblas0-pthread)",
            file=sys.stderr,
        )
        return 1
    try:
        trainer = CpuTrainer(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    answer(trainer, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
