"""Measures trainings of PyTorch with planted faults (training.py), on two ranks that torchrun starts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from limits import HANG

from harness import SCRIPTS, FolderTest

from hvdb.read import runs

TRAINING = Path(__file__).with_name("training.py")


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
@unittest.skipUnless(os.environ.get("HVD_BENCH"), "needs HVD_BENCH, a built hvd_bench")
class TrainingTest(FolderTest):
    def train(self, fault: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAINING)]
        variables = {
            **os.environ,
            "PYTHONPATH": f"{SCRIPTS}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [*words, str(self.folder / "x.db"), fault, str(seconds)],
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
            env=variables,
            cwd=self.folder,
        )

    def row(self, said: str, title: str) -> tuple[float, float, float]:
        """Returns a row of the table: percent, and the ends of its interval."""
        found = re.search(rf"(?m)^ +{title} +(\S+) % +(\S+) \.\. +(\S+) %", said)
        self.assertIsNotNone(found, said)
        return float(found[1]), float(found[2]), float(found[3])

    def test_a_slow_backward_of_one_rank_is_named(self) -> None:
        done = self.train("backward")
        late = re.search(r"rank 1 on \S+: its steps take (\d+) ms longer than the others' in phase none", done.stdout)
        self.assertIsNotNone(late, done.stdout + done.stderr)
        self.assertTrue(150 <= int(late[1]) <= 260, late[1])
        self.assertGreater(self.row(done.stdout, "waiting for stragglers")[1], 5)
        self.assertEqual(done.stdout.count("as before: True"), 2)

    def test_a_slow_loader_is_input(self) -> None:
        done = self.train("input")
        self.assertTrue(25 < self.row(done.stdout, "waiting for input")[0] < 42, done.stdout)
        self.assertIn("loses most  waiting for input", done.stdout)

    def test_the_type_is_that_of_autocast(self) -> None:
        self.assertIn("sequences a step per rank, bf16 on torch", self.train("autocast", 15).stdout)

    def test_without_a_fault_the_table_accuses_nothing_loudly(self) -> None:
        done = self.train("")
        self.assertEqual(self.row(done.stdout, "waiting for input")[0], 0.0)
        stored = runs.load([self.folder / "x.db"])
        self.assertEqual(sorted(run.phase for run in stored), ["full", "none", "solo"])
        self.assertEqual({run.device for run in stored}, {"torch"})
        self.assertEqual(done.stdout.count("as before: True"), 2)

    def test_accumulation_hooks_and_unused_parameters(self) -> None:
        done = self.train("accumulate", 60)
        (full,) = (run for run in runs.load([self.folder / "x.db"]) if run.phase == "full")
        self.assertEqual(full.batch_size, 16)
        self.assertAlmostEqual(full.step_seconds, 0.6, delta=0.3)
        self.assertIn("note: find_unused_parameters: the search", self.train("unused", 30).stdout)
        self.assertIn("note: the communication hook allreduce_hook is registered", self.train("hook", 30).stdout)
        self.assertEqual(done.stdout.count("as before: True"), 2)

    def test_faults_end_all_ranks_with_one_line(self) -> None:
        for fault, pattern in (
            ("ends", "the loader ended after 9 batches"),
            ("nan", "the loss is nan"),
            ("unlike", "rank 1 works on 4 units a step, and rank 0 on 8"),
            ("closure", "rank 0: HvdbError: loss.. ran the DistributedDataParallel where nothing may be reduced"),
            ("raw", "rank 0: HvdbError: loss.. did not run the model that it is given"),
            ("raises", "rank 0: HvdbError: rank 1 in phase (none|full): a fault of mine"),
        ):
            with self.subTest(fault):
                done = self.train(fault, 20)
                self.assertRegex(done.stdout, pattern)
                for rank in (0, 1):
                    self.assertRegex(done.stdout, rf"(?m)^.*rank {rank} as before: True$")

    def test_a_killed_rank_is_named_and_whole_rounds_are_stored(self) -> None:
        for fault in ("kill-solo", "kill-none", "kill-full"):
            with self.subTest(fault):
                (self.folder / "x.db").unlink(missing_ok=True)
                done = self.train(fault, 60)
                self.assertNotEqual(done.returncode, 0)
                stored = runs.load([self.folder / "x.db"])
                self.assertEqual({run.status for run in stored}, {"incomplete"}, done.stdout + done.stderr)
                self.assertIn("rank 1", stored[0].status_reason)


if __name__ == "__main__":
    unittest.main()
