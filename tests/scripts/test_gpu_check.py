"""Tests gpu_check: which parts fit into the time, what gpu_check finds on the host, and that the programs accept the
arguments that gpu_check passes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import unittest
from pathlib import Path

from limits import HANG

from gpu_visits import Folder
from harness import SCRIPTS, eventually, execute
from synthetic_store import REPOSITORY

from maintain.gpucheck import commands, ctest, host, training, visit
from maintain.gpucheck.parts import CALLS, parts_for, parts_of_call
from maintain.gpucheck.place import Place
from maintain.gpucheck.schedule import (
    CLOSING_SECONDS,
    Estimate,
    Outcome,
    Result,
    exit_code,
    next_part,
    plan,
    table,
    to_do,
)

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


class ScheduleTest(unittest.TestCase):
    PARTS = (Estimate("a", 10, 20), Estimate("b", 100, 300), Estimate("c", 30, 60))

    def test_what_does_not_fit_makes_room_for_the_next(self) -> None:
        self.assertEqual(plan(self.PARTS, None), ["a", "b", "c"])
        self.assertEqual(plan(self.PARTS, 60), ["a", "c"])  # the plan keeps 15 s for closing
        self.assertEqual(plan(self.PARTS, 156), ["a", "b", "c"])
        self.assertEqual(plan(self.PARTS, 20), [])

    def test_the_next_part(self) -> None:
        def following(planned: list[str], left: float) -> str | None:
            chosen = next_part(self.PARTS, planned, left)
            return chosen and chosen.part

        self.assertEqual(following(["a", "b", "c"], math.inf), "a")
        self.assertEqual(following(["b"], 60), "b")  # "b" was planned, so it may start with half of its estimate left
        self.assertEqual(following(["b"], 49), "a")  # less than half of b's time is left, so other parts get it
        # Earlier parts were quick, so "a" fits before the planned "c". After "b" too little time would be left for "c".
        self.assertEqual(following(["c"], 125), "a")
        self.assertEqual(following(["c"], 35), "c")
        self.assertIsNone(following(["c"], 9))

    def test_what_is_finished_is_not_repeated(self) -> None:
        def rest(before: dict[str, Result], again: bool = False) -> list[str]:
            return [estimate.part for estimate in to_do(self.PARTS, before, again)]

        before = {"a": Result.GOOD, "b": Result.FAILED, "c": Result.CUT}
        self.assertEqual(rest({}), ["a", "b", "c"])
        self.assertEqual(rest(before), ["c"])
        self.assertEqual(rest(before, again=True), ["a", "b", "c"])
        self.assertEqual(rest({"a": Result.CANNOT}), ["a", "b", "c"])

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
        good = Outcome("doctor", Result.GOOD, 3.4, "fit", 15)
        expected = [
            "part    result      seconds  estimate  reason",
            "doctor  good              3        15  fit",
            "full    FAILED           61       170  no loss",
        ]
        self.assertEqual(table([good, Outcome("full", Result.FAILED, 61, "no loss", 170)]).splitlines(), expected)
        missing = table([good, Outcome("a", Result.CUT, 9, "killed", 60), Outcome("b", Result.NOT_YET, 0, "", 30)])
        self.assertEqual(missing.splitlines()[-1], "missing: 2 of 3 parts, about 1:30 by estimate: a, b")


class CommandTest(Folder):
    def test_output_and_command_are_kept(self) -> None:
        done = commands.run(["sh", "-c", "echo out; echo err >&2; exit 3"], self.folder / "log", 10)
        self.assertEqual((done.code, done.output, done.last_line()), (3, "out\nerr\n", "err"))
        self.assertEqual((self.folder / "log").read_text(), "$ sh -c 'echo out; echo err >&2; exit 3'\nout\nerr\n")

    def test_the_limit_ends_children_too(self) -> None:
        child = self.folder / "child"
        done = commands.run(["sh", "-c", f"sleep 86400 & echo $! >{child}; wait"], self.folder / "log", 2)
        self.assertIsNone(done.code)
        process = Path(f"/proc/{int(child.read_text())}")
        eventually(lambda: not process.exists())  # it exists until init reaps it

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
        """Asks a fake libcuda whose functions have the arguments that cuda.h declares."""
        source = self.script("fake.c", FAKE_DRIVER)
        library = str(self.folder / "libcuda.so.1")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True, timeout=HANG)
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

    def test_where_a_python_keeps_its_packages(self) -> None:
        self.assertIn(sysconfig.get_path("purelib"), host._site_packages(sys.executable))

    def test_folders_that_pytorch_uses_come_first(self) -> None:
        """PyTorch may load libraries from outside its wheels. It reports their paths with links resolved."""
        for name in ("own/libcudnn.so.9", "site/nvidia/cudnn/lib/libcudnn.so.9"):
            self.script(name, "")
        maps = f"echo {self.folder}/own/libcudnn.so.9.19.0; echo /lib/libc.so.6"
        python = self.script("python", f"#!/bin/sh\ncase $2 in *maps*) {maps};; *) echo {self.folder}/site;; esac\n")
        found = host.library_folders([str(python)], ())
        self.assertEqual(found, [str(self.folder / "own"), str(self.folder / "site/nvidia/cudnn/lib")])

    def test_a_python_without_torch(self) -> None:
        python = self.script("python", "#!/bin/sh\nexit 1\n")
        self.assertIn("--python", host.find_torch(str(python)))

    def test_the_name_of_a_devices_file(self) -> None:
        self.assertEqual(host.Gpu("NVIDIA H200", "9.0", 1, "13.0").file_name(), "h200")
        self.assertEqual(host.Gpu("NVIDIA A100-SXM4-80GB", "8.0", 1, "13.0").file_name(), "a100-sxm4-80gb")


PROPERTIES = {"LABELS": ["gpu"], "TIMEOUT": 30.0, "ENVIRONMENT": ["A=1=2"]}
X = {"name": "x", "command": ["/b/x", "-n"]}
X["properties"] = [{"name": name, "value": value} for name, value in PROPERTIES.items()]
LISTING = {"tests": [X, {"name": "y", "command": ["/b/y"], "properties": [{"name": "LABELS", "value": ["unit"]}]}]}


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


HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))


@unittest.skipUnless(HVD_BENCH.exists(), f"needs {HVD_BENCH}")
class RealProgramTest(Folder):
    """The real hvd_bench must accept the arguments that the parts pass to it."""

    def visit(self, sizes: visit.Sizes) -> visit.Visit:
        place = Place(self.folder, HVD_BENCH.resolve().parent, None)
        here = visit.Visit(place, self.folder, sizes, None, "no PyTorch", [], None, lambda _: None)
        here.part, here.part_ends = "here", time.monotonic() + 100
        here.environment["CUDA_VISIBLE_DEVICES"] = ""  # hides the GPUs of the host
        return here

    def test_every_option_is_understood_and_only_the_gpu_is_missing(self) -> None:
        runs = [training.training("bf16", "vgg16"), training.replay("resnet101"), training.resnet50(400)]
        runs += [training.ways(training.LAUNCH, "inception3")]
        for run in runs:
            with self.assertRaisesRegex(visit.PartFailed, "^hvd_bench: error: --device cuda: "):
                run(self.visit(visit.ON_THE_GPU))

    def test_an_option_that_it_does_not_know_would_be_found_here(self) -> None:
        sizes = dataclasses.replace(visit.ON_THE_GPU, training=("--no-cuda-graphs",))
        with self.assertRaisesRegex(visit.PartFailed, "--no-cuda-graphs: there is no such option"):
            training.training("fp16", "vgg16")(self.visit(sizes))

    def test_train_step_bench_understands_its_options(self) -> None:
        if not HVD_BENCH.with_name("train_step_bench").exists():
            self.skipTest("needs train_step_bench")
        for make in (training.profile, training.choices, training.sweep):
            with self.assertRaisesRegex(visit.PartFailed, "^no GPU can be used: "):
                make("bf16", "vgg16")(self.visit(visit.ON_THE_GPU))

    def test_on_the_cpu_they_train_and_record(self) -> None:
        here = self.visit(visit.ON_THE_CPU)
        self.assertRegex(training.training("fp32", "resnet50")(here), r"^[0-9]+ img/s, batch 2$")
        self.assertEqual(training.replay("resnet50")(here), "resnet50-fp32.txt")
        recorded = str(self.folder / "replay" / "resnet50-fp32.txt")
        again = here.run("again", [str(HVD_BENCH), "--replay", recorded, "--num-iters", "2", "--no-db"])
        self.assertEqual(again.code, 0, again.output)


@unittest.skipUnless(HVD_BENCH.exists() and shutil.which("mpirun"), f"needs {HVD_BENCH} and mpirun")
class StoppedRankTest(unittest.TestCase):
    def test_the_other_rank_is_seen_to_end(self) -> None:
        """stop_a_rank.py stops a rank of the real program, which runs on the CPU."""
        command = [sys.executable, SCRIPTS / "maintain" / "gpucheck" / "stop_a_rank.py", 90, "mpirun", "-n", 2]
        command += [str(HVD_BENCH), "--model", "resnet50", "--image-size", "32", "--batch-size", "2", "--threads", "1"]
        command += ["--num-iters", "1000000", "--num-warmup-batches", "1", "--max-time", "600", "--no-check", "--no-db"]
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")
        environment = {**os.environ, **dict.fromkeys(names, "1")}
        environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        command += ["--device", "cpu", "--deadline-seconds", "3"]
        done = execute(*command, env=environment, timeout=HANG, code=0)
        self.assertRegex(
            done.stdout.splitlines()[-1], r"^rank 1 was stopped: the run ended \d+\.\d s later and named it$"
        )


CUDNN_DEVICE = HVD_BENCH.with_name("cudnn_device")
DEVICES = REPOSITORY / "tests" / "cudnn" / "devices"


@unittest.skipUnless(CUDNN_DEVICE.exists(), f"needs {CUDNN_DEVICE}")
class CudnnDeviceTest(unittest.TestCase):
    def cudnn_device(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = execute(CUDNN_DEVICE, *arguments)
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
    def gpu_check(self, *arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return execute(SCRIPTS / "maintain" / "gpu_check", *arguments, code=code)

    def test_usage(self) -> None:
        wrong = [["doctor"], ["here", "dcotor"], ["--no-such-option"], ["--winners", "/none"]]
        wrong += [["--call", "4"], ["--nccl", "/none"]]
        wrong += [["--minutes", text] for text in ("0", "nan", "inf", "1e306")]
        for arguments in wrong:
            done = self.gpu_check(*arguments, code=2)
            self.assertIn("gpu_check: error: ", done.stderr.splitlines()[-1])

    def test_output_that_goes_nowhere(self) -> None:
        program = shlex.quote(str(SCRIPTS / "maintain" / "gpu_check"))
        for where, code, lines in ((">&-", 2, 1), (">/dev/full", 2, 1), ("| head -1", 0, 0)):
            command = f"set -o pipefail; {program} --list {where}"
            done = execute("bash", "-c", command)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (code, lines), done.stderr)

    def listed(self, *arguments: str) -> list[str]:
        """Returns the parts that gpu_check --list marks as planned."""
        lines = self.gpu_check("--list", *arguments).stdout.splitlines()
        self.assertIn("estimates", lines[-1])
        return [line.split()[1] for line in lines[:-1] if line.startswith("*")]

    def test_each_call_of_a_visit_fits_into_nine_minutes(self) -> None:
        parts = parts_for(visit.ON_THE_GPU)
        self.assertEqual({part.call for part in parts}, set(CALLS))
        for call in CALLS:
            own = [part.estimate for part in parts if part.call == call]
            self.assertLessEqual(sum(estimate.seconds for estimate in own) + CLOSING_SECONDS, 9 * 60)
            self.assertEqual(self.listed("--call", str(call))[: len(own)], [estimate.part for estimate in own])

    def test_what_each_call_is_for(self) -> None:
        first, second, third = ([p.estimate.part for p in parts_for(visit.ON_THE_GPU) if p.call == n] for n in CALLS)
        cells = [f"{dtype}-{model}" for dtype in ("fp16", "bf16") for model in visit.MODELS]
        expected = ["devices", "doctor", *(f"launch-{model}" for model in visit.MODELS)]
        expected += ["resnet50-fp16-256", "resnet50-fp16-400"]
        expected += [f"{name}-{cell}" for name in ("train", "profile") for cell in cells]
        expected += [*(f"replay-{model}" for model in visit.MODELS), "choices-bf16-vgg16", "nccl", "tests"]
        self.assertEqual(first, [*expected, "memcheck", "racecheck", "initcheck", "synccheck"])
        self.assertEqual(second[0], "autotune-bf16-resnet101")
        self.assertEqual(second[1:], [f"quick-{cell}" for cell in cells if cell != "bf16-resnet101"])
        expected = [f"{name}-{model}" for name in ("sweep-fp16", "train-tf32") for model in visit.MODELS]
        self.assertEqual(third, [*expected, "autotune-bf16-vgg16", "quick-tf32-resnet101", "quick-bf16-resnet101"])

    def test_estimates_are_what_was_measured(self) -> None:
        """Compares estimates with the times of the second visit, on an H200. Estimates leave room for a slower host."""
        file = REPOSITORY / "results" / "recorded" / "2026-11-22-h200-second" / "summary.json"
        measured = {row["part"]: row["seconds"] for row in json.loads(file.read_text()) if row["result"] == "good"}
        estimates = {part.estimate.part: part.estimate.seconds for part in parts_for(visit.ON_THE_GPU)}
        known = set(measured) & set(estimates)
        self.assertGreater(len(known), 25)
        for kind in ("quick", "train", "profile", "replay", "launch", "tests"):
            names = [name for name in known if name.startswith(kind)]
            took, thought = (sum(times[name] for name in names) for times in (measured, estimates))
            self.assertLessEqual(took, thought, kind)
            self.assertLessEqual(thought, 1.7 * took, kind)

    def test_the_plan_of_a_visit(self) -> None:
        done = self.gpu_check("--plan")
        command = "scripts/maintain/gpu_check results --call "
        heads = [line for line in done.stdout.splitlines() if line.startswith(command)]
        self.assertEqual((done.returncode, len(heads)), (0, 3))
        for head in heads:
            self.assertRegex(head, r" --call [123]: \d+ parts, about 8:\d\d of 9:00$")
        self.assertRegex(done.stdout, r"(?m)^  quick-fp16-vgg16 +45 s  vgg16 in fp16 beside torch.compile, batch 256$")

    def test_a_later_call_has_what_an_earlier_one_lacks_behind_its_own(self) -> None:
        names = [part.estimate.part for part in parts_of_call(parts_for(visit.ON_THE_GPU), 2)]
        self.assertEqual((names[0], names[6], names[-1]), ("autotune-bf16-resnet101", "devices", "synccheck"))
        self.assertNotIn("sweep-fp16-vgg16", names)

    @unittest.skipIf(isinstance(host.find_gpu(), host.Gpu), "there is a GPU")
    def test_without_a_gpu_it_says_so_and_writes_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            done = self.gpu_check(f"{scratch}/out")
            written = os.listdir(scratch)
        if "no programs in" in done.stderr:
            self.skipTest("needs build/release")
        self.assertEqual((done.returncode, written), (3, []))
        self.assertRegex(done.stderr, r"^gpu_check: no GPU: .*; nothing was run\n$")
