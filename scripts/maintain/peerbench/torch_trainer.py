"""One PyTorch training process, driven from outside: the peer of our steps, on a GPU or on processors.

The process speaks the protocol of training.py. To a request for steps it answers one number: the mean seconds per step.
The device is idle when the timing begins and when it ends. The process follows PyTorch's tuning guide: channels_last,
autocast with GradScaler in fp16, cudnn.benchmark, a fused optimiser, images that stay on the device. Labels are new in
every step. Weights begin like ours and learn at the same rate. The best of these variants is the peer:

    eager     operation by operation
    graph     the whole step as one CUDA graph
    compile   torch.compile: on a GPU in mode reduce-overhead, which puts fused operations into CUDA graphs
    autotune  torch.compile, mode max-autotune: also times kernels of its own for every operation, for minutes

If a variant cannot run here, the last line on standard error says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import IO

import torch
from torch import Tensor, nn

from .networks import DEFAULT_IMAGE, LEARNING_RATE, Labels, checked_network

COMPILE_MODES = {"compile": "reduce-overhead", "autotune": "max-autotune"}
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
# The first scale of GradScaler. With the default, 65536, the first step may overflow. In that case the fused optimiser
# would leave its momentum unwritten.
FIRST_SCALE = 1024.0


class Trainer:
    """Runs training steps of one variant on synthetic images that stay on the device. One thread.

    options: those that Comparison of torch_peers.py gives to this program as one JSON object.
    """

    def __init__(self, options: SimpleNamespace) -> None:
        self._options = options
        self._device = torch.device(options.device)
        torch.manual_seed(1)
        image, images = options.image or DEFAULT_IMAGE[options.model], options.batches
        layout = torch.contiguous_format if options.channels_first else torch.channels_last
        self._network = checked_network(options.model, image).to(device=self._device, memory_format=layout)
        count = sum(p.numel() for p in self._network.parameters())
        rates = {"lr": LEARNING_RATE, "momentum": 0.9, "weight_decay": 1e-4}
        self._optimiser = torch.optim.SGD(self._network.parameters(), **rates, fused=True)
        scaled = options.dtype == "fp16" and self._device.type == "cuda"
        self._scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE, enabled=scaled)
        self._images = torch.randn((images, 3, image, image), device=self._device).to(memory_format=layout)
        self._labels = Labels(images, self._device)
        self._loss_function = nn.CrossEntropyLoss()
        if mode := COMPILE_MODES.get(options.variant):
            mode = mode if self._device.type == "cuda" else None  # there is nothing to capture on processors
            self._network = torch.compile(self._network, mode=mode, dynamic=False)
        self._step = self._whole_step
        if options.variant == "graph":
            self._capture()
        else:
            for _ in range(options.warm_up):
                self._step()
        self._synchronise()
        self.description = (
            f"{count} torch {torch.__version__} {options.variant} {options.dtype} batch {images} fused SGD "
            "fresh labels"
        )

    def loss(self) -> float:
        """Returns the loss of the last step."""
        return float(self._loss)

    def steps(self, count: int) -> float:
        """Returns the mean seconds per step of `count` steps."""
        self._synchronise()
        start = time.perf_counter()
        for _ in range(count):
            self._step()
        self._synchronise()
        return (time.perf_counter() - start) / count

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        lower = AUTOCAST.get(self._options.dtype)
        if lower is None:
            return contextlib.nullcontext()
        # Autocast must not cache weights that were cast to 16 bit, because a captured graph would use the old cache.
        return torch.autocast(self._device.type, dtype=lower, cache_enabled=False)

    def _forward_backward(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        with self._autocast():
            loss: Tensor = self._loss_function(self._network(self._images), self._labels.tensor)
        self._scaler.scale(loss).backward()
        self._loss = loss.detach()

    def _update(self) -> None:
        self._scaler.step(self._optimiser)
        self._scaler.update()

    def _whole_step(self) -> None:
        self._labels.draw()
        self._forward_backward()
        self._update()

    def _capture(self) -> None:
        """Captures a step into one CUDA graph. The fused optimiser scales by itself, so that it can be in the graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._options.warm_up):
                self._whole_step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._forward_backward()
            self._update()

        def step() -> None:  # the replay writes into the tensors of the capture, including self._loss
            self._labels.draw()
            self._graph.replay()

        self._step = step
        self._step()


def answer(trainer: Trainer, questions: Iterable[str], out: IO[str]) -> None:
    """Answers the questions of the protocol until the questions end."""
    print("ready", trainer.description, file=out, flush=True)
    for line in questions:
        asked = line.strip()
        print(repr(trainer.loss()) if asked == "loss" else f"{trainer.steps(int(asked)):.6f}", file=out, flush=True)


def main() -> int:
    """Runs the program. Returns the exit code."""
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    # Libraries print to standard output, so the protocol uses a descriptor of its own.
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if options.compile_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{options.compile_cache}/inductor"
        os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
        os.environ["TRITON_CACHE_DIR"] = f"{options.compile_cache}/triton"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.dtype == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = options.benchmark_limit
    try:
        if options.device == "cpu":
            torch.set_num_threads(options.threads)
        elif options.memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(options.memory_fraction)
        trainer = Trainer(options)
    except Exception as error:  # compilers raise errors of many types
        compiled = "torch.compile: " if options.variant in COMPILE_MODES else ""
        told = next(filter(None, str(error).splitlines()), "")
        print(f"torch_trainer: {compiled}{type(error).__name__}: {told}", file=sys.stderr)
        return 1
    answer(trainer, sys.stdin, protocol)
    return 0


if __name__ == "__main__":
    sys.exit(main())
