"""Published results from results/published.csv, to show beside measured results. Each row names its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import data

_TEXTS = ("setup", "hardware", "network", "reduction", "model", "baseline_setup", "claim", "source")


@dataclass(frozen=True)
class PublishedPoint:
    """One published figure. images_per_second: of all GPUs together. Efficiencies are fractions (0..1).

    efficiency_stated: the efficiency that the source states. rounding: half a unit of the last digit of
    efficiency_stated (0.005 for "90 %"). efficiency: computed from the source's rates if the source has the rates of
    the set-up and of its baseline, else efficiency_stated. link_gbit: line rate of a node's network, in Gbit/s. claim:
    the claim to which the figure belongs (hvdb reproduce), or "".
    """

    setup: str
    hardware: str
    network: str
    link_gbit: float | None
    reduction: str
    gpus: int
    gpus_per_node: int | None
    batch_per_gpu: int
    model: str
    images_per_second: float | None
    efficiency_stated: float | None
    rounding: float | None
    efficiency: float | None
    baseline_setup: str
    claim: str
    source: str


def load(path: Path = data.PUBLISHED) -> list[PublishedPoint]:
    """Returns all rows of the file `path`, in the file's order."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rate = {(row["setup"], row["model"]): _number(row["images_per_second"]) for row in rows}
    points = []
    for row in rows:
        stated = _number(row["efficiency_percent"])
        own = _number(row["images_per_second"])
        base = rate.get((row["baseline_setup"], row["model"]))
        computed = own / int(row["gpus"]) / base if own and base else None
        points.append(
            PublishedPoint(
                **{name: row[name] for name in _TEXTS},
                link_gbit=_number(row["link_gbit"]),
                gpus=int(row["gpus"]),
                gpus_per_node=int(row["gpus_per_node"]) if row["gpus_per_node"] else None,
                batch_per_gpu=int(row["batch_per_gpu"]),
                images_per_second=own,
                efficiency_stated=None if stated is None else stated / 100.0,
                rounding=_half_a_digit(row["efficiency_percent"]),
                efficiency=computed if computed is not None else (None if stated is None else stated / 100.0),
            )
        )
    return points


def headline(points: list[PublishedPoint], model: str) -> list[PublishedPoint]:
    """Returns the points of `model` whose source states an efficiency. The point with the fewest GPUs comes first."""
    return sorted(
        (point for point in points if point.model == model and point.efficiency_stated is not None),
        key=lambda point: point.gpus,
    )


def _half_a_digit(percent: str) -> float | None:
    """Returns half a unit of the last digit of a percentage, as a fraction: "90" gives 0.005, "94.1" gives 0.0005."""
    return 0.005 * 10.0 ** -len(percent.partition(".")[2]) if percent else None


def _number(text: str) -> float | None:
    return float(text) if text else None
