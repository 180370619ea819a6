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
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from serving import Ratio, Server, ratio_of, take_turns

HERE = Path(__file__).resolve().parent


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


def compare(options: argparse.Namespace, model: str, dtype: str, threads: int) -> Row:
    shared = ["--model", model, "--batch", str(options.batch), "--threads", str(threads)]
    torch = [options.python, str(HERE / "torch_train.py"), *shared, "--dtype", options.peer_dtype or dtype]
    # Passive waiting: whoever is not having its turn must not spin on the other's cores.
    environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    servers = [Server("ours", [options.bench, *shared, "--dtype", dtype, "--serve"], environment)]
    if options.peer == "own-fp32":
        servers.append(Server("own fp32", [options.bench, *shared, "--dtype", "fp32", "--serve"], environment))
    else:
        servers.append(Server("torch", torch, environment))
        servers.append(Server("torch channels_last", [*torch, "--channels-last"], environment))
    ours, *peers = take_turns(servers, options.turns, [options.steps] * len(servers))
    for server in servers:
        server.close()
    peer, peer_name = min(zip(peers, (s.name for s in servers[1:]), strict=True), key=lambda p: statistics.median(p[0]))
    ratio = ratio_of(ours, peer, options.turns)
    return Row(
        model=model,
        dtype=dtype,
        threads=threads,
        ours_img_s=options.batch / statistics.median(ours),
        peer_img_s=options.batch / statistics.median(peer),
        peer=peer_name,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
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
                interval = Ratio(row.ratio, row.low, row.high).interval_text()
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
