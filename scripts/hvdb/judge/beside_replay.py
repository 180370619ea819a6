"""Divides what a training by PyTorch loses between its input, its network and its framework.

The replay of its recorded step has the same gradients, but neither framework nor input, so the time that the replay
loses is the network's. What the training loses beyond that and its input is the framework's: its reductions beside its
compute, ranks that slow each other, stragglers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hvdb.base.interval import Interval
from hvdb.judge.bootstrap import Session, pool, ratio
from hvdb.judge.efficiency import EfficiencyRow, resolved
from hvdb.read.runs import TORCH, Run

# Columns and facts in which a training and its replay agree. A run may lack a fact.
_SAME_COLUMNS, _SAME_FACTS = ("batch_size", "compute_type", "allreduce_type"), ("cpu.model", "gpu.name")


def difference(first: Interval, second: Interval) -> Interval:
    """Returns `first` - `second` for two independent figures, with an interval if both have one, else with a range.

    Source: Zou and Donner, Statistics in Medicine 27 (2008), the method of variance estimates recovery.
    """
    value = first.value - second.value
    if not (first.known and second.known):
        (lowest, highest), (least, most) = _ends(first), _ends(second)
        return Interval(value, lowest=lowest - most, highest=highest - least)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Interval(value, value - below, value + above)


def product(first: Interval, second: Interval) -> Interval:
    """Returns `first` x `second` as difference() does, where the ends lie as far as to first order of the errors."""
    value = first.value * second.value
    if not (first.known and second.known):
        corners = [a * b for a in _ends(first) for b in _ends(second)]
        return Interval(value, lowest=min(corners), highest=max(corners))
    below = math.hypot((first.value - first.low) * second.value, (second.value - second.low) * first.value)
    above = math.hypot((first.high - first.value) * second.value, (second.high - second.value) * first.value)
    return Interval(value, value - below, value + above)


def _ends(figure: Interval) -> tuple[float, float]:
    if figure.known:
        return figure.low, figure.high
    return (figure.value, figure.value) if figure.lowest is None else (figure.lowest, figure.highest)


def notes(cells: Sequence[EfficiencyRow], runs: Sequence[Run]) -> list[str]:
    """Returns a line for each training by PyTorch and each replay of it on as many ranks and nodes.

    Both efficiencies must be resolved.
    """
    by_id = {run.uuid: run for run in runs}
    full = [cell for cell in cells if cell.kind == "full" and cell.efficiency is not None and resolved(cell.efficiency)]
    lines = []
    for training in (cell for cell in full if cell.configuration["device"] == TORCH):
        for replay in (cell for cell in full if _replays(cell, training, by_id)):
            inputs = [by_id[uuid].decomposition.get("input") for uuid in training.run_ids]
            lines.append(_line(training, replay, [part.fraction for part in inputs if part]))
    return lines


def _replays(cell: EfficiencyRow, training: EfficiencyRow, by_id: Mapping[str, Run]) -> bool:
    """Returns whether `cell` replays the step of `training`: both have one name, or equally many parameters."""
    mine, other = training.configuration, cell.configuration
    trained, replayed = (by_id[row.run_ids[-1]] for row in (training, cell))
    facts = [(trained.fact(key), replayed.fact(key)) for key in _SAME_FACTS]
    return (
        other["device"] == "replay"
        and other["schedule"] != "sharded"
        and (mine["model"] == other["model"] or trained.parameters == replayed.parameters)
        and all(mine[column] == other[column] for column in _SAME_COLUMNS)
        and all(a == b for a, b in facts if a and b)
        and (cell.unit, cell.ranks, cell.nodes) == (training.unit, training.ranks, training.nodes)
    )


def _line(training: EfficiencyRow, replay: EfficiencyRow, inputs: Sequence[Interval]) -> str:
    whole = Interval(1.0, 1.0, 1.0)
    lost = difference(whole, training.efficiency)
    # The time that the replay loses, as a fraction of the training's step.
    network = product(difference(whole, replay.efficiency), _step_ratio(replay, training))
    framework = difference(lost, network)
    waited = ""
    if inputs:
        waiting = pool([Session(part.value, part.low, part.high) for part in inputs])
        # Efficiency and input of one run are not independent, but where one is high the other is low: too wide at most.
        framework, waited = difference(framework, waiting), f"waiting for input {waiting.text(unit=' %')}, "
    return (
        f"{training.model} on {training.ranks} ranks loses {lost.text(unit=' %')}: {waited}the network "
        f"{network.text(unit=' %')}, as its replay does (run {replay.run_ids[-1][:8]}), the framework "
        f"{framework.text(unit=' %')}, the rest"
    )


def _step_ratio(first: EfficiencyRow, second: EfficiencyRow) -> Interval:
    """Returns the step time of `first` / that of `second`, on as many ranks and units a step."""
    rates = second.images_per_second, first.images_per_second
    if all(rate.known for rate in rates):
        found = ratio(*(Session(rate.value, rate.low, rate.high) for rate in rates))
        return Interval(found.value, found.low, found.high)
    (lowest, highest), (least, most) = map(_ends, rates)
    return Interval(rates[0].value / rates[1].value, lowest=lowest / most, highest=highest / least)
