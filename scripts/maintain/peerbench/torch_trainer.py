"""One PyTorch training process, driven from outside: the peer of our steps, on a GPU or on processors.

bench/micro/train_step_bench.cpp has the protocol, docs/peers.md the variants. The process follows PyTorch's tuning
guide: channels_last, autocast with GradScaler in fp16, cudnn.benchmark, a fused optimiser, images that stay on the
device. If a variant cannot run here, the last line on standard error says why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from torch import nn

COMPILE_MODES = {"compile": "reduce-overhead", "autotune": "max-autotune"}
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
RATES = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}  # kBenchSgd of bench/micro/training_bench.h
# PyTorch's notes on CUDA graphs ask for three steps before a capture, and for eleven with DistributedDataParallel.
# These are also enough for cudnn.benchmark, the optimiser's buffers and the scaler's first halvings.
WARM_UP = {"cpu": 1, "cuda": 11}
# The first scale of GradScaler. With the default, 65536, the first step may overflow. In that case the fused optimiser
# would leave its momentum unwritten.
FIRST_SCALE = 1024.0


@torch.no_grad()
def initialise(network: nn.Module, model: str) -> None:
    """Initialises with the distributions of models/random.cpp: He normal for convolutions, Glorot uniform for fully
    connected layers (VGG-16: normal with deviation 0.01), 0 for biases. PyTorch initialises batch norms to 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear) and model == "vgg16":
            nn.init.normal_(module.weight, std=0.01)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


def make_network(model: str, image: int) -> nn.Module:
    """Returns torchvision's network in training mode for images of `image` x `image` pixels, initialised like ours."""
    from torchvision import models

    if model == "inception3":
        network = models.inception_v3(aux_logits=False, init_weights=False, transform_input=False)
    else:
        network = getattr(models, model)()
    if model == "vgg16":  # torchvision pools to 7x7 before the head; our head depends on the size of the images
        network.avgpool = nn.Identity()
        network.classifier[0] = nn.Linear(512 * (image // 32) ** 2, 4096)
    initialise(network, model)
    return network.train()


class Trainer:
    """Trains one variant on synthetic images, with the options of start_peer() in torch_peers.py. One thread."""

    def __init__(self, options: SimpleNamespace) -> None:
        self._options, self._is_gpu = options, options.device == "cuda"
        torch.manual_seed(1)
        image = options.image or (299 if options.model == "inception3" else 224)
        layout = torch.contiguous_format if options.layout == "channels-first" else torch.channels_last
        self._network = make_network(options.model, image).to(device=options.device, memory_format=layout)
        count, kind = sum(p.numel() for p in self._network.parameters()), f"{options.variant} {options.dtype}"
        self.description = f"{count} torch {torch.__version__} {kind} batch {options.batches} fused SGD"
        self._optimiser = torch.optim.SGD(self._network.parameters(), **RATES, fused=True)
        scaled = options.dtype == "fp16" and self._is_gpu
        self._scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE, enabled=scaled)
        shape = (options.batches, 3, image, image)
        self._images = torch.randn(shape, device=options.device).to(memory_format=layout)
        self._labels = torch.empty(options.batches, dtype=torch.int64, device=options.device)
        self._generator = torch.Generator().manual_seed(1)
        if mode := COMPILE_MODES.get(options.variant):
            mode = mode if self._is_gpu else None  # there is nothing to capture on processors
            self._network = torch.compile(self._network, mode=mode, dynamic=False)
        if options.variant == "graph":
            self._capture()
        else:
            self.steps(WARM_UP[options.device])

    def steps(self, count: int) -> float:
        """Returns the mean seconds per step of `count` steps. The device is idle at the begin and at the end."""
        wait = torch.cuda.synchronize if self._is_gpu else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(count):
            self._step()
        wait()
        return (time.perf_counter() - start) / count

    def _step(self) -> None:
        """Runs a step with new labels, which are uploaded outside captured graphs, as our trainers do. With the same
        labels, a network would memorise them: its gradients would vanish, and its steps might be faster on a GPU."""
        pinned = self._is_gpu  # PyTorch uses pinned memory again only after the copies from it have ended
        new = torch.randint(0, 1000, self._labels.shape, generator=self._generator, pin_memory=pinned)
        self._labels.copy_(new, non_blocking=True)
        self._compute()

    def _compute(self) -> None:
        """Runs forward pass, backward pass and update. A captured graph takes the place of this method."""
        self._optimiser.zero_grad(set_to_none=True)
        lower = AUTOCAST.get(self._options.dtype)
        # Autocast must not cache weights that were cast to 16 bit, because a captured graph would use the old cache.
        with torch.autocast(self._options.device, lower, enabled=lower is not None, cache_enabled=False):
            loss = nn.functional.cross_entropy(self._network(self._images), self._labels)
        self._scaler.scale(loss).backward()
        self.loss = loss.detach()
        self._scaler.step(self._optimiser)
        self._scaler.update()

    def _capture(self) -> None:
        """Captures a step into one CUDA graph. The fused optimiser scales by itself, so that it can be in the graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP["cuda"]):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        self._compute = graph.replay  # writes into the tensors of the capture, including self.loss
        self.steps(1)


def main() -> None:
    """Runs the program."""
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
        if options.device == "cuda" and options.memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(options.memory_fraction)
        trainer = Trainer(options)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install {error.name}")
    except Exception as error:  # compilers raise errors of many types
        told = next(filter(None, str(error).splitlines()), "")
        sys.exit(f"{type(error).__name__}: {told}")
    print("ready", trainer.description, file=protocol, flush=True)
    for question in map(str.strip, sys.stdin):
        answer = float(trainer.loss) if question == "loss" else trainer.steps(int(question))
        print(answer, file=protocol, flush=True)


if __name__ == "__main__":
    main()
