"""Whole bands of predict on constructed truths: nine tenths hold the truth, and none is absurdly wide.

The figures of 300 truths are in results/recorded/2026-11-26-prediction-truths.
"""

import unittest

import numpy as np
import truths

COUNT = 24
# If each of 24 bands holds its truth with probability 0.9, at least 18 of them do so in 99 of 100 cases.
FEWEST = 18


class CoverageTest(unittest.TestCase):
    def test_bands_hold_nine_tenths_of_the_truths(self) -> None:
        found = truths.outcome(1, range(COUNT), truths.Errors(), count=60, steps=40)
        inside, width = _inside(found), np.median(found.width, axis=0)
        error = np.median(np.abs(found.error), axis=0)
        for column, (nodes, widest, largest) in enumerate(((4, 0.1, 0.02), (8, 0.15, 0.03), (64, 0.3, 0.08))):
            with self.subTest(nodes=nodes):
                self.assertGreaterEqual(inside[column], FEWEST, (inside, found.side))
                self.assertLess(width[column], widest)
                self.assertLess(error[column], largest)
        # Bands of half the width would not pass.
        self.assertLess(np.sum(_inside(found.halved())), 3 * FEWEST)


def _inside(found: truths.Outcome) -> np.ndarray:
    return np.sum(found.side == 0, axis=0)


if __name__ == "__main__":
    unittest.main()
