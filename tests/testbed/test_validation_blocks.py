"""validate_prediction: the blocks, the replayed steps and the summary. Its measurements need minutes."""

import json
import unittest
from collections import Counter

import numpy as np

from harness import TESTBED, FolderTest, execute
from synthetic_store import SessionSpec, make

from hvdb.read import replay_profile, runs
from validation import __main__ as validate
from validation.__main__ import BLOCKS, EVEN, Block


class BlockTest(FolderTest):
    def test_the_cells_are_those_that_are_promised(self) -> None:
        blocks = [Block(number) for number in range(BLOCKS)]
        self.assertEqual(BLOCKS, 32)
        self.assertEqual(len({(block.rate_mbit, block.latency_us, block.share) for block in blocks}), 32)
        odd, blocks = blocks[EVEN:], blocks[:EVEN]
        self.assertEqual({block.beyond for block in odd}, {(5, 7)})
        there = Counter(
            (nodes, cell in block.cells(nodes)) for block in odd for nodes in (5, 7) for cell in block.schedules()
        )
        self.assertEqual(set(there.values()), {24}, "each schedule on 5 nodes or on 7")
        there = Counter((block.rate_mbit, block.schedules().index(c)) for block in odd for c in block.cells(5))
        self.assertEqual(set(there.values()), {2}, "on 5 nodes as often as on 7")
        there = Counter(nodes for block in blocks for nodes in (4, 6, 8) for _ in block.cells(nodes))
        self.assertEqual(there, {4: 144, 6: 72, 8: 72})
        for block in blocks:
            self.assertEqual(sorted(block.cells(6) + block.cells(8)), sorted(block.schedules()))
            self.assertEqual(block.cells(4), block.schedules())
        # On each link, every schedule is measured on 6 nodes as often as on 8.
        there = Counter(
            (block.rate_mbit, block.latency_us, block.schedules().index(cell))
            for block in blocks
            for cell in block.cells(6)
        )
        self.assertEqual(set(there.values()), {2})
        self.assertEqual(len(there), 36)
        self.assertEqual(
            Counter(block.profile for block in blocks), dict.fromkeys(("inception3", "resnet101", "vgg16"), 8)
        )

    def test_a_replayed_step_has_the_bytes_and_the_time_of_its_block(self) -> None:
        noise = validate.recorded_noise()
        self.assertGreater(len(noise), 20)
        self.assertAlmostEqual(np.median(noise), 1, 1)
        for number in (0, 4, 11, 23):
            block = Block(number)
            recorded = (validate.PROFILES / f"{block.profile}-fp16.txt").read_text(encoding="utf-8")
            file = self.folder / "a.replay"
            file.write_text(validate.replay_text(recorded, block, noise), encoding="utf-8")
            made = replay_profile.read(file)
            self.assertEqual(4 * made.elements, block.size)
            self.assertLessEqual(made.gradients, validate.GRADIENTS)
            # By the formula, reductions of all bytes on 8 nodes take `share` of the compute.
            seconds = 14 * (block.size / 8 / (block.rate_mbit / 8 * 1e6) + block.latency_us / 1e6)
            self.assertAlmostEqual(
                seconds / made.backward_end / block.share, 1, delta=0.08
            )  # headers, not counted here


class SummaryTest(FolderTest):
    def test_figures_by_hand(self) -> None:
        def cell(kind: str, middle: float, measured: float) -> dict:
            predicted = {"low": middle - 0.1, "middle": middle, "high": middle + 0.1}
            known = {"step_seconds": measured, "low": measured, "high": measured}
            return {"kind": kind, "predicted": predicted, "measured": known, "trivial": {"as before": 2 * measured}}

        cells = [cell("calibrated", 1.0, 1.0), cell("calibrated", 1.0, 1.25), cell("beyond", 2.0, 2.0)]
        lines = validate.summary(cells)
        self.assertEqual(
            lines[0],
            "calibrated: 2 cells, 1 inside the band; error of the step median 10.0 %, nine tenths below 18.0 %; "
            "width of the band over the step median 20.0 %, nine tenths below 20.0 %",
        )
        self.assertEqual(lines[1], "  as before: error median 100.0 %, nine tenths below 100.0 %")
        self.assertTrue(lines[2].startswith("beyond: 1 cells, 1 inside"))
        cells[0]["efficiency"] = {"predicted": {"middle": 0.9}, "measured": 0.88}
        self.assertIn("  efficiency: error median 2.0 points, most 2.0", validate.summary(cells))


class ProgramCommitTest(FolderTest):
    def test_it_is_that_of_the_stored_runs(self) -> None:
        cases = (
            ({"git.commit": ("0123456789", 0), "git.state": ("clean", 0)}, "01234567"),
            ({"git.commit": ("0123456789", 0), "git.state": ("dirty", 0)}, "01234567-dirty"),
            ({}, "unknown"),
        )
        for facts, commit in cases:
            with self.subTest(commit):
                db = self.folder / f"{commit}.db"
                make(db, SessionSpec(provenance=facts))
                self.assertEqual(validate.program_commit(runs.load([db])), commit)


class CommandTest(FolderTest):
    def test_a_damaged_record_is_one_line(self) -> None:
        (self.folder / "cells.json").write_text(json.dumps({"format": "other"}), encoding="utf-8")
        done = execute(TESTBED / "validate_prediction", "compute", self.folder, code=2)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("cells.json: not a record of validate_prediction", done.stderr)

    def test_a_folder_is_needed(self) -> None:
        for part in ("network", "compute"):
            done = execute(TESTBED / "validate_prediction", part, code=2)
            self.assertIn("the following arguments are required: FOLDER", done.stderr)


if __name__ == "__main__":
    unittest.main()
