#!/usr/bin/env python3
"""Training speed of this project's oneDNN backend beside PyTorch's, on this machine, interleaved.

PyTorch first runs in four forms: plain and channels-last layout, each eager and with `torch.compile`. The fastest form
is the peer. The peer then runs beside ours, in new turns. Our fp32 also runs without Winograd, which PyTorch does not
use. A form that fails is left out, and the reason is stored.

All sides are persistent processes that train on request and take turns (A B B A ...), so that a disturbance of the
machine hits all sides. Ratios compare median step times, with a bootstrap interval over the turns. Fewer than six turns
give no interval.

    compare_torch.py --bench build/release/bin/train_step_bench --json peers.json

Exit codes: 0 all compared, 1 a comparison failed (the other comparisons are kept), 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from serving import PeerError, Ratio, Server, ratio_of, take_turns

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
from hvdb import whole_file  # noqa: E402

INSTALLED = HERE.parents[2] / "build" / "peers" / "torch" / "bin" / "python"  # from scripts/install_deps --peers


@dataclass
class Row:
    model: str
    dtype: str
    threads: int
    ours_img_s: float
    peer_img_s: float
    peer: str
    ratio: float
    low: float | None  # lower end of a 95 % interval; None: too few turns for an interval
    high: float | None
    seconds: dict[str, list[float]]  # process -> seconds per step, in order of the turns
    chosen_from: dict[str, list[float]]  # form of PyTorch -> seconds per step, from the turns that chose the peer
    missing: dict[str, str]  # forms of PyTorch that failed, and why
    versions: dict[str, str]  # process -> its description of itself
    direct_img_s: float | None = None  # ours without Winograd; None: not measured
    direct_ratio: float | None = None  # ours without Winograd over the peer
    direct_low: float | None = None
    direct_high: float | None = None


OURS, DIRECT = "ours", "ours without Winograd"
FORMS = {  # forms of PyTorch: name -> options of torch_train.py
    "torch": [],
    "torch channels_last": ["--channels-last"],
    "torch.compile": ["--compile"],
    "torch.compile channels_last": ["--compile", "--channels-last"],
}


def start(name: str, command: list[str], threads: int) -> Server:
    """Starts a process. Errors: PeerError."""
    # OpenMP threads wait passively, so that a process does not spin on the cores during another process's turn.
    try:
        return Server(name, command, {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"})
    except OSError as error:
        raise PeerError(f"{name} cannot be started: {error}") from error


@contextlib.contextmanager
def running(commands: dict[str, list[str]], threads: int) -> Iterator[list[Server]]:
    """Starts the processes in turn. An error inside the `with` kills the processes, which may be busy for minutes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(start(name, command, threads)) for name, command in commands.items()]


@dataclass
class Choice:
    name: str  # the form with the lowest median step time
    seconds: dict[str, list[float]]  # seconds per step of each form that completed
    missing: dict[str, str]  # form -> why it failed


def choose(forms: dict[str, list[str]], threads: int, turns: int, steps: int) -> Choice:
    """Measures the forms, which run at the same time but compute in turns. Errors: PeerError if all forms fail."""
    seconds: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    servers: dict[str, Server] = {}

    with contextlib.ExitStack() as stack:
        for name, command in forms.items():
            try:
                servers[name] = stack.enter_context(start(name, command, threads))
            except PeerError as error:
                missing[name] = str(error)
        for turn in range(turns):
            for name in list(servers) if turn % 2 == 0 else list(reversed(servers)):
                try:
                    seconds.setdefault(name, []).extend(servers[name].steps(steps))
                except PeerError as error:
                    missing[name] = str(error)
                    del servers[name], seconds[name]
    if not seconds:
        raise PeerError("no form of PyTorch trains: " + "; ".join(missing.values()))
    return Choice(min(seconds, key=lambda name: statistics.median(seconds[name])), seconds, missing)


def compare(options: argparse.Namespace, model: str, dtype: str, threads: int) -> Row:
    """Chooses the peer first, then measures ours beside it in separate turns. Errors: PeerError."""
    shared = ["--model", model, "--batch", str(options.batch), "--threads", str(threads)]
    if options.image:
        shared += ["--image", str(options.image)]
    if options.labels != "fresh":
        shared += ["--labels", options.labels]
    ours = [options.bench, *shared, "--serve"]
    commands = {OURS: [*ours, "--dtype", dtype]}
    choice = Choice("own fp32", {}, {})
    if options.peer == "own-fp32":
        commands[choice.name] = [*ours, "--dtype", "fp32"]
    else:
        if dtype == "fp32":
            commands[DIRECT] = [*commands[OURS], "--no-winograd"]
        torch = [options.python, str(HERE / "torch_train.py"), *shared, "--dtype", options.peer_dtype or dtype]
        forms = {name: [*torch, *extra] for name, extra in FORMS.items()}
        choice = choose(forms, threads, options.choosing_turns, options.steps)
        commands[choice.name] = forms[choice.name]
    with running(commands, threads) as servers:
        seconds = dict(zip(commands, take_turns(servers, options.turns, [options.steps] * len(servers)), strict=True))
        versions = {server.name: server.description for server in servers}

    peer = choice.name

    def images_per_second(name: str) -> float:
        return options.batch / statistics.median(seconds[name])

    ratio = ratio_of(seconds[OURS], seconds[peer], options.turns)
    row = Row(
        model=model,
        dtype=dtype,
        threads=threads,
        ours_img_s=images_per_second(OURS),
        peer_img_s=images_per_second(peer),
        peer=peer,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        seconds=seconds,
        chosen_from=choice.seconds,
        missing=choice.missing,
        versions=versions,
    )
    if DIRECT in seconds:
        direct = ratio_of(seconds[DIRECT], seconds[peer], options.turns)
        row.direct_img_s = images_per_second(DIRECT)
        row.direct_ratio, row.direct_low, row.direct_high = direct.ratio, direct.low, direct.high
    return row


def show(row: Row) -> None:
    figures = f"{row.ours_img_s:>12.3f}{row.peer_img_s:>12.3f}{row.ratio:>8.2f}"
    interval = Ratio(row.ratio, row.low, row.high).interval_text()
    print(f"{row.model:<12}{row.dtype:<6}{row.threads:>7}{figures}  {interval} {row.peer}", flush=True)
    if row.direct_img_s is not None and row.direct_ratio is not None:
        interval = Ratio(row.direct_ratio, row.direct_low, row.direct_high).interval_text()
        figures = f"{row.direct_img_s:>8.3f}{'':>12}{row.direct_ratio:>8.2f}"
        print(f"{'':<12}{'without Winograd':<17}{figures}  {interval}", flush=True)
    for name, reason in row.missing.items():
        print(f"compare_torch: left out: {name}: {reason}", file=sys.stderr)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="train_step_bench of this project")
    parser.add_argument(
        "--python",
        default=str(INSTALLED) if INSTALLED.exists() else "/usr/bin/python3",
        help="interpreter that has torch (default: %(default)s)",
    )
    parser.add_argument("--models", nargs="+", default=["resnet101", "vgg16", "inception3"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--peer", default="torch", choices=["torch", "own-fp32"], help="own-fp32: ours in fp32")
    parser.add_argument("--peer-dtype", choices=["fp32", "bf16"], help="the peer's, when it is to differ")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", type=int, default=0, help="image side; 0: the network's own")
    parser.add_argument("--labels", default="fresh", choices=["fresh", "cycled"], help="new in every step, or the same")
    parser.add_argument("--turns", type=int, default=6, help="of ours and the peer; fewer than 6 give no interval")
    parser.add_argument("--choosing-turns", type=int, default=3, help="of the forms of PyTorch, before")
    parser.add_argument("--steps", type=int, default=1, help="steps per turn")
    parser.add_argument("--json", type=Path, help="write every sample here, after each comparison")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    cells = list(itertools.product(options.models, options.dtypes, options.threads))
    rows: list[Row] = []
    failed = 0
    print(f"{'model':<12}{'dtype':<6}{'threads':>7}{'ours img/s':>12}{'peer img/s':>12}{'ratio':>8}  95 % interval")
    begun = time.monotonic()
    for done, (model, dtype, threads) in enumerate(cells, start=1):
        try:
            row = compare(options, model, dtype, threads)
        except PeerError as error:
            failed += 1
            print(f"compare_torch: {model} {dtype}, threads {threads}: {error}", file=sys.stderr)
        else:
            rows.append(row)
            show(row)
            if options.json:
                whole_file.write_text(options.json, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        left = (time.monotonic() - begun) / done * (len(cells) - done)
        if left > 0:
            print(f"about {left / 60:.0f} min left", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
