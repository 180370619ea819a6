"""Bootstrap intervals and efficiency on stores whose true answers are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb import bootstrap, efficiency, runs
from hvdb.errors import NotComparable


class BootstrapTest(unittest.TestCase):
    def test_value_is_the_ratio_of_medians(self) -> None:
        pair = (np.array([1.0, 2.0, 3.0]), np.array([4.0, 4.0, 4.0]))
        self.assertEqual(bootstrap.pooled_ratio([pair]).value, 0.5)
        self.assertEqual(bootstrap.pooled_rate([np.array([0.5, 0.5, 9.0])], scale=16).value, 32.0)

    def test_a_better_estimate_of_a_session_takes_the_place_of_its_ratio(self) -> None:
        rng = np.random.default_rng(3)
        pairs = [(0.9 + 0.01 * rng.random(20), 1.0 + 0.01 * rng.random(20)) for _ in range(5)]
        known = [0.80, 0.81, None, 0.82, 0.83]
        figure = bootstrap.pooled_ratio(pairs, known=known)
        self.assertEqual(figure.value, 0.82)
        self.assertLess(figure.low, 0.82)
        self.assertLess(figure.high, 0.92)
        self.assertAlmostEqual(bootstrap.pooled_ratio(pairs, known=[None] * 5).value, 0.9, places=1)

    def test_equal_input_gives_equal_output(self) -> None:
        series = np.random.default_rng(7).gamma(2.0, size=50)
        self.assertEqual(bootstrap.pooled_rate([series]), bootstrap.pooled_rate([series]))

    def test_constant_series_has_an_interval_of_no_width(self) -> None:
        figure = bootstrap.pooled_rate([np.full(20, 0.25)])
        self.assertEqual((figure.low, figure.value, figure.high), (4.0, 4.0, 4.0))

    def test_too_few_samples_have_no_interval(self) -> None:
        figure = bootstrap.pooled_rate([np.array([0.5, 0.6])])
        self.assertIsNone(figure.low)
        self.assertIsNone(figure.high)

    def test_interval_holds_the_true_median_about_as_often_as_it_says(self) -> None:
        # 200 experiments of 60 independent log-normal steps, true ratio 0.8, intervals of 95 %. The standard
        # error of an observed coverage of 0.95 over 200 is 0.015: 0.90 is three of them below.
        rng = np.random.default_rng(11)
        hits = 0
        for _ in range(200):
            solo = 0.8 * np.exp(0.05 * rng.standard_normal(60))
            full = np.exp(0.05 * rng.standard_normal(60))
            figure = bootstrap.pooled_ratio([(solo, full)])
            hits += figure.low <= 0.8 <= figure.high
        self.assertGreaterEqual(hits, 180)
        self.assertLess(hits, 200, "an interval that never misses is too wide to be of 95 %")

    def test_coverage_holds_for_few_and_correlated_samples(self) -> None:
        # Lag-one autocorrelation 0.3. Over 2,000 experiments the 95 % interval holds the truth in 92 to 93 % of cases
        # (what median_replicates() says of itself); the bound is three standard errors of 200 experiments below 92 %.
        rng = np.random.default_rng(12)
        for count in (10, 20):
            hits = 0
            for _ in range(200):
                noise = rng.standard_normal(count)
                for i in range(1, count):
                    noise[i] = 0.3 * noise[i - 1] + np.sqrt(1 - 0.3**2) * noise[i]
                figure = bootstrap.pooled_rate([np.exp(0.05 * noise)])
                hits += figure.low <= 1.0 <= figure.high
            self.assertGreaterEqual(hits, 172, f"{count} samples")

    def test_coverage_over_sessions(self) -> None:
        rng = np.random.default_rng(13)
        hits = 0
        for _ in range(200):
            bases = np.exp(0.02 * rng.standard_normal(bootstrap.MIN_SESSIONS))
            figure = bootstrap.pooled_rate([base * np.exp(0.01 * rng.standard_normal(12)) for base in bases])
            hits += figure.low <= 1.0 <= figure.high
        self.assertGreaterEqual(hits, 180)

    def test_two_to_four_sessions_have_a_range_and_no_interval(self) -> None:
        figure = bootstrap.pooled_rate([np.full(20, 1 / rate) for rate in (4.0, 2.0, 5.0)], scale=10)
        self.assertEqual((figure.value, figure.lowest, figure.highest), (40.0, 20.0, 50.0))
        self.assertIsNone(figure.low)
        self.assertIsNone(bootstrap.pooled_rate([np.ones(20)] * 4).low)
        self.assertIsNone(bootstrap.pooled_rate([np.ones(20)] * 5).lowest)
        self.assertIsNotNone(bootstrap.pooled_rate([np.ones(20)] * 5).low)

    def test_blocks_widen_the_interval_of_correlated_steps(self) -> None:
        # A random walk around 1: neighbouring steps are alike, so 400 of them hold far less than 400 draws do.
        rng = np.random.default_rng(5)
        noise = np.zeros(400)
        for i in range(1, 400):
            noise[i] = 0.95 * noise[i - 1] + 0.01 * rng.standard_normal()
        series = 1.0 + noise
        replicates = bootstrap.median_replicates(series, np.random.default_rng(1))
        shuffled = bootstrap.median_replicates(rng.permutation(series), np.random.default_rng(1))
        self.assertGreater(np.std(replicates), 1.5 * np.std(shuffled))

    def test_long_series_have_the_same_intervals_as_resamples_made_whole(self) -> None:
        """Both ways to resample, of series of every kind: the Kolmogorov-Smirnov distance of 8,000 medians each.

        Two samples of one distribution are farther apart than 1.95 sqrt(2 / 8000) = 0.031 in one of 1,000 tests.
        """
        rng = np.random.default_rng(17)
        noise = np.empty(3001)
        noise[0] = 0
        for i in range(1, len(noise)):
            noise[i] = 0.6 * noise[i - 1] + rng.standard_normal()
        smooth = np.exp(0.05 * noise)
        cases = (
            ("independent", rng.permutation(smooth), 1),
            ("correlated", smooth, 24),
            ("few values", smooth.round(2), 7),
        )
        cases += (("even", smooth[:800], 11), ("short", smooth[:41], 3), ("drift", np.linspace(1, 2, 1500), 30))
        for name, series, length in cases:
            with self.subTest(name):
                whole = bootstrap._whole_medians(series, length, np.random.default_rng(1), 8000)
                part = bootstrap._long_medians(series, length, np.random.default_rng(2), 8000)
                at = np.union1d(whole, part)
                shares = [np.searchsorted(np.sort(medians), at, "right") / 8000 for medians in (whole, part)]
                self.assertLess(np.max(np.abs(shares[0] - shares[1])), 0.031)

    def test_the_median_of_a_resample_lies_in_the_band(self) -> None:
        series = np.random.default_rng(18).gamma(2.0, size=50_000)
        low, high = bootstrap._band(bootstrap._ranks(series), 5)
        self.assertLess(high - low, 10_000, "a band that holds all samples saves nothing")
        drawn = bootstrap._long_medians(series, 5, np.random.default_rng(1), 2000)
        self.assertGreater(drawn.min(), np.sort(series)[low])
        self.assertLess(drawn.max(), np.sort(series)[high - 1])

    def test_of_many_sessions_each_is_resampled_less_often(self) -> None:
        rng = np.random.default_rng(19)
        sessions = [np.exp(0.05 * rng.standard_normal(50) + 0.02 * rng.standard_normal()) for _ in range(60)]
        figure = bootstrap.pooled_rate(sessions)
        # the median of 60 sessions has a standard error of 1.25 x 0.022 / sqrt(60); the interval is four of them wide
        self.assertAlmostEqual(figure.high - figure.low, 0.0142, delta=0.007)
        self.assertTrue(figure.low < 1.0 < figure.high)

    def test_sessions_that_disagree_give_the_spread_between_sessions(self) -> None:
        # Within each session almost no noise, between them 10 %: the interval must tell of the latter.
        rng = np.random.default_rng(3)
        sessions = [np.full(30, base) * (1 + 1e-4 * rng.standard_normal(30)) for base in np.linspace(0.95, 1.05, 8)]
        pooled = bootstrap.pooled_rate(sessions)
        single = bootstrap.pooled_rate(sessions[:1])
        self.assertGreater(pooled.high - pooled.low, 50 * (single.high - single.low))


class SizeTest(unittest.TestCase):
    """Processor time and memory of long runs, in processes of their own: 30 s and 1 GB for a million of samples.

    HVD_MANY_STEPS: samples of each rank and phase; nightly one million.
    """

    STEPS = int(os.environ.get("HVD_MANY_STEPS", "100000"))
    SCRIPT = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from hvdb import cli as program
code = program.main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr)
"""

    def test_many_samples(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            db = Path(folder) / "a.db"
            make(db, SessionSpec(steps=self.STEPS))
            for command in ("efficiency", "report"):
                words = [sys.executable, "-B", "-c", self.SCRIPT, str(REPOSITORY / "scripts"), command, str(db)]
                done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
                code, seconds, mib = json.loads(done.stderr)
                self.assertEqual(code, 0)
                self.assertLess(seconds, 30 * max(0.5, self.STEPS / 1e6))
                self.assertLess(mib, 600)


class EfficiencyTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.file = Path(scratch.name) / "store.db"

    def cells(self, *specs: SessionSpec, **options: bool) -> list[efficiency.Cell]:
        make(self.file, *specs)
        selection = efficiency.select(runs.load([self.file]))
        return efficiency.cells(selection.runs, **options)

    def test_known_answer_without_noise(self) -> None:
        solo, full = self.cells(SessionSpec(solo=1.0, none=1.04, full=1.25, noise=0.0, batch_size=8))
        self.assertEqual((solo.kind, solo.ranks, full.kind, full.ranks), ("solo", 1, "full", 2))
        self.assertAlmostEqual(solo.images_per_second.value, 8.0)
        self.assertAlmostEqual(full.images_per_second.value, 2 * 8 / 1.25)
        self.assertAlmostEqual(full.efficiency.value, 0.8)
        self.assertAlmostEqual(full.no_reduction.value, 1 / 1.04)

    def test_a_step_is_as_long_as_on_its_slowest_rank(self) -> None:
        fast, slow = np.array([1.0, 2.0, 1.0]), np.array([1.5, 1.0, 1.0])
        samples = runs.Samples(fast, fast)
        samples.add_rank(slow)
        self.assertEqual(samples.highest.tolist(), [1.5, 2.0, 1.0])
        self.assertEqual(samples.lowest.tolist(), [1.0, 1.0, 1.0])
        samples.add_rank(slow[:1])
        self.assertEqual((samples.highest.tolist(), samples.ranks), ([1.5], 3))

    def test_interval_holds_the_truth_with_noise(self) -> None:
        full = self.cells(SessionSpec(solo=1.0, full=1.25, noise=0.02, steps=80, phases=("solo", "full")))[1]
        # one rank waits for |z| of one draw, two ranks for the larger of two: medians 0.674 and 1.052 sigma
        truth = (1 + 0.02 * 0.674) / (1.25 * (1 + 0.02 * 1.052))
        self.assertLessEqual(full.efficiency.low, truth)
        self.assertGreaterEqual(full.efficiency.high, truth)
        self.assertLess(full.efficiency.high - full.efficiency.low, 0.02)

    def test_the_baseline_is_that_of_the_same_session(self) -> None:
        # The second allocation is half as fast, and scales equally: pooled across, efficiency would be wrong.
        cells = self.cells(SessionSpec(solo=1.0, full=1.25, noise=0), SessionSpec(solo=2.0, full=2.5, noise=0))
        full = cells[1]
        self.assertEqual(full.sessions, 2)
        self.assertAlmostEqual(full.efficiency.value, 0.8)
        self.assertIsNone(full.efficiency.low, "two sessions are too few for an interval")
        (note,) = efficiency.precision_notes([full], runs.load([self.file]))
        self.assertIn("2 sessions are too few for an interval", note)
        self.assertIn("in 50 % of cases", note)

    def test_one_session_has_the_interval_that_the_program_stored(self) -> None:
        full = self.cells(SessionSpec(solo=1.0, full=1.25, noise=0))[1]
        self.assertAlmostEqual(full.efficiency.value, 0.8)
        self.assertAlmostEqual(full.efficiency.low, 0.794)
        self.assertAlmostEqual(full.efficiency.high, 0.806)
        self.assertEqual(efficiency.precision_notes([full], runs.load([self.file])), [])

    def test_few_samples_and_an_unsteady_start_are_said(self) -> None:
        facts = {"measurement.warm_up": ("warm-up: not steady after 8 steps", 0)}
        (_, full) = self.cells(SessionSpec(steps=6, provenance=facts))
        few, unsteady = efficiency.precision_notes([full], runs.load([self.file]))
        self.assertIn("resnet101 on 2 ranks: 6 samples only", few)
        self.assertIn("not steady when the measurement began", unsteady)

    def test_without_a_baseline_there_is_no_efficiency(self) -> None:
        (full,) = self.cells(SessionSpec(phases=("full",)))
        self.assertIsNone(full.efficiency)
        self.assertIsNone(full.ring_bound)

    def test_points_measured_under_different_conditions_are_noted(self) -> None:
        make(self.file, SessionSpec(), SessionSpec(ranks=4, provenance={"cpu.model": ("Other CPU", 1)}))
        found = runs.load([self.file])
        self.assertEqual(len(efficiency.cells(found)), 4, "each point keeps its own baseline")
        (note,) = efficiency.curve_notes(found)
        self.assertIn("cpu.model", note)
        self.assertNotIn("host.name", note)

    def test_models_are_never_pooled(self) -> None:
        cells = self.cells(SessionSpec(model="vgg16"), SessionSpec(model="resnet101"))
        self.assertEqual(
            [(c.model, c.ranks) for c in cells], [("resnet101", 1), ("resnet101", 2), ("vgg16", 1), ("vgg16", 2)]
        )

    def test_ring_bound(self) -> None:
        # fastest rank reduces 1.0 s; backward is 2/3 of 0.9 x 1.25 s; the rest is exposed
        spec = SessionSpec(solo=1.0, full=1.25, noise=0.0, reduce_seconds=1.0)
        exposed = 1.0 - 2.0 / 3.0 * 0.9 * 1.25
        self.assertAlmostEqual(self.cells(spec)[1].ring_bound, 1.0 / (1.0 + exposed))

    def test_ring_bound_is_one_where_reduction_fits_under_backward(self) -> None:
        self.assertEqual(self.cells(SessionSpec(noise=0.0, reduce_seconds=0.2))[1].ring_bound, 1.0)

    def test_different_fingerprints_are_refused_and_named(self) -> None:
        other = SessionSpec(fingerprint="b", provenance={"cpu.model": ("Other CPU", 1), "git.commit": ("abc", 1)})
        with self.assertRaisesRegex(NotComparable, "cpu.model: 'Test CPU' and 'Other CPU'"):
            self.cells(SessionSpec(), other)

    def test_different_fingerprints_are_pooled_when_asked(self) -> None:
        cells = self.cells(SessionSpec(), SessionSpec(fingerprint="b"), mix_fingerprints=True)
        self.assertEqual(cells[1].sessions, 2)

    def test_traced_simulated_and_incomplete_runs_are_left_out(self) -> None:
        make(
            self.file,
            SessionSpec(),
            SessionSpec(traced=1),
            SessionSpec(origin="simulated"),
            SessionSpec(status="incomplete"),
        )
        selection = efficiency.select(runs.load([self.file]))
        self.assertEqual(len(selection.runs), 3)
        self.assertEqual(len(selection.left_out), 3)
        self.assertTrue(all(line.startswith("3 ") for line in selection.left_out))

    def test_runs_that_compare_settings_are_left_out(self) -> None:
        recorded = Path(__file__).resolve().parents[2] / "results" / "recorded"
        found = runs.load([recorded / "2026-11-22-h200-second" / "gpu_check.db"])
        selection = efficiency.select(found)
        self.assertEqual(len(efficiency.cells(selection.runs)), 6, "three networks in two types")
        self.assertEqual(len(selection.left_out), 1)
        self.assertIn("6 that compare settings (label way;", selection.left_out[0])
        with self.assertRaisesRegex(NotComparable, "gpu.option.graph"):
            efficiency.cells(found)

    def test_a_session_that_mixes_kinds_is_refused(self) -> None:
        make(self.file, SessionSpec())
        found = runs.load([self.file])
        found[1].columns["traced"] = 1
        with self.assertRaises(NotComparable):
            efficiency.cells(found)


if __name__ == "__main__":
    unittest.main()
