"""Tests how gates are drawn from recorded pairs, and how the pairs are measured."""

from __future__ import annotations

import lzma
import math
import sqlite3
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np

from harness import FolderTest
from synthetic_store import SessionSpec, add_session

from hvdb import gate, sides, store
from hvdb.errors import HvdbError
from hvdb.verdict import Verdict
from maintain.gateproof import __main__ as command
from maintain.gateproof import collect, evaluate, packed
from maintain.gateproof.evaluate import Rate


class GatesTest(unittest.TestCase):
    def test_no_pair_serves_two_gates(self) -> None:
        # A gate looks at its pairs after 6, 9 and 12 pairs. After six equal pairs it decides PASS, and after six pairs
        # with a slow side REGRESSION. After the third gate, 6 pairs remain, which are too few for a gate.
        ratios = np.concatenate((np.full(6, 0.0), np.full(6, 0.1), np.full(12, 0.0)))
        self.assertEqual(evaluate.gates(ratios), [Verdict.PASS, Verdict.REGRESSION, Verdict.PASS])

    def test_a_gate_that_is_not_decided_uses_all_its_pairs(self) -> None:
        mixed = np.tile([math.log1p(0.02) - 0.1, math.log1p(0.02) + 0.1], 12)
        self.assertEqual(evaluate.gates(mixed), [Verdict.INCONCLUSIVE] * 2)

    def test_too_few_pairs_give_no_gate(self) -> None:
        self.assertEqual(evaluate.gates(np.zeros(11)), [])

    def test_at_the_threshold_at_most_one_gate_in_twenty_is_wrong(self) -> None:
        ratios = np.random.default_rng(1).normal(math.log1p(evaluate.THRESHOLD), 0.01, 9_000)
        found = Counter(evaluate.gates(ratios))
        for wrong in (Verdict.REGRESSION, Verdict.PASS):
            low, _ = Rate(found[wrong], found.total()).interval
            self.assertLess(low, 0.05)

    def test_groups_that_spread_too_much_are_left_out(self) -> None:
        quiet, loud = np.tile([0.01, -0.01], 5), np.tile([0.1, -0.1], 5)
        self.assertEqual(len(evaluate.windows(np.concatenate((quiet, loud, quiet)), 10, 0.02)), 2)


class RateTest(unittest.TestCase):
    def test_the_interval_is_the_exact_one(self) -> None:
        low, high = Rate(0, 10).interval
        self.assertEqual(low, 0.0)
        self.assertAlmostEqual(high, 1 - 0.025 ** (1 / 10))
        self.assertEqual(str(Rate(5, 10)), "50.0 % [18.7, 81.3] of 10")

    def test_no_gate_has_no_rate(self) -> None:
        self.assertEqual(str(Rate(0, 0)), "-")


class FolderCase(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.folder /= "quiet"
        self.folder.mkdir()


class PageTest(FolderCase):
    def add(self, name: str, slowdown: float, pairs: int = 12) -> None:
        rng = np.random.default_rng(1)
        with store.create(self.folder / f"{name}.db") as made:
            for pair in range(1, pairs + 1):
                for side, seconds in (("a", 1.0), ("b", 1.0 + slowdown)):
                    labels = {sides.CELL: "replay", sides.SIDE: side, sides.PAIR: str(pair)}
                    facts = {key: (value, 0) for key, value in labels.items()} | {"cpu.model": ("Test", 1)}
                    spec = SessionSpec(phases=("full",), full=seconds, noise=0.001, steps=9, provenance=facts)
                    add_session(made, spec, rng)
        made.close()

    def test_rates_and_slowdowns_are_those_of_the_stores(self) -> None:
        self.add("equal", 0.0)
        for level in collect.LEVELS:
            self.add(f"plus-{100 * level:.0f}", level)
        page = evaluate.page([self.folder]).replace("\\", "")
        lines = {line.split("|")[2].strip(): line for line in page.splitlines() if line.startswith("| quiet, replay")}
        self.assertIn("0.0 % [0.0, 97.5] of 1 | 100.0 % [2.5, 100.0] of 1 |", lines["12"])  # equal sides pass
        self.assertRegex(lines["5 %"], r"(\| 100.0 % \[2.5, 100.0\] of 1 ){2}\| (4.9|5.0)\d %")
        self.assertRegex(lines["1 %"], r"(\| 0.0 % \[0.0, 97.5\] of 1 ){2}\| (0.9|1.0)\d %")

    def test_a_packed_store_is_read_like_the_store(self) -> None:
        self.add("equal", 0.01)
        plain = evaluate.read(self.folder, "equal")
        collect.write_replays(command.RECORDED, self.folder)
        out = self.folder.parent / "packed"
        packed.pack(self.folder, out)
        np.testing.assert_array_equal(evaluate.read(out, "equal")[0].ratios, plain[0].ratios)
        self.assertLess((out / "equal.db.xz").stat().st_size, (self.folder / "equal.db").stat().st_size / 4)
        self.assertTrue((out / collect.REPLAY_FILE).exists())

    def test_a_damaged_or_missing_store_is_said(self) -> None:
        with self.assertRaisesRegex(HvdbError, "there is no equal.db"):
            evaluate.read(self.folder, "equal")
        (self.folder / "equal.db.xz").write_bytes(lzma.compress(b"x" * 1000)[:-20])
        with self.assertRaisesRegex(HvdbError, "is damaged"):
            evaluate.read(self.folder, "equal")
        out = self.folder.parent / "packed"
        with self.assertRaisesRegex(HvdbError, "there is no store"):
            packed.pack(self.folder, out)
        with self.assertRaisesRegex(HvdbError, "is the folder that is read"):
            packed.pack(self.folder, self.folder)
        (self.folder / "plus-1.db").write_text("garbage")
        with self.assertRaisesRegex(HvdbError, "plus-1.db: not an SQLite file"):
            packed.pack(self.folder, out)

    def test_a_strangers_store_is_not_run(self) -> None:
        self.add("equal", 0.0)
        with sqlite3.connect(self.folder / "equal.db") as made:
            made.execute("CREATE TRIGGER t BEFORE DELETE ON sample BEGIN UPDATE run SET step_seconds = 9e9; END")
        made.close()
        with self.assertRaisesRegex(HvdbError, "trigger"):
            packed.pack(self.folder, self.folder.parent / "packed")

    def test_a_store_is_not_replaced_by_the_tables(self) -> None:
        self.add("equal", 0.0)
        for folder in (self.folder, self.folder.parent / "packed"):
            if folder != self.folder:
                packed.pack(self.folder, folder)
            (store_file,) = packed.stores(folder).values()
            before = store_file.read_bytes()
            self.assertEqual(command.main(["evaluate", str(folder), "--output", str(store_file)]), 2)
            self.assertEqual(store_file.read_bytes(), before)


class CollectTest(FolderCase):
    def test_only_the_update_of_the_recorded_step_is_longer(self) -> None:
        collect.write_replays(command.RECORDED, self.folder)
        plain = (self.folder / collect.REPLAY_FILE).read_text().splitlines()
        values = dict(line.split(" ", 1) for line in plain)
        step = sum(float(values[f"{part}_seconds"]) for part in ("forward", "backward_end", "update"))
        for level in collect.LEVELS:
            slow = (self.folder / collect.slow_replay(level)).read_text().splitlines()
            changed = [(a, b) for a, b in zip(plain, slow, strict=True) if a != b]
            self.assertEqual(len(changed), 1)
            before, after = (float(line.removeprefix("update_seconds ")) for line in changed[0])
            self.assertAlmostEqual(after - before, level * step)

    def test_another_file_is_refused(self) -> None:
        file = self.folder / "other.txt"
        for text in ("something", "hvd-replay 1\nmodel x", "hvd-replay 1\nbackward_end_seconds x\nupdate_seconds 1"):
            file.write_text(text)
            with self.assertRaisesRegex(HvdbError, "is not a recorded step"):
                collect.write_replays(file, self.folder)

    def test_a_round_measures_every_source_and_sides_change_places(self) -> None:
        made: list[tuple[str, str, str, int]] = []

        def note(bench: gate.Bench, cell: str, side: str, pair: int) -> None:
            made.append((bench.db.name, cell, side, pair))

        times = iter([0.0, 0.0, 1.0, 1.0, 2.0, 2.0])
        with mock.patch.object(gate, "run_side", note):
            rounds = collect.collect(Path("hvd_bench"), self.folder, 1.5, clock=lambda: next(times))
        self.assertEqual(rounds, 2)
        runs_of = Counter((store, cell, side) for store, cell, side, _ in made)
        for side in "ab":
            self.assertEqual(runs_of["equal.db", "replay", side], 2 * collect.REPLAYED)
            self.assertEqual(runs_of["equal.db", "small", side], 2 * collect.COMPUTED)
            self.assertEqual(runs_of["plus-3.db", "replay", side], 2)
        replayed = [(side, pair) for store, cell, side, pair in made if (store, cell) == ("equal.db", "replay")]
        self.assertEqual([pair for _, pair in replayed[::2]], list(range(1, 2 * collect.REPLAYED + 1)))
        first = Counter(side for side, _ in replayed[::2])
        self.assertEqual(first["a"], first["b"])
