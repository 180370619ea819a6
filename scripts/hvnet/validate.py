"""Validates hvdb predict on a shaped network: predicts runs that were not measured, and only then measures them.

A block measures collectives on 2, 3 and 4 nodes and one training session on 4 nodes, predicts 12 other runs from them
(6 on 4 nodes, 3 on 6 and 3 on 8), writes the prediction, and measures these runs, which carry its hash. The 24 blocks
are 3 rates x 2 latencies x 4 shares of compute. The communication is real; the compute is a recorded step whose times
are slept. A block that is in the record already is not measured again, so the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base import edge, whole_file
from hvdb.base.errors import EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError
from hvdb.commands import new_parser
from hvdb.judge import efficiency
from hvdb.predict import judge
from hvdb.read import predictions, runs
from hvnet import network
from hvnet.formula import Link, ring_seconds
from hvnet.measure import calibrate
from hvnet.network import Network, Wiring

_ROOT = Path(__file__).resolve().parents[2]
_PROFILES = _ROOT / "results/recorded/2026-11-22-h200-second/replay"
_NOISE = _ROOT / "results/recorded/2026-11-24-collectives/efficiency.db"  # compute times of ResNet-101 on two ranks
RATES, LATENCIES, SHARES = (50.0, 100.0, 200.0), (0.0, 1000.0), (0.4, 0.8, 1.3, 2.0)
BLOCKS = len(RATES) * len(LATENCIES) * len(SHARES)
CALIBRATED, BEYOND = (2, 3, 4), (6, 8)
GRADIENTS = 48  # of the replayed step; those of the recorded one are merged
_COMMAND_SECONDS = 600


@dataclass(frozen=True)
class Block:
    """One block. share: reductions on 8 nodes, by the formula, over the time of compute. size: bytes of gradients."""

    number: int

    @property
    def rate_mbit(self) -> float:
        return RATES[self.number % 3]

    @property
    def latency_us(self) -> float:
        return LATENCIES[self.number // 3 % 2]

    @property
    def share(self) -> float:
        return SHARES[self.number // 6]

    @property
    def size(self) -> int:
        return int(self.rate_mbit / 100 * (1 << 20))

    @property
    def profile(self) -> str:
        return ("inception3", "resnet101", "vgg16")[(self.number + self.number // 6) % 3]

    def schedules(self) -> list[str]:
        """Returns the options of the six schedules. The first is that of the training session."""
        mib = self.size / (1 << 20)
        static = [f"--schedule static --bucket-mb {mib / parts:g}" for parts in (4, 16, 1)]
        negotiated = [f"--schedule negotiated --fusion-threshold-mb {threshold:g}" for threshold in (0, mib / 4)]
        return [*static, f"--schedule sharded --bucket-mb {mib / 4:g}", *negotiated]

    def cells(self, nodes: int) -> list[str]:
        """Returns the schedules that are measured on so many nodes."""
        every = self.schedules()
        return every if nodes in CALIBRATED else every[(nodes == BEYOND[0]) ^ (self.number % 2) :: 2]


def replay_text(recorded: str, block: Block, factors: np.ndarray) -> str:
    """Returns a profile like the recorded one, with the bytes and the time of compute of `block`."""
    lines = [line.split(" ", 4) for line in recorded.splitlines()]
    header = {words[0]: words[1] for words in lines if len(words) > 1}
    gradients = [(int(words[1]), float(words[3])) for words in lines if words[0] == "gradient"]
    ends = sorted({round((i + 1) * len(gradients) / GRADIENTS) for i in range(GRADIENTS)} - {0})
    merged = [
        (sum(count for count, _ in gradients[begin:end]), gradients[end - 1][1])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    compute = ring_seconds(Link(block.rate_mbit * 1e6, block.latency_us / 1e6), 8, block.size) / block.share
    scale = compute / float(header["backward_end_seconds"])
    elements, total = block.size // 4, sum(count for count, _ in merged)
    counts = [max(1, count * elements // total) for count, _ in merged]
    counts[int(np.argmax(counts))] += elements - sum(counts)
    made = ["hvd-replay 2", f"model {header['model']}-shaped", "unit images", f"units_per_step {header['batch_size']}"]
    made += [f"device none (a sleep), network: {block.rate_mbit:g} Mbit/s, {block.latency_us:g} us"]
    made += ["compute_type fp32", "source_run none (made up by validate_prediction)"]
    made += [f"backward_end_seconds {compute:.9g}", f"update_seconds {scale * float(header['update_seconds']):.9g}"]
    made.append(f"factors {' '.join(f'{factor:.5g}' for factor in factors)}")
    for number, (count, (_, ready)) in enumerate(zip(counts, merged, strict=True)):
        made.append(f"gradient {count} {scale * ready:.9g} {scale * ready:.9g} g{number}")
    return "\n".join([*made, f"end {len(counts)}", ""])


def recorded_noise() -> np.ndarray:
    """Returns compute times of recorded steps over their median, shape (steps,)."""
    run = next(run for run in runs.load([_NOISE]) if run.phase == "none")
    ((_, samples),) = runs.samples_of_ranks([(run, "compute_seconds")])
    return np.concatenate([series / np.median(series) for _, series in sorted(samples.items())])


class Measurement:
    """Measures one block. folder: receives the profile, both stores and the prediction."""

    def __init__(self, block: Block, bench: Path, scratch: Path, folder: Path) -> None:
        self.block, self.bench, self.scratch, self.folder = block, bench, scratch, folder
        self.profile, self.prediction = folder / "profile.replay", folder / "prediction.json"
        self.inputs, self.held = folder / "inputs.db", folder / "held.db"
        self.latency_seconds = 0.0

    def run(self) -> list[dict[str, Any]]:
        """Returns the record's entry of each cell. Errors: HvdbError."""
        recorded = (_PROFILES / f"{self.block.profile}-fp16.txt").read_text(encoding="utf-8")
        self.profile.write_text(replay_text(recorded, self.block, recorded_noise()), encoding="utf-8")
        for nodes in CALIBRATED:
            self._calibrate(nodes)
        self._predict()
        made = predictions.read(self.prediction)
        for nodes in (CALIBRATED[-1], *BEYOND):
            with self._network(nodes) as net:
                for options in self.block.cells(nodes):
                    words = [*options.split(), "--num-warmup-batches", "2", "--num-iters", "12", "--max-time", "40"]
                    self._bench(net, self.held, *self._training(*words), "--label", f"prediction={made.sha256}")
        found, _ = judge.judge(made, runs.load([self.held]))
        return [self._entry(made, judged) for judged in found]

    def _network(self, nodes: int) -> Network:
        switch = self.bench.with_name("delay_switch")
        return Network(Wiring(nodes, self.block.rate_mbit, self.block.latency_us), switch, self.scratch)

    def _training(self, *words: str) -> list[str]:
        return ["--replay", str(self.profile), "--threads", "1", "--quiet", *words]

    def _bench(self, net: Network, store: Path, *words: str) -> None:
        command = [*net.mpirun(1), str(self.bench), *words, "--db", str(store)]
        self._do(command)

    @staticmethod
    def _do(command: list[str]) -> None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise HvdbError(f"not done after {_COMMAND_SECONDS} s: {' '.join(command)}") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise HvdbError(f"exit code {done.returncode}: {said}: {' '.join(command)}")

    def _calibrate(self, nodes: int) -> None:
        with self._network(nodes) as net:
            self.latency_seconds = calibrate(net).latency_seconds
            usual = ["--no-bound", "-n", "10", "-w", "2", "-f", "2", "--max-time", "1", "--place", "in"]
            ring = ["--collective", "all_reduce,reduce_scatter,all_gather", "--algorithm", "ring"]
            self._bench(net, self.inputs, "coll", *usual, *ring, "-b", "8K", "-e", str(self.block.size))
            small = ["--algorithm", "doubling", "-b", "1K", "-e", "32K"]
            self._bench(net, self.inputs, "coll", *usual, *small)
            self._bench(net, self.inputs, "coll", "--collective", "barrier", "-n", "10", "--max-time", "1")
            if nodes == CALIBRATED[-1]:
                words = [*self.block.schedules()[0].split(), "--num-warmup-batches", "2", "--num-iters", "24"]
                words += ["--efficiency", "--max-time", "90"]
                self._bench(net, self.inputs, *self._training(*words))

    def _predict(self) -> None:
        worlds = ",".join(map(str, (CALIBRATED[-1], *BEYOND)))
        command = [sys.executable, "-B", "-m", "hvdb", "predict", str(self.inputs), "--profile", str(self.profile)]
        command += ["--ranks", worlds, "--json", str(self.prediction), "--program", str(self.bench)]
        self._do([*command, *(f"--what-if={options}" for options in self.block.schedules()[1:])])

    def _entry(self, made: predictions.Prediction, judged: judge.Judged) -> dict[str, Any]:
        row, (low, high) = judged.row, judged.interval or (judged.step, judged.step)
        return {
            "block": self.block.number,
            "kind": "beyond" if row.ranks in BEYOND else "calibrated",
            "ranks": row.ranks,
            "options": " ".join(made.what_ifs[row.what_if].options),
            "rate_mbit": self.block.rate_mbit,
            "latency_us": self.block.latency_us,
            "predicted": asdict(row.step),
            "measured": {"step_seconds": judged.step, "low": low, "high": high},
            "trivial": self._trivial(row.ranks),
        }

    def _trivial(self, ranks: int) -> dict[str, float]:
        """Returns what predictors say that need no simulation, in seconds of a step."""
        session = {run.phase: efficiency.step_time(run).value for run in runs.load([self.inputs])}
        alone, largest = session["solo"], session["full"]
        link = Link(self.block.rate_mbit * 1e6, self.latency_seconds)
        exposed = max(0.0, ring_seconds(link, ranks, self.block.size) - efficiency.BACKWARD_SHARE * alone)
        growth = (largest - alone) / math.log2(CALIBRATED[-1])
        return {
            "as on 4 nodes": largest,
            "straight line in log2 N": alone + growth * math.log2(ranks),
            "ring formula": alone + exposed,
        }


def _machine() -> dict[str, Any]:
    named = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {"cpu": named[0] if named else "", "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def summary(cells: list[dict[str, Any]]) -> list[str]:
    """Returns the lines that sum up all cells: errors, coverage, widths, and the errors of trivial predictors."""
    made = []
    for kind in ("calibrated", "beyond"):
        mine = [cell for cell in cells if cell["kind"] == kind]
        if not mine:
            continue
        steps = np.array([cell["measured"]["step_seconds"] for cell in mine])
        bands = np.array([[cell["predicted"][name] for name in ("low", "middle", "high")] for cell in mine])
        inside = int(np.sum((bands[:, 0] <= steps) & (steps <= bands[:, 2])))
        made.append(
            f"{kind}: {len(mine)} cells, {inside} inside the band; error of the step "
            f"{_quantiles(bands[:, 1] / steps - 1)}; width of the band over the step "
            f"{_quantiles((bands[:, 2] - bands[:, 0]) / bands[:, 1])}"
        )
        for name in mine[0]["trivial"]:
            others = np.array([cell["trivial"][name] for cell in mine])
            made.append(f"  {name}: error {_quantiles(others / steps - 1)}")
    return made


def _quantiles(values: np.ndarray) -> str:
    middle, most = np.percentile(np.abs(values), (50, 90))
    return f"median {100 * middle:.1f} %, nine tenths below {100 * most:.1f} %"


def _read(record: Path) -> dict[str, Any]:
    if record.exists():
        return json.loads(record.read_text(encoding="utf-8"))
    return {"format": "hvdb-validation", "version": 1, "blocks": [], "cells": []}


def _arguments(argv: list[str]) -> argparse.Namespace:
    made = new_parser("validate_prediction", __doc__ or "", "exit codes: 0 good, 2 usage or I/O, 3 not possible here")
    made.add_argument("folder", type=Path, metavar="FOLDER", help="of the record; made if it does not exist")
    made.add_argument(
        "--blocks", type=int, default=BLOCKS, metavar="N", help=f"measure the first N (default: {BLOCKS})"
    )
    made.add_argument(
        "--bench", type=Path, default=os.environ.get("HVD_BENCH") or _ROOT / "build/release/bin/hvd_bench"
    )
    made.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return made.parse_args(argv)


def _main(argv: list[str]) -> int:
    arguments = _arguments(argv)
    bench, folder = Path(arguments.bench).resolve(), arguments.folder.resolve()
    if not arguments.inside:
        if reason := network.why_not(latency=True, switch=bench.with_name("delay_switch")):
            print(f"validate_prediction: skipped: {reason}", file=sys.stderr)
            return EXIT_INCONCLUSIVE
        folder.mkdir(parents=True, exist_ok=True)
        return network.enter([sys.executable, "-B", "-m", "hvnet.validate", "--inside", *argv])
    scratch, record = network.prepare(), folder / "cells.json"
    document = _read(record)
    done = {entry["block"] for entry in document["blocks"]}
    for number in [number for number in range(min(arguments.blocks, BLOCKS)) if number not in done]:
        began, here = time.time(), folder / f"block-{number:02}"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        cells = Measurement(Block(number), bench, scratch, here).run()
        document["cells"] += cells
        document["blocks"].append(
            {"block": number, "began": int(began), "seconds": int(time.time() - began), **_machine()}
        )
        whole_file.write_text(record, json.dumps(document, indent=1) + "\n")
        left = (BLOCKS - len(document["blocks"])) * document["blocks"][-1]["seconds"] / 60
        inside = sum(
            cell["predicted"]["low"] <= cell["measured"]["step_seconds"] <= cell["predicted"]["high"] for cell in cells
        )
        print(f"block {number}: {inside} of {len(cells)} inside; all blocks in some {left:.0f} min", flush=True)
    for line in summary(document["cells"]):
        print(line)
    return EXIT_GOOD


if __name__ == "__main__":
    sys.exit(edge.run("validate_prediction", lambda: _main(sys.argv[1:])))
