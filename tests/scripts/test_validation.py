"""Reads runs of `hvd_bench validate`. hvdb ranks must compute the figures that the program prints. No command may pool
these runs.

Needs the program at HVD_BENCH, which ctest sets. If the program is not built, the tests are skipped with a reason.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import unittest
from pathlib import Path

from limits import HANG

from harness import FolderTest, call, execute
from synthetic_store import SessionSpec, make

from hvdb.judge import efficiency, rank_work
from hvdb.read import runs

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
OPTIONS = (
    "validate --model resnet50 --image-size 32 --batch-size 2 --classes 10 --threads 1 --ranks 5 --steps 12 "
    "--threshold 999 --json"
).split()


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
class ProgramAndScriptsTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        done = execute(PROGRAM, *OPTIONS, "--db", self.db, timeout=HANG, code=0)
        self.printed = json.loads(done.stdout)["validation"]["ranks"]

    def test_both_compute_the_same_figures(self) -> None:
        (run,) = runs.load([self.db])
        kind = rank_work.kind_of(run)
        ((_, by_rank),) = runs.samples_of_ranks([(run, kind)])
        findings = rank_work.examine(run, kind, by_rank, threshold=9.99, seed=1).findings.ranks
        for finding, printed in zip(findings, self.printed, strict=True):
            self.assertAlmostEqual(finding.slower, printed["slower"], places=9)
            self.assertAlmostEqual(finding.low, printed["slower_low"], places=9)
            self.assertAlmostEqual(finding.high, printed["slower_high"], places=9)
            self.assertAlmostEqual(finding.score, printed["score"], places=6)

    def test_only_ranks_takes_them(self) -> None:
        stored = runs.load([self.db])
        self.assertEqual(efficiency.select(stored).left_out, ["1 of hvd_bench validate (hvdb ranks shows them)"])
        self.assertEqual(efficiency.select(stored, validations=True).runs, stored)
        self.assertIn("validation, phase none, 5 ranks", call("ranks", self.db, "--threshold", 999, code=0)[1])


class NewestTest(unittest.TestCase):
    def test_a_validation_does_not_stand_for_the_measured_runs_of_its_configuration(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            db = Path(scratch) / "a.db"
            measured = SessionSpec(ranks=4, phases=("none",))
            validated = dataclasses.replace(
                measured, provenance={efficiency.VALIDATION: ("1", 1)}, started="2026-01-03T00:00:00.000Z"
            )
            make(db, measured, validated)
            self.assertEqual(len(json.loads(call("ranks", db, "--json")[1])["runs"]), 2)
