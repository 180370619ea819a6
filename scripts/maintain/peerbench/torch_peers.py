"""Training speed beside PyTorch's on the same device, in turns, by the rules of docs/peers.md.

torch      ours is oneDNN on processors; fp32 also runs without Winograd, which PyTorch does not use
torch-gpu  ours is cuDNN; at the end comes a verdict against --target. --report repeats it for files of several runs

Exit code: 0 all measured, 1 a comparison broke off, or a loss is not finite or collapsed, 2 usage, 3 only variants of
the peer are missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .training import Estimate, PeerError, Row, Server, read_rows, take_turns, write_rows
from hvdb.base.process import end_with_parent

SCRIPTS = Path(__file__).resolve().parents[2]
INSTALLED = SCRIPTS.parent / "build" / "peers" / "torch" / "bin" / "python"  # from scripts/install_deps --peers
CLOCKS = ["nvidia-smi", "-i", os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0", "--loop-ms=100"]
CLOCKS += ["--format=csv", "--query-gpu=timestamp,name,clocks.sm,clocks.mem,power.draw,temperature.gpu,"]
CLOCKS[-1] += "clocks_throttle_reasons.active,power.limit,clocks.max.sm"
HEADING = "model      type  threads    ours img/s batch    peer img/s batch  ratio [95 %]        peer"
RESERVE_SECONDS = 90.0  # reserved from --seconds for our start and the turns
VARIANTS = ("eager", "graph", "compile", "autotune", "eager-channels-first", "compile-channels-first", "own-fp32")
# Defaults of the two commands. start_seconds: limit for a process to start. warm_up: PyTorch's steps before the first
# answer. On a GPU these are enough for cudnn.benchmark, the optimiser's buffers and the scaler's first halvings.
# PyTorch's notes on CUDA graphs ask for at least three, and for eleven with DistributedDataParallel.
CPU = {"device": "cpu", "batches": 8, "turns": 6, "python": str(INSTALLED), "start_seconds": 600.0, "warm_up": 1}
CPU |= {"dtypes": ["fp32"], "variants": ["eager-channels-first", "eager", "compile-channels-first", "compile"]}
GPU = {"device": "cuda", "batches": 256, "turns": 8, "python": sys.executable, "start_seconds": 120.0, "warm_up": 11}
GPU |= {"dtypes": ["fp16"], "variants": ["eager", "graph"], "threads": [0]}


def parse(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line of `torch` or `torch-gpu`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"peers {command}", description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--bench", help="train_step_bench of this project")
    add("--report", nargs="+", type=Path, metavar="JSON", help="measure nothing: the rows and verdict of these")
    add("--target", type=float, default=1.15, help="of the verdict, times the peer's images/s (default: %(default)s)")
    add("--python", help="interpreter that has torch (default: %(default)s)")
    add("--library-path", default="", help="LD_LIBRARY_PATH of ours: where NVIDIA's libraries are")
    add("--models", nargs="+", default=["resnet101", "vgg16", "inception3"], help="(default: %(default)s)")
    add("--dtypes", nargs="+", choices=("fp32", "tf32", "fp16", "bf16"), help="(default: %(default)s)")
    add("--threads", nargs="+", type=int, default=[1, 2], help="on processors (default: 1 2)")
    add("--variants", nargs="+", choices=VARIANTS, help="peers; own-fp32: ours in fp32 (default: %(default)s)")
    add("--first-variant-only", action="store_true", help="the peer is the first variant that runs")
    add("--image", type=int, default=0, help="image side; 0: the network's own")
    add("--batches", type=int, metavar="N", help="images of a batch, on both sides (default: %(default)s)")
    add("--turns", type=int, help="fewer than 6 give no interval (default: %(default)s)")
    add("--turn-seconds", type=float, default=1.0, help="of each side, and of each variant alone")
    add("--seconds", type=float, default=1e6, help="for each network and type, about")
    add("--compile-seconds", type=float, default=600.0, help="limit for torch.compile")
    add("--compile-cache", help="where torch.compile keeps what it has compiled")
    add("--winners", type=Path, help="where ours keeps the fastest engines")
    add("--memory-fraction", type=float, default=0.45, help="the peer's, of the device's memory")
    add("--benchmark-limit", type=int, default=0, help="PyTorch: algorithms per convolution; 0: all")
    add("--json", type=Path, help="write everything measured here, after each comparison")
    add("--clocks", type=Path, help="log clocks, power and throttling in the turns here, as CSV")
    add("--log", type=Path, help="what the processes write on standard error")
    parser.set_defaults(**(CPU if command == "torch" else GPU))
    options = parser.parse_args(words)
    if not options.bench and not options.report:
        parser.error("--bench PROGRAM measures, --report FILE reports: give one of them")
    if options.batches < 1 or options.turns < 1:
        parser.error("--batches and --turns must be at least 1")
    return options


class Comparison:
    """The processes of one network in one type, and their results. run() fills `row` step by step."""

    def __init__(self, options: argparse.Namespace, row: Row, log: Path) -> None:
        self.row = row
        self._options, self._log = options, log
        # OpenMP threads wait passively, so that a process does not spin on the cores during another process's turn.
        openmp = {"OMP_NUM_THREADS": str(row.threads), "OMP_WAIT_POLICY": "passive"} if row.threads else {}
        libraries = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        self._ours_environment = {**openmp, **libraries}
        packages = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]  # a host may have PyTorch there
        self._torch_environment = {**openmp, "PYTHONPATH": os.pathsep.join(packages)}
        self._ends = time.monotonic() + options.seconds

    def _variant(self, name: str) -> Server:
        options, row = self._options, self.row
        if name == "own-fp32":
            return self._ours("own fp32", "fp32")
        variant, _, layout = name.partition("-")
        told = {"model": row.model, "dtype": row.dtype, "threads": row.threads}
        told |= {"variant": variant, "channels_first": layout == "channels-first"}
        shared = ("device", "batches", "image", "memory_fraction", "benchmark_limit", "warm_up", "compile_cache")
        told |= {option: getattr(options, option) for option in shared}
        command = [options.python, "-B", "-m", "maintain.peerbench.torch_trainer", json.dumps(told)]
        limit = options.start_seconds if variant in ("eager", "graph") else options.compile_seconds
        left = self._ends - time.monotonic() - min(RESERVE_SECONDS, 0.4 * options.seconds)
        if left <= 0:
            raise PeerError(f"torch {name}: no time was left to start it")
        return Server(f"torch {name}", command, self._torch_environment, min(limit, left), self._log)

    def _ours(self, name: str, dtype: str, *more: str) -> Server:
        options, row = self._options, self.row
        command = [options.bench, "--serve", "--model", row.model, "--dtype", dtype, "--device", options.device, *more]
        command += ["--batch", str(options.batches)]
        command += ["--image", str(options.image)] if options.image else []
        command += ["--threads", str(row.threads)] if row.threads else []
        command += ["--winners", str(options.winners)] if options.winners else []
        return Server(name, command, self._ours_environment, options.start_seconds, self._log)

    def _alone(self, server: Server, running: ExitStack) -> Server:
        """Runs a server alone, and leaves it running."""
        running.enter_context(server).run_alone(self._options.turn_seconds)
        return server

    def _peer(self, running: ExitStack) -> Server | None:
        """Runs every variant in turn, alone on the device. Returns the fastest, which keeps running; None if none
        runs."""
        fastest, kept = "", None
        for variant in self._options.variants:
            running.close()
            kept = None
            try:
                server = self._alone(self._variant(variant), running)
            except PeerError as error:
                self.row.missing.append(str(error))
                continue
            speeds = self.row.variants
            speeds[server.name] = self._options.batches / server.seconds_per_step
            if speeds[server.name] == max(speeds.values()):
                fastest, kept = variant, server
            if self._options.first_variant_only:
                break
        if kept is None and fastest:
            running.close()
            kept = self._alone(self._variant(fastest), running)
        return kept

    def run(self) -> None:
        """Fills the row."""
        options, row = self._options, self.row
        try:
            with ExitStack() as peer_running, ExitStack() as running:
                # The peer starts first, because its share of the memory is limited. Ours uses the rest.
                if (peer := self._peer(peer_running)) is None:
                    return
                servers = [self._alone(self._ours("ours", row.dtype), running), peer]
                if options.device == "cpu" and row.dtype == "fp32":
                    direct = self._ours("ours without Winograd", row.dtype, "--no-winograd")
                    servers.append(self._alone(direct, running))
                self._turns(servers)
        except PeerError as error:
            row.troubles.append(str(error))

    def _turns(self, servers: Sequence[Server]) -> None:
        """Takes turns. nvidia-smi logs the GPU's clocks meanwhile, because a higher clock may explain a faster side."""
        options = self._options
        with ExitStack() as stack:
            if options.clocks and shutil.which("nvidia-smi"):
                log = stack.enter_context(options.clocks.open("ab"))
                smi = stack.enter_context(subprocess.Popen(CLOCKS, stdout=log, preexec_fn=end_with_parent))
                stack.callback(smi.terminate)
            self.row.sides = take_turns(servers, options.turns, options.turn_seconds, options.batches)
        self.row.judge_losses()


def row_lines(row: Row) -> list[str]:
    """Returns one line under HEADING, and indented lines that explain this line."""
    start = f"{row.model:<11}{row.dtype:<6}{row.threads or '-':>7}"
    below = []
    if row.sides:
        ours, peer, *others = row.sides
        speeds = "".join(f"{side.images_per_second():>14.2f}{side.batch:>6}" for side in (ours, peer))
        start += f"{speeds}  {row.ratio().text():<20}{peer.name}"
        for number, side in enumerate(others, start=2):
            below.append(f"{side.name}: {side.images_per_second():.2f} img/s, {row.ratio(number).text()} x the peer")
    else:
        start += f"{'-':>14}{'-':>6}{'-':>14}{'-':>6}  not measured"
    ran = ", ".join(f"{name} {speed:.1f}" for name, speed in row.variants.items())
    below += [f"chosen from, img/s alone: {ran}"] if len(row.variants) > 1 else []
    below += row.troubles + [f"left out: {why}" for why in row.missing]
    return [start, *(f"    {line}" for line in below)]


def verdict(ratio: Estimate, target: float) -> str:
    """Decides by the interval alone. If the interval contains the target, the result is undecided."""
    if ratio.low is None or ratio.high is None or ratio.low < target <= ratio.high:
        return "undecided"
    return "reached" if ratio.low >= target else "not reached"


def verdict_lines(rows: Sequence[Row], target: float) -> list[str]:
    """Returns one line for each network and type. The row with the fastest peer decides. Rows with trouble, for example
    a loss that collapsed, do not count."""
    lines = [f"against {target:.2f} x the fastest peer, by the 95 % interval (undecided: it holds {target:.2f}):"]
    for model, dtype in dict.fromkeys((row.model, row.dtype) for row in rows):
        own = [row for row in rows if (row.model, row.dtype) == (model, dtype)]
        good = [row for row in own if row.sides and not row.troubles]
        if not good:
            why = "; ".join(text for row in own for text in row.troubles)
            lines.append(f"{model:<11}{dtype:<6}not measured {why}".rstrip())
            continue
        row = max(good, key=lambda row: row.sides[1].images_per_second())
        ran = ", ".join(dict.fromkeys(name.removeprefix("torch ") for row in own for name in row.variants))
        ratio, peer = row.ratio(), row.sides[1].name
        shown = ratio.text().replace(" ", " x ", 1)
        lines.append(f"{model:<11}{dtype:<6}{verdict(ratio, target):<13}{shown} beside {peer} (of {ran})")
    return lines


def run(options: argparse.Namespace) -> int:
    """Carries out the command. Returns the exit code. Errors: OSError, HvdbError."""
    # SIGTERM raises SystemExit, so that no server is left on the device.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    rows = [row for file in options.report or () for row in read_rows(file)]
    print("\n".join([HEADING, *(line for row in rows for line in row_lines(row))]), flush=True)
    if options.clocks:
        options.clocks.unlink(missing_ok=True)
    cells = itertools.product(options.models, options.dtypes, options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        log = options.log or Path(scratch, "log")
        for model, dtype, threads in () if options.report else cells:
            rows.append(Row(model, dtype, threads))
            Comparison(options, rows[-1], log).run()
            print("\n".join(row_lines(rows[-1])), flush=True)
            if options.json:
                write_rows(rows, options.json)
    if options.report or options.device == "cuda":
        print("\n" + "\n".join(verdict_lines(rows, options.target)))
    if any(row.troubles for row in rows):
        return 1
    return 3 if any(row.missing for row in rows) else 0
