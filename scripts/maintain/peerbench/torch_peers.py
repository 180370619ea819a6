"""Training speed beside PyTorch's on the same device, in turns.

Every variant of PyTorch first runs alone, and the fastest is the peer. Then ours and the peer take turns (A B B A ...),
so that a disturbance of the machine hits both. All steps have the same images but new labels. Losses must be finite and
stay above a thousandth of their first value.

torch      ours is oneDNN on processors; fp32 also runs without Winograd, which PyTorch does not use
torch-gpu  ours is cuDNN; at the end comes a verdict against --target. --report repeats it for files of several runs

Exit code: 0 all measured, 1 a comparison broke off, or a loss is not finite or collapsed, 2 usage, 3 only variants of
the peer are missing.
"""

from __future__ import annotations

import argparse
import itertools
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
from typing import IO, NamedTuple

from .torch_report import HEADING, read_bounds, required, row_lines, verdict_lines
from .training import PeerError, Row, Server, Side, read_rows, take_turns, write_rows
from hvdb.base.process import end_with_parent

SCRIPTS = Path(__file__).resolve().parents[2]
INSTALLED = SCRIPTS.parent / "build" / "peers" / "torch" / "bin" / "python"  # from scripts/install_deps --peers
CLOCKS = ["nvidia-smi", "-i", os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0", "--loop-ms=100"]
CLOCKS += ["--format=csv", "--query-gpu=timestamp,name,clocks.sm,clocks.mem,power.draw,temperature.gpu,"]
CLOCKS[-1] += "clocks_throttle_reasons.active,power.limit,clocks.max.sm"
RESERVE_SECONDS = 90.0  # reserved from --seconds for our start and the turns
MODELS = ("resnet101", "vgg16", "inception3")
VARIANTS = {name: ["--variant", name] for name in ("eager", "graph", "compile", "autotune")}
VARIANTS |= {f"{name}-channels-first": ["--variant", name, "--channels-first"] for name in ("eager", "compile")}
DTYPES = {"torch": ["fp32"], "torch-gpu": ["fp16"]}  # measured unless --dtypes names others
CPU = {"device": "cpu", "batches": 8, "turns": 6, "python": str(INSTALLED), "warm_up": 1}
CPU["variants"] = ["eager-channels-first", "eager", "compile-channels-first", "compile"]
GPU = {"device": "cuda", "batches": 256, "turns": 8, "python": sys.executable, "threads": [0]}
GPU["variants"] = ["eager", "graph"]
GPU["start_seconds"] = 120.0


def parse(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line of `torch` or `torch-gpu`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"peers {command}", description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--bench", help="train_step_bench of this project")
    add("--report", nargs="+", type=Path, metavar="JSON", help="measure nothing: the rows and verdict of these")
    add("--store", type=Path, help="a store of hvd_bench, for the bounds of its runs on this GPU")
    add("--target", type=float, default=1.15, help="of the verdict, times the peer's images/s (default: %(default)s)")
    add("--python", help="interpreter that has torch (default: %(default)s)")
    add("--library-path", default="", help="LD_LIBRARY_PATH of ours: where NVIDIA's libraries are")
    add("--models", nargs="+", help=f"default: {' '.join(MODELS)}; with --report: must be there")
    add(
        "--dtypes",
        nargs="+",
        choices=("fp32", "tf32", "fp16", "bf16"),
        help=f"default: {' '.join(DTYPES[command])}; with --report: must be there",
    )
    add("--threads", nargs="+", type=int, default=[1, 2], help="on processors (default: 1 2)")
    add("--peer", default="torch", choices=["torch", "own-fp32"], help="own-fp32: ours in fp32 is the peer")
    add("--variants", nargs="+", choices=VARIANTS, help="of PyTorch (default: %(default)s)")
    add("--first-variant-only", action="store_true", help="the peer is the first variant that runs")
    add("--image", type=int, default=0, help="image side; 0: the network's own")
    add("--batches", type=int, metavar="N", help="images of a batch, on both sides (default: %(default)s)")
    add("--turns", type=int, help="fewer than 6 give no interval (default: %(default)s)")
    add("--turn-seconds", type=float, default=1.0, help="of each side")
    add("--search-seconds", type=float, default=1.0, help="for each variant, alone")
    add("--seconds", type=float, default=1e6, help="for each network and type, about")
    add("--start-seconds", type=float, default=600.0, help="limit for a process to start")
    add("--compile-seconds", type=float, default=600.0, help="limit for torch.compile")
    add("--compile-cache", type=Path, help="where torch.compile keeps what it has compiled")
    add("--winners", type=Path, help="where ours keeps the fastest engines")
    add("--memory-fraction", type=float, default=0.45, help="the peer's, of the device's memory")
    add("--benchmark-limit", type=int, default=0, help="PyTorch: algorithms per convolution; 0: all")
    add("--warm-up", type=int, help="PyTorch's steps before the first answer")
    add("--json", type=Path, help="write everything measured here, after each comparison")
    add("--clocks", type=Path, help="log clocks, power and throttling in the turns here, as CSV")
    add("--log", type=Path, help="what the processes write on standard error")
    parser.set_defaults(**(CPU if command == "torch" else GPU))
    options = parser.parse_args(words)
    if not options.bench and not options.report:
        parser.error("--bench PROGRAM measures, --report FILE reports: give one of them")
    options.dtypes = options.dtypes or ([] if options.report else DTYPES[command])
    if options.batches < 1 or options.turns < 1:
        parser.error("--batches and --turns must be at least 1")
    return options


def steps_for(seconds: float, per_step: float) -> int:
    """Returns how many steps take about `seconds`."""
    return max(1, min(1000, round(seconds / per_step)))


class Started(NamedTuple):
    """A running server, its side of the turns before the turns, and its seconds per step alone."""

    server: Server
    side: Side
    seconds_per_step: float


class Comparison:
    """The processes of one network in one type, and their results. run() fills `row` step by step."""

    def __init__(self, options: argparse.Namespace, row: Row, log: IO[bytes]) -> None:
        self.row = row
        self._options, self._log = options, log
        self._shared = ["--model", row.model, "--device", options.device, "--batch", str(options.batches)]
        self._shared += ["--image", str(options.image)] if options.image else []
        self._shared += ["--threads", str(row.threads)] if row.threads else []
        # OpenMP threads wait passively, so that a process does not spin on the cores during another process's turn.
        openmp = {"OMP_NUM_THREADS": str(row.threads), "OMP_WAIT_POLICY": "passive"} if row.threads else {}
        libraries = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        self._ours_environment = {**openmp, **libraries}
        packages = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]  # a host may have PyTorch there
        self._torch_environment = {**openmp, "PYTHONPATH": os.pathsep.join(packages)}
        self._ends = time.monotonic() + options.seconds

    def _torch(self, variant: str) -> Server:
        options = self._options
        command = [options.python, "-B", "-m", "maintain.peerbench.torch_trainer", *self._shared, *VARIANTS[variant]]
        command += ["--dtype", self.row.dtype, "--memory-fraction", str(options.memory_fraction)]
        command += ["--benchmark-limit", str(options.benchmark_limit)]
        command += ["--warm-up", str(options.warm_up)] if options.warm_up is not None else []
        command += ["--compile-cache", str(options.compile_cache)] if options.compile_cache else []
        limit = options.start_seconds if variant in ("eager", "graph") else options.compile_seconds
        left = self._ends - time.monotonic() - min(RESERVE_SECONDS, 0.4 * options.seconds)
        if left <= 0:
            raise PeerError(f"torch {variant}: no time was left to start it")
        return Server(f"torch {variant}", command, self._torch_environment, min(limit, left), self._log)

    def _ours(self, name: str, dtype: str, *more: str) -> Server:
        command = [self._options.bench, *self._shared, "--dtype", dtype, "--serve", *more]
        command += ["--winners", str(self._options.winners)] if self._options.winners else []
        return Server(name, command, self._ours_environment, self._options.start_seconds, self._log)

    def _alone(self, server: Server, running: ExitStack) -> Started:
        """Runs a server alone, and leaves it running."""
        running.enter_context(server)
        side = Side(server.name, server.description, self._options.batches, server.loss(), None, [])
        return Started(server, side, server.steps(steps_for(self._options.search_seconds, server.steps(2))))

    def _peer(self, running: ExitStack) -> Started | None:
        """Runs every variant in turn, alone on the device. Returns the fastest, which keeps running; None if none
        runs."""
        if self._options.peer == "own-fp32":
            return self._alone(self._ours("own fp32", "fp32"), running)
        fastest, kept = "", None
        for variant in self._options.variants:
            running.close()
            kept = None
            try:
                started = self._alone(self._torch(variant), running)
            except PeerError as error:
                self.row.missing.append(str(error))
                continue
            speeds = self.row.variants
            speeds[started.server.name] = self._options.batches / started.seconds_per_step
            if speeds[started.server.name] == max(speeds.values()):
                fastest, kept = variant, started
            if self._options.first_variant_only:
                break
        if kept is None and fastest:
            running.close()
            kept = self._alone(self._torch(fastest), running)
        return kept

    def run(self) -> None:
        """Fills the row."""
        options, row = self._options, self.row
        try:
            with ExitStack() as peer_running, ExitStack() as running:
                # The peer starts first, because its share of the memory is limited. Ours uses the rest.
                if (peer := self._peer(peer_running)) is None:
                    return
                started = [self._alone(self._ours("ours", row.dtype), running), peer]
                if options.device == "cpu" and row.dtype == "fp32":
                    direct = self._ours("ours without Winograd", row.dtype, "--no-winograd")
                    started.append(self._alone(direct, running))
                self._turns(started)
        except PeerError as error:
            row.troubles.append(str(error))

    def _turns(self, started: Sequence[Started]) -> None:
        """Takes turns. nvidia-smi logs the GPU's clocks meanwhile, because a higher clock may explain a faster side."""
        options, servers = self._options, [entry.server for entry in started]
        steps = [steps_for(options.turn_seconds, entry.seconds_per_step) for entry in started]
        with ExitStack() as stack:
            if options.clocks and shutil.which("nvidia-smi"):
                log = stack.enter_context(options.clocks.open("ab"))
                smi = stack.enter_context(subprocess.Popen(CLOCKS, stdout=log, preexec_fn=end_with_parent))
                stack.callback(smi.terminate)
            turns = take_turns(servers, options.turns, steps)
        for entry, (begins, seconds) in zip(started, turns, strict=True):
            entry.side.begins, entry.side.seconds_per_step, entry.side.last_loss = begins, seconds, entry.server.loss()
        self.row.sides = [entry.side for entry in started]
        self.row.judge_losses()


def run(options: argparse.Namespace) -> int:
    """Carries out the command. Returns the exit code. Errors: OSError, HvdbError."""
    # SIGTERM raises SystemExit, so that no server is left on the device.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    bounds = read_bounds(options.store) if options.store else []
    rows = [row for file in options.report or () for row in read_rows(file)]
    print("\n".join([HEADING, *(line for row in rows for line in row_lines(row, bounds))]), flush=True)
    if options.clocks:
        options.clocks.unlink(missing_ok=True)
    cells = itertools.product(options.models or MODELS, options.dtypes, options.threads)
    with options.log.open("ab") if options.log else tempfile.NamedTemporaryFile() as log:
        for model, dtype, threads in () if options.report else cells:
            rows.append(Row(model, dtype, threads))
            Comparison(options, rows[-1], log).run()
            print("\n".join(row_lines(rows[-1], bounds)), flush=True)
            if options.json:
                write_rows(rows, options.json)
    if options.report or options.device == "cuda":
        expected = required(options.models or [], options.dtypes, rows)
        print("\n" + "\n".join(verdict_lines(rows, expected, options.target)))
    if any(row.troubles for row in rows):
        return 1
    return 3 if any(row.missing for row in rows) else 0
