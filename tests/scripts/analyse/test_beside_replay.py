"""What a training by PyTorch loses, divided by the replay of its step. Values by hand."""

from __future__ import annotations

import dataclasses
import types
import unittest

import harness  # noqa: F401  # puts scripts/ on the path

from hvdb.base.interval import Interval
from hvdb.judge import beside_replay
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read.runs import Component

COLUMNS = {"model": "mine", "batch_size": 4, "compute_type": "fp32"}


def row(device: str, efficiency: Interval, **changes: object) -> EfficiencyRow:
    made = EfficiencyRow(
        configuration={**COLUMNS, "device": device},
        kind="full",
        ranks=2,
        allocation=2,
        nodes=1,
        sessions=1,
        images_per_second=Interval(1.0),
        unit="images",
        efficiency=efficiency,
        no_reduction=None,
        ring_bound=None,
        run_ids=(f"{device}-solo", f"{device}-full"),
    )
    return dataclasses.replace(made, **changes)


def stored(waiting: Interval | None, elements: int = 999) -> list[types.SimpleNamespace]:
    parts = {} if waiting is None else {"input": Component(waiting, 0.1)}
    return [
        types.SimpleNamespace(uuid="torch-solo", decomposition={}, parameters=1000),
        types.SimpleNamespace(uuid="torch-full", decomposition=parts, parameters=1000),
        types.SimpleNamespace(uuid="replay-full", decomposition={}, parameters=elements),
    ]


MINE = row("torch", Interval(0.70, 0.67, 0.74))
REPLAY = row("replay", Interval(0.95, 0.91, 0.96))


class BesideReplayTest(unittest.TestCase):
    def test_differences_of_independent_figures(self) -> None:
        found = beside_replay.difference(Interval(0.95, 0.91, 0.96), Interval(0.70, 0.67, 0.74))
        self.assertAlmostEqual(found.value, 0.25)
        self.assertAlmostEqual(found.low, 0.25 - (0.04**2 + 0.04**2) ** 0.5)
        self.assertAlmostEqual(found.high, 0.25 + (0.01**2 + 0.03**2) ** 0.5)

    def test_a_range_where_there_are_few_sessions(self) -> None:
        found = beside_replay.difference(Interval(0.95, lowest=0.94, highest=0.97), Interval(0.7, 0.6, 0.8))
        self.assertEqual((found.known, round(found.lowest, 9), round(found.highest, 9)), (False, 0.14, 0.37))

    def test_input_network_and_framework(self) -> None:
        (line,) = beside_replay.notes([MINE, REPLAY], stored(Interval(0.12, 0.12, 0.12)))
        self.assertEqual(
            line,
            "mine on 2 ranks loses 30.0 % [26.0, 33.0]: waiting for input 12.0 % [12.0, 12.0], the network "
            "5.0 % [4.0, 9.0], as its replay does, the framework 13.0 % [7.3, 16.2], the rest",
        )
        parts = [float(part) for part in line.replace("%", "").split() if part.replace(".", "").isdigit()][1:]
        self.assertAlmostEqual(sum(parts[1:]), parts[0])

    def test_a_loader_that_cannot_wait(self) -> None:
        (line,) = beside_replay.notes([MINE, REPLAY], stored(None))
        self.assertNotIn("input", line)
        self.assertIn("the framework 25.0 % [19.3, 28.2]", line)

    def test_only_beside_what_it_replays(self) -> None:
        others = (
            {"ranks": 4},
            {"nodes": 2},
            {"unit": "sequences"},
            {"kind": "solo"},
            {"efficiency": None},
            {"efficiency": Interval(0.9)},
            {"efficiency": Interval(0.9, 0.6, 1.0)},
            *({"configuration": {**REPLAY.configuration, key: "other"}} for key in (*COLUMNS, "device")),
        )
        for changes in others:
            other = dataclasses.replace(REPLAY, **changes)
            self.assertEqual(beside_replay.notes([MINE, other], stored(None)), [], changes)
        self.assertEqual(beside_replay.notes([REPLAY], []), [])

    def test_another_name_with_equally_many_parameters(self) -> None:
        other = dataclasses.replace(REPLAY, configuration={**REPLAY.configuration, "model": "other"})
        self.assertEqual(len(beside_replay.notes([MINE, other], stored(None, elements=1000))), 1)
