"""Parts of hvdb predict: profiles, algorithms, hostile stores, and the real `hvd_bench simulate`."""

import os
import shutil
import subprocess
import unittest

import fuzzed_stores
from test_predict import ELEMENTS, REAL, PredictTest, collectives, profile_text, training

from harness import FolderTest, call

from hvdb.base.errors import HvdbError
from hvdb.predict.fabric import Fabric, algorithm_that_ran
from hvdb.predict.steps import World
from hvdb.read import replay_profile


class HostileStoreTest(PredictTest):
    def test_damaged_and_hostile_stores_end_in_one_line(self) -> None:
        base = self.folder / "base.db"
        self.measure(training(), collectives(1, ranks=2, plane="shm", seconds=1e-5))
        self.db.rename(base)
        codes = []
        for change in (fuzzed_stores.damaged, fuzzed_stores.hostile):
            for seed in range(30):
                with self.subTest(change=change.__name__, seed=seed):
                    change(base, self.db, seed)
                    words = ("predict", self.db, "--profile", self.profile, "--ranks", "2", "--draws", "20")
                    code, out, err = call(*words)
                    codes.append(code)
                    self.assertIn(code, (0, 2, 3, 4), err)
                    self.assertNotIn("unexpected", err)
                    self.assertEqual(len(err.splitlines()), 1 if code else 0, err)
                    self.assertNotRegex(out + err, r"[^\n\x20-\x7e\u00a1-\U0010ffff]")
        self.assertGreater(len(set(codes)), 1)


class ProfileTest(FolderTest):
    def test_both_versions(self) -> None:
        file = self.folder / "a.replay"
        file.write_text(profile_text("r"), encoding="utf-8")
        second = replay_profile.read(file)
        self.assertEqual((second.unit, second.units_per_step, second.elements), ("images", 8, ELEMENTS))
        text = profile_text("r").replace("replay 2", "replay 1").replace("unit images\nunits_per_step", "batch_size")
        file.write_text(text.replace("update_", "image_size 224\nforward_seconds 0\nupdate_"), encoding="utf-8")
        first = replay_profile.read(file)
        self.assertEqual(first.step, second.step)
        self.assertEqual((first.unit, first.units_per_step), ("images", 8))

    def test_a_stranger_s_file_is_refused_in_one_line(self) -> None:
        good = profile_text("r")
        for old, new, text in (
            ("hvd-replay 2", "hvd-replay 3", ":1: not a replay profile"),
            ("\n", "\r\n", ":1: has the line ends of Windows"),
            ("hvd-replay", "\ufeffhvd-replay", ":1: begins with a byte-order mark; remove it: sed -i "),
            ("second\n", "second\r\n", ":10: has the line ends of Windows"),
            ("end 2\n", "", "'end' is missing"),
            ("units_per_step 8", "units_per_step 0", "not a whole number from 1"),
            ("units_per_step 8", "units_per_step 1" + "0" * 100, "not a whole number from 1"),
            ("backward_end_seconds 0.9", "backward_end_seconds nan", "not between 0 and 86400"),
            ("backward_end_seconds 0.9", "backward_end_seconds x", "not a number"),
            ("update_seconds 0.1", "update_seconds 1e9", "not between 0 and 86400"),
            ("source_run r\n", "", "'source_run' is missing"),
            ("model resnet101", "model " + "x" * 201, "'model' has more than 200 letters"),
            ("source_run r", "factors" + " 1" * 32769 + "\nsource_run r", "'factors' has more than 65536 letters"),
            ("unit images", "x" * 70000, "'xxxxxxxxxxxxxxxxxxxx' has more than 200 letters"),
            ("unit images", "model a", "twice"),
            ("gradient 524288 0.5 0.5 second", "gradient -1 0.5 0.5 second", "not a whole number from 1"),
        ):
            with self.subTest(text=text, new=new[:40]):
                self.assertIn(old, good)
                file = self.folder / "bad.replay"
                file.write_text(good.replace(old, new), encoding="utf-8")
                with self.assertRaisesRegex(HvdbError, text) as caught:
                    replay_profile.read(file)
                self.assertLess(len(str(caught.exception)), 400)
        with self.assertRaisesRegex(HvdbError, "not a file"):
            replay_profile.read(self.folder)


class FabricTest(unittest.TestCase):
    def test_what_ran(self) -> None:
        for plane, name in (
            ("ring over mpi", "ring"),
            ("hierarchical(shm+doubling) over mpi", "doubling"),
            ("shm", "shm"),
            ("mpi's own", "mpi's own"),
            ("rabenseifner over threads", "rabenseifner"),
            ("doubling over mpi + ring over mpi", ""),
            ("something new", ""),
        ):
            self.assertEqual(algorithm_that_ran(plane), name, plane)

    def test_what_auto_takes(self) -> None:
        auto = Fabric("auto", "ring over mpi")
        for fabric, operation, world, names in (
            (auto, "all_reduce", World(1, 2), {"all_reduce": "shm"}),
            (auto, "all_reduce", World(3, 4), {"all_reduce": "ring", "small_all_reduce": "doubling"}),
            (auto, "reduce_scatter", World(4), {"reduce_scatter": "ring", "small_reduce_scatter": "direct"}),
            (auto, "barrier", World(4), {"barrier": ""}),
            (Fabric("ring", "ring over mpi"), "all_reduce", World(2), {"all_reduce": "ring"}),
            (Fabric("mpi", "mpi's own"), "all_reduce", World(2), {"all_reduce": "mpi's own"}),
            (Fabric("ring", "ring over mpi"), "all_reduce", World(2, 2), {"all_reduce": "flat ring"}),
            (Fabric("auto", "nccl 2.27"), "all_reduce", World(2), {"all_reduce": "nccl"}),
        ):
            self.assertEqual(fabric.algorithms(operation, world), names, (operation, world))


def simulates(program: str) -> bool:
    """Returns True if `program` has the command simulate."""
    if not shutil.which(program):
        return False
    done = subprocess.run([program, "simulate", "--help"], capture_output=True, text=True, timeout=60, check=False)
    return "--costs" in done.stdout


@unittest.skipUnless(simulates(REAL), "HVD_BENCH names no hvd_bench with the command simulate")
class RealSimulatorTest(PredictTest):
    def test_figures_by_hand(self) -> None:
        # Two buckets of 2 MiB are ready at 0.5 s and 0.9 s, take 0.05 s each beside others that compute 1.02 times as
        # long. The first one delays the compute by as much as it takes, the second one is exposed.
        columns = {"plan_hash": "", "data_plane": "shm"}
        self.measure(training(columns=columns), collectives(1, ranks=2, plane="shm", seconds=1e-5))
        os.environ["HVD_BENCH"] = REAL
        (row,) = self.document("2")["rows"]
        self.assertAlmostEqual(row["step_seconds"]["middle"], 1.12, 2)
        for part, seconds in (("exposed", 0.05), ("slowed", 0.05), ("stragglers", 0), ("interference", 0.02)):
            self.assertAlmostEqual(row["parts"][part], seconds / 1.12, 2, part)


if __name__ == "__main__":
    unittest.main()
