#!/usr/bin/env python3
"""Training speed of this project's oneDNN backend beside PyTorch's, on this machine, interleaved.

Both run as persistent processes that answer step counts; they take turns (A B B A ...), so that what else
happens on the machine hits both. The peer is the faster of PyTorch's plain and channels-last layouts. The
ratio is that of median step times, with a bootstrap interval over the turns; fewer than six have none.

    scripts/peers/compare_torch.py --bench build/release/bin/train_step_bench --json peers.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The lowest and the highest of five hold a median in 94 % of cases: fewer turns cannot give an interval of 95 %.
FEWEST_TURNS = 6


class Server:
    """A training process that answers step counts. `command` must print one line when it is ready."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        # Passive waiting: whoever is not having its turn must not spin on the other's cores.
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.description = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}")
        return line.strip()

    def steps(self, count: int) -> list[float]:
        """Seconds of `count` steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return [float(word) for word in self._line().split()]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


@dataclass
class Row:
    model: str
    dtype: str
    threads: int
    ours_img_s: float
    peer_img_s: float
    peer: str
    ratio: float
    low: float | None  # of a 95 % interval; None: too few turns for one
    high: float | None
    ours_steps: list[float]
    peer_steps: list[float]


def ratio_interval(
    ours: list[float], peer: list[float], turns: int, draws: int = 4000, seed: int = 1
) -> tuple[float | None, float | None]:
    """95 % bootstrap interval of median(peer) / median(ours), both in seconds per step, in order of their turns.

    Whole turns are resampled, both sides together, so that what slows down a turn cancels. (None, None) where there
    are fewer than FEWEST_TURNS.
    """
    if turns < FEWEST_TURNS:
        return None, None
    rng = random.Random(seed)

    def of_turns(seconds: list[float], drawn: list[int]) -> float:
        per_turn = len(seconds) // turns
        return statistics.median(s for turn in drawn for s in seconds[turn * per_turn : (turn + 1) * per_turn])

    ratios = []
    for _ in range(draws):
        drawn = rng.choices(range(turns), k=turns)
        ratios.append(of_turns(peer, drawn) / of_turns(ours, drawn))
    ratios.sort()
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def compare(options: argparse.Namespace, model: str, dtype: str, threads: int) -> Row:
    shared = ["--model", model, "--batch", str(options.batch), "--threads", str(threads)]
    torch = [options.python, str(HERE / "torch_train.py"), *shared, "--dtype", options.peer_dtype or dtype]
    servers = [Server("ours", [options.bench, *shared, "--dtype", dtype, "--serve"], threads)]
    if options.peer == "own-fp32":
        servers.append(Server("own fp32", [options.bench, *shared, "--dtype", "fp32", "--serve"], threads))
    else:
        servers.append(Server("torch", torch, threads))
        servers.append(Server("torch channels_last", [*torch, "--channels-last"], threads))
    seconds: dict[str, list[float]] = {server.name: [] for server in servers}
    for turn in range(options.turns):
        for server in servers if turn % 2 == 0 else reversed(servers):
            seconds[server.name] += server.steps(options.steps)
    for server in servers:
        server.close()
    ours = seconds.pop("ours")
    peer_name = min(seconds, key=lambda name: statistics.median(seconds[name]))
    peer = seconds[peer_name]
    low, high = ratio_interval(ours, peer, options.turns)
    return Row(
        model=model,
        dtype=dtype,
        threads=threads,
        ours_img_s=options.batch / statistics.median(ours),
        peer_img_s=options.batch / statistics.median(peer),
        peer=peer_name,
        ratio=statistics.median(peer) / statistics.median(ours),
        low=low,
        high=high,
        ours_steps=ours,
        peer_steps=peer,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="train_step_bench of this project")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--models", nargs="+", default=["resnet101", "vgg16", "inception3"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--peer", default="torch", choices=["torch", "own-fp32"], help="own-fp32: ours in fp32")
    parser.add_argument("--peer-dtype", choices=["fp32", "bf16"], help="the peer's, when it is to differ")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=1, help="steps per turn")
    parser.add_argument("--json", type=Path, help="write every sample here")
    options = parser.parse_args()

    rows = []
    print(f"{'model':<12}{'dtype':<6}{'threads':>7}{'ours img/s':>12}{'peer img/s':>12}{'ratio':>8}  95 % interval")
    for model in options.models:
        for dtype in options.dtypes:
            for threads in options.threads:
                row = compare(options, model, dtype, threads)
                rows.append(row)
                interval = "too few turns" if row.low is None else f"[{row.low:.2f}, {row.high:.2f}]"
                print(
                    f"{row.model:<12}{row.dtype:<6}{row.threads:>7}{row.ours_img_s:>12.3f}{row.peer_img_s:>12.3f}"
                    f"{row.ratio:>8.2f}  {interval} {row.peer}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
