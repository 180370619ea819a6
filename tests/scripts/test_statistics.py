"""Tests bootstrap intervals and efficiency on stores whose true values are known."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from limits import HANG, slowness

from harness import SCRIPTS, FolderTest, execute
from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb.base.errors import NotComparable
from hvdb.judge import bootstrap, efficiency
from hvdb.judge.bootstrap import Session
from hvdb.read import runs


def noisy(value: float, sd: float, rng: np.random.Generator) -> Session:
    """Returns a session whose figure is `value` with noise of `sd`. Its interval and replicates show this noise."""
    seen = value * np.exp(sd * rng.standard_normal())
    reach = np.exp(1.96 * sd)
    return Session(seen, seen / reach, seen * reach, seen * np.exp(sd * rng.standard_normal(200)))


class RatioTest(unittest.TestCase):
    def test_by_hand(self) -> None:
        # In logarithms, the first interval reaches from 3 % below its value to 12 % above it, and the second interval
        # from 5 % below its value to 4 % above it.
        first = Session(1.0, math.exp(-0.03), math.exp(0.12))
        second = Session(2.0, 2.0 * math.exp(-0.05), 2.0 * math.exp(0.04))
        ratio = bootstrap.ratio(first, second)
        self.assertEqual(ratio.value, 0.5)
        self.assertAlmostEqual(ratio.low, 0.5 * math.exp(-0.05))
        self.assertAlmostEqual(ratio.high, 0.5 * math.exp(0.13))

    def test_without_an_interval_above_zero_on_both_sides_there_is_none(self) -> None:
        known = Session(1.0, 0.9, 1.1)
        for other in (Session(2.0), Session(2.0, -0.1, 3.0), Session(2.0, 0.0, 3.0)):
            for ratio in (bootstrap.ratio(known, other), bootstrap.ratio(other, known)):
                self.assertEqual((ratio.low, ratio.high), (None, None))

    def test_coverage(self) -> None:
        # In 1,000 experiments with a true ratio of 0.8, 95 % of intervals must include 0.8. Three standard errors of
        # this share are 2 %.
        rng = np.random.default_rng(11)
        hits = 0
        for _ in range(1000):
            ratio = bootstrap.ratio(noisy(0.8, 0.01, rng), noisy(1.0, 0.02, rng))
            hits += ratio.low <= 0.8 <= ratio.high
        self.assertTrue(930 <= hits <= 970, hits)

    def test_replicates_vary_as_the_ratio_does(self) -> None:
        rng = np.random.default_rng(12)
        first, second = noisy(0.8, 0.03, rng), noisy(1.0, 0.04, rng)
        # The expected deviation is sqrt(0.03^2 + 0.04^2). Over 200 replicates its standard error is 5 %.
        self.assertAlmostEqual(float(np.std(np.log(bootstrap.ratio(first, second).replicates))), 0.05, delta=0.0075)

    def test_replicates_of_one_index_are_not_divided(self) -> None:
        """The program draws the replicates of both runs with one seed, so two replicates of equal index are
        correlated."""
        rng = np.random.default_rng(13)
        alike = noisy(1.0, 0.05, rng)
        self.assertGreater(float(np.std(bootstrap.ratio(alike, alike).replicates)), 0.05)
        self.assertEqual(len(bootstrap.ratio(alike, Session(1.0)).replicates), 0)


class RateTest(unittest.TestCase):
    def test_the_ends_change_places(self) -> None:
        rate = Session(0.5, 0.4, 0.8, np.array([0.25, 0.5])).rate(16)
        self.assertEqual((rate.value, rate.low, rate.high), (32.0, 20.0, 40.0))
        self.assertEqual(rate.replicates.tolist(), [64.0, 32.0])

    def test_a_time_that_may_be_zero_bounds_no_rate(self) -> None:
        rate = Session(0.5, -0.1, 0.8).rate(16)
        self.assertEqual((rate.value, rate.low, rate.high), (32.0, None, None))


class PoolTest(unittest.TestCase):
    def test_one_session_has_its_own_interval(self) -> None:
        figure = bootstrap.pool([Session(4.0, 3.5, 4.25, np.full(200, 9.0))])
        self.assertEqual((figure.value, figure.low, figure.high), (4.0, 3.5, 4.25))

    def test_equal_input_gives_equal_output(self) -> None:
        rng = np.random.default_rng(7)
        sessions = [noisy(1.0, 0.1, rng) for _ in range(6)]
        self.assertEqual(bootstrap.pool(sessions), bootstrap.pool(sessions))

    def test_two_to_four_sessions_have_a_range_and_no_interval(self) -> None:
        figure = bootstrap.pool([Session(rate, rate, rate) for rate in (40.0, 20.0, 50.0)])
        self.assertEqual((figure.value, figure.lowest, figure.highest), (40.0, 20.0, 50.0))
        self.assertIsNone(figure.low)
        self.assertIsNone(bootstrap.pool([Session(1.0)] * 4).low)
        self.assertIsNone(bootstrap.pool([Session(1.0)] * 5).lowest)
        self.assertIsNotNone(bootstrap.pool([Session(1.0)] * 5).low)

    def test_doubtful_sessions_that_agree_by_chance_are_not_resolved(self) -> None:
        narrow, wide = Session(0.85, 0.84, 0.86), Session(0.86, 0.4, 1.2)
        self.assertTrue(efficiency.resolved(efficiency.pooled_efficiency([narrow, narrow])))
        pooled = efficiency.pooled_efficiency([narrow, wide])
        self.assertEqual((pooled.lowest, pooled.highest), (0.4, 1.2))
        self.assertFalse(efficiency.resolved(pooled))

    def test_coverage_over_sessions(self) -> None:
        """Sessions differ by 2 %, and the figure of each session is known to 1 %, with and without replicates.

        The limits are the shares in 3,000 experiments (docs/measurement.md) +- three standard errors of a share in the
        400 experiments of this test.
        """
        rng = np.random.default_rng(13)
        for count, with_replicates, said in ((5, True, 0.952), (7, True, 0.966), (5, False, 0.931), (7, False, 0.870)):
            hits = 0
            for _ in range(400):
                sessions = [noisy(float(np.exp(0.02 * rng.standard_normal())), 0.01, rng) for _ in range(count)]
                if not with_replicates:
                    sessions = [Session(session.value) for session in sessions]
                figure = bootstrap.pool(sessions)
                hits += figure.low <= 1.0 <= figure.high
            error = 3 * math.sqrt(said * (1 - said) / 400)
            self.assertAlmostEqual(hits / 400, said, delta=error, msg=f"{count} sessions, {with_replicates}")

    def test_sessions_without_replicates_count_with_their_values(self) -> None:
        """Sessions of older programs have no replicates. Such a session counts as if its value had no noise."""
        old = [Session(value) for value in (1.0, 2.0, 3.0, 4.0, 5.0)]
        figure = bootstrap.pool(old)
        self.assertEqual((figure.low, figure.value, figure.high), (1.0, 3.0, 5.0))
        mixed = bootstrap.pool([*old[:4], Session(5.0, replicates=np.linspace(4.5, 7.5, 200))])
        self.assertEqual((mixed.low, mixed.value), (1.0, 3.0))
        self.assertGreater(mixed.high, 5.0)

    def test_of_many_sessions(self) -> None:
        rng = np.random.default_rng(19)
        figure = bootstrap.pool([noisy(float(np.exp(0.02 * rng.standard_normal())), 0.01, rng) for _ in range(60)])
        # The median of 60 sessions has a standard error of 1.25 x 0.022 / sqrt(60). The interval is four standard
        # errors wide.
        self.assertAlmostEqual(figure.high - figure.low, 0.0142, delta=0.007)
        self.assertTrue(figure.low < 1.0 < figure.high)

    def test_sessions_that_disagree_give_the_spread_between_sessions(self) -> None:
        # Noise is 10 % between sessions and almost none within a session. The interval must show the 10 %.
        rng = np.random.default_rng(3)
        sessions = [noisy(base, 1e-4, rng) for base in np.linspace(0.95, 1.05, 8)]
        pooled, single = bootstrap.pool(sessions), bootstrap.pool(sessions[:1])
        self.assertGreater(pooled.high - pooled.low, 50 * (single.high - single.low))


class SizeTest(unittest.TestCase):
    """Reads long runs in separate processes. A million samples may take 30 s of processor time and 1 GB of memory.

    HVD_MANY_STEPS gives the samples of each rank and phase, a million in the nightly run.
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
                words = [sys.executable, "-B", "-c", self.SCRIPT, str(SCRIPTS), command, str(db)]
                done = execute(*words, check=True, timeout=HANG)
                code, seconds, mib = json.loads(done.stderr)
                self.assertEqual(code, 0)
                self.assertLess(seconds, 30 * max(0.5, self.STEPS / 1e6) * slowness())
                self.assertLess(mib, 600)


class EfficiencyTest(FolderTest):
    def cells(self, *specs: SessionSpec, **options: bool) -> list[efficiency.EfficiencyRow]:
        self.db.unlink(missing_ok=True)
        make(self.db, *specs)
        selection = efficiency.select(runs.load([self.db]))
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

    def test_one_session_has_the_intervals_that_the_program_stored(self) -> None:
        interval = {"step_seconds": 2.0, "step_seconds_low": 1.6, "step_seconds_high": 2.5}
        (full,) = self.cells(SessionSpec(phases=("full",), columns=interval))
        rate = full.images_per_second
        self.assertEqual((rate.value, rate.low, rate.high), (2 * 8 / 2.0, 2 * 8 / 2.5, 2 * 8 / 1.6))
        # Without phase none the program stores no efficiency. hvdb then divides two times, which have intervals.
        _, full = self.cells(SessionSpec(phases=("solo", "full"), columns=interval))
        self.assertEqual(full.efficiency.value, 1.0)
        self.assertAlmostEqual(full.efficiency.high, math.exp(math.hypot(math.log(1.25), math.log(0.8))))

    def test_a_store_of_an_older_program_is_shown_as_that_program_printed_it(self) -> None:
        loaded = runs.load([REPOSITORY / "results" / "recorded" / "2026-11-23-2cores" / "quickstart.db"])
        selection = efficiency.select(loaded)
        by_id = {run.uuid: run for run in selection.runs}
        cells = efficiency.cells(selection.runs)
        self.assertEqual(len(cells), 6, "three networks on one rank and on two")
        for cell in cells:
            (run,) = (by_id[uuid] for uuid in cell.run_ids if by_id[uuid].phase == cell.kind)
            self.assertEqual(run.replicates, {})
            for name, shown in dataclasses.asdict(cell.images_per_second).items():
                if name in ("value", "low", "high"):
                    stored = run.columns["images_per_second" + ("" if name == "value" else f"_{name}")]
                    self.assertAlmostEqual(shown, stored, places=9)

    def test_several_sessions_are_pooled_with_the_replicates_that_the_program_stored(self) -> None:
        """The sessions are equal, so the whole interval comes from noise within a session."""
        specs = [SessionSpec(noise=0, replicates=spread) for spread in (0.0, 0.05) for _ in range(5)]
        _, equal = self.cells(*specs[:5])
        _, spread = self.cells(*specs[5:])
        for figure in ("images_per_second", "efficiency", "no_reduction"):
            with self.subTest(figure):
                alike, within = getattr(equal, figure), getattr(spread, figure)
                self.assertAlmostEqual(alike.low, alike.high)
                self.assertTrue(within.low < 0.99 * alike.value and 1.01 * alike.value < within.high, within)

    def test_without_stored_intervals_there_is_none(self) -> None:
        """A run that ended early has no stored intervals, so hvdb must show none."""
        none = {"step_seconds_low": None, "step_seconds_high": None}
        _, full = self.cells(SessionSpec(phases=("solo", "full"), columns=none))
        self.assertIsNone(full.efficiency.low)
        self.assertIsNone(full.images_per_second.low)

    def test_the_baseline_is_that_of_the_same_session(self) -> None:
        # The second allocation is half as fast as the first allocation but scales as well as the first. A baseline from
        # both allocations would be wrong.
        cells = self.cells(SessionSpec(solo=1.0, full=1.25, noise=0), SessionSpec(solo=2.0, full=2.5, noise=0))
        full = cells[1]
        self.assertEqual(full.sessions, 2)
        self.assertAlmostEqual(full.efficiency.value, 0.8)
        self.assertIsNone(full.efficiency.low, "two sessions are too few for an interval")
        (note,) = efficiency.precision_notes([full], runs.load([self.db]))
        self.assertIn("2 sessions are too few for an interval", note)
        self.assertIn("in 50 % of cases", note)

    def test_vgg16_is_smaller_with_small_images(self) -> None:
        for image, parameters, said in (
            (64, 44_000_000, ["vgg16 has 44 million parameters with images of 64 pixels, 138 with 224"]),
            (224, 134_000_000, []),  # another number of classes
            (64, None, []),
        ):
            self.db.unlink(missing_ok=True)
            columns = {"image_size": image, "parameters": parameters}
            make(self.db, SessionSpec(model="vgg16", columns=columns), SessionSpec(model="resnet101", columns=columns))
            self.assertEqual(efficiency.size_notes(runs.load([self.db])), said)

    def test_few_samples_and_an_unsteady_start_are_said(self) -> None:
        facts = {"measurement.warm_up": ("warm-up: not steady after 8 steps", 0)}
        (_, full) = self.cells(SessionSpec(steps=6, provenance=facts))
        few, unsteady = efficiency.precision_notes([full], runs.load([self.db]))
        self.assertIn("resnet101 on 2 ranks: 6 samples only", few)
        self.assertIn("not steady when the measurement began", unsteady)

    def test_without_a_baseline_there_is_no_efficiency(self) -> None:
        (full,) = self.cells(SessionSpec(phases=("full",)))
        self.assertIsNone(full.efficiency)
        self.assertIsNone(full.ring_bound)

    def test_points_measured_under_different_conditions_are_noted(self) -> None:
        make(self.db, SessionSpec(), SessionSpec(ranks=4, provenance={"cpu.model": ("Other CPU", 1)}))
        stored = runs.load([self.db])
        self.assertEqual(len(efficiency.cells(stored)), 4, "each point keeps its own baseline")
        (note,) = efficiency.curve_notes(stored)
        self.assertIn("cpu.model", note)
        self.assertNotIn("host.name", note)

    def test_models_are_never_pooled(self) -> None:
        cells = self.cells(SessionSpec(model="vgg16"), SessionSpec(model="resnet101"))
        self.assertEqual(
            [(c.model, c.ranks) for c in cells], [("resnet101", 1), ("resnet101", 2), ("vgg16", 1), ("vgg16", 2)]
        )

    def test_ring_bound(self) -> None:
        # The fastest rank reduces for 1.0 s. Backward takes 2/3 of 0.9 x 1.25 s. The rest of the 1.0 s is exposed.
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
            self.db,
            SessionSpec(),
            SessionSpec(traced=1),
            SessionSpec(origin="simulated"),
            SessionSpec(status="incomplete"),
        )
        selection = efficiency.select(runs.load([self.db]))
        self.assertEqual(len(selection.runs), 3)
        self.assertEqual(len(selection.left_out), 3)
        self.assertTrue(all(line.startswith("3 ") for line in selection.left_out))

    def test_runs_that_compare_settings_are_left_out(self) -> None:
        recorded = Path(__file__).resolve().parents[2] / "results" / "recorded"
        stored = runs.load([recorded / "2026-11-22-h200-second" / "gpu_check.db"])
        selection = efficiency.select(stored)
        self.assertEqual(len(efficiency.cells(selection.runs)), 6, "three networks in two types")
        self.assertEqual(len(selection.left_out), 1)
        self.assertIn("6 that compare settings (label way;", selection.left_out[0])
        with self.assertRaisesRegex(NotComparable, "gpu.option.graph"):
            efficiency.cells(stored)

    def test_a_session_that_mixes_kinds_is_refused(self) -> None:
        make(self.db, SessionSpec())
        stored = runs.load([self.db])
        stored[1].columns["traced"] = 1
        with self.assertRaises(NotComparable):
            efficiency.cells(stored)
