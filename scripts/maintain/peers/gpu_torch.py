"""One PyTorch training process on the GPU, driven from outside: the peer of our GPU steps.

The process speaks the protocol of serving.py. To a request for steps it answers one number: the mean seconds per step.
The device is idle when the timing begins and when it ends. The process follows PyTorch's tuning guide: channels_last,
autocast with GradScaler in fp16, cudnn.benchmark, a fused optimiser, images that stay on the device. Labels are new in
every step. Weights begin like ours and learn at the same rate. The best of these variants is the peer:

    eager     operation by operation
    graph     the whole step as one CUDA graph (fp16: without the update where the optimiser cannot scale by itself)
    compile   torch.compile, mode reduce-overhead: fused operations in CUDA graphs
    autotune  torch.compile, mode max-autotune: also times kernels of its own for every operation, for minutes

If a variant cannot run here, the last line on standard error says why.

--device cpu runs eager and compile at small sizes without a GPU, only to test this program.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from networks import DEFAULT_IMAGE, LEARNING_RATE, Labels, add_shared_options, checked_network, parameter_count
from serving import answer
from torch import Tensor, nn

COMPILE_MODES = {"compile": "reduce-overhead", "autotune": "max-autotune"}
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Enough steps for cudnn.benchmark, the optimiser's buffers and the scaler's first halvings. PyTorch's notes on CUDA
# graphs ask for at least three, and for eleven with DistributedDataParallel.
WARM_UP_STEPS = 11

# The first scale of GradScaler. With the default, 65536, the first step may overflow. In that case the fused optimiser
# would leave its momentum unwritten.
FIRST_SCALE = 1024.0
# Texts in the errors of PyTorch and cuDNN that mean exhausted memory.
NO_MEMORY = ("out of memory", "ALLOC_FAILED", "Unable to find a valid cuDNN algorithm")


def make_sgd(parameters: list[nn.Parameter], learning_rate: float) -> tuple[torch.optim.Optimizer, str]:
    """Returns SGD with momentum in the fastest form of this PyTorch version, and the name of the form."""
    for form in ("fused", "foreach"):
        try:
            extra = {form: True}
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4, **extra), form
        except (TypeError, RuntimeError, ValueError):  # not supported by this version or these tensors
            continue
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4), "plain"


def set_precision(dtype: str, algorithms: int) -> None:
    """Sets the precision. algorithms: number of cuDNN algorithms to time for each convolution; 0: all."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.benchmark = True
    if hasattr(torch.backends.cudnn, "benchmark_limit"):
        torch.backends.cudnn.benchmark_limit = algorithms


def make_scaler(enabled: bool) -> object:
    """Returns a GradScaler. torch.amp has GradScaler since 2.3; newer versions warn about torch.cuda.amp.GradScaler."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE, enabled=enabled)
    return torch.cuda.amp.GradScaler(init_scale=FIRST_SCALE, enabled=enabled)


class GpuTrainer:
    """Runs training steps of one variant. Another batch size makes everything anew."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._device = torch.device(options.device)
        self._image = options.image or DEFAULT_IMAGE[options.model]
        self.description = ""

    def batch(self, images: int) -> str | None:
        self._release()
        try:
            self._build(images)
            return None
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_MEMORY):
                raise
            reason = str(error).split(". ")[0]
        self._release()  # after the handler, because inside the handler the error's frames still hold the tensors
        return reason

    def loss(self) -> float:
        return float(self._loss)

    def steps(self, count: int) -> list[float]:
        self._synchronise()
        start = time.perf_counter()
        for _ in range(count):
            self._step()
        self._synchronise()
        return [(time.perf_counter() - start) / count]

    def _release(self) -> None:
        self._step: Callable[[], object] = lambda: None
        self._network = self._optimiser = self._scaler = self._images = self._labels = self._graph = None
        self._loss = torch.tensor(float("nan"))
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _build(self, images: int) -> None:
        options = self._options
        torch.manual_seed(1)
        self._network = checked_network(options.model, self._image)
        self._network = self._network.to(device=self._device, memory_format=torch.channels_last)
        count = parameter_count(self._network)
        parameters = list(self._network.parameters())
        self._optimiser, form = make_sgd(parameters, options.learning_rate)
        scaled = options.dtype == "fp16" and self._device.type == "cuda"
        self._scaler = make_scaler(scaled)
        shape = (images, 3, self._image, self._image)
        self._images = torch.randn(shape, device=self._device).to(memory_format=torch.channels_last)
        self._labels = Labels(images, self._device, options.labels)
        self._loss_function = nn.CrossEntropyLoss()
        if mode := COMPILE_MODES.get(options.variant):
            self._network = torch.compile(self._network, mode=mode, dynamic=False)
        self._step = self._whole_step
        note = ""
        if options.variant == "graph":
            note = self._capture(whole=not scaled or getattr(self._optimiser, "_step_supports_amp_scaling", False))
        else:
            for _ in range(options.warm_up):
                self._step()
        self._synchronise()
        self.description = (
            f"{count} torch {torch.__version__} {options.variant}{note} {options.dtype} batch {images} {form} SGD "
            f"{options.labels} labels"
        )

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

    def _capture(self, whole: bool) -> str:
        """Captures a step into one CUDA graph. Returns a note on the operations that stayed outside the graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._options.warm_up):
                self._whole_step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._forward_backward()
            if whole:
                self._update()

        def step() -> None:  # the replay writes into the tensors of the capture, including self._loss
            self._labels.draw()
            self._graph.replay()
            if not whole:
                self._update()

        self._step = step
        self._step()
        return "" if whole else " (update outside)"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shared_options(parser)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--variant", choices=["eager", "graph", *COMPILE_MODES], default="eager")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument(
        "--benchmark-limit", type=int, default=0, help="algorithms timed per convolution (PyTorch's own: 10); 0: all"
    )
    parser.add_argument("--warm-up", type=int, default=WARM_UP_STEPS, help="steps before the first answer")
    parser.add_argument("--memory-fraction", type=float, default=1.0, help="of the device's memory, at most")
    parser.add_argument("--compile-cache", type=Path, help="where torch.compile keeps what it has compiled")
    return parser.parse_args()


def missing_for_compile(device: str) -> str:
    """Returns what torch.compile needs but this host does not have; "" if nothing is known to be missing."""
    if not hasattr(torch, "compile"):
        return f"PyTorch {torch.__version__} does not have it"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "this Python has no Triton"
    if os.environ.get("CC") is None and not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "this host has no C compiler"
    return ""


def build(trainer: GpuTrainer, options: argparse.Namespace) -> str | None:
    """Calls GpuTrainer.batch(). Errors: ValueError, also for any error of torch.compile."""
    if options.variant not in COMPILE_MODES:
        return trainer.batch(options.batch)
    try:
        return trainer.batch(options.batch)
    except Exception as error:  # compilers raise errors of many types
        raise ValueError(f"torch.compile: {type(error).__name__}: {' '.join(str(error).split())}") from error


def obstacle(options: argparse.Namespace) -> str:
    """Returns the reason why this variant cannot run here; "" if it can."""
    if options.device == "cuda" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU"
    if options.variant == "graph" and options.device == "cpu":
        return "there are no CUDA graphs on a CPU"
    if options.variant in COMPILE_MODES and (missing := missing_for_compile(options.device)):
        return f"torch.compile: {missing}"
    if options.dtype == "fp16" and options.device == "cpu":
        return "PyTorch's CPU autocast has no fp16"
    return ""


def main() -> int:
    options = parse_arguments()
    # Libraries print to standard output, so the protocol uses a descriptor of its own.
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if reason := obstacle(options):
        print(f"gpu_torch: {reason}", file=sys.stderr)
        return 2
    if options.compile_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.compile_cache / "inductor")
        os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"
        os.environ["TRITON_CACHE_DIR"] = str(options.compile_cache / "triton")
    set_precision(options.dtype, options.benchmark_limit)
    if options.device == "cuda" and options.memory_fraction < 1:
        torch.cuda.set_per_process_memory_fraction(options.memory_fraction)
    try:
        trainer = GpuTrainer(options)
        refusal = build(trainer, options)
    except ValueError as error:
        print(f"gpu_torch: {error}", file=sys.stderr)
        return 1
    if refusal is not None:
        print(f"gpu_torch: batch {options.batch}: {refusal}", file=sys.stderr)
        return 8
    answer(trainer, sys.stdin, protocol)
    return 0


if __name__ == "__main__":
    sys.exit(main())
