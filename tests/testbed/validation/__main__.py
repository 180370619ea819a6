"""Validates hvdb predict: predicts runs that were not measured, and only then measures them.

network: on a shaped network. A block measures collectives on 2, 3 and 4 nodes and one training session on 4 nodes,
predicts 12 other runs from them (6 on 4 nodes, 3 on 6 and 3 on 8), writes the prediction, and measures these runs,
which carry its hash. 24 blocks are 3 rates x 2 latencies x 4 shares of compute; 8 more, at 2 other rates, have runs on
5 and 7 nodes in place of 6 and 8. The communication is real; the compute is a recorded step whose times are slept.

compute: real training of two ranks on this machine, one thread each. A block is a network: collectives and five
sessions are measured, four other schedules predicted and then measured.

plot: draws predicted against measured step times of one or several records in one figure, validation.png.

network and compute keep their record in FOLDER/cells.json. A block that is in the record already is not measured again,
so the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdb import commands
from hvdb.base import data, edge, whole_file
from hvdb.base.errors import EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.predict import judge
from hvdb.read import predictions, runs
from hvnet import network
from hvnet.formula import Link, ring_seconds
from hvnet.measure import calibrate
from hvnet.network import Network, Wiring
from validation import held_out

_ROOT = Path(__file__).resolve().parents[3]
_NOISE = _ROOT / "results/recorded/2026-11-24-collectives/efficiency.db"  # compute times of ResNet-101 on two ranks
PROFILES = _ROOT / "results/recorded/2026-11-22-h200-second/replay"  # MODEL-fp16.txt: steps recorded on an H200
RATES, LATENCIES, SHARES = (50.0, 100.0, 200.0), (0.0, 1000.0), (0.4, 0.8, 1.3, 2.0)
EVEN = len(RATES) * len(LATENCIES) * len(SHARES)  # blocks with runs on 6 and 8 nodes; those behind them are odd
ODD_RATES, ODD_SHARES = (33.0, 150.0), (0.8, 1.3)
BLOCKS = EVEN + len(ODD_RATES) * len(LATENCIES) * len(ODD_SHARES)
CALIBRATED = (2, 3, 4)
GRADIENTS = 48  # of the replayed step; those of the recorded one are merged
COMPUTED = ("resnet50", "vgg16", "inception3")
_COMPUTED_OPTIONS = ("--image-size", "160", "--batch-size", "2", "--threads", "1", "--learning-rate", "0.0002")
_COMPUTED_SCHEDULES = ("--bucket-mb 4", "--bucket-mb 1024", "--schedule sharded", "--schedule negotiated")
_COMMAND_SECONDS = 900


@dataclass(frozen=True)
class Block:
    """One block. share: reductions on 8 nodes, by the formula, over the time of compute. size: bytes of gradients."""

    number: int

    @property
    def is_odd(self) -> bool:
        return self.number >= EVEN

    @property
    def beyond(self) -> tuple[int, int]:
        """The numbers of nodes that are predicted and were not measured."""
        return (5, 7) if self.is_odd else (6, 8)

    @property
    def rate_mbit(self) -> float:
        return ODD_RATES[self.number % 2] if self.is_odd else RATES[self.number % 3]

    @property
    def latency_us(self) -> float:
        return LATENCIES[self.number // 2 % 2] if self.is_odd else LATENCIES[self.number // 3 % 2]

    @property
    def share(self) -> float:
        return ODD_SHARES[(self.number - EVEN) // 4] if self.is_odd else SHARES[self.number // 6]

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
        """Returns the schedules that are measured on so many nodes. Beyond the calibrated ones a block has a half of
        them on each number of nodes, and two of the four blocks of a link have the other half."""
        every = self.schedules()
        swapped = (self.number + self.number // (EVEN // 2) + (self.is_odd and self.number // 4)) % 2
        return every if nodes in CALIBRATED else every[(nodes == self.beyond[0]) ^ swapped :: 2]


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


def _do(command: list[str], folder: Path | None = None) -> None:
    """Errors: HvdbError if the command fails."""
    usual: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "cwd": folder}
    try:
        done = subprocess.run(command, timeout=_COMMAND_SECONDS, **usual)
    except subprocess.TimeoutExpired:
        raise HvdbError(f"not done after {_COMMAND_SECONDS} s: {' '.join(command)}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise HvdbError(f"exit code {done.returncode}: {said}: {' '.join(command)}")


class Measurement:
    """What the blocks of both parts do. folder: receives the profile, both stores and the prediction."""

    def __init__(self, bench: Path, folder: Path) -> None:
        self.bench, self.folder = bench, folder
        self.profile, self.prediction = folder / "profile.replay", folder / "prediction.json"
        self.inputs, self.held = folder / "inputs.db", folder / "held.db"

    def predict(self, worlds: Sequence[int], what_ifs: Sequence[str]) -> list[str]:
        """Writes the prediction. Returns the label of runs that are a test of it. Errors: HvdbError."""
        command = [sys.executable, "-B", "-m", "hvdb", "predict", self.inputs.name, "--profile", self.profile.name]
        command += ["--ranks", ",".join(map(str, worlds)), "--json", self.prediction.name, "--program", str(self.bench)]
        _do([*command, *(f"--what-if={options}" for options in what_ifs)], self.folder)
        return ["--label", f"prediction={predictions.read(self.prediction).sha256}"]

    def judged(self, block: int, link: Link, cells: int) -> list[dict[str, Any]]:
        """Returns the record's entry of each of the `cells`. Errors: HvdbError if one has no result."""
        made = predictions.read(self.prediction)
        found, notes = judge.judge(made, runs.load([self.held]))
        if len(found) != cells:
            raise HvdbError(f"{len(found)} of {cells} cells have a result: {'; '.join(notes) or 'no reason is known'}")
        steps: dict[str, list[float]] = {}
        for run in runs.load([self.inputs]):
            steps.setdefault(run.phase, []).append(efficiency.step_time(run).value)
        session = {phase: float(np.median(times)) for phase, times in steps.items()}
        entries = []
        for one in found:
            row, (low, high) = one.row, one.interval or (one.step, one.step)
            entry = {
                "block": block,
                "kind": self.kind_of(row.ranks),
                "ranks": row.ranks,
                "options": " ".join(made.what_ifs[row.what_if].options),
                "rate_mbit": link.bits_per_second / 1e6,
                "latency_us": link.latency_seconds * 1e6,
                "predicted": predictions.band_document(row.step_seconds),
                "measured": {"step_seconds": one.step, "low": low, "high": high},
                "trivial": self.trivial(row.ranks, session),
            }
            if one.efficiency is not None:
                entry["efficiency"] = {
                    "predicted": predictions.band_document(row.efficiency),
                    "measured": one.efficiency,
                }
            entries.append(entry)
        return entries

    def kind_of(self, ranks: int) -> str:
        return "compute"

    def trivial(self, ranks: int, session: dict[str, float]) -> dict[str, float]:
        """Returns what predictors say that need no simulation, in seconds of a step. session: phase -> its step."""
        return {"as in the sessions": session["full"]}


class NetworkMeasurement(Measurement):
    """Measures one block on shaped networks. scratch: for files of the namespaces."""

    def __init__(self, block: Block, bench: Path, scratch: Path, folder: Path) -> None:
        super().__init__(bench, folder)
        self.block, self.scratch = block, scratch
        self.latency = 0.0  # of the idle link, in seconds

    def run(self) -> list[dict[str, Any]]:
        recorded = (PROFILES / f"{self.block.profile}-fp16.txt").read_text(encoding="utf-8")
        self.profile.write_text(replay_text(recorded, self.block, recorded_noise()), encoding="utf-8")
        for nodes in CALIBRATED:
            self._calibrate(nodes)
        worlds = (CALIBRATED[-1], *self.block.beyond)
        label = self.predict(worlds, self.block.schedules()[1:])
        for nodes in worlds:
            with self._network(nodes) as net:
                for options in self.block.cells(nodes):
                    words = [*options.split(), "--num-warmup-batches", "2", "--num-iters", "12", "--max-time", "40"]
                    self._bench(net, self.held, *self._training(*words), *label)
        cells = sum(map(len, map(self.block.cells, worlds)))
        return self.judged(self.block.number, Link(self.block.rate_mbit * 1e6, self.block.latency_us / 1e6), cells)

    def kind_of(self, ranks: int) -> str:
        return "calibrated" if ranks in CALIBRATED else "beyond"

    def _network(self, nodes: int) -> Network:
        switch = self.bench.with_name("shaped_switch")
        return Network(Wiring(nodes, self.block.rate_mbit, self.block.latency_us), switch, self.scratch)

    def _training(self, *words: str) -> list[str]:
        return ["--replay", str(self.profile), "--threads", "1", "--quiet", *words]

    def _bench(self, net: Network, store: Path, *words: str) -> None:
        _do([*net.mpirun(1), str(self.bench), *words, "--db", str(store)])

    def _calibrate(self, nodes: int) -> None:
        with self._network(nodes) as net:
            self.latency = calibrate(net).latency_seconds
            # A message that takes one frame of the network more takes longer at once. Powers of two alone may all lie
            # just below such steps, so sizes between them are measured as well, with half the time for each.
            for words in (
                f"--collective all_reduce,reduce_scatter,all_gather --algorithm ring -b 8K -e {self.block.size} "
                "--max-time 1",
                "--algorithm ring -b 12K -e 48K --max-time 0.5",
                "--algorithm doubling -b 1K -e 32K --max-time 0.5",
                "--algorithm doubling -b 1536 -e 24K --max-time 0.5",
            ):
                usual = ["--no-bound", "-n", "10", "-w", "2", "-f", "2", "--place", "in"]
                self._bench(net, self.inputs, "coll", *usual, *words.split())
            self._bench(net, self.inputs, "coll", "--collective", "barrier", "-n", "10", "--max-time", "1")
            if nodes == CALIBRATED[-1]:
                words = [*self.block.schedules()[0].split(), "--num-warmup-batches", "2", "--num-iters", "24"]
                words += ["--efficiency", "--max-time", "90"]
                self._bench(net, self.inputs, *self._training(*words))

    def trivial(self, ranks: int, session: dict[str, float]) -> dict[str, float]:
        alone, largest = session["solo"], session["full"]
        ring = ring_seconds(Link(self.block.rate_mbit * 1e6, self.latency), ranks, self.block.size)
        growth = (largest - alone) / math.log2(CALIBRATED[-1])
        return {
            "as on 4 nodes": largest,
            "straight line in log2 N": alone + growth * math.log2(ranks),
            "ring formula": alone + max(0.0, ring - efficiency.BACKWARD_SHARE * alone),
        }


class ComputeMeasurement(Measurement):
    """Measures one network on two ranks of this machine."""

    def __init__(self, number: int, bench: Path, folder: Path) -> None:
        super().__init__(bench, folder)
        self.number, self.model = number, COMPUTED[number]

    def run(self) -> list[dict[str, Any]]:
        launch = ["mpirun", "-n", "2", str(self.bench)]
        training = [*launch, "--model", self.model, *_COMPUTED_OPTIONS, "--efficiency", "--quiet"]
        operations = "all_reduce,reduce_scatter,all_gather"
        usual = ["--place", "in", "--no-bound", "-b", "1K", "-f", "4", "--max-time", "1", "--db", str(self.inputs)]
        _do([*launch, "coll", "--collective", operations, "-e", "128M", *usual])
        _do([*launch, "coll", "--collective", "barrier", "--db", str(self.inputs)])
        for recording in (["--record-replay", str(self.profile)], *[[]] * (MIN_SESSIONS - 1)):
            _do([*training, "--num-iters", "20", *recording, "--db", str(self.inputs)])
        label = self.predict([2], _COMPUTED_SCHEDULES)
        for options in _COMPUTED_SCHEDULES:
            _do([*training, "--num-iters", "12", *options.split(), "--db", str(self.held), *label])
        return self.judged(self.number, Link(0.0, 0.0), len(_COMPUTED_SCHEDULES))


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return {"cpu": named[0] if named else "", "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def program_commit(measured: Sequence[runs.Run]) -> str:
    """Returns the commit of the program that measured these runs, "unknown" if they do not say it."""
    known = [run for run in measured if run.fact("git.commit")]
    found = {run.fact("git.commit")[:8] + ("-dirty" if run.fact("git.state") == "dirty" else "") for run in known}
    return ", ".join(sorted(found)) or "unknown"


def summary(cells: list[dict[str, Any]]) -> list[str]:
    """Returns the lines that sum up all cells: errors, coverage, widths, and the errors of trivial predictors."""
    made = []
    for kind in held_out.KINDS:
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
        if points := [
            100 * abs(known["predicted"]["middle"] - known["measured"])
            for cell in mine
            if (known := cell.get("efficiency"))
        ]:
            made.append(f"  efficiency: error median {np.median(points):.1f} points, most {max(points):.1f}")
        for name in (name for name in mine[0]["trivial"] if all(name in cell["trivial"] for cell in mine)):
            others = np.array([cell["trivial"][name] for cell in mine])
            made.append(f"  {name}: error {_quantiles(others / steps - 1)}")
    return made


def _quantiles(values: np.ndarray) -> str:
    middle, most = np.percentile(np.abs(values), (50, 90))
    return f"median {100 * middle:.1f} %, nine tenths below {100 * most:.1f} %"


def _read(record: Path, part: str) -> dict[str, Any]:
    """Errors: HvdbError for a damaged record, or one of another part."""
    if not record.exists():
        return {"format": "hvdb-validation", "version": 1, "part": part, "blocks": [], "cells": []}
    held_out.read(record)
    document = json.loads(record.read_text(encoding="utf-8"))
    blocks = document.get("blocks")
    if not isinstance(blocks, list) or not all(isinstance(b, dict) and isinstance(b.get("block"), int) for b in blocks):
        raise HvdbError(f"{record}: damaged: its blocks are not those that this program writes")
    if document.setdefault("part", part) != part:
        raise HvdbError(f"{record} is of another part: name another folder")
    return document


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    codes = "exit codes: 0 good, 2 usage or I/O, 3 not possible here"
    made = commands.new_parser("validate_prediction", __doc__ or "", codes)
    made.prog = "tests/testbed/validate_prediction"
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parts = made.add_subparsers(dest="part", required=True)
    usual = os.environ.get("HVD_BENCH") or data.hvd_bench()
    blocks = commands.number(lambda n: n > 0, "{} is no number of blocks", int)
    for name, what in (
        ("network", "predicts and measures on a shaped network"),
        ("compute", "predicts and measures real training"),
    ):
        part = parts.add_parser(name, help=what)
        by = "hvd_bench (default HVD_BENCH or build/release/bin/hvd_bench)"
        part.add_argument("--bench", type=Path, default=usual, help=by)
        part.add_argument("folder", type=Path, metavar="FOLDER", help="of the record; made if it does not exist")
        part.add_argument("--blocks", type=blocks, default=BLOCKS, metavar="N", help="measure the first N only")
    figure = parts.add_parser("plot", help="draws records")
    figure.add_argument("files", type=Path, nargs="+", metavar="FILE", help="cells.json of a record")
    commands.add_figures(figure, Path("plots"), "folder to write to (default: plots)")
    return made


def _plot(arguments: argparse.Namespace) -> int:
    from validation import plot  # matplotlib is slow to import

    records = list(map(held_out.read, arguments.files))
    forms = arguments.format or ["png"]
    commands.draw([(plot.draw, (records, arguments.out / f"validation.{form}")) for form in forms])
    return EXIT_GOOD


def main(argv: list[str]) -> int:
    """Runs the program. Returns the exit code. An error becomes one line on standard error."""
    return edge.run("validate_prediction", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    if arguments.part == "plot":
        return _plot(arguments)
    bench = Path(arguments.bench).resolve()
    folder = arguments.folder.resolve()
    on_network = arguments.part == "network"
    if on_network and not arguments.inside:
        if reason := network.why_not(bench.with_name("shaped_switch")):
            print(f"validate_prediction: skipped: {reason}", file=sys.stderr)
            return EXIT_INCONCLUSIVE
        folder.mkdir(parents=True, exist_ok=True)
        return network.enter([sys.executable, "-B", "-m", "validation", "--inside", *argv])
    folder.mkdir(parents=True, exist_ok=True)
    scratch = network.prepare() if on_network else folder

    def measurement(number: int, here: Path) -> NetworkMeasurement | ComputeMeasurement:
        if on_network:
            return NetworkMeasurement(Block(number), bench, scratch, here)
        return ComputeMeasurement(number, bench, here)

    record = folder / "cells.json"
    document = _read(record, arguments.part)
    done = {entry["block"] for entry in document["blocks"]}
    left = [n for n in range(min(arguments.blocks, BLOCKS if on_network else len(COMPUTED))) if n not in done]
    for place, number in enumerate(left, 1):
        began, here = time.time(), folder / f"block-{number:02}"
        if here.exists():
            here.rename(here.with_name(f"{here.name}-unfinished-{int(began)}"))
        here.mkdir()
        machine = _machine()
        cells = measurement(number, here).run()
        seconds = int(time.time() - began)
        document["cells"] += cells
        machine["commit"] = program_commit(runs.load([here / "held.db"]))
        document["blocks"].append({"block": number, "began": int(began), "seconds": seconds, **machine})
        whole_file.write_text(record, json.dumps(document, indent=1) + "\n")
        inside = sum(c["predicted"]["low"] <= c["measured"]["step_seconds"] <= c["predicted"]["high"] for c in cells)
        rest = (len(left) - place) * seconds / 60
        print(f"block {number}: {inside} of {len(cells)} inside; the others take {rest:.0f} min", flush=True)
    try:
        lines = summary(document["cells"])
    except (KeyError, TypeError) as error:
        raise HvdbError(f"{record}: damaged: {error}") from error
    for line in lines:
        edge.tell("validate_prediction", line)
    return EXIT_GOOD


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
