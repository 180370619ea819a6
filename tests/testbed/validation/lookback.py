"""Looks back at the published points of results/published.csv. RETROSPECTIVE: whoever wrote this knew the answers.

Draws what nobody published about those clusters from PRIORS, lets `hvd_bench simulate` simulate each draw, weighs the
draws by the points with RDMA on NEAR_GPUS, and predicts the larger worlds. The form, with its reasons:

- Profile: the shape of a step as recorded on an H200, in the seconds that the published rate of one GPU gives.
- Horovod at commit d54e3a88, whose README has the table (horovod/tensorflow/mpi_ops.cc): a tick of 5 ms, 64 MB of
  fusion that ends at the first misfit, reductions on a stream whose end another thread awaits (`device stream`).
- TensorFlow submits gradients before the GPU has computed them; how early was not recorded. Half of the draws submit
  all of them when the step begins, as the profiles have it, and half submit each when it is ready.
- A cycle is one message to the coordinator and back over a tree. (Horovod sent one for each tensor: not modelled.)
- NCCL has one flat ring over all GPUs. It enters and leaves each node once, so the ranks of a node do not share its
  link, and each of 2 (N - 1) steps takes a latency and 1 / N of the bytes at a part of the line rate.
- Four GPUs a node everywhere, as two sources say. Each rank and step has normal noise of its own.
- A published figure lies SIGMA beside any model, for the table contradicts itself by as much. Bands include this.
"""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hvdb.base import data, edge
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.base.interval import Interval
from hvdb.judge import ring_model
from hvdb.judge.efficiency import BACKWARD_SHARE
from hvdb.predict.schedule import simulated
from hvdb.read import published, replay_profile
from hvdb.read.published import PublishedPoint

# Draws lie evenly in these ranges. rate: part of the line rate. latency: seconds of a step of the ring. slowdown: of
# compute by a reduction beside it. noise: standard deviation of a rank's compute time, as part of it.
# RDMA: data sheets. TCP: the host's memory is copied through, by few connections, and the kernel adds latency.
RDMA = {"rate": (0.6, 1.0), "latency": (5e-6, 60e-6), "slowdown": (0.0, 0.15), "noise": (0.0, 0.03)}
TCP = {**RDMA, "rate": (0.3, 0.9), "latency": (20e-6, 150e-6)}
DRAWS, FEW_DRAWS = 4000, 1000  # with RDMA; with TCP, of which nothing is demanded
NEAR_GPUS = 16
SIGMA = 0.02  # of a published efficiency
GPUS_PER_NODE, MAX_GPUS = 4, 4096
NOISE_LEVELS = 10  # draws of one level share a text
BASELINE = "roce25-1gpu"  # of points that name none
FEWEST_STEPS, RANK_STEPS = 5, 1280  # simulated in a draw: 5, or until all ranks together have made 1280
COPY = 2 / 732e9  # seconds: each byte is read and written. Source: NVIDIA's data sheet of the P100 (732 GB/s)
PROFILES = Path(__file__).resolve().parents[3] / "results/recorded/2026-11-22-h200-second/replay"

Draws = dict[str, np.ndarray]  # parameter -> its value in each draw


def draw(prior: Mapping[str, tuple[float, float]], count: int, seed: int) -> Draws:
    """Returns draws of the parameters; `ahead` is 1 where gradients are submitted when the step begins, else 0."""
    random, number = np.random.default_rng(seed), np.arange(count)
    drawn = {name: random.uniform(low, high, count) for name, (low, high) in prior.items()}
    low, high = prior["noise"]
    drawn["noise"] = low + (high - low) * (number // 2 % NOISE_LEVELS + 0.5) / NOISE_LEVELS
    return {**drawn, "ahead": number % 2}


def weigh(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Returns weights of the draws with the sum 1. predicted: [point, draw]. Likelihoods are normal."""
    logs = -0.5 * (((predicted - measured[:, None]) / SIGMA) ** 2).sum(axis=0)
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def percentiles(values: np.ndarray, weights: np.ndarray) -> Interval:
    """Returns weighted percentiles: each value stands at the middle of its own weight."""
    order = np.argsort(values)
    place = np.cumsum(weights[order]) - 0.5 * weights[order]
    low, middle, high = map(float, np.interp([0.05, 0.5, 0.95], place / weights.sum(), values[order]))
    return Interval(middle, low, high)


class Lookback:
    """Simulates published points. profiles: the folder of MODEL-fp16.txt."""

    def __init__(self, program: Path, profiles: Path, points: Sequence[PublishedPoint], seed: int) -> None:
        self.program, self.profiles, self.seed = program, profiles, seed
        self.alone = {(p.setup, p.model): p.images_per_second for p in points if p.gpus == 1}

    def profile(self, point: PublishedPoint) -> replay_profile.Profile:
        """Returns the profile of the point's network."""
        return replay_profile.read(self.profiles / f"{Path(point.model).name}-fp16.txt")

    def inputs(self, point: PublishedPoint) -> ring_model.Inputs:
        """Returns what is published of the cluster. Errors: HvdbError for figures that no cluster has."""
        rate = self.alone.get((point.baseline_setup or BASELINE, point.model)) or 0.0
        link, batch = point.link_gbit or 0.0, point.batch_per_gpu
        if not (all(0 < x < 1e6 for x in (rate, link, batch)) and point.gpus <= MAX_GPUS):
            raise HvdbError(f"{point.setup}, {point.model}: no usable link, batch, GPUs or images/s of one GPU")
        return ring_model.Inputs(point.gpus, self.profile(point).elements, link, rate, batch, BACKWARD_SHARE)

    def efficiencies(self, point: PublishedPoint, drawn: Draws) -> np.ndarray:
        """Returns the simulated efficiency of each draw."""
        inputs, known = self.inputs(point), self.profile(point)
        alone = inputs.batch / inputs.images_per_second
        fusion = "0" if "before tensor fusion" in point.reduction else "64"
        found = np.empty(len(drawn["rate"]))
        for noise, ahead in sorted(set(zip(drawn["noise"], drawn["ahead"], strict=True))):
            chosen = np.flatnonzero((drawn["noise"] == noise) & (drawn["ahead"] == ahead))
            text = "\n".join([*self._text(inputs, alone / known.step, drawn, chosen), "end 1", ""])
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".replay") as shape:
                shape.write(known.file.read_text(encoding="utf-8") if ahead else _in_step(known.file))
                shape.flush()
                options = ["--replay", shape.name, "--schedule", "negotiated", "--fusion-threshold-mb", fusion]
                results = simulated(self.program, options, text, len(chosen))
            found[chosen] = [alone / result["step"] for result in results]
        return found

    def _text(self, inputs: ring_model.Inputs, compute: float, drawn: Draws, chosen: np.ndarray) -> Iterator[str]:
        """Yields the lines of the text of costs. All chosen draws have one noise."""
        ranks = inputs.gpus
        yield from ("hvd-costs 1", f"seed {self.seed}", f"steps {max(FEWEST_STEPS, RANK_STEPS // ranks)}", "block 1")
        yield from ("device stream", "pacing tick")
        normal = np.random.default_rng(self.seed).standard_normal((4, GPUS_PER_NODE, 250))
        for node in np.clip(1 + drawn["noise"][chosen[0]] * normal, 0.5, 2):
            yield from ("node", *(" ".join(["rank", *(f"{x:.5g}" for x in series)]) for series in node))
        yield f"world {ranks} {GPUS_PER_NODE}"
        for rate, latency, slowdown in zip(*(drawn[name][chosen] for name in list(RDMA)[:3]), strict=True):
            yield "draw"
            for size in (4, 1 << 30):  # the simulator draws a line through both
                a_step = latency + size / ranks / (rate * inputs.gbit_per_second * 1e9 / 8)
                yield f"all_reduce {size} {2 * (ranks - 1) * a_step:.9g}"
            yield f"cycle {2 * math.ceil(math.log2(ranks)) * latency:.9g}"
            yield from (f"copy {COPY:.4g}", f"slowdown {slowdown:.9g}", f"compute {compute:.9g}")


def _in_step(file: Path) -> str:
    """Returns the profile's text with gradients that are submitted when they are ready."""
    lines = [line.split(" ") for line in file.read_text(encoding="utf-8").split("\n")]
    return "\n".join(" ".join([*w[:2], *w[3:4], *w[3:]] if w[0] == "gradient" else w) for w in lines)


def _line(point: PublishedPoint, bands: Sequence[Interval], beside: Sequence[float] = ()) -> str:
    measured, last = point.efficiency or 0.0, bands[-1]
    words = [f"{point.setup:<21} {point.model:<10} {point.gpus:>4}"]
    words += [one.text(form=lambda percent: f"{percent:5.1f}") for one in bands]
    words += [f"{100 * measured:5.1f} {100 * (last.value - measured):+6.1f}"]
    words += ["inside " if last.holds(measured) else "outside", *(f"{100 * x:5.1f}" for x in beside)]
    return "  ".join(words)


def _summary(name: str, bands: Sequence[Interval], measured: Sequence[float]) -> str:
    error = np.mean([abs(one.value - x) for one, x in zip(bands, measured, strict=True)])
    inside = sum(one.holds(x) for one, x in zip(bands, measured, strict=True))
    width = np.median([one.width for one in bands])
    return f"{name}: mean error {100 * error:.1f}, {inside} of {len(bands)} inside, median width {100 * width:.1f}"


def report(program: Path, profiles: Path, file: Path, draws: int, seed: int) -> Iterator[str]:
    """Yields the lines of the report. Errors: HvdbError for damaged input."""
    try:
        points = published.load(file)
    except (KeyError, TypeError, ValueError, ArithmeticError, csv.Error) as error:
        raise HvdbError(f"{file}: damaged: {error}") from error
    usable = [p for p in points if p.gpus > 1 and 0 < (p.efficiency or 0) < 10 and "CPU" not in p.reduction]
    near, far = ([p for p in usable if "RDMA" in p.network and (p.gpus > NEAR_GPUS) == side] for side in (False, True))
    there = {p.model: p.efficiency or 0.0 for p in near if p.reduction == "NCCL"}
    if not far or not {p.model for p in far} <= set(there):
        raise HvdbError(f"{file}: no point with RDMA on {NEAR_GPUS} GPUs for each network")
    look, drawn = Lookback(program, profiles, points, seed), draw(RDMA, draws, seed)
    found = [look.efficiencies(point, drawn) for point in (*near, *far)]
    weights = weigh(np.array(found[: len(near)]), np.array([p.efficiency for p in near]))
    random = np.random.default_rng([seed, 1])

    def bands(values: np.ndarray, *weighted: np.ndarray) -> list[Interval]:
        seen = values + SIGMA * random.standard_normal(len(values))
        return [percentiles(seen, one) for one in (np.ones(len(seen)), *weighted)]

    shown = [bands(values, weights) for values in found]
    yield f"RETROSPECTIVE, not blind. {draws} draws, seed {seed}. Efficiency in %: middle [90 % band]; errors in points"
    yield ""
    yield f"{'':<39}{'prior alone':<22}{'conditioned':<22}measured, error"
    yield from map(_line, near, shown)
    yield ""
    yield f"predicted; on the right: as on {NEAR_GPUS} GPUs, straight line in log2 N, ring model at most"
    shown, measured = shown[len(near) :], [p.efficiency or 0.0 for p in far]
    beside = []
    for point, both in zip(far, shown, strict=True):
        last = there[point.model]
        line = 1 - (1 - last) * math.log2(point.gpus) / math.log2(NEAR_GPUS)
        beside.append((last, line, ring_model.bounds(look.inputs(point)).at_most))
        yield _line(point, both, beside[-1])
    yield _summary("prior alone", [both[0] for both in shown], measured)
    yield _summary("conditioned", [both[1] for both in shown], measured)
    errors = np.abs(np.array(beside) - np.array(measured)[:, None]).mean(axis=0)
    yield f"on the right: mean errors {', '.join(f'{100 * x:.1f}' for x in errors)}"
    yield "demanded of conditioned: mean error at most 3, 5 of 6 inside, median width at most 15 points"
    means = ", ".join(f"{name} {x.mean():.3g} {(x * weights).sum():.3g}" for name, x in drawn.items())
    yield f"effective sample size {1 / (weights**2).sum():.0f}; means before and after: {means}"
    yield ""
    yield "TCP, by priors of its own, without a demand (CPU all-reduce is not modelled)"
    drawn = draw(TCP, min(draws, FEW_DRAWS), seed)
    for point in (p for p in usable if "TCP" in p.network):
        yield _line(point, bands(look.efficiencies(point, drawn)))


def main(program: Path) -> int:
    """Prints the report. Returns the exit code. Errors: HvdbError."""
    for line in report(program, PROFILES, data.PUBLISHED, DRAWS, seed=1):
        edge.tell("validate_prediction", line)
    return EXIT_GOOD
