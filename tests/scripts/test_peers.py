"""The comparison with another system: its interval is over turns, and few turns have none."""

from __future__ import annotations

import importlib.util
import sys
import unittest

from synthetic_store import REPOSITORY

spec = importlib.util.spec_from_file_location("compare_torch", REPOSITORY / "scripts" / "peers" / "compare_torch.py")
compare_torch = importlib.util.module_from_spec(spec)
sys.modules["compare_torch"] = compare_torch  # dataclasses look their module up by name
spec.loader.exec_module(compare_torch)


class RatioIntervalTest(unittest.TestCase):
    def test_a_slow_turn_hits_both_and_cancels(self) -> None:
        ours = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 2.0]
        low, high = compare_torch.ratio_interval(ours, [1.5 * seconds for seconds in ours], turns=7)
        self.assertAlmostEqual(low, 1.5)
        self.assertAlmostEqual(high, 1.5)

    def test_steps_of_one_turn_stay_together(self) -> None:
        # Three steps a turn, all alike within it: 18 numbers that are six draws.
        ours = [seconds for seconds in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5) for _ in range(3)]
        few = compare_torch.ratio_interval(ours, [2.0] * 18, turns=6)
        many = compare_torch.ratio_interval(ours, [2.0] * 18, turns=18)
        self.assertGreater(few[1] - few[0], 1.3 * (many[1] - many[0]))

    def test_few_turns_have_no_interval(self) -> None:
        self.assertEqual(compare_torch.ratio_interval([1.0] * 5, [2.0] * 5, turns=5), (None, None))


if __name__ == "__main__":
    unittest.main()
