"""One PyTorch CPU training process, driven from outside: the peer of our steps.

The process speaks the protocol of serving.py. Its ready line has the parameter count and the version. A step is
forward, loss, backward, SGD with momentum and weight decay. Labels are new in every step. Weights begin like ours and
learn at the same rate.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time

import torch
from networks import DEFAULT_IMAGE, LEARNING_RATE, Labels, add_shared_options, checked_network, parameter_count
from serving import answer
from torch import Tensor, nn

SLOWEST_BLAS_GFLOPS = 15.0


def matrix_gflops() -> float:
    """Returns the GFLOP/s per core of an fp32 matrix product, by processor time, which other load does not change."""
    n = 768
    a = torch.randn(n, n)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        torch.mm(a, a)
        seconds.append(time.process_time() - start)
    return 2 * n**3 / min(seconds) * 1e-9


class CpuTrainer:
    """Runs training steps on synthetic images that stay in memory."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._image = options.image or DEFAULT_IMAGE[options.model]
        self._layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self._bf16 = options.dtype == "bf16"
        self._network = checked_network(options.model, self._image).to(memory_format=self._layout)
        self._forward = torch.compile(self._network) if options.compile else self._network
        fused = {"fused": True} if "fused" in inspect.signature(torch.optim.SGD).parameters else {}  # since 2.3
        rates = {"lr": LEARNING_RATE, "momentum": 0.9, "weight_decay": 1e-4}
        self._optimiser = torch.optim.SGD(self._network.parameters(), **rates, **fused)
        self._loss_function = nn.CrossEntropyLoss()
        self._loss = torch.tensor(float("nan"))
        self._rule = options.labels
        self.description = f"{parameter_count(self._network)} torch {torch.__version__} {options.labels} labels"
        self.batch(options.batch)

    def batch(self, images: int) -> str | None:
        self._images = torch.randn(images, 3, self._image, self._image).to(memory_format=self._layout)
        self._labels = Labels(images, torch.device("cpu"), self._rule)
        self._step()  # touches memory and creates primitives
        return None

    def loss(self) -> float:
        return float(self._loss)

    def steps(self, count: int) -> list[float]:
        return [self._step() for _ in range(count)]

    def _step(self) -> float:
        self._labels.draw()
        start = time.perf_counter()
        self._optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            loss: Tensor = self._loss_function(self._forward(self._images), self._labels.tensor)
        loss.backward()
        self._optimiser.step()
        self._loss = loss.detach()
        return time.perf_counter() - start


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_shared_options(parser)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: CPU autocast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile, in its default mode")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    # With one thread and a batch below 16, PyTorch 1.13 computes 1x1 convolutions with BLAS. With Debian's reference
    # BLAS, these convolutions are ten times slower, so PyTorch would not be a fair peer.
    if (gflops := matrix_gflops()) < SLOWEST_BLAS_GFLOPS:
        print(
            f"this PyTorch multiplies matrices at {gflops:.1f} GFLOP/s per core: take one with a fast BLAS "
            "(scripts/install_deps --peers)",
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
