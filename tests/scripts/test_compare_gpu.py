"""Tests peers/compare_gpu.py with servers that train nothing: the search for batches, the choice of the peer that
counts, and the report beside a store's bounds. All stores and samples are synthetic and marked as synthetic."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from dataclasses import asdict
from pathlib import Path

import numpy as np
from limits import HANG

from harness import SCRIPTS, FolderTest, execute
from synthetic_store import REPOSITORY, SessionSpec, make

PEERS = SCRIPTS / "maintain" / "peers"
sys.path.insert(0, str(PEERS))
import compare_gpu  # noqa: E402
import gpu_bounds  # noqa: E402
import gpu_clocks  # noqa: E402
import gpu_report  # noqa: E402
import gpu_rows  # noqa: E402
import serving  # noqa: E402

OURS = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("train_step_bench")
SYNTHETIC = "synthetic GPU of the tests"
# Stands in for both sides and trains nothing. told.json maps a side's name to its step times by batch. A batch without
# a time needs too much memory. A side with a text instead of times fails at its start with this text; with the text
# "late" the side hangs.
FAKE = """#!{python}
import json, pathlib, sys, time
told = json.loads((pathlib.Path(__file__).parent / "told.json").read_text())
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
name = "torch " + option("--variant") if "--variant" in sys.argv else "ours"
with (pathlib.Path(__file__).parent / "started").open("a") as file:
    print(name, option("--batch"), file=file)
with (pathlib.Path(__file__).parent / "labels").open("a") as file:
    print(name, option("--labels") if "--labels" in sys.argv else "fresh", file=file)
mine = told[name]
if mine == "late":
    time.sleep(60)
if isinstance(mine, str):
    sys.exit(mine)  # on standard error, with exit code 1
batch, done, asked = option("--batch"), 0, 0
if batch not in mine:
    print("batch", batch, "needs 900 MiB of device memory, 800 MiB are free; batch 48 fits", file=sys.stderr)
    sys.exit(8)
print("ready synthetic", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "loss":
        print(told.get("loss", 6.9) if done else 7.0, flush=True)
    elif words[0] == "batch":
        if words[1] in mine:
            batch, done = words[1], 0
            print("ready synthetic", flush=True)
        else:
            print("no batch", words[1], "needs 900 MiB of device memory; batch 48 fits", flush=True)
    else:
        done, asked = done + int(words[0]), asked + 1
        time.sleep(told.get("seconds", 0))
        print(mine[batch] * (1 + 0.01 * (asked % 3)), flush=True)
"""


class FakeServer:
    """A server that knows its seconds per step for some batches. All other batches do not fit into memory."""

    name = "fake"

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.now = min(seconds)
        self.done = 0

    def steps(self, count: int) -> list[float]:
        self.done += count
        return [self.seconds[self.now]]

    def loss(self) -> float:
        return 7.0 - self.done

    def batch(self, images: int) -> str | None:
        if images not in self.seconds:
            return "no memory"
        self.now, self.done = images, 0
        return None


class BestBatchTest(unittest.TestCase):
    def search(self, seconds: dict[int, float], *batches: int, left: object = None) -> tuple[gpu_rows.Found, int]:
        server, found = FakeServer(seconds), gpu_rows.Found("fake")
        compare_gpu.best_batch(server, batches, 1.0, found, left or (lambda: 1e9))
        return found, server.now

    def test_it_stops_where_nothing_is_won_and_returns_to_the_best(self) -> None:
        found, now = self.search({32: 1.0, 64: 1.5, 128: 3.0, 256: 1.0}, 32, 64, 128, 256)
        self.assertEqual((found.batch, now, found.stopped), (64, 64, "no more gain"))
        self.assertEqual(sorted(found.tried), [32, 64, 128])

    def test_the_first_loss_is_that_of_new_weights(self) -> None:
        for seconds in ({32: 1.0, 64: 1.5, 128: 3.0}, {32: 1.0, 64: 1.5}):
            self.assertEqual(self.search(seconds, 32, 64, 128)[0].first_loss, 7.0)

    def test_it_stops_where_memory_ends(self) -> None:
        found, now = self.search({32: 1.0, 64: 1.5}, 32, 64, 128, 256)
        self.assertEqual((found.batch, now, found.stopped), (64, 64, "batch 128: no memory"))
        self.assertEqual(found.refused, {128: "no memory"})

    def test_it_stops_at_the_last(self) -> None:
        found, now = self.search({32: 1.0, 64: 1.5, 128: 2.0}, 32, 64)
        self.assertEqual((found.batch, now, found.stopped), (64, 64, "batch 64 is the last"))

    def test_it_stops_where_the_next_would_take_more_than_what_is_left(self) -> None:
        clock = iter([100.0, 100.0, 70.0, 40.0])
        found, now = self.search({32: 1.0, 64: 1.0, 128: 1.0}, 32, 64, 128, left=lambda: next(clock))
        self.assertEqual((found.batch, now, found.stopped), (64, 64, "no time for batch 128"))


def turns(name: str, batch: int, seconds: list[float], last_loss: float = 6.0) -> gpu_rows.Turns:
    return gpu_rows.Turns(name, SYNTHETIC, batch, 7.0, last_loss, seconds)


def pair(ours: float, peer: float, spread: float = 0.001, batch: int = 256, peer_name: str = "graph") -> gpu_rows.Pair:
    """Returns eight turns of both sides with these seconds per step. Our times vary by up to 3 x `spread`."""
    wave = [1 + spread * k for k in (-3, 1, -1, 3, 2, -2, 0, 0)]
    sides = (turns("ours", batch, [ours * w for w in wave]), turns(f"torch {peer_name}", 256, [peer] * 8))
    return gpu_rows.Pair(*sides, 8)


def row(best: gpu_rows.Pair | None, quick: bool = False, **more: object) -> gpu_rows.Row:
    name = best.peer.name if best else "torch graph"
    return gpu_rows.Row("vgg16", "fp16", quick, [gpu_rows.Found(name, 256, 1.0 * bool(best))], best=best, **more)


class LossTest(unittest.TestCase):
    def test_a_loss_must_be_finite_and_not_collapse(self) -> None:
        def trouble(last: float | None) -> str:
            return turns("x", 1, [1.0], last).loss_trouble()

        for good in (6.9, 7.0, 8.1, 0.0071):  # labels are new in every step, so the loss may stay or rise
            self.assertEqual(trouble(good), "", good)
        self.assertIn("x: the loss collapsed from 7 to 0.0069: ", trouble(0.0069))
        self.assertIn("collapsed from 7 to 9.31e-10", trouble(9.313225191043273e-10))
        self.assertIn("the last loss is nan", trouble(float("nan")))
        self.assertIn("the last loss is inf", trouble(float("inf")))
        self.assertIn("the last loss is nan", trouble(None))  # nan is stored as null

    def test_the_first_loss_must_be_finite_too(self) -> None:
        side = turns("x", 1, [1.0])
        side.first_loss = None
        self.assertIn("the first loss is nan", side.loss_trouble())

    def test_rows_that_were_stored_under_another_rule_are_judged_by_this_one(self) -> None:
        """The second visit trained VGG-16 on one batch until the loss collapsed. Its rows must now have `troubles`."""
        visit = REPOSITORY / "results" / "recorded" / "2026-11-22-h200-second"
        for dtype in ("fp16", "bf16"):
            (found,) = gpu_rows.read_rows(visit / f"quick-{dtype}-vgg16.json")
            self.assertEqual(len(found.troubles), 1)
            self.assertIn("ours: the loss collapsed from 6.79 to 9.31e-10", found.troubles[0])
            self.assertIsNone(gpu_report.decisive([found]))
            (found,) = gpu_rows.read_rows(visit / f"quick-{dtype}-resnet101.json")
            self.assertEqual(found.troubles, [])


class VerdictTest(unittest.TestCase):
    def lines(self, *rows: gpu_rows.Row) -> list[str]:
        return gpu_report.verdict_lines(rows, [("vgg16", "fp16"), ("vgg16", "bf16")], 1.15)

    def test_by_the_interval_alone(self) -> None:
        for ours, spread, expected in (
            (1.0, 0.001, "reached"),  # ratio 1.2
            (1.15, 0.001, "not reached"),  # ratio 1.04
            (1.03, 0.05, "undecided"),  # ratio 1.165 with an interval that includes 1.15
        ):
            self.assertEqual(gpu_report.verdict(pair(ours, 1.2, spread).ratio(), 1.15), expected)
        self.assertEqual(gpu_report.verdict(serving.Ratio(2.0, None, None), 1.15), "undecided")

    def test_the_fastest_peer_decides(self) -> None:
        slow, fast = row(pair(1.0, 1.3)), row(pair(1.0, 1.1, peer_name="compile"))
        text = self.lines(slow, fast)[1]
        self.assertRegex(text, r"^vgg16      fp16  not reached  1\.10 x \[1\.10, 1\.10\] beside torch compile ")
        self.assertIn("(of graph, compile)", text)

    def test_a_quick_one_decides_only_where_there_is_no_other(self) -> None:
        quick = row(pair(1.0, 1.1), quick=True)
        self.assertIn("quick: at one batch", self.lines(quick)[1])
        self.assertIn(" 1.30 x ", self.lines(quick, row(pair(1.0, 1.3)))[1])

    def test_trouble_decides_nothing(self) -> None:
        text = self.lines(row(pair(1.0, 1.3), troubles=["ours: the loss is nan"]))
        self.assertEqual(text[1], "vgg16      fp16  not measured ours: the loss is nan")
        self.assertEqual(text[2], "vgg16      bf16  not measured")


class StoreTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.store = self.folder / "synthetic.db"

    def spec(self, batch: int, seconds_per_image: float, **columns: object) -> SessionSpec:
        """Returns a run on a GPU with a bound of 2 GFLOP per image at a peak of 1 TFLOP/s."""
        bound = {"step_seconds": batch * seconds_per_image, "flops_per_step": batch * 2e9, "peak_flops": 1e12}
        provenance = {f"bound.{key}": (repr(value), 0) for key, value in bound.items()}
        provenance |= {"gpu.name": (SYNTHETIC, 1), "label.by": ("synthetic: test_compare_gpu", 0)}
        columns = {"device": "cuda", "compute_type": "fp16", **columns}
        return SessionSpec(
            model="vgg16", batch_size=batch, ranks=1, phases=("full",), columns=columns, provenance=provenance
        )

    def test_the_bounds_of_a_store(self) -> None:
        tf32, cpu = self.spec(64, 0.02, compute_type="tf32"), self.spec(256, 0.01, device="cpu")
        simulated = self.spec(256, 0.01)
        simulated.origin = "simulated"
        make(self.store, self.spec(64, 0.004), self.spec(512, 0.0025), tf32, cpu, simulated)
        bounds = gpu_bounds.read_bounds(self.store)
        self.assertEqual(len(bounds), 3)
        near = gpu_bounds.nearest(bounds, "vgg16", "fp16", 256)
        self.assertEqual((near.batch, near.gpu), (512, SYNTHETIC))
        self.assertAlmostEqual(near.img_s(), 400)
        self.assertAlmostEqual(near.peak_seconds_per_image(), 0.002)
        self.assertIsNone(gpu_bounds.nearest(bounds, "vgg16", "bf16", 256))

    def test_what_is_no_store(self) -> None:
        self.store.write_text("not SQLite, but long enough to be looked at" * 9)
        for file in (self.store, self.folder / "none.db"):
            with self.assertRaisesRegex(ValueError, str(file)):
                gpu_bounds.read_bounds(file)

    def test_the_report_is_made_of_the_samples(self) -> None:
        """256 images in 1.28 s are 200 img/s: half of the roofline's 400 img/s, and 40 % of the peak's 500 img/s."""
        make(self.store, self.spec(256, 0.0025))
        best = pair(1.28, 1.536)
        file = self.folder / "synthetic.json"
        gpu_rows.write_rows([row(best, same=pair(1.28, 1.408))], file)
        stored = json.loads(file.read_text())
        self.assertAlmostEqual(stored[0]["best"]["ratio"]["ratio"], 1.2)
        stored[0]["best"]["ratio"] = {"ratio": 9.0, "low": 9.0, "high": 9.0}  # must not be used
        file.write_text(json.dumps(stored))
        self.assertEqual([asdict(one) for one in gpu_rows.read_rows(file)], [asdict(row(best, same=pair(1.28, 1.408)))])
        command = [sys.executable, str(PEERS / "compare_gpu.py"), "--report", str(file), "--store", str(self.store)]
        done = execute(*command, "--models", "vgg16", "--dtypes", "fp16", "tf32")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertRegex(lines[1], r"^vgg16      fp16 +200\.0   256 +166\.7   256    1\.20  \[1\.20, 1\.20\] +torch gr")
        self.assertEqual(lines[2], "    both at batch 256: 200.0 and 181.8 img/s, 1.10 x [1.10, 1.10]")
        roofline = f"    unfused roofline 400.0 img/s (batch 256, data sheet of {SYNTHETIC}): ours is 50.0 % "
        self.assertTrue(lines[3].startswith(roofline), lines[3])
        self.assertRegex(lines[3], r"50\.0 % \[49\.9, 50\.1\] of it; model FLOP utilisation 40\.0 % \[39\.9, 40\.1\]$")
        self.assertEqual(lines[5], gpu_report.verdict_lines([], [], 1.15)[0])
        self.assertRegex(lines[6], r"^vgg16      fp16  reached      1\.20 x \[1\.20, 1\.20\] beside torch graph")
        self.assertEqual(lines[7], "vgg16      tf32  not measured")

    def test_bad_input_is_one_line(self) -> None:
        bad = self.folder / "bad.json"
        bad.write_text('[{"model": "vgg16"}]')
        (self.folder / "text.json").write_text("{")
        for arguments, words in (
            (["--report", str(bad)], "not written by compare_gpu.py"),
            (["--report", str(self.folder / "text.json")], "compare_gpu: "),
            (["--report", str(self.folder / "none.json")], "No such file"),
            (["--bench", "x", "--batches", "64", "32"], "--batches: 64 32 is not ascending"),
            ([], "give one of them"),
        ):
            command = [sys.executable, str(PEERS / "compare_gpu.py"), *arguments]
            done = execute(*command, code=2)
            self.assertIn(words, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)


FAST = {"64": 0.64, "128": 1.0, "256": 2.2}  # 100, 128 and 116 img/s


class Compared(FolderTest):
    """Runs compare_gpu.py with fake servers on both sides."""

    def setUp(self) -> None:
        super().setUp()
        fake = self.folder / "fake"
        fake.write_text(FAKE.replace("{python}", sys.executable))
        fake.chmod(0o755)

    path = os.environ["PATH"]

    def compare(self, told: dict[str, object], *options: str, bench: Path | None = None) -> tuple[int, dict, str]:
        (self.folder / "told.json").write_text(json.dumps(told))
        fake, file = str(self.folder / "fake"), self.folder / "synthetic.json"
        command = [sys.executable, str(PEERS / "compare_gpu.py"), "--bench", str(bench or fake), "--python", fake]
        command += ["--json", str(file)]
        command += ["--models", "vgg16", "--log", str(self.folder / "log"), "--turns", "6", *options]
        no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": self.path}
        done = execute(*command, env=no_gpu, timeout=HANG)
        self.assertTrue(file.exists(), done.stderr)
        (found,) = json.loads(file.read_text())
        return done.returncode, found, done.stdout


class WholeTest(Compared):
    def started(self) -> list[str]:
        return (self.folder / "started").read_text().splitlines()

    def test_each_side_at_its_best_batch_and_both_at_the_peers(self) -> None:
        ours = {"64": 0.5, "128": 0.8, "256": 1.28}  # 128, 160 and 200 img/s
        code, found, text = self.compare({"torch eager": FAST, "torch graph": {"128": 0.9}, "ours": ours})
        self.assertEqual(code, 0, text)
        self.assertEqual((found["best"]["ours"]["batch"], found["best"]["peer"]["batch"]), (256, 128))
        self.assertAlmostEqual(found["best"]["ratio"]["ratio"], 200 / (128 / 0.9), places=2)
        self.assertEqual((found["same"]["ours"]["batch"], found["same"]["peer"]["batch"]), (128, 128))
        self.assertAlmostEqual(found["same"]["ratio"]["ratio"], 0.9 / 0.8, places=2)
        self.assertRegex(text, r"both at batch 128: ")
        self.assertRegex(text, r"vgg16      fp16  reached      1\.4\d x \[.*\] beside torch graph \(of eager, graph\)")
        # The last variant is the fastest and goes on without a second start. Our search starts at half of the peer's
        # batch.
        self.assertEqual(self.started(), ["torch eager 64", "torch graph 128", "ours 64"])

    def test_a_variant_that_was_faster_than_those_after_it_is_started_again(self) -> None:
        told = {"torch eager": FAST, "torch graph": {"128": 1.1}, "ours": {"64": 0.4, "128": 0.8}}
        code, found, _ = self.compare(told)
        self.assertEqual((code, found["best"]["peer"]["name"]), (0, "torch eager"))
        self.assertEqual(self.started()[1:3], ["torch graph 128", "torch eager 128"])
        self.assertIsNone(found["same"])  # both sides have the same best batch, so no second comparison is needed

    def test_without_memory_the_advice_is_shown_and_a_smaller_batch_taken(self) -> None:
        told = {"torch graph": {"64": 0.5, "32": 0.3}, "ours": {"32": 0.25}}
        code, found, text = self.compare(told, "--variants", "graph", "--batches", "128")
        self.assertEqual(code, 0, text)
        self.assertEqual((found["best"]["ours"]["batch"], found["best"]["peer"]["batch"]), (32, 64))
        self.assertIn("ours, batch 128: ours ended with exit code 8: batch 128 needs 900 MiB", text)
        self.assertIn("batch 48 fits", text)
        self.assertIsNone(found["same"])  # ours does not fit into memory with the peer's batch 64

    def test_what_cannot_run_is_a_reason_and_not_a_failure(self) -> None:
        told = {"torch compile": "torch.compile: this host has no C compiler", "ours": FAST}
        code, found, text = self.compare(told, "--variants", "compile")
        self.assertEqual((code, found["best"], found["troubles"]), (3, None, []))
        expected = "torch compile ended with exit code 1: torch.compile: this host has no C compiler"
        self.assertEqual(found["missing_variants"], [expected])
        self.assertIn("vgg16      fp16  not measured", text)
        self.assertEqual(self.started(), ["torch compile 64"])

    def test_compiling_ends_at_its_limit_and_the_others_count(self) -> None:
        told = {"torch graph": FAST, "torch compile": "late", "ours": {"64": 0.4, "128": 0.8}}
        code, found, _ = self.compare(told, "--variants", "graph", "compile", "--compile-seconds", "0.3")
        self.assertEqual((code, found["best"]["peer"]["name"]), (3, "torch graph"))
        self.assertEqual(found["missing_variants"], ["torch compile gave no answer in 0 s"])
        code, found, _ = self.compare(told, "--variants", "compile", "--seconds", "1")
        self.assertRegex(found["missing_variants"][0], r"no answer in \d s, and there was no time left for its 240 s$")

    def test_what_there_is_no_time_for_is_not_started(self) -> None:
        told = {"torch graph": FAST, "ours": FAST}
        code, found, _ = self.compare(told, "--variants", "graph", "--seconds", "0")
        self.assertEqual((code, found["missing_variants"]), (3, ["torch graph: no time was left to start it"]))

    def test_the_first_that_runs_is_enough_for_a_quick_one(self) -> None:
        told = {"torch graph": "no graphs", "torch eager": {"256": 2.0}, "torch compile": "late", "ours": {"256": 1.5}}
        options = ("--variants", "graph", "eager", "compile", "--first-variant-only", "--batches", "256")
        code, found, _ = self.compare(told, *options)
        self.assertEqual((code, found["quick"], found["best"]["peer"]["name"]), (3, True, "torch eager"))
        self.assertEqual(self.started(), ["torch graph 256", "torch eager 256", "ours 256"])

    def test_one_batch_alone_makes_no_quick_one(self) -> None:
        """compare_gpu gives torch.compile alone the batch that an earlier run found for the other variants. The row of
        torch.compile must count beside the row of that run, so it must not be marked as quick."""
        told = {"torch compile": {"256": 1.0}, "ours": {"256": 0.5}}
        _, found, _ = self.compare(told, "--variants", "compile", "--batches", "256")
        self.assertEqual((found["quick"], found["best"]["peer"]["name"]), (False, "torch compile"))

    @unittest.skipUnless(OURS.exists(), f"needs {OURS}")
    def test_our_program_understands_every_option_and_only_the_gpu_is_missing(self) -> None:
        options = ("--variants", "graph", "--dtypes", "bf16", "--winners", str(self.folder / "winners"))
        code, found, _ = self.compare({"torch graph": FAST}, *options, bench=OURS)
        self.assertEqual(code, 1)
        self.assertRegex(found["troubles"][0], "^ours ended with exit code 2: no GPU can be used: ")

    def test_batches_that_were_found_before(self) -> None:
        told = {"torch compile": {"64": 0.5}, "ours": {"512": 4.0}}
        code, found, _ = self.compare(told, "--variants", "compile", "--batches", "64", "--ours-batches", "512")
        self.assertEqual(self.started(), ["torch compile 64", "ours 512"])
        self.assertEqual((code, found["best"]["ours"]["batch"], found["same"]), (0, 512, None))

    def test_a_loss_that_stays_is_good_and_one_that_collapses_is_a_failure(self) -> None:
        code, found, text = self.compare({"torch graph": FAST, "ours": FAST, "loss": 7.0}, "--variants", "graph")
        self.assertEqual((code, found["troubles"]), (0, []), text)
        code, found, text = self.compare({"torch graph": FAST, "ours": FAST, "loss": 0.001}, "--variants", "graph")
        self.assertEqual(code, 1, text)
        self.assertIn("ours: the loss collapsed from 7 to 0.001", found["troubles"][0])
        self.assertIn("not measured ours: the loss", text)

    def test_labels_that_cycle_are_asked_of_both_sides(self) -> None:
        told = {"torch graph": FAST, "ours": FAST}
        self.compare(told, "--variants", "graph")
        self.compare(told, "--variants", "graph", "--labels", "cycled")
        asked = (self.folder / "labels").read_text().splitlines()
        self.assertEqual(asked, ["torch graph fresh", "ours fresh", "torch graph cycled", "ours cycled"])


# Stands in for nvidia-smi of a driver that does not report the momentary power.
FAKE_SMI = """#!/bin/sh
echo "$@" >>{folder}/asked
case "$*" in *draw.instant*) echo 'Field "power.draw.instant" is not a valid field to query.'; exit 2;;
*driver_version*) echo "synthetic GPU, GPU-0, 1.0, 700.00, 1980"; exit 0;; esac
while :; do
  date "+%Y/%m/%d %H:%M:%S.%3N, 1755, 3201, 640.25, 61, 100, 0x0000000000000004"
  case "$*" in *-lms*) sleep 0.02;; *) exit 0;; esac
done
"""


class ClocksTest(Compared):
    """Tests the log of clocks beside the turns. A fake nvidia-smi writes the log."""

    def fake_smi(self, text: str) -> None:
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "nvidia-smi").write_text(text.replace("{folder}", str(self.folder)))
        (folder / "nvidia-smi").chmod(0o755)
        self.path = f"{folder}:{os.environ['PATH']}"

    def logged(self, **more: object) -> tuple[int, dict, str, Path]:
        file = self.folder / "clocks.csv"
        slow = {"torch graph": {"128": 0.9}, "ours": {"128": 0.5}, "seconds": 0.05, **more}
        options = ("--variants", "graph", "--batches", "128", "--ours-batches", "128", "--clocks", str(file))
        return *self.compare(slow, *options), file

    def test_each_sample_is_put_down_to_a_side(self) -> None:
        self.fake_smi(FAKE_SMI)
        file = self.folder / "clocks.csv"
        file.write_text("of an earlier call")
        code, found, text, _ = self.logged()
        self.assertEqual(code, 0, text)
        about, heading, *lines = file.read_text().splitlines()
        self.assertRegex(
            about, r"^# vgg16 fp16: turns from 20.*, GPU synthetic GPU, GPU-0, .*power\.draw,.* -lms 100; "
        )
        self.assertEqual(heading, "model,dtype,side,timestamp," + ",".join(gpu_clocks.COLUMNS))
        sides = [line.split(",")[2] for line in lines]
        self.assertEqual(set(sides) - {""}, {"ours", "torch graph"})
        for side in ("ours", "peer"):
            self.assertRegex(
                found["best"][side]["clocks"],
                r"^1755 MHz SM, 3201 MHz memory, 640 W, up to 61 C, power cap in 100 % \(medians of \d+ samples\)$",
            )
        self.assertRegex(text, r"\n    ours: 1755 MHz SM, ")
        (row,) = gpu_rows.read_rows(self.folder / "synthetic.json")
        self.assertEqual(row.best.ours.clocks, found["best"]["ours"]["clocks"])

    def test_without_nvidia_smi_or_with_one_that_fails_there_is_no_log_and_no_error(self) -> None:
        empty = self.folder / "none"
        empty.mkdir()
        self.path = str(empty)
        code, found, text, file = self.logged()
        self.assertEqual((code, found["best"]["ours"]["clocks"], file.exists()), (0, "", False), text)
        self.fake_smi("#!/bin/sh\nexit 9\n")
        code, found, _, file = self.logged()
        self.assertEqual((code, found["best"]["ours"]["clocks"], file.exists()), (0, "", False))

    def test_what_is_parsed(self) -> None:
        raw = "2026/11/23 08:00:00.000, 1, 2, 3, 4, 5, 0x0\n2026/11/23 08:00:01.000, [N/A], 2, 5, 4, 5, 0x24\n2026/11"
        begin = time.mktime((2026, 11, 23, 8, 0, 0, 0, 0, -1))
        samples = gpu_clocks.parse(raw, [("a", begin - 0.1, begin + 0.1), ("b", begin + 0.9, begin + 1.1)])
        self.assertEqual([sample.side for sample in samples], ["a", "b"])
        self.assertEqual(
            gpu_clocks.summary(samples, "b"),
            "2 MHz memory, 5 W, up to 4 C, power cap in 100 %, thermal slowdown in 100 % (medians of 1 samples)",
        )
        self.assertEqual(gpu_clocks.summary(samples, "c"), "")


class SamplesTest(unittest.TestCase):
    def test_what_has_no_number_in_json(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "synthetic.json"
            lost = pair(1.0, 1.0)
            lost.ours.last_loss = float("nan")
            gpu_rows.write_rows([row(lost)], file)
            self.assertNotIn("NaN", file.read_text())
            self.assertIsNone(gpu_rows.read_rows(file)[0].best.ours.last_loss)

    def test_a_share_has_the_interval_of_ours_alone(self) -> None:
        noisy = pair(1.0, 1.0, spread=0.02)
        share = noisy.share_of(0.5 / 256)
        self.assertAlmostEqual(share.ratio, 0.5)
        self.assertLess(share.low, 0.5)
        self.assertGreater(share.high, 0.5)
        self.assertAlmostEqual(float(np.median(noisy.ours.seconds_per_image())), 1.0 / 256)
