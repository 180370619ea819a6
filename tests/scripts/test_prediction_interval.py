"""Tests the prediction interval and the change points: cases by hand, and error rates over many simulated series."""

from __future__ import annotations

import math
import unittest

import numpy as np

import synthetic_store  # noqa: F401  (sets the path)
from rates import at_most

from hvdb.judge import change_points, exact, prediction_interval
from hvdb.judge.verdict import Verdict


def judge(earlier: np.ndarray, new: float, threshold: float = 0.02) -> prediction_interval.NewestJudgement:
    return prediction_interval.judge({"one": (earlier, new)}, {"one": threshold})["one"]


class PredictionTest(unittest.TestCase):
    def test_how_many_earlier_sessions_a_verdict_needs(self) -> None:
        needs = {0.05: 19, 0.05 / 2: 39, 0.05 / 3: 59, 0.05 / 7: 139, 0.1: 9, 0.5: 1}
        self.assertEqual({level: prediction_interval.fewest(level) for level in needs}, needs)

    def test_the_interval_by_hand(self) -> None:
        earlier = np.arange(1.0, 20.0)  # with probability 1/20, a new value is below 1.0
        self.assertEqual(prediction_interval.interval(earlier, 0.05), (1.0, 19.0))
        self.assertEqual(prediction_interval.interval(earlier[1:], 0.05), (-math.inf, math.inf))
        self.assertEqual(
            prediction_interval.interval(np.arange(1.0, 60.0), 0.05), (3.0, 57.0)
        )  # below 3.0: probability 3/60

    def test_p_values_are_those_of_the_rank_sum_test_of_one(self) -> None:
        rng = np.random.default_rng(1)
        for count in (1, 5, 19, 40):
            earlier = np.round(rng.normal(size=count), 1)  # rounded, so that some values are equal
            for new in (*np.round(rng.normal(size=20), 1), -9.0, 9.0):
                self.assertAlmostEqual(
                    prediction_interval.p_above(earlier, new), exact.rank_sum_p(earlier, np.array([new])), places=12
                )

    def test_verdicts_by_hand(self) -> None:
        earlier = np.linspace(-0.004, 0.004, 19)
        for new, threshold, expected in (
            (0.0, 0.02, Verdict.PASS),
            (0.015, 0.02, Verdict.PASS),  # outside of the interval, but within the threshold
            (0.018, 0.02, Verdict.INCONCLUSIVE),  # 2 % or more above the fastest earlier session
            (0.021, 0.02, Verdict.REGRESSION),
            (0.003, 0.005, Verdict.INCONCLUSIVE),  # the spread of the earlier sessions exceeds the threshold
            (0.0039, 0.001, Verdict.INCONCLUSIVE),  # beyond the threshold, but faster than the slowest earlier session
            (-0.5, 0.001, Verdict.PASS),
        ):
            with self.subTest(new=new, threshold=threshold):
                self.assertEqual(judge(earlier, new, threshold).verdict, expected)
        known = judge(earlier, math.log(1.05))
        self.assertAlmostEqual(known.slowdown, 0.05)
        self.assertAlmostEqual(known.slowdown_low, 1.05 * math.exp(-0.004) - 1)
        self.assertEqual((known.earlier, known.missing), (19, 0))

    def test_with_too_few_earlier_sessions_nothing_is_known(self) -> None:
        for count in (0, 1, 18):
            known = judge(np.zeros(count), 5.0)
            self.assertEqual((known.verdict, known.missing), (Verdict.INCONCLUSIVE, 19 - count))
            self.assertEqual((known.slowdown is None, known.slowdown_high), (count == 0, math.inf))

    def test_a_short_series_takes_nothing_from_a_long_one(self) -> None:
        self.assertEqual(prediction_interval.judgeable({"a": 25, "b": 3}), ["a"])
        self.assertEqual(prediction_interval.judgeable({"a": 25, "b": 38}), ["b"])
        self.assertEqual(prediction_interval.judgeable({"a": 39, "b": 40}), ["b", "a"])
        observed = {"long": (np.zeros(25), 1.0), "short": (np.zeros(20), 1.0)}
        judged = prediction_interval.judge(observed, dict.fromkeys(observed, 0.02))
        self.assertEqual(judged["long"].verdict, Verdict.REGRESSION)
        self.assertEqual((judged["short"].verdict, judged["short"].missing), (Verdict.INCONCLUSIVE, 19))

    def test_false_alarms(self) -> None:
        """REGRESSION without a change, and PASS with a change as large as the threshold, may each occur in 5 % of
        trials."""
        rng = np.random.default_rng(2)
        trials = 4000
        for name, draw in {
            "normal": rng.standard_normal,
            "heavy tails": lambda size: rng.standard_t(2, size),
            "skewed": rng.standard_exponential,
        }.items():
            for series, count in ((1, 19), (1, 30), (3, 70)):
                with self.subTest(name, series=series):
                    worse = fine = 0
                    names = [str(number) for number in range(series)]
                    for _ in range(trials):
                        rows = 0.01 * draw((series, count + 1))
                        observed = {name: (row[:-1], row[-1]) for name, row in zip(names, rows, strict=True)}
                        judged = prediction_interval.judge(observed, dict.fromkeys(names, 1e-9))
                        worse += any(judgement.verdict is Verdict.REGRESSION for judgement in judged.values())
                        slow = {name: (earlier, new + math.log1p(0.02)) for name, (earlier, new) in observed.items()}
                        judged = prediction_interval.judge(slow, dict.fromkeys(names, 0.02))
                        fine += any(judgement.verdict is Verdict.PASS for judgement in judged.values())
                    most = trials * at_most(trials // 20, trials)
                    self.assertLessEqual(worse, most)
                    self.assertLessEqual(fine, most)
                    if count == 19:  # with 19 sessions the rate of wrong verdicts is exactly 5 %
                        self.assertGreaterEqual(min(worse, fine), 2 * trials // 20 - most)

    def test_power(self) -> None:
        """Sessions spread by 0.5 %, and the threshold is 2 %. A session that is 4 % slower than the earlier sessions
        must give REGRESSION, and an equally fast session must give PASS."""
        rng = np.random.default_rng(3)
        regressions = passed = 0
        for _ in range(1000):
            earlier, new = rng.normal(0, 0.005, 19), rng.normal(0, 0.005)
            regressions += judge(earlier, new + math.log1p(0.04)).verdict is Verdict.REGRESSION
            passed += judge(earlier, new).verdict is Verdict.PASS
        self.assertGreaterEqual(regressions, 990)
        self.assertGreaterEqual(passed, 940)


@unittest.skipUnless(change_points.available(), "needs ruptures (scripts/install_deps --tests)")
class ChangePointTest(unittest.TestCase):
    def test_without_a_change_few_series_have_one(self) -> None:
        rng = np.random.default_rng(4)
        trials = 2000
        for name, draw in {
            "normal": rng.standard_normal,
            "heavy tails": lambda size: rng.standard_t(2, size),
        }.items():
            for count in (8, 12, 30, 100):
                with self.subTest(name, count=count):
                    wrong = sum(bool(change_points.find(draw(count))) for _ in range(trials))
                    nominal = round(change_points.FALSE_ALARMS * trials)
                    self.assertLessEqual(wrong, trials * at_most(nominal, trials))

    def test_a_step_is_found_where_it_is_and_as_large_as_it_is(self) -> None:
        rng = np.random.default_rng(5)
        trials, detected, near, held = 300, 0, 0, 0
        for _ in range(trials):
            values = rng.normal(0, 0.01, 40)
            values[25:] += 0.03
            changes = change_points.find(values)
            detected += bool(changes)
            near += any(abs(change.index - 25) <= 2 for change in changes)
            if len(changes) == 1:
                held += changes[0].size.low <= 0.03 <= changes[0].size.high
        self.assertGreaterEqual(detected, 0.99 * trials)
        self.assertGreaterEqual(near, 0.95 * trials)
        self.assertGreaterEqual(held, 0.85 * trials)

    def test_two_steps(self) -> None:
        rng = np.random.default_rng(6)
        values = rng.normal(0, 0.005, 60)
        values[20:40] += 0.05
        self.assertEqual([change.index for change in change_points.find(values)], [20, 40])

    def test_too_few_or_equal_values_have_none(self) -> None:
        for values in (np.zeros(0), np.arange(7.0), np.zeros(50)):
            self.assertEqual(change_points.find(values), [])

    def test_of_a_long_series_the_newest_part_is_looked_at(self) -> None:
        values = np.zeros(change_points.MAX_OBSERVATIONS + 100)
        values[50:] = 1.0
        values[300:] = 2.0
        self.assertEqual([change.index for change in change_points.find(values)], [300])
