#!/usr/bin/env python3
"""Training speed on the GPU: this project's cuDNN backend beside PyTorch's, on the same GPU, in turns.

For each network and type: every variant of gpu_torch.py runs alone, at the best batch of the first, which is found by
doubling until memory ends or nothing is won; the fastest is the peer. Ours searches from half of that batch on. Then
the two take turns (A B B A ...), and the ratio is that of the median seconds per image, with a bootstrap interval over
the turns. In both, the loss must be finite and lower after the turns than before, on the one batch that they train.

    scripts/peers/compare_gpu.py --bench build/release/bin/train_step_bench --json gpu.json

Exit code: 0 all measured, 1 a comparison is missing or a loss did not fall, 3 only variants of the peer are missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from serving import PeerError, Ratio, Server, ratio_of, take_turns

HERE = Path(__file__).resolve().parent
LEAST_GAIN = 1.02  # of a doubled batch, in images per second
HEADING = "model      type      ours img/s batch    peer img/s batch   ratio  95 % interval  peer"


@dataclass
class Found:
    """The best batch of one server, and the images per second at every batch tried."""

    name: str
    batch: int = 0
    img_s: float = 0.0
    first_loss: float = math.nan  # at that batch, as soon as the server stood at it
    tried: dict[int, float] = field(default_factory=dict)
    stopped: str = ""  # why the search ended, or why there was none


@dataclass
class Turns:
    """One side of the turns."""

    name: str
    description: str
    batch: int
    img_s: float
    first_loss: float
    last_loss: float
    seconds_per_step: list[float]

    def loss_trouble(self) -> str:
        if not math.isfinite(self.last_loss):
            return f"{self.name}: the loss is {self.last_loss}"
        if not self.last_loss < self.first_loss:
            return f"{self.name}: the loss went from {self.first_loss:.4f} to {self.last_loss:.4f}"
        return ""


@dataclass
class Row:
    model: str
    dtype: str
    variants: list[Found] = field(default_factory=list)
    ours_search: Found | None = None
    ours: Turns | None = None
    peer: Turns | None = None
    ratio: Ratio | None = None
    troubles: list[str] = field(default_factory=list)
    missing_variants: list[str] = field(default_factory=list)


def steps_for(seconds: float, per_step: float) -> int:
    return max(1, min(1000, round(seconds / per_step)))


def best_batch(server: Server, first: int, last: int, seconds: float) -> Found:
    """Doubles the batch from `first`, at which the server stands, to `last`; it is left at the best one.

    Errors: PeerError if the server ends, or cannot return to a batch that it had.
    """
    found = Found(server.name)
    batch = first
    while True:
        first_loss = server.loss()
        per_step = statistics.median(server.steps(2))
        rate = batch / statistics.median(server.steps(steps_for(seconds, per_step)))
        found.tried[batch] = rate
        enough = rate < LEAST_GAIN * found.img_s
        if rate > found.img_s:
            found.batch, found.img_s, found.first_loss = batch, rate, first_loss
        if enough or 2 * batch > last:
            found.stopped = "no more gain" if enough else f"--last-batch {last}"
            break
        batch *= 2
        if refusal := server.batch(batch):
            found.stopped = f"batch {batch}: {refusal}"
            break
    if batch != found.batch:
        if refusal := server.batch(found.batch):
            raise PeerError(f"{server.name} cannot return to batch {found.batch}: {refusal}")
        found.first_loss = server.loss()  # a batch starts with new weights
    return found


class Comparison:
    """The processes of one network in one type, and what they gave. Use as a context: it ends them."""

    def __init__(self, options: argparse.Namespace, model: str, dtype: str, log: IO[bytes] | None) -> None:
        self._options = options
        self._log = log
        self._row = Row(model, dtype)
        self._shared = ["--model", model, "--dtype", dtype, "--device", options.device]
        self._shared += ["--image", str(options.image)]

    def _torch(self, variant: str, batch: int) -> Server:
        options = self._options
        command = [options.python, str(HERE / "gpu_torch.py"), *self._shared, "--variant", variant]
        command += ["--batch", str(batch), "--memory-fraction", str(options.memory_fraction)]
        if options.warm_up is not None:
            command += ["--warm-up", str(options.warm_up)]
        limit = options.compile_seconds if variant == "compile" else options.start_seconds
        return Server(f"torch {variant}", command, start_seconds=limit, log=self._log)

    def _ours(self, batch: int) -> Server:
        options = self._options
        command = [options.bench, *self._shared, "--batch", str(batch), "--serve"]
        environment = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        return Server("ours", command, environment, start_seconds=options.start_seconds, log=self._log)

    def _search_variants(self) -> None:
        """The first variant that runs searches its best batch; the others stay at it: each batch costs them minutes of
        compiling, or the search for algorithms once more."""
        options = self._options
        for variant in options.variants:
            batch = max((found.batch for found in self._row.variants), default=0)
            first, last = (batch, batch) if batch else (options.first_batch, options.last_batch)
            try:
                with self._torch(variant, first) as server:
                    found = best_batch(server, first, last, options.search_seconds)
            except PeerError as error:
                found = Found(f"torch {variant}", stopped=str(error))
                self._row.missing_variants.append(str(error))
            self._row.variants.append(found)

    def run(self) -> Row:
        row, options = self._row, self._options
        self._search_variants()
        best = max(row.variants, key=lambda f: f.img_s)
        with ExitStack() as running:
            try:
                # First the peer, whose share of the memory is bounded, then ours in what is left.
                peer = None
                if best.batch > 0:
                    peer = running.enter_context(self._torch(best.name.removeprefix("torch "), best.batch))
                else:
                    row.troubles.append("no variant of PyTorch ran")
                first = max(options.first_batch, best.batch // 2)
                ours = running.enter_context(self._ours(first))
                row.ours_search = best_batch(ours, first, options.last_batch, options.search_seconds)
                if peer is not None:
                    self._take_turns(ours, row.ours_search, peer, best)
            except PeerError as error:
                row.troubles.append(str(error))
        return row

    def _take_turns(self, ours: Server, ours_found: Found, peer: Server, peer_found: Found) -> None:
        row, options = self._row, self._options
        servers, found = [ours, peer], [ours_found, peer_found]
        batches = [f.batch for f in found]
        first = [ours_found.first_loss, peer.loss()]
        steps = [steps_for(options.turn_seconds, f.batch / f.img_s) for f in found]
        seconds = take_turns(servers, options.turns, steps)
        last = [server.loss() for server in servers]
        row.ours, row.peer = (
            Turns(
                name=servers[i].name,
                description=servers[i].description,
                batch=batches[i],
                img_s=batches[i] / statistics.median(seconds[i]),
                first_loss=first[i],
                last_loss=last[i],
                seconds_per_step=seconds[i],
            )
            for i in range(2)
        )
        row.troubles += [trouble for side in (row.ours, row.peer) if (trouble := side.loss_trouble())]
        per_image = [[s / batches[i] for s in seconds[i]] for i in range(2)]
        row.ratio = ratio_of(per_image[0], per_image[1], options.turns)


def row_text(row: Row) -> str:
    def speed(side: Turns | None) -> str:
        return f"{side.img_s:>14.1f}{side.batch:>6}" if side else f"{'-':>14}{'-':>6}"

    ratio = f"{row.ratio.ratio:>8.2f}  {row.ratio.interval_text():<15}" if row.ratio else f"{'-':>8}  {'':<15}"
    peer = row.peer.name if row.peer else ", ".join(f"{f.name} {f.img_s:.1f}" for f in row.variants if f.img_s)
    return f"{row.model:<11}{row.dtype:<6}{speed(row.ours)}{speed(row.peer)}{ratio}{peer}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="train_step_bench of this project")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--library-path", default="", help="LD_LIBRARY_PATH of ours: where NVIDIA's libraries lie")
    parser.add_argument("--models", nargs="+", default=["resnet101", "vgg16", "inception3"])
    parser.add_argument("--dtypes", nargs="+", default=["fp16"], choices=["fp32", "tf32", "fp16", "bf16"])
    parser.add_argument("--variants", nargs="+", default=["eager", "graph"], choices=["eager", "graph", "compile"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: tests this program only")
    parser.add_argument("--image", type=int, default=0, help="image side; 0: the network's own")
    parser.add_argument("--first-batch", type=int, default=128)
    parser.add_argument("--last-batch", type=int, default=512)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-seconds", type=float, default=1.0, help="of each side")
    parser.add_argument("--search-seconds", type=float, default=1.0, help="for each batch tried")
    parser.add_argument("--start-seconds", type=float, default=120.0, help="limit for a process to start")
    parser.add_argument("--compile-seconds", type=float, default=240.0, help="limit for torch.compile")
    parser.add_argument("--memory-fraction", type=float, default=0.45, help="the peer's, of the device's memory")
    parser.add_argument("--warm-up", type=int, help="PyTorch's steps before the first answer")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--log", type=Path, help="what the processes write on standard error; default: shown")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    rows: list[Row] = []
    print(HEADING)
    with ExitStack() as files:
        log = files.enter_context(options.log.open("ab")) if options.log else None
        for model in options.models:
            for dtype in options.dtypes:
                rows.append(Comparison(options, model, dtype, log).run())
                print(row_text(rows[-1]), flush=True)
                for line in rows[-1].troubles + rows[-1].missing_variants:
                    print(f"    {line}", flush=True)
                if options.json:  # after each: what comes later may be cut off
                    options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if any(row.troubles for row in rows):
        return 1
    return 3 if any(row.missing_variants for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
