"""Judges published claims by measured results. Pure: computes lines from measured cells and published figures.

The rule (docs/claims.md has the reasons and simulated error rates):
- The claim c is rounded, so it means [c - r, c + r], where r is half a unit of the claim's last digit. The
  band is [c - r - m, c + r + m], where the margin m is fixed before the measurement.
- A run counts if it is a complete, untraced measurement (origin 'measured') of real training on the chosen kind of
  device. Its network, batch, image size, precision and number of ranks must be the claim's. Its session must contain
  the one-rank baseline. Runs with replayed compute and simulated runs never count.
- The unit is the session (one job). From MIN_SESSIONS sessions on there is a 95 % bootstrap interval over sessions. The
  verdict is "reproduced" if the interval lies inside the band, and "not reproduced" if it lies outside the band. The
  verdict is "inconclusive" if the interval reaches across an edge of the band, or if there are too few sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hvdb.base.errors import HvdbError
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.judge.ring_model import Bounds, Inputs, bounds
from hvdb.read.published import PublishedPoint
from hvdb.read.runs import Run

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
INCONCLUSIVE = "inconclusive"
NOT_MEASURED = "not measured here"
# Two published runs of one set-up differ by this much, and no source says why. The margin is also the smallest
# difference that matters to this project (docs/claims.md).
DEFAULT_MARGIN = 0.02
# Devices whose training speed counts. Runs on the device 'replay', and on 'reference' in older stores, never count.
DEVICES = ("cuda", "cpu")
# Transports with one process per rank. The ranks of transport 'loopback' are threads of one process.
TRANSPORTS = ("nccl", "mpi")
# The first schedule in this list that was measured decides the verdict, because Horovod negotiates.
SCHEDULES = ("negotiated", "static")
INPUT_SIZE = {"inception3": 299, "resnet101": 224, "vgg16": 224}
# Published numbers of parameters (Inception's without its auxiliary head). tests/models/zoo_golden_test.cpp checks that
# our networks have these numbers.
PARAMETERS = {"inception3": 23_834_568, "resnet101": 44_549_160, "vgg16": 138_357_544}


@dataclass(frozen=True)
class Claim:
    """A published result. The points of a claim are the rows of results/published.csv with the claim's name."""

    name: str
    text: str
    gpus: int  # the number of GPUs that the overall verdict is about
    models: tuple[str, ...]
    baseline_setup: str  # the set-up whose one-GPU rates are used for points whose source states no one-GPU rate
    spec: str  # the name in slurm/specs of the campaign that measures the claim
    target: float | None = None  # the user's efficiency (0..1) in place of the published ones; None: they count


CLAIMS = {
    "horovod-512": Claim(
        name="horovod-512",
        text="Horovod scales to 512 Pascal GPUs (128 servers x 4, 25 Gbit/s RoCE; fp32, 64 images per GPU) with an "
        "efficiency of\n90 / 90 / 68 % for Inception V3 / ResNet-101 / VGG-16",
        gpus=512,
        models=("inception3", "resnet101", "vgg16"),
        baseline_setup="roce25-1gpu",
        spec="horovod-512",
    )
}


@dataclass(frozen=True)
class Line:
    """One published point with its measurement.

    expected: bounds from the ring model with `inputs`. measured: efficiency 0..1 with its interval; None if there is no
    measurement. deciding: False if another line of the same point decides the verdict.
    """

    point: PublishedPoint
    inputs: Inputs
    expected: Bounds
    measured: Interval | None
    schedule: str
    sessions: int
    nodes: int
    run_ids: tuple[str, ...]
    verdict: str
    reason: str
    deciding: bool


@dataclass(frozen=True)
class Options:
    """Values that a user may change. Inputs of the ring model that are given here replace the published inputs."""

    device: str = "cuda"
    margin: float = DEFAULT_MARGIN
    at_least: bool = False
    gbit_per_second: float | None = None
    one_gpu_rates: tuple[tuple[str, float], ...] = ()
    backward_share: float = efficiency.BACKWARD_SHARE


def find(name: str) -> Claim:
    """Returns the claim called `name`. Errors: HvdbError, whose text lists the known names."""
    if name not in CLAIMS:
        raise HvdbError(f"no claim '{name}'; there is: {', '.join(CLAIMS)}")
    return CLAIMS[name]


def with_target(
    claim: Claim, published: Sequence[PublishedPoint], target: float, gpus: int
) -> tuple[Claim, list[PublishedPoint]]:
    """Returns the claim that each network reaches the efficiency `target` (0..1) on `gpus` GPUs, and its points.

    Runs count by the rules of `claim`. The set-up, for the ring model, is that of its points with the most GPUs.
    """
    points = [replace(point, claim="") if point.claim == claim.name else point for point in published]
    for last in {point.model: point for point in points_of(claim, published)}.values():
        figures = {"images_per_second": None, "efficiency_stated": target, "rounding": 0.0, "efficiency": target}
        points.append(replace(last, gpus=gpus, source="--target", **figures))
    text = f"your target: each network scales to {gpus} GPUs with an efficiency of {100 * target:g} %"
    return replace(claim, text=text, gpus=gpus, target=target), points


def points_of(claim: Claim, published: Sequence[PublishedPoint]) -> list[PublishedPoint]:
    """Returns the claim's points, sorted by model and then by number of GPUs in ascending order."""
    mine = [point for point in published if point.claim == claim.name]
    return sorted(mine, key=lambda point: (claim.models.index(point.model), point.gpus))


def judge(point: PublishedPoint, measured: Interval | None, sessions: int, options: Options) -> tuple[str, str]:
    """Returns (verdict, reason) by the rule in the module's docstring.

    With options.at_least, results above the band count as reproduced.
    """
    if measured is None:
        return NOT_MEASURED, ""
    if sessions < MIN_SESSIONS or not measured.known:
        return INCONCLUSIVE, f"{sessions} of at least {MIN_SESSIONS} sessions: too few for an interval between jobs"
    low, high = band(point, options)
    where = f"{100 * low:.1f} .. {100 * high:.1f} %"
    if options.at_least:
        high, where = float("inf"), f"{100 * low:.1f} % and more"
    if measured.low >= low and measured.high <= high:
        return REPRODUCED, f"interval inside {where}"
    if measured.high < low:
        return NOT_REPRODUCED, f"lower than {where}"
    if measured.low > high:
        return NOT_REPRODUCED, f"higher than {where}"
    return INCONCLUSIVE, f"interval reaches across an edge of {where}: more sessions"


def band(point: PublishedPoint, options: Options) -> tuple[float, float]:
    """Returns the range of efficiencies (0..1) that agree with `point`: its value -/+ (rounding + margin)."""
    if point.efficiency_stated is None or point.rounding is None:
        raise HvdbError(f"{point.setup}, {point.model}: the source states no efficiency")
    reach = point.rounding + options.margin
    return point.efficiency_stated - reach, point.efficiency_stated + reach


def mismatches(configuration: dict[str, Any], ranks: int, point: PublishedPoint, device: str) -> list[str]:
    """Returns the reasons why a measured configuration is not a test of `point`; empty if it is a test."""
    wanted = {
        "batch_size": point.batch_per_gpu,
        "image_size": INPUT_SIZE[point.model],
        "compute_type": "fp32",
        "allreduce_type": "fp32",
        "auxiliary_head": 0,
        "device": device,
        "origin": "measured",
        "traced": 0,
    }
    differences = [
        f"{name} {configuration[name]}, not {value}" for name, value in wanted.items() if configuration[name] != value
    ]
    if configuration["schedule"] not in SCHEDULES:
        differences.append(f"schedule {configuration['schedule']}")
    if configuration["comm"] not in TRANSPORTS:
        differences.append(f"comm {configuration['comm']}, not between processes")
    if ranks != point.gpus:
        differences.append(f"{ranks} ranks, not {point.gpus}")
    return differences


def model_inputs(claim: Claim, point: PublishedPoint, published: Sequence[PublishedPoint], options: Options) -> Inputs:
    """Returns the inputs of the ring model, from `options` or else from `published`.

    Errors: HvdbError if an input is in neither.
    """
    setup = point.baseline_setup or claim.baseline_setup
    rates = {p.model: p.images_per_second for p in published if p.setup == setup}
    rate = dict(options.one_gpu_rates).get(point.model, rates.get(point.model))
    link = options.gbit_per_second or point.link_gbit
    if rate is None or link is None:
        raise HvdbError(f"{point.setup}, {point.model}: no one-GPU rate or no line rate is published for it")
    return Inputs(point.gpus, PARAMETERS[point.model], link, rate, point.batch_per_gpu, options.backward_share)


def lines(
    claim: Claim, published: Sequence[PublishedPoint], cells: Sequence[EfficiencyRow], options: Options
) -> list[Line]:
    """Returns every point of the claim with its verdict. A point that was measured with two schedules gives two lines.

    Errors: HvdbError if two different measured configurations match one point.
    """
    judged = []
    for point in points_of(claim, published):
        inputs = model_inputs(claim, point, published, options)
        matching = [
            cell
            for cell in cells
            if cell.kind == "full"
            and cell.efficiency is not None
            and cell.model == point.model
            and not mismatches(cell.configuration, cell.ranks, point, options.device)
        ]
        matching.sort(key=lambda cell: SCHEDULES.index(cell.configuration["schedule"]))
        _require_one_per_schedule(point, matching)
        for number, cell in enumerate(matching or [None]):
            measured = cell.efficiency if cell else None
            sessions = cell.sessions if cell else 0
            verdict, reason = judge(point, measured, sessions, options)
            judged.append(
                Line(
                    point=point,
                    inputs=inputs,
                    expected=bounds(inputs),
                    measured=measured,
                    schedule=cell.configuration["schedule"] if cell else "",
                    sessions=sessions,
                    nodes=cell.nodes if cell else 0,
                    run_ids=cell.run_ids if cell else (),
                    verdict=verdict,
                    reason=reason,
                    deciding=number == 0,
                )
            )
    return judged


def _require_one_per_schedule(point: PublishedPoint, matching: Sequence[EfficiencyRow]) -> None:
    for first, second in pairwise(matching):
        if first.configuration["schedule"] == second.configuration["schedule"]:
            differing = [
                f"{name} {value} and {second.configuration[name]}"
                for name, value in first.configuration.items()
                if second.configuration[name] != value
            ]
            raise HvdbError(
                f"{point.model} on {point.gpus} ranks was measured in several ways ({'; '.join(differing)}); "
                "give a store that holds one of them"
            )


def overall(judged: Sequence[Line], gpus: int) -> str:
    """Returns the verdict on the claim, from its points on `gpus` GPUs with one deciding line for each network.

    The verdict is "not reproduced" if one point is not reproduced, "reproduced" if all points are reproduced, and "not
    measured here" if no point was measured. Otherwise it is "inconclusive".
    """
    verdicts = [line.verdict for line in judged if line.deciding and line.point.gpus == gpus]
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    if verdicts and all(verdict == REPRODUCED for verdict in verdicts):
        return REPRODUCED
    if all(verdict == NOT_MEASURED for verdict in verdicts):
        return NOT_MEASURED
    return INCONCLUSIVE


def real_training(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Returns the runs on DEVICES and the simulated runs, and a line about all other runs.

    The simulated runs are kept because efficiency.select() handles them.
    """
    kept = [run for run in runs if run.device in DEVICES or run.origin == "simulated"]
    left_out = []
    if other := len(runs) - len(kept):
        what = "replayed, reference or PyTorch's compute (no training speed of hvd_bench; never a measurement)"
        left_out.append(f"{other} with {what}")
    return kept, left_out
