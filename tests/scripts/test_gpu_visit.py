"""One call of scripts/gpu_check on a bundle of shell scripts: what becomes of each part, and what is left behind."""

from __future__ import annotations

import json
import shlex
import sys
import tarfile
import unittest
from unittest import mock

from gpu_visits import FAILED, PASSED, SKIPPED, Visited
from synthetic_store import REPOSITORY

from gpucheck import __main__ as program
from gpucheck import checks, comparing, host, parts, visit
from gpucheck.place import Place, find_place
from gpucheck.schedule import Estimate

sys.path.insert(0, str(REPOSITORY / "scripts" / "peers"))
import compare_gpu

# In place of compare_gpu.py: writes a row, or ends as it is told by a file beside it; --report says what it was given.
FAKE_COMPARISON = """
import json, pathlib, sys
arguments = sys.argv[1:]
told = json.loads((pathlib.Path(__file__).parent / "told.json").read_text())
if arguments[0] == "--report":
    print("verdict of", *[pathlib.Path(word).name for word in arguments if word.endswith(".json")])
    sys.exit(0)
best = {"ratio": {"ratio": 1.234, "low": 1.2, "high": 1.25}, "peer": {"name": "torch graph", "batch": 128}}
best["ours"] = {"batch": 256}
row = {"best": best if told["measured"] else None, "missing_variants": told["missing"], "troubles": told["troubles"]}
row |= {"variants": [{"stopped": reason} for reason in told["missing"]], "ours_search": None}
pathlib.Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps([row]))
print(arguments)
sys.exit(told["code"])
"""


class VisitTest(Visited):
    def test_good_parts(self) -> None:
        code, rows, text = self.visit("doctor", "tests", "train-*")
        self.assertEqual(code, 0, text)
        self.assertEqual(rows["tests"]["reason"], "1 passed, 0 failed, 0 skipped")
        self.assertEqual(rows["train-fp32-resnet50"]["reason"], "42 img/s, batch 2")
        self.assertRegex(text, r"\[ +\d:\d\d, about \d+:\d\d left\] tests: tests/x\n")
        with tarfile.open(self.folder / "out.tar.gz") as archive:
            names = archive.getnames()
        for name in ("machine.json", "summary.txt", "doctor.txt", "train-fp32-resnet50.txt", "tests/x.json"):
            self.assertIn(f"out/{name}", names)
        (machine,) = json.loads((self.folder / "out" / "machine.json").read_text())
        self.assertEqual(machine["device"], "cpu")
        self.assertIsNone(machine["gpu"])

    def test_a_failed_part_does_not_stop_the_others(self) -> None:
        self.bench("[ $1 = doctor ] && { echo 'not fit to measure'; exit 1; }; echo 'total images/sec: 1'")
        self.tests(PASSED, FAILED, code=1)
        code, rows, _ = self.visit("doctor", "tests", "train-*")
        self.assertEqual(code, 1)
        self.assertEqual((rows["doctor"]["result"], rows["doctor"]["reason"]), ("FAILED", "not fit to measure"))
        self.assertEqual(rows["tests"]["reason"], "1 passed, 1 failed, 0 skipped: S.c")
        self.assertEqual(rows["train-fp32-resnet50"]["result"], "good")

    def test_all_skipped_is_not_good(self) -> None:
        self.tests(SKIPPED)
        code, rows, _ = self.visit("tests", "devices", "*check")
        self.assertEqual(code, 3)
        self.assertEqual({row["result"] for row in rows.values()}, {"cannot run"})
        self.assertEqual(rows["tests"]["reason"], "0 passed, 0 failed, 1 skipped")

    def test_a_test_program_that_crashes_is_a_failure(self) -> None:
        self.script("bundle/tests/x", "#!/bin/sh\necho boom; kill -SEGV $$\n")
        code, rows, _ = self.visit("tests")
        self.assertEqual(code, 1)
        self.assertIn("x (exit code -11: boom)", rows["tests"]["reason"])

    def test_a_recording_without_a_file_is_a_failure(self) -> None:
        code, rows, _ = self.visit("replay-*")
        self.assertEqual((code, rows["replay-resnet50"]["result"]), (1, "FAILED"))

    def test_a_part_that_hangs_is_ended(self) -> None:
        self.bench("echo started; sleep 60")
        short = parts.Part(Estimate("doctor", 1, 1), "hangs", checks.doctor)
        with mock.patch.object(program, "parts_for", return_value=[short]):
            code, rows, _ = self.visit("doctor")
        self.assertEqual(code, 1)
        self.assertEqual(rows["doctor"]["reason"], "time limit of 1 s; started")

    def test_an_interruption_keeps_what_there_is(self) -> None:
        self.bench("[ $1 = doctor ] && exit 0; sleep 0.5; kill -TERM $PPID; sleep 60")
        code, rows, _ = self.visit("doctor", "train-*", "choices-*")
        self.assertEqual(code, 3)
        results = {name: row["result"] for name, row in rows.items()}
        last = "choices-fp32-resnet50"
        self.assertEqual(results, {"doctor": "good", "train-fp32-resnet50": "cut off", last: "not yet"})
        self.assertEqual(rows[last]["reason"], "interrupted in train-fp32-resnet50")
        self.assertTrue((self.folder / "out.tar.gz").exists())

    def test_no_time(self) -> None:
        code, rows, text = self.visit("doctor", "train-*", "--minutes", "0.6")
        self.assertEqual(code, 3)
        self.assertEqual((rows["doctor"]["result"], rows["train-fp32-resnet50"]["result"]), ("good", "not yet"))
        self.assertEqual(rows["train-fp32-resnet50"]["reason"], "no time: 0:36 were given")
        self.assertIn("1 parts, about 0:02 of 0:36 (estimates): doctor 2 s", text)
        self.assertIn("missing: 1 of 2 parts, about 0:40 by estimate: train-fp32-resnet50\n", text)

    def test_a_program_that_was_not_built(self) -> None:
        place = Place(self.root, self.root / "bin", None)
        here = visit.Visit(place, self.folder, visit.ON_THE_GPU, None, ("python3", "2"), [], None, lambda _: None)
        with self.assertRaisesRegex(visit.CannotRun, "train_step_bench is not in this build"):
            comparing.comparison(comparing.QUICK, "fp16", "vgg16")(here)

    def test_a_bundle_is_found_before_a_build(self) -> None:
        self.script("build/release/bin/hvd_bench", "")
        self.assertIsNone(find_place(self.folder), "scripts/quickstart builds no more")
        self.script("build/release/bin/train_step_bench", "")
        self.assertEqual(find_place(self.folder).build, self.folder / "build" / "release")
        self.assertIsNone(find_place(self.root).build)


class GpuVisitTest(Visited):
    """On a GPU of our imagination."""

    device = "cuda"
    gpu = host.Gpu("NVIDIA H200", "9.0", 150121545728, "13.0")
    torch = (sys.executable, "2.9")

    def compared(self, code: int, troubles: tuple = (), missing: tuple = (), measured: bool = True) -> None:
        self.script("bundle/bin/train_step_bench", "")
        self.script("bundle/scripts/peers/compare_gpu.py", FAKE_COMPARISON)
        told = {"code": code, "measured": measured, "troubles": troubles, "missing": missing}
        self.script("bundle/scripts/peers/told.json", json.dumps(told))

    def test_the_comparison(self) -> None:
        self.compared(3, missing=("torch eager ended with exit code 1",))
        code, rows, text = self.visit("full-fp16-vgg16", "compile-fp16-vgg16", "train-fp16-vgg16")
        self.assertEqual(code, 0)
        expected = "1.23 x [1.20, 1.25] beside torch graph (torch eager ended with exit code 1)"
        self.assertEqual(rows["full-fp16-vgg16"]["reason"], expected)
        full = (self.folder / "out" / "full-fp16-vgg16.txt").read_text()
        self.assertRegex(full, r"--models vgg16 --dtypes fp16 --variants eager graph --device cuda --seconds 4\d\d ")
        self.assertIn(f"--library-path {self.folder}/wheels", full)
        self.assertRegex(full, rf"--winners {self.folder}/out/winners ")
        self.assertNotIn("--batches", full)
        compiled = (self.folder / "out" / "compile-fp16-vgg16.txt").read_text()
        self.assertRegex(compiled, r"--variants compile .*--compile-seconds 150 .*--ours-batches 256 --batches 128 ")
        self.assertEqual(rows["train-fp16-vgg16"]["reason"], "42 img/s, batch 256")
        self.assertIn("verdict of full-fp16-vgg16.json compile-fp16-vgg16.json\n", text)
        self.assertIn("verdict of full-", (self.folder / "out" / "verdict.txt").read_text())

    def test_steps_that_are_planned_in_several_ways(self) -> None:
        self.script(
            "bundle/bin/train_step_bench",
            """#!/bin/sh
case "$*" in *bf16*) echo "no such type" >&2; exit 2;; *--profile*) n=20;;
  *"--images padded"*) n=31;; *"--prologues all"*) n=32;; *"--fusion 1"*) n=33;; *) n=30;; esac
echo "vgg16 batch 256 fp16, 1 threads, level 2: $n.4 img/s (median of 1 steps, best 40.2), 5 GFLOP/s, loss 1.0"
""",
        )
        code, rows, _ = self.visit("choices-fp16-vgg16", "profile-*-vgg16")
        self.assertEqual(code, 1)
        ways = "as it is 30, level 1 33, level 2 30, images padded 31, norms of cuDNN 30, prologues 32"
        self.assertEqual(rows["choices-fp16-vgg16"]["reason"].replace(" img/s", ""), ways)
        self.assertEqual(rows["profile-fp16-vgg16"]["reason"], "20 img/s")
        self.assertEqual(rows["profile-bf16-vgg16"]["reason"], "no such type")
        text = (self.folder / "out" / "choices-fp16-vgg16-prologues.txt").read_text()
        self.assertRegex(text, r"--model vgg16 --dtype fp16 --batch 256 --winners .* --steps 60 --prologues all\n")

    def test_compare_gpu_understands_what_it_is_given(self) -> None:
        self.compared(0)
        names = [f"{kind.name}-bf16-vgg16" for kind in comparing.KINDS]
        self.visit(*names, "--minutes", "30")  # with all the time there would be no quick one
        parsed = []
        for name in names:
            line = (self.folder / "out" / f"{name}.txt").read_text().splitlines()[0]
            with mock.patch.object(sys, "argv", shlex.split(line.removeprefix("$ "))[1:]):
                parsed.append(compare_gpu.parse_arguments())
        self.assertEqual([options.variants[0] for options in parsed], ["compile", "eager", "compile", "autotune"])
        self.assertEqual([options.first_variant_only for options in parsed], [True, False, False, False])
        self.assertEqual([list(options.batches) for options in parsed], [[256], [64, 128, 256, 512], [128], [128]])
        self.assertEqual({options.dtypes[0] for options in parsed}, {"bf16"})

    def test_a_comparison_with_trouble(self) -> None:
        self.compared(1, troubles=("ours: the loss is nan",))
        code, rows, _ = self.visit("quick-bf16-*")
        self.assertEqual(code, 1)
        self.assertEqual({row["reason"] for row in rows.values()}, {"ours: the loss is nan"})

    def test_torch_compile_that_cannot_work_is_no_failure(self) -> None:
        self.compared(3, missing=("torch compile: this host has no C compiler",), measured=False)
        code, rows, _ = self.visit("compile-tf32-vgg16")
        self.assertEqual((code, rows["compile-tf32-vgg16"]["result"]), (3, "cannot run"))
        self.assertEqual(rows["compile-tf32-vgg16"]["reason"], "torch compile: this host has no C compiler")

    def test_a_comparison_that_lacked_time_is_not_finished(self) -> None:
        self.compared(3, missing=("torch graph: no time was left to start it",))
        code, rows, _ = self.visit("full-fp16-vgg16", "--minutes", "5")
        self.assertEqual((code, rows["full-fp16-vgg16"]["result"]), (3, "cut off"))
        code, rows, _ = self.visit("full-fp16-vgg16")  # now with all of its own limit
        self.assertEqual((code, rows["full-fp16-vgg16"]["result"]), (0, "good"))

    def test_what_an_earlier_call_measured_stays_until_there_is_better(self) -> None:
        self.compared(0)
        self.visit("full-fp16-vgg16")
        self.compared(1, troubles=("torch graph ended",), measured=False)
        code, _, _ = self.visit("full-fp16-vgg16", "--again")
        (row,) = json.loads((self.folder / "out" / "full-fp16-vgg16.json").read_text())
        self.assertEqual((code, row["troubles"]), (1, []))

    def test_compute_sanitizer(self) -> None:
        tool = '#!/bin/sh\necho "$@"; while [ "$1" != 9 ]; do shift; done; shift; exec "$@"\n'
        self.sanitizer = str(self.script("sanitizer", tool))
        code, rows, _ = self.visit("memcheck", "racecheck", "initcheck", "synccheck")
        self.assertEqual(code, 0)
        self.assertEqual({row["reason"] for row in rows.values()}, {"1 passed, 0 failed, 0 skipped"})
        for name in rows:
            self.assertIn(f"--tool {name} ", (self.folder / "out" / "tests" / f"{name}-x.txt").read_text())

    def test_without_compute_sanitizer(self) -> None:
        code, rows, _ = self.visit("racecheck")
        self.assertEqual((code, rows["racecheck"]["result"]), (3, "cannot run"))
        self.assertIn("there is no compute-sanitizer", rows["racecheck"]["reason"])

    def test_device_properties(self) -> None:
        self.script(
            "bundle/bin/cudnn_device", '#!/bin/sh\necho "a warning"; echo "{\\"deviceName\\": \\"NVIDIA H200\\"}"\n'
        )
        code, rows, _ = self.visit("devices")
        self.assertEqual((code, rows["devices"]["reason"]), (0, "h200.json: NVIDIA H200"))
        written = json.loads((self.folder / "out" / "devices" / "h200.json").read_text())
        self.assertEqual(written, {"deviceName": "NVIDIA H200"})

    def test_good_parts(self) -> None:
        note = "host's clock (+1.5 % over ..), launching it (0.123 ms, 1 %)"
        self.bench(f'echo "$LD_LIBRARY_PATH" "$@"; echo "total images/sec: 4242.4"; echo "{note}"')
        code, rows, _ = self.visit("doctor", "train-bf16-*", "launch-vgg16")
        self.assertEqual(code, 0)
        self.assertEqual(rows["train-bf16-vgg16"]["reason"], "4242 img/s, batch 256")
        text = (self.folder / "out" / "train-bf16-vgg16.txt").read_text()
        self.assertRegex(text, rf"\n{self.folder}/wheels\S* --model vgg16 --device cuda --dtype bf16 --batch-size 256 ")
        speed = "4242 img/s (+1.5 % from end to end, launched in 0.123 ms)"
        self.assertEqual(rows["launch-vgg16"]["reason"], f"graph {speed}, waited {speed}, enqueued {speed}")
        text = (self.folder / "out" / "launch-vgg16-enqueued.txt").read_text()
        self.assertRegex(text, r"--batch-size 32 .*--no-cuda-graph .*--label part=launch-vgg16 --label way=enqueued")


if __name__ == "__main__":
    unittest.main()
