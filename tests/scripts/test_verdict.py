"""Tests the exact tests and the verdicts: cases by hand, comparison with scipy, and error rates of simulated gates."""

from __future__ import annotations

import itertools
import math
import unittest
from collections.abc import Callable

import numpy as np
from scipy import stats

import synthetic_store  # noqa: F401  (sets the path)
from rates import at_most

from hvdb.base.errors import HvdbError
from hvdb.judge import exact, verdict
from hvdb.judge.verdict import Trial, Verdict


class ExactTest(unittest.TestCase):
    def test_every_assignment_of_signs_is_counted(self) -> None:
        differences = np.array([0.5, -0.1, 0.3, 0.3, -0.2, 0.9])
        ranks = stats.rankdata(np.abs(differences))
        observed = ranks[differences > 0].sum()
        sums = [ranks[list(signs)].sum() for signs in itertools.product((False, True), repeat=6)]
        share = sum(total >= observed for total in sums) / len(sums)
        self.assertAlmostEqual(exact.signed_rank_p(differences), share)

    def test_a_difference_of_zero_counts_against_a_rejection(self) -> None:
        self.assertEqual(exact.signed_rank_p(np.zeros(8)), 1.0)
        self.assertEqual(exact.signed_rank_p(np.array([0.0, 1.0, 2.0])), 0.25)

    def test_without_ties_scipy_agrees(self) -> None:
        rng = np.random.default_rng(1)
        for count in (1, 2, 5, 12, 30):
            differences = rng.normal(0.3, 1, count)
            theirs = stats.wilcoxon(differences, alternative="greater", method="exact").pvalue
            self.assertAlmostEqual(exact.signed_rank_p(differences), theirs, places=12)
            first, second = rng.normal(0, 1, count), rng.normal(0.5, 1, count + 2)
            theirs = stats.mannwhitneyu(second, first, alternative="greater", method="exact").pvalue
            self.assertAlmostEqual(exact.rank_sum_p(first, second), theirs, places=12)

    def test_an_interval_ends_where_the_test_stops_rejecting(self) -> None:
        rng = np.random.default_rng(2)
        for count in (6, 9, 15):
            differences = rng.standard_t(3, count)
            effect = exact.paired_effect(differences, 0.95)
            self.assertLessEqual(exact.signed_rank_p(differences - effect.low + 1e-9), 0.025)
            self.assertGreater(exact.signed_rank_p(differences - effect.low - 1e-9), 0.025)
            first, second = rng.standard_t(3, count), rng.standard_t(3, count + 1)
            effect = exact.unpaired_effect(first, second, 0.95)
            self.assertLessEqual(exact.rank_sum_p(first + effect.low - 1e-9, second), 0.025)
            self.assertGreater(exact.rank_sum_p(first + effect.low + 1e-9, second), 0.025)

    def test_too_few_observations_bound_nothing(self) -> None:
        effect = exact.paired_effect(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), 0.95)  # the smallest p is 2^-5 > 0.025
        self.assertEqual((effect.low, effect.high), (-math.inf, math.inf))
        self.assertAlmostEqual(effect.value, 0.3)
        effect = exact.unpaired_effect(np.arange(3.0), np.arange(3.0) + 5, 0.95)  # the smallest p is 1 / 20 > 0.025
        self.assertEqual((effect.low, effect.high), (-math.inf, math.inf))
        effect = exact.unpaired_effect(np.arange(4.0), np.arange(4.0), 0.95)  # the smallest p is 1 / 70 < 0.025
        self.assertTrue(math.isfinite(effect.low))

    def test_intervals_hold_the_truth_as_often_as_they_say(self) -> None:
        rng = np.random.default_rng(3)
        shapes = {
            "normal": lambda size: rng.normal(0, 1, size),
            "heavy tails": lambda size: rng.standard_t(2, size),
            "load during a part": lambda size: rng.normal(0, 1, size) * rng.choice([1, 20], size, p=[0.7, 0.3]),
        }
        for name, shape in shapes.items():
            for count in (6, 12):
                with self.subTest(name, count=count):
                    rows = shape((4000, count))
                    low = exact.paired_lower_bounds(rows, 0.025)
                    high = -exact.paired_lower_bounds(-rows, 0.025)
                    missed = int(np.sum((low > 0) | (high < 0)))
                    self.assertLessEqual(missed / 4000, at_most(200, 4000))

    def test_a_bootstrap_over_few_pairs_is_too_narrow(self) -> None:
        """Shows why the gate uses exact intervals, as docs/gate.md says."""
        rng = np.random.default_rng(9)
        held = 0
        for pairs in rng.normal(size=(600, 6)):
            resampled = rng.choice(pairs, (400, 6))
            low, high = np.percentile(np.median(exact.walsh_averages(resampled), axis=1), [2.5, 97.5])
            held += low <= 0 <= high
        self.assertTrue(0.82 < held / 600 < 0.9, held)


class LookTest(unittest.TestCase):
    def test_looks_leave_room_for_a_verdict(self) -> None:
        self.assertEqual(verdict.plan_looks(1, 12), (6, 9, 12))
        for cells, cap in ((1, 5), (1, 12), (3, 12), (9, 24)):
            looks = verdict.plan_looks(cells, cap)
            self.assertEqual(looks[-1], cap)
            self.assertEqual(sorted(set(looks)), list(looks))
            self.assertLessEqual(2.0 ** -looks[0], verdict.ALPHA / (cells * len(looks)))

    def test_too_few_pairs_to_ever_reject_are_refused(self) -> None:
        with self.assertRaisesRegex(HvdbError, r"4 pairs can never lead to a verdict on 1 cell:.* at least 5 pairs"):
            verdict.plan_looks(1, 4)
        with self.assertRaisesRegex(HvdbError, r"on 4 cells:.* at least 7 pairs"):
            verdict.plan_looks(4, 6)

    def test_holm(self) -> None:
        self.assertEqual(verdict.holm({"a": 0.01, "b": 0.04, "c": 0.02}, 0.05), {"a", "b", "c"})
        self.assertEqual(verdict.holm({"a": 0.01, "b": 0.04, "c": 0.03}, 0.05), {"a"})
        self.assertEqual(verdict.holm({"a": 0.02, "b": 0.001, "c": 0.9}, 0.05), {"b", "a"})

    def test_a_decided_cell_keeps_its_judgement(self) -> None:
        trial = Trial({"fast": 0.02, "noisy": 0.02}, looks=2)
        noisy = np.array([0.3, -0.3, 0.2, -0.25, 0.1, -0.1, 0.02, 0.05])
        steady = np.linspace(-0.001, 0.001, 8)
        first = trial.look({"fast": steady, "noisy": noisy})
        self.assertEqual(first["fast"].verdict, Verdict.PASS)
        self.assertEqual(trial.undecided, ["noisy"])
        second = trial.look({"noisy": np.concatenate((noisy, noisy))})
        self.assertEqual(second["fast"], first["fast"])
        self.assertEqual(second["noisy"].observations, (16, 16))

    def test_detectable_is_found_as_often_as_it_says(self) -> None:
        rng = np.random.default_rng(4)
        spread, pairs, level = 0.01, 12, 0.05
        slowdowns = [verdict.detectable(rng.normal(0, spread, pairs), 0.02, level, seed=i) for i in range(60)]
        known = float(np.median(slowdowns))
        rows = rng.normal(math.log1p(known), spread, (2000, pairs))
        power = np.mean(exact.paired_lower_bounds(rows, level) > math.log1p(0.02))
        self.assertGreater(power, 0.85)
        self.assertLess(power, 0.95)
        self.assertIsNone(verdict.detectable(np.array([0.0, 0.1]), 0.02, level))

    def test_failures_share_the_error_rate(self) -> None:
        """Both sides fail in every fifth pair. B must not be blamed in more than 5 % of gates."""
        rng = np.random.default_rng(11)
        blamed, looks = 0, verdict.plan_looks(1, 30, more=1)
        for _ in range(400):
            failed = rng.random((30, 2)) < 0.2
            only = [(side & ~other).cumsum() for side, other in (failed.T, failed.T[::-1])]
            ratios = np.where(failed.any(axis=1), np.nan, 0.03 * rng.standard_normal(30))

            def count(pairs: int, only: list[np.ndarray] = only) -> tuple[int, int]:
                return int(only[0][pairs - 1]), int(only[1][pairs - 1])

            blamed += verdict.replay({"x": ratios}, {"x": 0.02}, looks, count).b_fails
        self.assertLessEqual(blamed, 28, "the 97.5 % quantile of 400 gates at 5 %")
        self.assertGreater(blamed, 0, "a test that never blames would be another one")

    def test_a_b_that_fails_is_found_and_ends_the_gate(self) -> None:
        looks = verdict.plan_looks(1, 12, more=1)
        ratios = {"x": np.full(looks[0], np.nan)}
        replayed = verdict.replay(ratios, {"x": 0.02}, looks, lambda pairs: (0, pairs))
        self.assertEqual((replayed.b_fails, replayed.lacking, replayed.judged), (True, [], {}))
        replayed = verdict.replay(ratios, {"x": 0.02}, looks, lambda pairs: (pairs // 2, pairs // 2))
        self.assertEqual((replayed.b_fails, replayed.lacking), (False, ["x"]))
        self.assertAlmostEqual(exact.sign_p(1, 4), 6 / 32)
        self.assertEqual(exact.sign_p(0, 0), 1.0)

    def test_a_gate_whose_time_is_up_judges_what_there_is(self) -> None:
        looks = verdict.plan_looks(1, 12, more=1)
        ratios = {"x": np.full(looks[0] + 1, 0.1) + 1e-3 * np.arange(looks[0] + 1)}
        few = {"x": ratios["x"][:3]}
        self.assertEqual(verdict.replay(few, {"x": 0.02}, looks).judged, {})
        judged = verdict.replay(few, {"x": 0.02}, looks, ended=True)
        self.assertEqual((judged.judged["x"].verdict, judged.lacking), (Verdict.INCONCLUSIVE, []))
        judged = verdict.replay(ratios, {"x": 0.02}, looks, ended=True)
        self.assertIs(judged.judged["x"].verdict, Verdict.REGRESSION)

    def test_no_cell_is_no_pass(self) -> None:
        with self.assertRaises(ValueError):
            verdict.exit_code([])
        self.assertEqual(verdict.exit_code([Verdict.PASS, Verdict.INCONCLUSIVE]), 3)
        self.assertEqual(verdict.exit_code([Verdict.INCONCLUSIVE, Verdict.REGRESSION]), 1)
        self.assertEqual(verdict.exit_code([Verdict.PASS]), 0)


Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def normal(rng: np.random.Generator, cells: int, pairs: int) -> np.ndarray:
    return rng.normal(size=(cells, pairs))


def heavy_tails(rng: np.random.Generator, cells: int, pairs: int) -> np.ndarray:
    return rng.standard_t(2, (cells, pairs))


def correlated(rng: np.random.Generator, cells: int, pairs: int) -> np.ndarray:
    noise = rng.normal(size=(cells, pairs))
    for i in range(1, pairs):
        noise[:, i] = 0.5 * noise[:, i - 1] + math.sqrt(0.75) * noise[:, i]
    return noise


class ErrorRateTest(unittest.TestCase):
    """Simulates whole gates with pairs from known distributions. Seeds are fixed. If the gate's error rates
    are right, a count stays within its limit with a probability of 99.9 %."""

    GATES = 800

    def gates(self, cells: int, cap: int, slowdown: float, draw: Draw, spread: float) -> tuple[int, int, int]:
        """Returns how many gates have any cell with REGRESSION, any cell with PASS, and only cells with REGRESSION. The
        threshold is 2 %."""
        rng = np.random.default_rng(5)
        looks = verdict.plan_looks(cells, cap)
        worse = fine = all_worse = 0
        for _ in range(self.GATES):
            noise = spread * draw(rng, cells, cap)
            rows = {f"cell-{i}": math.log1p(slowdown) + noise[i] for i in range(cells)}
            trial = Trial(dict.fromkeys(rows, 0.02), len(looks))
            for pairs in looks:
                judged = trial.look({name: rows[name][:pairs] for name in trial.undecided})
                if not trial.undecided:
                    break
            verdicts = [judgement.verdict for judgement in judged.values()]
            worse += Verdict.REGRESSION in verdicts
            fine += Verdict.PASS in verdicts
            all_worse += set(verdicts) == {Verdict.REGRESSION}
        return worse, fine, all_worse

    def setUp(self) -> None:
        # These tests do not use the smallest detectable slowdown, so its computation may be coarse.
        resamples, verdict.RESAMPLES = verdict.RESAMPLES, 5
        self.addCleanup(setattr, verdict, "RESAMPLES", resamples)

    def test_false_alarms_at_a_slowdown_of_exactly_the_threshold(self) -> None:
        nominal = int(verdict.ALPHA * self.GATES)
        for cells, draw in ((1, normal), (1, heavy_tails), (3, normal), (3, heavy_tails)):
            with self.subTest(cells=cells, draw=draw.__name__):
                worse, fine, _ = self.gates(cells, 12, 0.02, draw, 0.008)
                self.assertLessEqual(worse, at_most(nominal, self.GATES) * self.GATES)
                self.assertLessEqual(fine, at_most(nominal, self.GATES) * self.GATES)

    def test_pairs_that_follow_each_other_closely_break_the_promise(self) -> None:
        """If neighbouring pairs are correlated by 0.5, 10 to 20 % of verdicts are wrong (docs/gate.md)."""
        worse, fine, _ = self.gates(1, 12, 0.02, correlated, 0.008)
        for share in (worse / self.GATES, fine / self.GATES):
            self.assertTrue(0.1 < share < 0.2, share)

    def test_power(self) -> None:
        self.assertGreaterEqual(self.gates(1, 12, 0.03, normal, 0.008)[2], 0.9 * self.GATES)
        self.assertGreaterEqual(self.gates(1, 10, 0.05, normal, 0.015)[2], 0.8 * self.GATES)
        worse, fine, _ = self.gates(1, 12, 0.0, normal, 0.008)
        self.assertEqual(worse, 0)
        self.assertGreaterEqual(fine, 0.9 * self.GATES)

    def test_unpaired_runs(self) -> None:
        rng = np.random.default_rng(6)
        wrong = regressions = 0
        for _ in range(400):
            a = rng.normal(0, 0.005, 6)
            b = rng.normal(math.log1p(0.02), 0.005, 6)
            judged = verdict.judge_unpaired({"same": (a, b), "slower": (a, b + 0.03)}, {"same": 0.02, "slower": 0.02})
            wrong += judged["same"].verdict is not Verdict.INCONCLUSIVE
            regressions += judged["slower"].verdict is Verdict.REGRESSION
        self.assertLessEqual(wrong, at_most(40, 400) * 400)  # REGRESSION and PASS may each be wrong in 5 % of cases
        self.assertGreaterEqual(regressions, 380)
        few = verdict.judge_unpaired({"few": (np.zeros(2), np.ones(2))}, {"few": 0.02})["few"]
        self.assertEqual((few.verdict, few.detectable), (Verdict.INCONCLUSIVE, None))
