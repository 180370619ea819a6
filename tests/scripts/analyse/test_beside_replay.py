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

COLUMNS = {"model": "mine", "batch_size": 4, "compute_type": "fp32", "allreduce_type": "fp32"}


def row(device: str, schedule: str, efficiency: Interval, rate: Interval, **changes: object) -> EfficiencyRow:
    made = EfficiencyRow(
        configuration={**COLUMNS, "device": device, "schedule": schedule},
        kind="full",
        ranks=2,
        allocation=2,
        nodes=1,
        sessions=1,
        images_per_second=rate,
        unit="images",
        efficiency=efficiency,
        no_reduction=None,
        ring_bound=None,
        run_ids=(f"{device}-solo", f"{device}-full"),
    )
    return dataclasses.replace(made, **changes)


def stored(waiting: Interval | None, elements: int = 999, processor: str = "") -> list[types.SimpleNamespace]:
    parts = {} if waiting is None else {"input": Component(waiting, 0.1)}
    facts = {"torch-solo": "", "torch-full": "a processor", "replay-full": processor}
    return [
        types.SimpleNamespace(
            uuid=uuid,
            decomposition=parts if uuid == "torch-full" else {},
            parameters=elements if uuid == "replay-full" else 1000,
            fact=lambda key, model=model: model if key == "cpu.model" else "",
        )
        for uuid, model in facts.items()
    ]


# A step of one rank alone takes 1 s, of two ranks 2.5 s and, replayed, 1.25 s.
MINE = row("torch", "ddp", Interval(0.4, 0.38, 0.41), Interval(3.2, 3.2, 3.2))
REPLAY = row("replay", "static", Interval(0.8, 0.77, 0.82), Interval(6.4, 6.4, 6.4))


class BesideReplayTest(unittest.TestCase):
    def test_differences_of_independent_figures(self) -> None:
        found = beside_replay.difference(Interval(0.95, 0.91, 0.96), Interval(0.70, 0.67, 0.74))
        self.assertAlmostEqual(found.value, 0.25)
        self.assertAlmostEqual(found.low, 0.25 - (0.04**2 + 0.04**2) ** 0.5)
        self.assertAlmostEqual(found.high, 0.25 + (0.01**2 + 0.03**2) ** 0.5)

    def test_a_range_where_there_are_few_sessions(self) -> None:
        found = beside_replay.difference(Interval(0.95, lowest=0.94, highest=0.97), Interval(0.7, 0.6, 0.8))
        self.assertEqual((found.known, round(found.lowest, 9), round(found.highest, 9)), (False, 0.14, 0.37))

    def test_products_of_independent_figures(self) -> None:
        found = beside_replay.product(Interval(0.2, 0.17, 0.21), Interval(0.5, 0.4, 0.8))
        self.assertAlmostEqual(found.value, 0.1)
        self.assertAlmostEqual(found.low, 0.1 - (0.015**2 + 0.02**2) ** 0.5)
        self.assertAlmostEqual(found.high, 0.1 + (0.005**2 + 0.06**2) ** 0.5)
        found = beside_replay.product(Interval(-0.1, lowest=-0.2, highest=0.1), Interval(2.0, 1.0, 3.0))
        self.assertEqual((found.known, round(found.lowest, 9), round(found.highest, 9)), (False, -0.6, 0.3))

    def test_input_network_and_framework(self) -> None:
        """Of a step of 2.5 s, 1.5 s are lost: 0.5 s wait for input, and the replay loses 0.25 s."""
        (line,) = beside_replay.notes([MINE, REPLAY], stored(Interval(0.2, 0.2, 0.2)))
        self.assertEqual(
            line,
            "mine on 2 ranks loses 60.0 % [59.0, 62.0]: waiting for input 20.0 % [20.0, 20.0], the network "
            "10.0 % [9.0, 11.5], as its replay does (run replay-f), the framework 30.0 % [28.2, 32.2], the rest",
        )

    def test_a_range_of_rates_is_no_interval(self) -> None:
        ranged = dataclasses.replace(MINE, images_per_second=Interval(3.2, lowest=3.0, highest=3.4))
        (line,) = beside_replay.notes([ranged, REPLAY], stored(None))
        self.assertIn("the network 10.0 % (8.4 .. 12.2), as its replay does", line)

    def test_a_loader_that_cannot_wait(self) -> None:
        (line,) = beside_replay.notes([MINE, REPLAY], stored(None))
        self.assertNotIn("input", line)
        self.assertIn("the framework 50.0 % [48.2, 52.2]", line)

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
            {"configuration": {**REPLAY.configuration, "schedule": "sharded"}},
        )
        for changes in others:
            other = dataclasses.replace(REPLAY, **changes)
            self.assertEqual(beside_replay.notes([MINE, other], stored(None)), [], changes)
        self.assertEqual(beside_replay.notes([REPLAY], []), [])
        for processor, lines in (("", 1), ("a processor", 1), ("another", 0)):
            self.assertEqual(len(beside_replay.notes([MINE, REPLAY], stored(None, processor=processor))), lines)

    def test_another_name_with_equally_many_parameters(self) -> None:
        other = dataclasses.replace(REPLAY, configuration={**REPLAY.configuration, "model": "other"})
        self.assertEqual(len(beside_replay.notes([MINE, other], stored(None, elements=1000))), 1)
