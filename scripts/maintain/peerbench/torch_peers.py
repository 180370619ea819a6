"""Training speed beside PyTorch's on the same device, in turns, by the rules of docs/peers.md.

torch      ours is oneDNN on processors; fp32 also runs without Winograd, which PyTorch does not use
torch-gpu  ours is cuDNN

Exit code: 0 all measured, 1 a comparison broke off or does not count, 2 usage, 3 only variants of the peer are missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import libraries
from hvdb.base import process, record, whole_file
from hvdb.base.errors import HvdbError
from hvdb.base.interval import Interval
from hvdb.judge import exact

TRAINER = Path(__file__).with_name("torch_trainer.py")
CLOCKS = "nvidia-smi --loop-ms=100 --format=csv --query-gpu=timestamp,name,clocks.sm,clocks.mem,power.draw,"
CLOCKS += "temperature.gpu,clocks_throttle_reasons.active,power.limit,clocks.max.sm --id="
CLOCKS += os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
HEADING = "model      type  threads    ours img/s batch    peer img/s batch  ratio [95 %]        peer"
RESERVE_SECONDS = 90.0  # reserved from --seconds for our start and the turns
COLLAPSED = 1e-3  # fraction of the first loss; below it gradients vanish, and a GPU may run faster
VARIANTS = ("eager-channels-first", "eager", "compile-channels-first", "compile", "graph", "autotune", "own-fp32")
# Defaults of the two commands. start_seconds: limit for a process to start, without torch.compile.
CPU = {"device": "cpu", "start_seconds": 600, "batches": 8, "turns": 6, "dtypes": ["fp32"], "threads": [1, 2]}
CPU |= {"variants": VARIANTS[:4], "python": str(libraries.PEERS / "torch" / "bin" / "python")}
GPU = {"device": "cuda", "start_seconds": 120, "batches": 256, "turns": 8, "dtypes": ["fp16"], "threads": [0]}
GPU |= {"variants": ["eager", "graph"], "python": sys.executable}


def parse(command: str, words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line of `torch` or `torch-gpu`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"peers {command}", description=__doc__, formatter_class=raw)
    add, what = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bench", help="train_step_bench of this project")
    what.add_argument("--report", nargs="+", type=Path, metavar="JSON", help="measure nothing: the tables of these")
    add("--target", type=float, default=1.15, help="of the verdict, times the peer's images/s (default: %(default)s)")
    add("--python", help="interpreter that has torch and torchvision (default: %(default)s)")
    add("--library-path", help="LD_LIBRARY_PATH of ours: where NVIDIA's libraries are")
    add("--models", nargs="+", default=["resnet101", "vgg16", "inception3"], help="(default: %(default)s)")
    add("--dtypes", nargs="+", choices=("fp32", "tf32", "fp16", "bf16"), help="(default: %(default)s)")
    add("--threads", nargs="+", type=int, help="on processors (default: 1 2)")
    add("--variants", nargs="+", choices=VARIANTS, help="peers; own-fp32: ours in fp32 (default: %(default)s)")
    add("--first-variant-only", action="store_true", help="only the first variant that runs")
    add("--image", type=int, default=0, help="image side; 0: the network's own")
    add("--batches", type=int, metavar="N", help="images of a batch, on both sides (default: %(default)s)")
    add("--turns", type=int, help="fewer than 6 give no interval (default: %(default)s)")
    add("--turn-seconds", type=float, default=1.0, help="of each side (default: %(default)s)")
    add("--seconds", type=float, default=1e6, help="for each network and type, about")
    add("--compile-seconds", type=float, default=600.0, help="limit for torch.compile")
    add("--compile-cache", help="where torch.compile keeps what it has compiled")
    add("--winners", help="where ours keeps the fastest engines")
    add("--memory-fraction", type=float, default=0.45, help="the peer's, of the device's memory")
    add("--benchmark-limit", type=int, default=0, help="PyTorch: algorithms per convolution; 0: all")
    add("--json", type=Path, help="write everything measured here, after each comparison")
    add("--clocks", type=Path, help="log clocks, power and throttling in the turns here, as CSV")
    parser.set_defaults(**(CPU if command == "torch" else GPU))
    options = parser.parse_args(words)
    if min(options.batches, options.turns) < 1:
        parser.error("--batches and --turns must be at least 1")
    return options


@dataclass
class Side:
    """One side of the turns. seconds_per_step: a mean per turn. begins: of the turns, in Unix time."""

    name: str
    description: str
    batch: int
    first_loss: float | None = None
    last_loss: float | None = None
    seconds_per_step: list[float] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)

    def images_per_second(self) -> float:
        """Returns the images per second, from the median of the turns."""
        return self.batch / statistics.median(self.seconds_per_step)

    def ratio(self, peer: Side) -> Interval:
        """Returns speed / speed of the peer. The times of a turn form a pair: a disturbance hits both."""
        pairs = zip(peer.seconds_per_step, self.seconds_per_step, strict=True)
        return exact.paired_ratio([theirs / mine * self.batch / peer.batch for theirs, mine in pairs], 0.95)


@dataclass
class Row:
    """Ours beside one variant. sides: ours, the peer, then other forms of ours; empty if nothing was measured.

    missing: why the peer does not run. troubles: why the comparison broke off.
    """

    model: str
    dtype: str
    threads: int = 0
    sides: list[Side] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Returns why the comparison broke off, or does not count."""
        found = list(self.troubles)
        for side in self.sides:
            first, last = side.first_loss, side.last_loss
            if first is None or last is None:
                found.append(f"{side.name}: the {'first' if first is None else 'last'} loss is not finite")
            elif abs(last) < COLLAPSED * abs(first):
                fall = f"the loss collapsed from {first:.3g} to {last:.3g}"
                found.append(f"{side.name}: {fall}: its steps are no longer comparable")
        counts = {side.description.split()[0] for side in self.sides if side.description[:1].isdigit()}
        if len(counts) > 1:
            found.append(f"the networks differ: {' and '.join(sorted(counts))} parameters")
        return list(dict.fromkeys(found))  # files from before 2026-11-29 have the losses' faults in `troubles`, too


class Server(subprocess.Popen):
    """A training process that answers as bench/micro/train_step_bench.cpp says. A `with` ends it. One thread."""

    def __init__(self, name: str, row: Row, command: Sequence[str], start_seconds: float) -> None:
        # OpenMP threads wait passively, so that a process does not spin on the cores during another process's turn.
        openmp = [f"OMP_NUM_THREADS={row.threads}", "OMP_WAIT_POLICY=passive"] if row.threads else []
        self.name, self._errors = name, tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors, "bufsize": 0}
        super().__init__(["env", *openmp, *command], preexec_fn=process.end_with_parent, **pipes)
        self.description = self._answer("", start_seconds).removeprefix("ready ")

    def _answer(self, question: str, seconds: float = 600.0) -> str:
        """Errors: HvdbError if the process ends or is late, with the last line of its standard error."""
        with suppress(BrokenPipeError):  # if the process has ended, there is no answer
            self.stdin.write(question.encode())
        late = not select.select([self.stdout], [], [], seconds)[0]
        line = b"" if late else self.stdout.readline()  # each answer is written as a whole
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        self.__exit__(late)
        self._errors.seek(0)
        said = libraries.last_words(self._errors.read().decode(errors="replace"))
        why = f"gave no answer in {seconds:.0f} s" if late else f"ended with exit code {self.returncode}"
        raise HvdbError(f"{self.name} {why}{said and ': '}{said}")

    def steps(self, count: float) -> float:
        """Trains `count` steps, but 1 to 1000. Returns the mean seconds per step."""
        return statistics.fmean(map(float, self._answer(f"{max(1, min(1000, round(count)))}\n").split()))

    def loss(self) -> float | None:
        """Returns the loss of the last step; None if it is not finite."""
        loss = float(self._answer("loss\n"))
        return loss if math.isfinite(loss) else None

    def __exit__(self, failed: object, *_: object) -> None:
        """Ends the process: after an error at once, because it may be busy for minutes."""
        self.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.wait(0 if failed else 60)
        self.kill()  # has no effect on a process that has ended
        super().__exit__(None, None, None)


def take_turns(servers: Sequence[Server], options: argparse.Namespace) -> list[Side]:
    """Takes turns A B, B A, A B, ..., after one of each that does not count. Returns the servers' sides."""
    seconds = options.turn_seconds
    sides = [Side(server.name, server.description, options.batches, server.loss()) for server in servers]
    counts = [seconds / server.steps(seconds / server.steps(1)) for server in servers]
    for turn in range(options.turns):
        for i in range(len(servers)) if turn % 2 == 0 else reversed(range(len(servers))):
            sides[i].begins.append(time.time())
            sides[i].seconds_per_step.append(servers[i].steps(counts[i]))
    for side, server in zip(sides, servers, strict=True):
        side.last_loss = server.loss()
    return sides


def start_ours(options: argparse.Namespace, row: Row, name: str, dtype: str, *more: str) -> Server:
    """Starts our program. Errors: HvdbError."""
    given = {"model": row.model, "dtype": dtype, "device": options.device, "batch": options.batches}
    given |= {"image": options.image, "threads": row.threads, "winners": options.winners}
    words = [word for key, value in given.items() if value for word in (f"--{key}", str(value))]
    path = [f"LD_LIBRARY_PATH={options.library_path}"] if options.library_path else []
    return Server(name, row, [*path, options.bench, "--serve", *words, *more], options.start_seconds)


def start_peer(options: argparse.Namespace, row: Row, name: str, seconds: float) -> Server:
    """Starts a variant. seconds: what is left for it. Errors: HvdbError."""
    if name == "own-fp32":
        return start_ours(options, row, "own fp32", "fp32")
    variant, _, layout = name.partition("-")
    told = {"model": row.model, "dtype": row.dtype, "threads": row.threads, "variant": variant, "layout": layout}
    limit = options.start_seconds if variant in ("eager", "graph") else options.compile_seconds
    words = [options.python, "-B", str(TRAINER), json.dumps({**vars(options), **told}, default=str)]
    return Server(f"torch {name}", row, words, max(0, min(limit, seconds)))


def compare(options: argparse.Namespace, row: Row, variant: str, seconds: float) -> None:
    """Fills the row. nvidia-smi logs the clocks in the turns, because a higher clock may explain a faster side."""
    told = row.missing
    try:
        with ExitStack() as running:
            # The peer starts first, because its share of the memory is limited. Ours uses the rest.
            peer, told = running.enter_context(start_peer(options, row, variant, seconds)), row.troubles
            servers = [running.enter_context(start_ours(options, row, "ours", row.dtype)), peer]
            if options.device == "cpu" and row.dtype == "fp32":
                direct = start_ours(options, row, "ours without Winograd", row.dtype, "--no-winograd")
                servers.append(running.enter_context(direct))
            if options.clocks:
                log = running.enter_context(options.clocks.open("ab"))
                clocks = subprocess.Popen(CLOCKS.split(), stdout=log, preexec_fn=process.end_with_parent)
                running.enter_context(clocks)
                running.callback(clocks.terminate)
            row.sides = take_turns(servers, options)
    except (OSError, HvdbError) as error:
        told.append(str(error))


def read_rows(file: Path) -> list[Row]:
    """Reads the rows of a file. Errors: HvdbError if --json did not write `file`; OSError."""
    try:
        rows = []
        for data in json.loads(file.read_text(encoding="utf-8")):
            if "best" in data:  # files from before 2026-11-26 have two sides, and several variants in a row
                sides = [data["best"][name] for name in ("ours", "peer")] if data["best"] else []
                data = {**data, "sides": sides, "missing": data["missing_variants"]}
            rows.append(record.read(Row, data, others=True))
            row_lines(rows[-1])  # also a check
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise HvdbError(f"{file}: was not written by 'peers torch-gpu' or 'peers torch': {error}") from error
    return rows


def row_lines(row: Row) -> list[str]:
    """Returns one line under HEADING, and indented lines that explain this line."""
    start = f"{row.model:<11}{row.dtype:<6}{row.threads or '-':>7}"
    below = []
    if row.sides:
        ours, peer, *others = row.sides
        speeds = "".join(f"{side.images_per_second():>14.2f}{side.batch:>6}" for side in (ours, peer))
        start += f"{speeds}  {ours.ratio(peer).text(1.0, '{:.2f}'.format):<20}{peer.name}"
        for side in others:
            ratio = side.ratio(peer).text(1.0, "{:.2f}".format)
            below.append(f"{side.name}: {side.images_per_second():.2f} img/s, {ratio} x the peer")
    else:
        start += f"{'-':>14}{'-':>6}{'-':>14}{'-':>6}  not measured"
    below += row.faults() + [f"left out: {why}" for why in row.missing]
    return [start, *(f"    {line}" for line in below)]


def verdict_lines(rows: Sequence[Row], target: float) -> list[str]:
    """Returns one line for each network, type and number of threads. The row with the fastest peer decides, by its
    interval alone. Rows with faults, for example a loss that collapsed, do not count."""
    lines = [f"against {target:.2f} x the fastest peer, by the 95 % interval (undecided: it holds {target:.2f}):"]
    for model, dtype, threads in dict.fromkeys((row.model, row.dtype, row.threads) for row in rows):
        own = [row for row in rows if (row.model, row.dtype, row.threads) == (model, dtype, threads)]
        start = f"{model:<11}{dtype:<6}" + (f"{threads:<3}" if threads else "")
        good = [row for row in own if row.sides and not row.faults()]
        if not good:
            why = "; ".join(text for row in own for text in row.faults())
            lines.append(f"{start}not measured {why}".rstrip())
            continue
        ours, peer, *_ = max(good, key=lambda row: row.sides[1].images_per_second()).sides
        ratio = ours.ratio(peer)
        undecided = not ratio.known or ratio.low < target <= ratio.high
        verdict = "undecided" if undecided else "reached" if ratio.low >= target else "not reached"
        ran = ", ".join(dict.fromkeys(row.sides[1].name.removeprefix("torch ") for row in own if row.sides))
        lines.append(f"{start}{verdict:<13}{ratio.text(1.0, '{:.2f}'.format, ' x')} beside {peer.name} (of {ran})")
    return lines


def run(options: argparse.Namespace) -> int:
    """Carries out the command. Returns the exit code. Errors: OSError, HvdbError."""
    process.end_in_order_when_told()  # so that no server is left on the device
    rows = [row for file in options.report or () for row in read_rows(file)]
    print("\n".join([HEADING, *(line for row in rows for line in row_lines(row))]), flush=True)
    if options.clocks:
        options.clocks.unlink(missing_ok=True)
    for cell in () if options.report else itertools.product(options.models, options.dtypes, options.threads):
        ends = time.monotonic() + max(options.seconds - RESERVE_SECONDS, 0.6 * options.seconds)
        for variant in options.variants:
            rows.append(Row(*cell))
            compare(options, rows[-1], variant, ends - time.monotonic())
            print("\n".join(row_lines(rows[-1])), flush=True)
            if options.json:
                plain = [asdict(row) for row in rows]
                whole_file.write_text(options.json, json.dumps(plain, indent=1, allow_nan=False) + "\n")
            if options.first_variant_only and not rows[-1].missing:
                break
    print("\n" + "\n".join(verdict_lines(rows, options.target)))
    if any(row.faults() for row in rows):
        return 1
    return 3 if any(row.missing for row in rows) else 0
