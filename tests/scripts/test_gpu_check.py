"""scripts/gpu_check: what fits into the time, what becomes of each part, and that nothing is left behind or hidden."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
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
from gpucheck import commands, ctest, host, parts, visit
from gpucheck.place import Place, find_place
from gpucheck.schedule import Estimate, Outcome, Result, exit_code, limit_of, plan, table

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
# In place of compare_gpu.py: writes a row, or ends as it is told by a file beside it.
FAKE_COMPARISON = """
import json, pathlib, sys
arguments = sys.argv[1:]
told = json.loads((pathlib.Path(__file__).parent / "told.json").read_text())
row = {"ratio": {"ratio": told["ratio"]}, "missing_variants": told["missing"], "troubles": told["troubles"]}
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

    def test_the_limit_shrinks_with_the_time_left(self) -> None:
        part = Estimate("b", 100, 300)
        self.assertEqual(limit_of(part, 1000, None), 300)
        self.assertEqual(limit_of(part, 0, 1000), 300)
        self.assertEqual(limit_of(part, 800, 1000), 185)
        self.assertEqual(limit_of(part, 940, 1000), 0)  # 45 s left: not worth beginning

    def test_exit_codes(self) -> None:
        def code(*results: Result) -> int:
            return exit_code([Outcome("p", result, 0, "") for result in results])

        self.assertEqual(code(Result.GOOD, Result.GOOD), 0)
        self.assertEqual(code(Result.GOOD, Result.FAILED, Result.CANNOT), 1)
        self.assertEqual(code(Result.GOOD, Result.CANNOT), 3)
        self.assertEqual(code(Result.GOOD, Result.NO_TIME), 3)
        self.assertEqual(code(), 3)

    def test_table(self) -> None:
        text = table([Outcome("doctor", Result.GOOD, 3.4, "fit"), Outcome("peers-fp16", Result.FAILED, 61, "no loss")])
        self.assertEqual(text.splitlines()[1], "doctor      good              3  fit")
        self.assertEqual(text.splitlines()[2], "peers-fp16  FAILED           61  no loss")


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
        with (
            mock.patch.object(sys, "argv", command),
            mock.patch.object(program, "ROOT", self.root),
            contextlib.redirect_stdout(text),
        ):
            code = program.main()
        rows = {row["part"]: row for row in json.loads((out / "summary.json").read_text())}
        return code, rows, text.getvalue()


class VisitTest(Visited):
    def test_good_parts(self) -> None:
        code, rows, text = self.visit("doctor", "tests", "train")
        self.assertEqual(code, 0, text)
        self.assertEqual(rows["tests"]["reason"], "1 passed, 0 failed, 0 skipped")
        self.assertEqual(rows["train"]["reason"], "resnet50 42 img/s")
        self.assertRegex(text, r"\[ +\d:\d\d, about \d+:\d\d left\] tests: tests/x\n")
        with tarfile.open(self.folder / "out.tar.gz") as archive:
            names = archive.getnames()
        for name in ("machine.json", "summary.txt", "doctor.txt", "train-resnet50.txt", "tests/x.json"):
            self.assertIn(f"out/{name}", names)
        machine = json.loads((self.folder / "out" / "machine.json").read_text())
        self.assertEqual(machine["device"], "cpu")
        self.assertIsNone(machine["gpu"])

    def test_a_failed_part_does_not_stop_the_others(self) -> None:
        self.bench("[ $1 = doctor ] && { echo 'not fit to measure'; exit 1; }; echo 'total images/sec: 1'")
        self.tests(PASSED, FAILED, code=1)
        code, rows, _ = self.visit("doctor", "tests", "train")
        self.assertEqual(code, 1)
        self.assertEqual((rows["doctor"]["result"], rows["doctor"]["reason"]), ("FAILED", "not fit to measure"))
        self.assertEqual(rows["tests"]["reason"], "1 passed, 1 failed, 0 skipped: S.c")
        self.assertEqual(rows["train"]["result"], "good")

    def test_all_skipped_is_not_good(self) -> None:
        self.tests(SKIPPED)
        code, rows, _ = self.visit("tests", "devices", "sanitizer")
        self.assertEqual(code, 3)
        self.assertEqual({row["result"] for row in rows.values()}, {"cannot run"})
        self.assertEqual(rows["tests"]["reason"], "0 passed, 0 failed, 1 skipped")

    def test_a_test_program_that_crashes_is_a_failure(self) -> None:
        self.script("bundle/tests/x", "#!/bin/sh\necho boom; kill -SEGV $$\n")
        code, rows, _ = self.visit("tests")
        self.assertEqual(code, 1)
        self.assertIn("x (exit code -11: boom)", rows["tests"]["reason"])

    def test_a_recording_without_a_file_is_a_failure(self) -> None:
        code, rows, _ = self.visit("replay")
        self.assertEqual((code, rows["replay"]["result"]), (1, "FAILED"))

    def test_a_part_that_hangs_is_ended(self) -> None:
        self.bench("echo started; sleep 60")
        short = parts.Part(Estimate("doctor", 1, 1), "hangs", parts.doctor)
        with mock.patch.object(program, "PARTS", [short]):
            code, rows, _ = self.visit("doctor")
        self.assertEqual(code, 1)
        self.assertEqual(rows["doctor"]["reason"], "time limit of 1 s; started")

    def test_an_interruption_keeps_what_there_is(self) -> None:
        self.bench("[ $1 = doctor ] && exit 0; sleep 0.5; kill -TERM $PPID; sleep 60")
        code, rows, _ = self.visit("doctor", "train", "replay")
        self.assertEqual((code, list(rows)), (1, ["doctor", "train"]))
        self.assertIn("interrupted", rows["train"]["reason"])
        self.assertTrue((self.folder / "out.tar.gz").exists())

    def test_no_time(self) -> None:
        code, rows, _ = self.visit("doctor", "train", "--minutes", "0.6")
        self.assertEqual(code, 3)
        self.assertEqual((rows["doctor"]["result"], rows["train"]["result"]), ("good", "no time"))

    def test_a_program_that_was_not_built(self) -> None:
        place = Place(self.root, self.root / "bin", None)
        here = visit.Visit(place, self.folder, visit.ON_THE_GPU, None, "no PyTorch", [], None, lambda _: None)
        with self.assertRaisesRegex(visit.CannotRun, "train_step_bench is not in this build"):
            parts.comparison("fp16", ("eager",), "x")(here)

    def test_an_earlier_visit_is_not_overwritten(self) -> None:
        self.visit("doctor")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code, _, _ = self.visit("doctor")
        self.assertEqual(code, 2)
        self.assertIn("not empty", said.getvalue())

    def test_a_bundle_is_found_before_a_build(self) -> None:
        self.assertIsNone(find_place(self.folder))
        self.script("build/release/bin/hvd_bench", "")
        self.assertEqual(find_place(self.folder).build, self.folder / "build" / "release")
        self.assertIsNone(find_place(self.root).build)


class GpuVisitTest(Visited):
    """On a GPU of our imagination."""

    device = "cuda"
    gpu = host.Gpu("NVIDIA H200", "9.0", 150121545728, "13.0")

    def visit(self, *arguments: str) -> tuple[int, dict[str, dict], str]:
        self.script("wheels/libcudnn.so.9", "")
        with (
            mock.patch.object(host, "find_gpu", return_value=self.gpu),
            mock.patch.object(host, "find_torch", return_value=(sys.executable, "2.9")),
            mock.patch.object(host, "library_folders", return_value=[f"{self.folder}/wheels"]),
            mock.patch.object(host, "find_sanitizer", return_value=None),
        ):
            return super().visit(*arguments)

    def compared(self, code: int, troubles: tuple[str, ...] = (), missing: tuple[str, ...] = ()) -> None:
        self.script("bundle/bin/train_step_bench", "")
        self.script("bundle/scripts/peers/compare_gpu.py", FAKE_COMPARISON)
        told = {"code": code, "ratio": 1.234, "troubles": troubles, "missing": missing}
        self.script("bundle/scripts/peers/told.json", json.dumps(told))

    def test_the_comparison(self) -> None:
        self.compared(3, missing=("torch graph ended with exit code 1",))
        code, rows, _ = self.visit("peers-fp16")
        expected = "resnet101 1.23 x, vgg16 1.23 x, inception3 1.23 x (torch graph ended with exit code 1)"
        self.assertEqual((code, rows["peers-fp16"]["reason"]), (0, expected))
        text = (self.folder / "out" / "fp16-vgg16.txt").read_text()
        self.assertRegex(text, r"--models vgg16 --dtypes fp16 --variants eager graph --device cuda ")
        self.assertIn(f"--library-path {self.folder}/wheels", text)

    def test_a_comparison_with_trouble(self) -> None:
        self.compared(1, troubles=("ours: the loss is nan",))
        code, rows, _ = self.visit("peers-fp16")
        self.assertEqual(code, 1)
        self.assertTrue(rows["peers-fp16"]["reason"].startswith("resnet101: ours: the loss is nan; vgg16: "))

    def test_device_properties(self) -> None:
        self.script(
            "bundle/bin/cudnn_device", '#!/bin/sh\necho "a warning"; echo "{\\"deviceName\\": \\"NVIDIA H200\\"}"\n'
        )
        code, rows, _ = self.visit("devices")
        self.assertEqual((code, rows["devices"]["reason"]), (0, "h200.json: NVIDIA H200"))
        written = json.loads((self.folder / "out" / "devices" / "h200.json").read_text())
        self.assertEqual(written, {"deviceName": "NVIDIA H200"})

    def test_good_parts(self) -> None:
        self.bench('echo "$LD_LIBRARY_PATH" "$@"; echo "total images/sec: 4242.4"')
        code, rows, _ = self.visit("doctor", "train")
        self.assertEqual(code, 0)
        self.assertEqual(rows["train"]["reason"], "resnet101 4242 img/s, vgg16 4242 img/s, inception3 4242 img/s")
        text = (self.folder / "out" / "train-vgg16.txt").read_text()
        self.assertRegex(text, rf"\n{self.folder}/wheels\S* --model vgg16 --device cuda --dtype fp16 ")


HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))


@unittest.skipUnless(HVD_BENCH.exists(), f"needs {HVD_BENCH}")
class RealProgramTest(Folder):
    """What the parts give to hvd_bench, read by the program itself."""

    def visit(self, sizes: visit.Sizes) -> visit.Visit:
        place = Place(self.folder, HVD_BENCH.resolve().parent, None)
        here = visit.Visit(place, self.folder, sizes, None, "no PyTorch", [], None, lambda _: None)
        here.part_ends = time.monotonic() + 100
        here.environment["CUDA_VISIBLE_DEVICES"] = ""  # a host with GPUs has none here
        return here

    def test_every_option_is_understood_and_only_the_gpu_is_missing(self) -> None:
        for part in (parts.training, parts.replay):
            with self.assertRaises(visit.PartFailed) as failed:
                part(self.visit(visit.ON_THE_GPU))
            for model in visit.MODELS:
                self.assertIn(f"{model}: hvd_bench: error: --device cuda: ", str(failed.exception))

    def test_an_option_that_it_does_not_know_would_be_found_here(self) -> None:
        sizes = dataclasses.replace(visit.ON_THE_GPU, training=("--no-cuda-graphs",))
        with self.assertRaisesRegex(visit.PartFailed, "--no-cuda-graphs: there is no such option"):
            parts.training(self.visit(sizes))

    def test_on_the_cpu_they_train_and_record(self) -> None:
        here = self.visit(visit.ON_THE_CPU)
        self.assertRegex(parts.training(here), r"^resnet50 [0-9]+ img/s$")
        self.assertEqual(parts.replay(here), "resnet50-fp32.txt")
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

    def test_plan(self) -> None:
        ten = self.gpu_check("--plan", "--minutes", "10").stdout.split()
        self.assertEqual(ten[:4], ["doctor", "devices", "tests", "peers-fp16"])
        self.assertNotIn("compile", ten)
        self.assertIn("compile", self.gpu_check("--plan").stdout.split())

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
