"""The contract between the program and these scripts: hvd_bench writes a store, and hvdb reads equal results from it.

The contract holds for recorded stores too. The other tests need the program at HVD_BENCH, which ctest sets. If the
program is not built, they are skipped with a reason.
"""

from __future__ import annotations

import json
import lzma
import os
import unittest
from pathlib import Path

import numpy as np
from limits import HANG

from harness import SCRIPTS, FolderTest, SharedFolderTest, execute
from synthetic_store import REPOSITORY

from hvdb.base.interval import Interval
from hvdb.judge import bootstrap, efficiency
from hvdb.read import coll_results, layer_profile, merge, runs
from hvdb.show import plot_profile, plot_waterfall, tables

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
TINY = ["--model", "resnet50", "--image-size", 64, "--batch-size", 2, "--threads", 1]
TINY += ["--num-warmup-batches", 1, "--num-iters", 4, "--quiet"]
KINDS = {f"{part}_seconds" for part in "step compute exposed reduce control copy update".split()} | {"loss"}


class RecordedTest(FolderTest):
    def test_every_recorded_store_is_read_with_all_checks(self) -> None:
        """Reads the packed stores (.db.xz) too."""
        files = sorted((REPOSITORY / "results").rglob("*.db*"))
        self.assertGreaterEqual(len(files), 26)
        for file in files:
            with self.subTest(file.relative_to(REPOSITORY)):
                store = file
                if file.suffix == ".xz":
                    store = self.folder / file.stem
                    store.write_bytes(lzma.decompress(file.read_bytes()))
                self.assertTrue(runs.load([store]) or coll_results.read([store]).series)


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
class ContractTest(SharedFolderTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.launch(["--ranks", "2", "--efficiency", "--db", str(cls.db)])
        cls.runs = runs.load([cls.db])

    @classmethod
    def launch(cls, options: list[str]) -> str:
        return execute(PROGRAM, *TINY, *options, cwd=cls.folder, timeout=HANG, code=0).stdout

    def phase(self, name: str) -> runs.Run:
        (run,) = (run for run in self.runs if run.phase == name)
        return run

    def test_the_three_phases_of_one_session(self) -> None:
        self.assertEqual(sorted(run.phase for run in self.runs), ["full", "none", "solo"])
        self.assertEqual(len({run.session_uuid for run in self.runs}), 1)
        self.assertEqual({run.phase: run.world_size for run in self.runs}, {"solo": 1, "none": 2, "full": 2})
        for run in self.runs:
            self.assertEqual(
                (run.status, run.origin, run.model, run.batch_size, run.allocation_size),
                ("complete", "measured", "resnet50", 2, 2),
            )
            self.assertEqual(run.parameters, 25_557_032)

    def test_samples_agree_with_the_stored_medians(self) -> None:
        for run in self.runs:
            self.assertLessEqual(set(run.samples), KINDS)
            self.assertEqual(run.samples["step_seconds"].ranks, run.world_size)
            self.assertTrue(run.step_seconds_low <= run.step_seconds <= run.step_seconds_high)
            self.assertAlmostEqual(float(np.median(run.step_seconds_series())), run.step_seconds, places=9)
            self.assertAlmostEqual(efficiency.images_per_second(run), run.images_per_second, places=6)

    def test_figures_and_intervals_are_the_program_s(self) -> None:
        for run in self.runs:
            replicates = run.replicates["step_seconds"]
            self.assertEqual(len(replicates), 200)
            # The stored interval comes from 1,000 replicates. The store has only the first 200 of these replicates.
            self.assertTrue(run.step_seconds_low <= np.median(replicates) <= run.step_seconds_high)
            self.assertEqual("efficiency" in run.replicates, run.phase == "full")
        full = self.phase("full")
        (cell,) = (cell for cell in efficiency.cells(self.runs) if cell.kind == "full")
        part, rate = full.decomposition["efficiency"].fraction, cell.images_per_second
        self.assertEqual((cell.efficiency.low, cell.efficiency.high), (part.low, part.high))
        self.assertTrue(part.low <= np.median(full.replicates["efficiency"]) <= part.high)
        for name, shown in (("", rate.value), ("_low", rate.low), ("_high", rate.high)):
            self.assertAlmostEqual(shown, full.columns[f"images_per_second{name}"], places=9)

    def test_pooled_replicates_vary_as_the_program_s_interval_says(self) -> None:
        """Five equal sessions are pooled by replicates. The pooled interval may not be wider than one session's stored
        interval."""
        full = self.phase("full")
        session = efficiency.step_time(full)
        pooled = bootstrap.pool([session] * bootstrap.MIN_SESSIONS)
        self.assertTrue(full.step_seconds_low <= pooled.low < pooled.high <= full.step_seconds_high, pooled)

    def test_efficiency_agrees_with_the_stored_decomposition(self) -> None:
        full = self.phase("full")
        (cell,) = (cell for cell in efficiency.cells(self.runs) if cell.kind == "full")
        self.assertAlmostEqual(cell.efficiency.value, full.decomposition["efficiency"].fraction.value, places=9)
        self.assertEqual(self.phase("solo").comm, "solo")
        self.assertTrue(full.fact("measurement.warm_up"))
        self.assertAlmostEqual(sum(part.fraction.value for part in full.decomposition.values()), 1.0, places=9)
        self.assertAlmostEqual(plot_waterfall.levels(full, [])[-1][2], 100 * cell.efficiency.value, places=6)

    def test_both_sides_call_the_same_efficiencies_wide(self) -> None:
        document = json.loads(self.launch(["--ranks", "2", "--efficiency", "--num-iters", "1", "--json", "--no-db"]))
        full = document["runs"][-1]
        self.assertEqual(full["efficiency"], efficiency.unresolved(Interval(0.9)))
        self.assertIsNone(full["decomposition"][0]["fraction"], "no efficiency without an interval")
        wide = Interval(0.851, 0.464, 1.014)  # session_plan_test.cpp has the same
        self.assertEqual(tables.efficiency_text(wide), "not resolved: between 46 and 101 %")
        self.assertEqual(tables.efficiency_text(Interval(0.976, 0.97, 0.986)), "97.6 [97.0, 98.6]")

    def test_every_component_is_known_by_name(self) -> None:
        written = set(self.phase("full").decomposition)
        self.assertEqual(written - set(plot_waterfall.STEPS), {"efficiency"})
        self.assertEqual(written - set(tables.COMPONENTS), set())

    def test_ranks_agree_on_the_reduced_gradients(self) -> None:
        sums = {rank["gradient_checksum"] for rank in self.phase("full").ranks}
        self.assertEqual(len(sums), 1)
        self.assertTrue(sums.pop())

    def test_provenance_is_filled_in(self) -> None:
        for run in self.runs:
            for key in ("cpu.model", "os.kernel", "build.compiler", "git.commit"):
                self.assertTrue(run.provenance[key].value, key)
            self.assertTrue(run.provenance["cpu.model"].in_fingerprint)

    def test_a_second_session_may_be_pooled_and_merged(self) -> None:
        other = self.folder / "other.db"
        self.launch(["--ranks", "2", "--efficiency", "--db", str(other)])
        merged = self.folder / "merged.db"
        self.assertEqual(merge.merge(merged, [self.db, other]).added, 6)
        self.assertEqual(merge.merge(merged, [self.db, other]).added, 0)
        cells = efficiency.cells(runs.load([merged]))
        self.assertEqual([cell.sessions for cell in cells], [2, 2])

    def test_the_program_adds_to_a_merged_store(self) -> None:
        merged = self.folder / "grown.db"
        merge.merge(merged, [self.db])
        self.launch(["--db", str(merged)])
        self.assertEqual(len(runs.load([merged])), 4)

    def test_profile_fills_the_operations_and_is_marked_traced(self) -> None:
        profiled = self.folder / "profile.db"
        self.launch(["--profile", "--db", str(profiled)])
        (run,) = (run for run in runs.load([profiled]) if run.phase == "full")
        self.assertEqual(run.traced, 1)
        self.assertGreater(len(run.operations), 100)
        self.assertEqual([o.seq for o in run.operations], sorted(o.seq for o in run.operations))
        self.assertGreater(layer_profile.library_fraction(run.operations), 0.0)
        # Only operations of measured steps are timed, so the sum of their times is below the mean step time.
        total = sum(o.seconds for o in run.operations)
        mean = float(np.mean(run.step_seconds_series()))
        self.assertLess(total, mean)
        self.assertGreater(total, 0.5 * mean)
        self.assertTrue(plot_profile.draw(run, self.folder / "profile.png").exists())

    def test_the_recorded_command_line_runs_again(self) -> None:
        script = SCRIPTS / "rerun"
        done = execute(script, self.phase("full").uuid, self.db, "--execute", timeout=HANG, code=0)
        self.assertIn("reduced gradients: bit-identical", done.stdout)
