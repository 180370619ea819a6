"""Tests the count of sessions whose interval includes the median of the other sessions."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from harness import SCRIPTS, execute
from synthetic_store import SessionSpec, make

from hvdb.runs import Component

MAINTAIN = SCRIPTS / "maintain"
sys.path.insert(0, str(MAINTAIN))
import coverage  # noqa: E402


def part(fraction: float, half_width: float | None) -> Component:
    if half_width is None:
        return Component(fraction, 0.0, None, None)
    return Component(fraction, 0.0, fraction - half_width, fraction + half_width)


class CoverageTest(unittest.TestCase):
    def test_each_interval_is_held_against_the_others(self) -> None:
        # The last session is 0.3 above the other sessions, so its interval does not contain their median. Each
        # of the first three is compared with a median that the last session shifts by only 0.01.
        found = coverage.coverage([part(0.90, 0.02), part(0.91, 0.02), part(0.92, 0.02), part(1.2, 0.02)])
        self.assertEqual((found.held, found.sessions), (3, 4))
        self.assertAlmostEqual(found.median, 0.915)
        self.assertAlmostEqual(found.half_width, 0.02)

    def test_too_narrow_intervals_hold_nothing(self) -> None:
        self.assertEqual(coverage.coverage([part(0.1 * i, 0.001) for i in range(8)]).held, 0)

    def test_what_has_no_interval_does_not_count(self) -> None:
        found = coverage.coverage([part(0.9, 0.02), part(0.9, 0.02), part(0.5, None)])
        self.assertEqual((found.held, found.sessions, found.median), (2, 2, 0.9))
        self.assertIsNone(coverage.coverage([part(0.9, 0.02), part(0.9, None)]))
        self.assertIsNone(coverage.coverage([part(0.0, 0.0), part(0.0, 0.0)]), "cannot be missed")

    def test_the_program(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            store = Path(scratch) / "a.db"
            for sessions, code, words in ((1, 2, "1 complete session"), (3, 0, "efficiency                  3 of 3")):
                store.unlink(missing_ok=True)
                make(store, *[SessionSpec() for _ in range(sessions)])
                command = [sys.executable, "-B", str(MAINTAIN / "coverage.py"), str(store)]
                done = execute(*command, env=os.environ, code=code)
                self.assertIn(words, done.stdout + done.stderr)
