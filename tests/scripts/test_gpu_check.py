"""scripts/gpu_check: what fits into the time, what becomes of each part, and that nothing is left behind or hidden."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from synthetic_store import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
from gpucheck import __main__ as program
from gpucheck import checks, commands, comparing, ctest, host, parts, training, visit
from gpucheck.place import Place, find_place
from gpucheck.schedule import Estimate, Outcome, Result, exit_code, next_part, plan, table, to_do

GTEST = """#!/bin/sh
echo '{"testsuites":[{"name":"S","testsuite":[%s]}]}' >"${GTEST_OUTPUT#json:}"
exit %d
"""
FAKE_DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = 7 + index; return 0; }
int cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, device == 7 ? "NVIDIA H200" : "?", length); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = device == 7 ? 150121545728 : 0; return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) { *value = which == 75 ? 9 : 0; return device != 7; }
"""
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
PASSED = '{"name":"a","result":"COMPLETED"}'
SKIPPED = '{"name":"b","result":"SKIPPED"}'
FAILED = '{"name":"c","result":"COMPLETED","failures":[{"failure":"1 is not 2"}]}'


class ScheduleTest(unittest.TestCase):
    PARTS = (Estimate("a", 10, 20), Estimate("b", 100, 300), Estimate("c", 30, 60))

    def test_what_does_not_fit_makes_room_for_the_next(self) -> None:
        self.assertEqual(plan(self.PARTS, None), ["a", "b", "c"])
        self.assertEqual(plan(self.PARTS, 60), ["a", "c"])  # 15 s are for the closing
        self.assertEqual(plan(self.PARTS, 156), ["a", "b", "c"])
        self.assertEqual(plan(self.PARTS, 20), [])

    def test_the_next_part(self) -> None:
        def following(planned: list[str], left: float) -> str | None:
            chosen = next_part(self.PARTS, planned, left)
            return chosen and chosen.part

        self.assertEqual(following(["a", "b", "c"], math.inf), "a")
        self.assertEqual(following(["b"], 60), "b")  # planned: half of its time may be enough
        self.assertEqual(following(["b"], 49), "a")  # less is not, and then others may have it
        self.assertEqual(following(["c"], 125), "a")  # others were early: a fits, b would take the time of c
        self.assertEqual(following(["c"], 35), "c")
        self.assertIsNone(following(["c"], 9))

    def test_what_is_finished_is_not_repeated(self) -> None:
        quick, full = Estimate("quick", 1, 2, instead="full"), Estimate("full", 10, 20)
        parts = (*self.PARTS, quick, full)

        def rest(before: dict[str, Result], budget: float | None = 1000, again: bool = False) -> list[str]:
            return [estimate.part for estimate in to_do(parts, before, budget, again)]

        before = {"a": Result.GOOD, "b": Result.FAILED, "c": Result.CUT}
        self.assertEqual(rest({}), ["a", "b", "c", "quick", "full"])
        self.assertEqual(rest(before), ["c", "quick", "full"])
        self.assertEqual(rest(before, again=True), ["a", "b", "c", "quick", "full"])
        self.assertEqual(rest({"a": Result.CANNOT}, None), ["a", "b", "c", "full"])  # all the time: no quick one
        self.assertEqual(rest({"full": Result.GOOD}), ["a", "b", "c"])
        self.assertEqual(rest({"full": Result.FAILED}), ["a", "b", "c", "quick"])

    def test_exit_codes(self) -> None:
        def code(*results: Result) -> int:
            return exit_code([Outcome("p", result) for result in results])

        self.assertEqual(code(Result.GOOD, Result.GOOD), 0)
        self.assertEqual(code(Result.GOOD, Result.FAILED, Result.CANNOT), 1)
        self.assertEqual(code(Result.GOOD, Result.CANNOT), 3)
        self.assertEqual(code(Result.GOOD, Result.NOT_YET), 3)
        self.assertEqual(code(Result.GOOD, Result.CUT), 3)
        self.assertEqual(code(), 3)

    def test_table(self) -> None:
        good, failed = (
            Outcome("doctor", Result.GOOD, 3.4, "fit", 15),
            Outcome("full", Result.FAILED, 61, "no loss", 170),
        )
        self.assertEqual(
            table([good, failed]).splitlines(),
            [
                "part    result      seconds  estimate  reason",
                "doctor  good              3        15  fit",
                "full    FAILED           61       170  no loss",
            ],
        )
        missing = table([good, Outcome("a", Result.CUT, 9, "killed", 60), Outcome("b", Result.NOT_YET, 0, "", 30)])
        self.assertEqual(missing.splitlines()[-1], "missing: 2 of 3 parts, about 1:30 by estimate: a, b")


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def script(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        return file


class CommandTest(Folder):
    def test_output_and_command_are_kept(self) -> None:
        done = commands.run(["sh", "-c", "echo out; echo err >&2; exit 3"], self.folder / "log", 10)
        self.assertEqual((done.code, done.output, done.last_line()), (3, "out\nerr\n", "err"))
        self.assertEqual((self.folder / "log").read_text(), "$ sh -c 'echo out; echo err >&2; exit 3'\nout\nerr\n")

    def test_the_limit_ends_children_too(self) -> None:
        begun = time.monotonic()
        child = self.folder / "child"
        done = commands.run(["sh", "-c", f"sleep 60 & echo $! >{child}; wait"], self.folder / "log", 0.5)
        self.assertIsNone(done.code)
        self.assertLess(time.monotonic() - begun, 20)
        with self.assertRaises(ProcessLookupError):
            for _ in range(100):
                os.kill(int(child.read_text()), 0)
                time.sleep(0.05)  # init has to reap it

    def test_a_program_that_is_not_there(self) -> None:
        done = commands.run([str(self.folder / "none")], self.folder / "log", 10)
        self.assertEqual(done.code, 127)
        self.assertIn("No such file", done.last_line())


class HostTest(Folder):
    def test_no_driver_is_one_line(self) -> None:
        reason = host.find_gpu("libcuda-that-is-not-there.so.1")
        self.assertIsInstance(reason, str)
        self.assertIn("no NVIDIA driver", reason)

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_what_a_driver_says(self) -> None:
        """A libcuda of our own: the calls and their arguments, as cuda.h declares them."""
        source = self.script("fake.c", FAKE_DRIVER)
        library = str(self.folder / "libcuda.so.1")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True, timeout=60)
        self.assertEqual(host.find_gpu(library), host.Gpu("NVIDIA H200", "9.0", 150121545728, "13.0"))

    def test_wheels_come_before_toolkits(self) -> None:
        site = self.folder / "site"
        for name in (
            "site/nvidia/cudnn/lib/libcudnn.so.9",
            "site/nvidia/nccl/lib/libnccl.so.2",
            "cuda/lib64/libnvrtc.so.13",
        ):
            self.script(name, "")
        self.script("site/nvidia/nothing/lib/libother.so", "")
        python = self.script("python", f"#!/bin/sh\necho {site}\n")
        found = host.library_folders([str(python)], (f"{self.folder}/cuda*/lib64",))
        expected = ["site/nvidia/nccl/lib", "site/nvidia/cudnn/lib", "cuda/lib64"]
        self.assertEqual(found, [str(self.folder / name) for name in expected])

    def test_a_python_without_torch(self) -> None:
        python = self.script("python", "#!/bin/sh\nexit 1\n")
        self.assertIn("--python", host.find_torch(str(python)))

    def test_the_name_of_a_devices_file(self) -> None:
        self.assertEqual(host.Gpu("NVIDIA H200", "9.0", 1, "13.0").file_name(), "h200")
        self.assertEqual(host.Gpu("NVIDIA A100-SXM4-80GB", "8.0", 1, "13.0").file_name(), "a100-sxm4-80gb")


LISTING = {
    "tests": [
        {
            "name": "x",
            "command": ["/b/x", "-n"],
            "properties": [
                {"name": "LABELS", "value": ["gpu"]},
                {"name": "TIMEOUT", "value": 30.0},
                {"name": "ENVIRONMENT", "value": ["A=1=2"]},
            ],
        },
        {"name": "y", "command": ["/b/y"], "properties": [{"name": "LABELS", "value": ["unit"]}]},
    ]
}


class CtestTest(Folder):
    def test_label_and_properties(self) -> None:
        (test,) = ctest.parse(json.dumps(LISTING))
        self.assertEqual(test, ctest.GpuTest("x", ["/b/x", "-n"], 30.0, {"A": "1=2"}))

    def test_a_test_that_is_not_built(self) -> None:
        del (listing := json.loads(json.dumps(LISTING)))["tests"][0]["command"]
        with self.assertRaisesRegex(ValueError, "x is not built"):
            ctest.parse(json.dumps(listing))

    def test_a_bundle_keeps_them(self) -> None:
        file = self.folder / "tests.json"
        ctest.write([ctest.GpuTest("x", ["{root}/tests/x"], 5.0, {"D": "{root}/d"})], file)
        self.assertEqual(ctest.read(file, Path("/new")), [ctest.GpuTest("x", ["/new/tests/x"], 5.0, {"D": "/new/d"})])


class Visited(Folder):
    """A bundle of shell scripts."""

    device = "cpu"
    gpu: host.Gpu | None = None
    torch: tuple[str, str] | str = "no PyTorch"
    sanitizer: str | None = None

    def setUp(self) -> None:
        super().setUp()
        self.root = self.folder / "bundle"
        self.bench("echo checked; echo 'total images/sec: 42.5'")
        self.tests(PASSED)

    def bench(self, body: str) -> None:
        self.script("bundle/bin/hvd_bench", f"#!/bin/sh\n{body}\n")

    def tests(self, *cases: str, code: int = 0) -> None:
        self.script("bundle/tests/x", GTEST % (",".join(cases), code))
        ctest.write([ctest.GpuTest("x", ["{root}/tests/x"], 5.0)], self.root / "tests" / "tests.json")

    def visit(self, *arguments: str) -> tuple[int, dict[str, dict], str]:
        out = self.folder / "out"
        command = ["gpu_check", str(out), *arguments, "--device", self.device]
        text = io.StringIO()
        self.script("wheels/libcudnn.so.9", "")
        with (
            mock.patch.object(sys, "argv", command),
            mock.patch.object(program, "ROOT", self.root),
            mock.patch.object(host, "find_gpu", return_value=self.gpu),
            mock.patch.object(host, "find_torch", return_value=self.torch),
            mock.patch.object(host, "library_folders", return_value=[f"{self.folder}/wheels"]),
            mock.patch.object(host, "find_sanitizer", return_value=self.sanitizer),
            contextlib.redirect_stdout(text),
        ):
            code = program.main()
        rows = {row["part"]: row for row in json.loads((out / "summary.json").read_text())}
        return code, rows, text.getvalue()


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
        code, rows, _ = self.visit("doctor", "train-*", "memcheck")
        self.assertEqual(code, 3)
        results = {name: row["result"] for name, row in rows.items()}
        self.assertEqual(results, {"doctor": "good", "train-fp32-resnet50": "cut off", "memcheck": "not yet"})
        self.assertEqual(rows["memcheck"]["reason"], "interrupted in train-fp32-resnet50")
        self.assertTrue((self.folder / "out.tar.gz").exists())

    def test_no_time(self) -> None:
        code, rows, text = self.visit("doctor", "train-*", "--minutes", "0.6")
        self.assertEqual(code, 3)
        self.assertEqual((rows["doctor"]["result"], rows["train-fp32-resnet50"]["result"]), ("good", "not yet"))
        self.assertEqual(rows["train-fp32-resnet50"]["reason"], "no time: 0:36 were given")
        self.assertIn("1 parts, about 0:15 of 0:36 (estimates): doctor 15 s", text)
        self.assertIn("missing: 1 of 2 parts, about 0:25 by estimate: train-fp32-resnet50\n", text)

    def test_a_program_that_was_not_built(self) -> None:
        place = Place(self.root, self.root / "bin", None)
        here = visit.Visit(place, self.folder, visit.ON_THE_GPU, None, ("python3", "2"), [], None, lambda _: None)
        with self.assertRaisesRegex(visit.CannotRun, "train_step_bench is not in this build"):
            comparing.comparison(comparing.QUICK, "fp16", "vgg16")(here)

    def test_a_bundle_is_found_before_a_build(self) -> None:
        self.assertIsNone(find_place(self.folder))
        self.script("build/release/bin/hvd_bench", "")
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
        code, rows, _ = self.visit("full-fp16-vgg16")
        self.assertEqual((code, rows["full-fp16-vgg16"]["result"]), (3, "cut off"))

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
        self.bench('echo "$LD_LIBRARY_PATH" "$@"; echo "total images/sec: 4242.4, launching it (0.123 ms, 1 %)"')
        code, rows, _ = self.visit("doctor", "train-bf16-*", "launch-vgg16")
        self.assertEqual(code, 0)
        self.assertEqual(rows["train-bf16-vgg16"]["reason"], "4242 img/s, batch 256")
        text = (self.folder / "out" / "train-bf16-vgg16.txt").read_text()
        self.assertRegex(text, rf"\n{self.folder}/wheels\S* --model vgg16 --device cuda --dtype bf16 --batch-size 256 ")
        both = [f"{name} 4242 img/s (launched in 0.123 ms)" for name in ("graph", "enqueued")]
        self.assertEqual(rows["launch-vgg16"]["reason"], ", ".join(both))
        text = (self.folder / "out" / "launch-vgg16-enqueued.txt").read_text()
        self.assertRegex(text, r"--batch-size 32 .*--no-cuda-graph .*--label part=launch-vgg16 --label way=enqueued")


HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))


@unittest.skipUnless(HVD_BENCH.exists(), f"needs {HVD_BENCH}")
class RealProgramTest(Folder):
    """What the parts give to hvd_bench, read by the program itself."""

    def visit(self, sizes: visit.Sizes) -> visit.Visit:
        place = Place(self.folder, HVD_BENCH.resolve().parent, None)
        here = visit.Visit(place, self.folder, sizes, None, "no PyTorch", [], None, lambda _: None)
        here.part, here.part_ends = "here", time.monotonic() + 100
        here.environment["CUDA_VISIBLE_DEVICES"] = ""  # a host with GPUs has none here
        return here

    def test_every_option_is_understood_and_only_the_gpu_is_missing(self) -> None:
        runs = [training.training("bf16", "vgg16"), training.replay("resnet101")]
        runs += [training.ways(kind, "inception3") for kind in training.WAYS]
        for run in runs:
            with self.assertRaisesRegex(visit.PartFailed, "^hvd_bench: error: --device cuda: "):
                run(self.visit(visit.ON_THE_GPU))

    def test_an_option_that_it_does_not_know_would_be_found_here(self) -> None:
        sizes = dataclasses.replace(visit.ON_THE_GPU, training=("--no-cuda-graphs",))
        with self.assertRaisesRegex(visit.PartFailed, "--no-cuda-graphs: there is no such option"):
            training.training("fp16", "vgg16")(self.visit(sizes))

    def test_on_the_cpu_they_train_and_record(self) -> None:
        here = self.visit(visit.ON_THE_CPU)
        self.assertRegex(training.training("fp32", "resnet50")(here), r"^[0-9]+ img/s, batch 2$")
        self.assertEqual(training.replay("resnet50")(here), "resnet50-fp32.txt")
        recorded = str(self.folder / "replay" / "resnet50-fp32.txt")
        again = here.run("again", [str(HVD_BENCH), "--replay", recorded, "--num-iters", "2", "--no-db"])
        self.assertEqual(again.code, 0, again.output)


CUDNN_DEVICE = HVD_BENCH.with_name("cudnn_device")
DEVICES = REPOSITORY / "tests" / "cudnn" / "devices"


@unittest.skipUnless(CUDNN_DEVICE.exists(), f"needs {CUDNN_DEVICE}")
class CudnnDeviceTest(unittest.TestCase):
    def cudnn_device(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([str(CUDNN_DEVICE), *arguments], capture_output=True, text=True, check=False, timeout=60)
        if "could not be loaded" in done.stderr:
            self.skipTest(done.stderr)
        return done

    def test_the_files_of_the_tests_are_understood(self) -> None:
        for file in sorted(DEVICES.glob("*.json")):
            done = self.cudnn_device("--read", str(file))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), json.loads(file.read_text()))

    def test_bad_input_is_one_line(self) -> None:
        cases = ([["one"], "usage: "], [["0", "1"], "usage: "], [["--read", "/none"], "/none: cannot be read"])
        for arguments, text in cases:
            done = self.cudnn_device(*arguments)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(text, done.stderr)

    @unittest.skipIf(isinstance(host.find_gpu(), host.Gpu), "there is a GPU")
    def test_without_a_gpu(self) -> None:
        done = self.cudnn_device()
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assertIn("no GPU can be used", done.stderr)


class EntryTest(unittest.TestCase):
    def gpu_check(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(REPOSITORY / "scripts" / "gpu_check"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def test_usage(self) -> None:
        for arguments in (["doctor"], ["here", "dcotor"], ["--minutes", "0"], ["--no-such-option"]):
            done = self.gpu_check(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("gpu_check: error: ", done.stderr)

    def listed(self, *arguments: str) -> list[str]:
        """The parts that would run."""
        lines = self.gpu_check("--list", *arguments).stdout.splitlines()
        self.assertIn("estimates", lines[-1])
        return [line.split()[1] for line in lines[:-1] if line.startswith("*")]

    def test_nine_minutes_touch_everything_that_matters(self) -> None:
        nine = self.listed("--minutes", "9")
        self.assertEqual(nine[0], "tests")
        for dtype in ("fp16", "bf16"):
            for model in visit.MODELS:
                self.assertIn(f"quick-{dtype}-{model}", nine)
        self.assertIn("devices", nine)
        self.assertIn("replay-resnet101", nine)

    def test_all_the_time_leaves_out_what_is_only_quick(self) -> None:
        every = self.listed()
        self.assertFalse([name for name in every if name.startswith("quick-")])
        for dtype in ("fp16", "bf16", "tf32"):
            for kind in ("full", "compile", "autotune"):
                self.assertIn(f"{kind}-{dtype}-vgg16", every)
        self.assertEqual(self.listed("--minutes", "60", ".", "launch-*"), [f"launch-{m}" for m in visit.MODELS])

    @unittest.skipIf(isinstance(host.find_gpu(), host.Gpu), "there is a GPU")
    def test_without_a_gpu_it_says_so_and_writes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            done = self.gpu_check(f"{scratch}/out")
            written = os.listdir(scratch)
        if "no programs in" in done.stderr:
            self.skipTest("needs build/release")
        self.assertEqual((done.returncode, written), (3, []))
        self.assertRegex(done.stderr, r"^gpu_check: no GPU: .*; nothing was run\n$")


if __name__ == "__main__":
    unittest.main()
