"""Tests how gates are drawn from recorded pairs, and that today's gate has the error rates that docs/gate.md states."""

from __future__ import annotations

import lzma
import math
import sys
import unittest

import numpy as np

from harness import SCRIPTS, FolderTest
from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError
from hvdb.judge.verdict import Verdict

sys.path.insert(0, str(SCRIPTS / "maintain"))
import gate_rates
from gate_rates import Rate

RECORDED = REPOSITORY / "results/recorded/2026-11-23-gate-proof"


class GatesTest(unittest.TestCase):
    def test_no_pair_serves_two_gates(self) -> None:
        # A gate looks at its pairs after 6, 9 and 12 pairs. After six equal pairs it decides PASS, and after six pairs
        # with a slow side REGRESSION. After the third gate, 6 pairs remain, which are too few for a gate.
        ratios = np.concatenate((np.full(6, 0.0), np.full(6, 0.1), np.full(12, 0.0)))
        self.assertEqual(gate_rates.gates(ratios), [Verdict.PASS, Verdict.REGRESSION, Verdict.PASS])

    def test_a_gate_that_is_not_decided_uses_all_its_pairs(self) -> None:
        mixed = np.tile([math.log1p(0.02) - 0.1, math.log1p(0.02) + 0.1], 12)
        self.assertEqual(gate_rates.gates(mixed), [Verdict.INCONCLUSIVE] * 2)

    def test_rates(self) -> None:
        self.assertEqual(str(Rate(5, 10)), "50.0 % [18.7, 81.3] of 10")
        self.assertEqual(str(Rate(0, 0)), "-")


class RecordedPairsTest(FolderTest):
    def test_the_rates_are_those_of_the_documentation(self) -> None:
        for state in ("quiet", "load", "busy"):
            (self.folder / state).mkdir()
            (self.folder / state / "equal.db.xz").symlink_to(RECORDED / state / "equal.db.xz")
        folders = sorted(self.folder.iterdir())
        page = (REPOSITORY / "docs/gate.md").read_text(encoding="utf-8")
        for shift, regression, passed in ((0.0, "0.8 % [0.1, 2.8]", "43.7 %"), (0.02, "2.8 % [1.0, 5.9]", "4.6 %")):
            together = gate_rates.rates_table(folders, shift).replace("\\", "").splitlines()[-1]
            self.assertIn(regression, together)
            self.assertIn(passed, together)
            self.assertIn(regression, page)

    def test_a_damaged_or_missing_store_is_said(self) -> None:
        with self.assertRaisesRegex(HvdbError, "there is no store of pairs"):
            gate_rates.rates_table([self.folder])
        (self.folder / "equal.db.xz").write_bytes(lzma.compress(b"x" * 1000)[:-20])
        with self.assertRaisesRegex(HvdbError, "is damaged"):
            gate_rates.rates_table([self.folder])
