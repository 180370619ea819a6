"""Tests gpu_check on a fake bundle of shell scripts, and the arguments of its parts on the real programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path
from unittest import mock

from harness import SCRIPTS, FolderTest, eventually, executable, execute
from synthetic_store import REPOSITORY

from maintain import gpu_check
from maintain.gpu_check import CANNOT, CUT, FAILED, GOOD, NOT_YET, PARTS, PARTS_OF_SEVERAL, Part, Words

HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
NAMES = [part.name for part in PARTS]
FOUR_GPUS = "#!/bin/sh\ncase $* in *list-gpus*) printf '1\\n2\\n3\\n4\\n'; exit;; esac\n"
NVIDIA_SMI = '#!/bin/sh\ncase "$*" in *query*) echo "%s, 143771 MiB, 580.65, 1980 MHz, 700 W";; *) echo report;; esac\n'
PROGRAM = """#!/bin/sh
echo "$LD_LIBRARY_PATH" "$NCCL_MULTI_RANK_GPU_ENABLE"
echo "fit to measure: 0 faults"
echo "total images/sec: 42.5"
case "$*" in *--efficiency*) echo "scaling: efficiency 93.5 % [92.4, 94.4], round by round";; esac
echo "# Avg bus bandwidth    : 123.4"
case $0 in *comm_nccl*) [ -n "$NCCL_MULTI_RANK_GPU_ENABLE" ] || { echo "[  PASSED  ] 0 tests."; exit 0; } ;; esac
echo "[  PASSED  ] 12 tests."
"""
# In the runs with a lost rank, a sleep takes the place of rank 1. The script waits until it is stopped or killed.
MPIRUN = """#!/bin/sh
ranks=$2
shift 2
[ "$1" != --bind-to ] || shift 2
case "$*" in *--deadline-seconds*)
  OMPI_COMM_WORLD_RANK=1 sleep 86400 >/dev/null 2>&1 &
  echo "measuring full: step 3"
  while kill -0 $! 2>/dev/null && ! grep -q "^State:.T" /proc/$!/status; do sleep 0.02; done
  echo "hvd_bench: error: rank 0 waited for rank 1 of $ranks"
  kill -0 $! 2>/dev/null && exit 5
  exit 137;;
esac
exec "$@"
"""
COMPARISON = """#!/usr/bin/env python3
import pathlib, sys
words = dict(zip(sys.argv, sys.argv[1:]))
if "--json" in words:
    pathlib.Path(words["--json"]).write_text("[]")
print("against 1.15 x the fastest peer")
print("vgg16 fp16 reached 1.29 x [1.27, 1.31] beside torch compile")
"""
NCCL = "int ncclGetVersion(int* version) { *version = %d; return 0; }\n"
TORCH = """
import os, pathlib, sys, time
__version__ = "2.9"
if sys.argv[0] != "-c":  # PyTorch's side of a comparison
    pathlib.Path(%r).write_text(str(os.getpid()))
    time.sleep(86400)
"""
BUSY = "#!/bin/sh\n[ $1 = doctor ] && echo 'fit to measure' && exit 0; echo $$ >%s; exec sleep 86400\n"


class VisitTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.root, self.out = self.folder / "bundle", self.folder / "out"
        for name in ("lib", "maintain", "hvdb"):
            shutil.copytree(SCRIPTS / name, self.root / "scripts" / name)
        for name in ("hvd_bench", *gpu_check.GPU_TESTS):
            self.program(name, PROGRAM)
        self.program("train_step_bench", "#!/bin/sh\necho 'vgg16 fp16, level 2: 30.4 img/s (median of 60 steps)'\n")
        self.program("cudnn_device", '#!/bin/sh\necho \'{"deviceName": "NVIDIA H200"}\'\n')
        self.program("mpirun", MPIRUN)
        self.program("compute-sanitizer", '#!/bin/sh\nwhile [ "$1" != 9 ]; do shift; done; shift; exec "$@"\n')
        (self.comparison,) = (word for word in gpu_check.TORCH_GPU.split() if word.startswith("{root}"))
        executable(Path(self.comparison.format(root=self.root)), COMPARISON)
        executable(self.folder / "site/torch.py", "__version__ = '2.9'")
        executable(self.folder / "site/torchvision.py", "import torch")
        executable(self.folder / "path/nvidia-smi", NVIDIA_SMI % "NVIDIA H200")

    def program(self, name: str, text: str) -> None:
        executable(self.root / "bin" / name, text)

    def nccl(self, version: int) -> Path:
        """Returns the folder of an unpacked wheel with an NCCL of this version."""
        source = executable(self.folder / f"{version}/nvidia/nccl/lib/nccl.c", NCCL % version)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", source.with_name("libnccl.so.2"), source], check=True)
        return self.folder / str(version)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [self.root / "scripts/maintain/gpu_check", self.out, *arguments]
        paths = {"PATH": f"{self.folder}/path:{os.environ['PATH']}", "PYTHONPATH": f"{self.folder}/site"}
        environment = {**os.environ, **paths, "HVD_PYTHON": sys.executable}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([str(word) for word in command], env=environment, text=True, **pipes)

    def visit(self, *arguments: object) -> tuple[int, dict[str, str], str]:
        """Returns the exit code, each part's result, and the output."""
        process = self.start(*arguments)
        output, _ = process.communicate()
        return process.returncode, {name: row["result"] for name, row in self.rows().items()}, output

    def rows(self) -> dict[str, dict]:
        summary = self.out / "summary.json"
        return {row["part"]: row for row in json.loads(summary.read_text())} if summary.exists() else {}

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_three_calls_make_a_visit(self) -> None:
        executable(self.folder / "old/a.winners", "of old")
        self.assertEqual(self.visit("nccl", "--nccl", self.nccl(22809) / "nvidia/nccl/lib")[1], {"nccl": CANNOT})
        wheel = shutil.make_archive(str(self.folder / "nccl"), "zip", self.nccl(23007))
        code, rows, text = self.visit("--call", 1, "--winners", self.folder / "old", "--nccl", wheel)
        self.assertEqual((code, set(rows.values())), (0, {GOOD}), text)
        self.assertEqual(set(rows), {part.name for part in PARTS if part.call == 1})
        self.assertEqual(self.visit("--call", 2)[0], 0)
        code, rows, text = self.visit("--call", 3)
        self.assertEqual((code, set(rows), set(rows.values())), (0, set(NAMES), {GOOD}), text)
        self.assertNotIn("missing", text)
        machine = json.loads((self.out / "machine.json").read_text())
        self.assertEqual([call["gpu"][0] for call in machine], 4 * ["NVIDIA H200"])
        self.assertEqual((machine[1]["torch"], list(machine[1]["nccl"].values())), ("2.9", [23007]))
        names = ("summary.txt", "winners/a.winners", "quick-fp16-vgg16.json", "tests-gpu_cuda_test.txt")
        with tarfile.open(self.folder / "out.tar.gz") as archive:
            self.assertLessEqual({f"out/{name}" for name in names}, set(archive.getnames()))
        rows = {name: row["reason"] for name, row in self.rows().items()}
        self.assertEqual(rows["devices"], "NVIDIA H200")
        self.assertEqual(rows["sweep-fp16-vgg16"], "64 30.4; 128 30.4; 384 30.4; 512 30.4")
        self.assertEqual(rows["quick-fp16-vgg16"], "1.29 x [1.27, 1.31] beside torch compile")
        self.assertRegex(rows["nccl"], "; stopped-rank error: rank 0 waited for rank 1 of 2$")
        self.assertRegex((self.out / "nccl-two-ranks.txt").read_text(), r"out\.nccl/nvidia/nccl/lib:\S* 1\n")
        before = self.rows()
        self.assertEqual((self.visit()[0], self.rows()), (0, before))  # nothing is left to run

    def test_a_host_with_several_gpus_needs_one_command(self) -> None:
        self.assertEqual(self.visit("--several")[0], 3, "one GPU")
        self.assertFalse(self.out.exists())
        executable(self.folder / "path/nvidia-smi", FOUR_GPUS + NVIDIA_SMI.partition("\n")[2] % "NVIDIA H100")
        code, rows, text = self.visit("--several")
        self.assertEqual(rows.pop("several-nccl-tests"), CANNOT, text)
        self.assertIn("there is no all_reduce_perf here", text)
        self.assertEqual((code, set(rows.values())), (3, {GOOD}), text)
        executable(self.folder / "path/all_reduce_perf", PROGRAM)
        code, rows, text = self.visit("--several")
        self.assertEqual((code, list(rows)), (0, [part.name for part in PARTS_OF_SEVERAL]), text)
        rows = {name: row["reason"] for name, row in self.rows().items()}
        one, lost = "93.5 % [92.4, 94.4]", "error: rank 0 waited for rank 1 of 4"
        self.assertEqual(rows["several-fp16-vgg16"], f"1 42.5; 2 {one}; 4 {one}", "no 8 ranks on 4 GPUs")
        self.assertEqual(rows["several-nccl-tests"], "sizes 123.4; graph 123.4; coll 123.4")
        self.assertEqual(rows["several-faults"], f"killed-rank {lost}; stopped-rank {lost}")

    def test_a_failing_part_and_a_missing_program_do_not_stop_the_others(self) -> None:
        self.program("hvd_bench", "#!/bin/sh\necho total images/sec: 9; [ $1 != doctor ] || { echo unfit; exit 1; }\n")
        (self.root / "bin/compute-sanitizer").unlink()
        (self.folder / "site/torchvision.py").unlink()
        self.program("gpu_cuda_test", "#!/bin/sh\necho '[  PASSED  ] 0 tests.'; echo '[  SKIPPED ] 1 test'")
        asked = ("doctor", "sanitizers", "tests", "quick-fp16-vgg16", "train-fp16-vgg16")
        code, rows, text = self.visit(*asked)
        self.assertEqual(code, 1)
        self.assertEqual([rows[name] for name in asked], [FAILED, CANNOT, CANNOT, CANNOT, GOOD])
        self.assertIn("doctor: FAILED: exit code 1: unfit\n", text)
        self.assertIn("there is no compute-sanitizer here", text)
        self.assertIn("there is no Python with PyTorch 2 and torchvision (HVD_PYTHON) here", text)
        self.assertEqual(json.loads((self.out / "machine.json").read_text())[0]["torch"], "2.9")
        self.assertIn("missing: tests, sanitizers, quick-fp16-vgg16;", text)
        self.program("gpu_cuda_test", PROGRAM)
        (self.root / "bin/hvd_bench").unlink()  # a failure is a result, which later calls do not try again
        self.assertEqual(self.visit("doctor", "tests")[:1], (1,))
        self.assertEqual(self.rows()["tests"]["result"], GOOD)

    def test_killed_it_leaves_what_is_finished_and_the_next_call_goes_on(self) -> None:
        for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 7)):
            child = self.folder / f"child{code}"
            self.program("hvd_bench", BUSY % child)
            process = self.start("doctor", "train-fp16-vgg16", "choices-*")
            eventually(lambda child=child: child.exists() and child.read_text().strip())
            process.send_signal(number)
            process.communicate()
            self.assertEqual(process.returncode, code)
            eventually(lambda child=child: not Path("/proc", child.read_text().strip()).exists())
            results = {name: row["result"] for name, row in self.rows().items()}
            self.assertEqual(results, {"doctor": GOOD, "train-fp16-vgg16": CUT, "choices-bf16-vgg16": NOT_YET})
        self.assertTrue((self.folder / "out.tar.gz").exists())
        self.program("hvd_bench", PROGRAM)
        code, rows, _ = self.visit("doctor", "train-fp16-vgg16", "choices-*")
        self.assertEqual((code, set(rows.values())), (0, {GOOD}))
        self.assertEqual([row["call"] for row in self.rows().values()], [1, 3, 3])

    def test_killed_it_leaves_no_side_of_a_comparison(self) -> None:
        child = self.folder / "child"
        executable(self.folder / "site/torch.py", TORCH % str(child))
        shutil.copy(self.comparison.format(root=REPOSITORY), self.comparison.format(root=self.root))
        process = self.start("quick-fp16-vgg16")
        eventually(lambda: child.exists() and child.read_text())
        process.kill()
        process.communicate()
        eventually(lambda: not Path("/proc", child.read_text()).exists())

    def test_what_does_not_fit_into_the_time_is_left_out(self) -> None:
        code, rows, text = self.visit("doctor", "nccl", "--minutes", 1)
        self.assertEqual((code, rows), (3, {"doctor": GOOD, "nccl": NOT_YET}), text)

    def test_other_folders_are_refused(self) -> None:
        self.assertEqual(self.visit("doctor")[0], 0)
        executable(self.folder / "path/nvidia-smi", NVIDIA_SMI % "NVIDIA A100")
        code, _, text = self.visit("doctor")
        self.assertEqual((code, len(text.splitlines())), (2, 1))
        self.assertIn("has results of another GPU (NVIDIA H200, ", text)
        (self.out / "machine.json").unlink()
        self.assertIn("is not empty, and not of an earlier call", self.visit("doctor")[2])

    def test_bad_arguments(self) -> None:
        wrong = [["dcotor"], ["--call", 4], ["--nccl", "/none"], ["--winners", "/none"], ["--minutes", 0]]
        for arguments in (
            *wrong,
            ["--several", "--call", 1],
            ["several-*"],
            ["sweep-*", "--call", 1],
            ["--minutes", "nan"],
        ):
            code, _, text = self.visit(*arguments)
            self.assertEqual((code, self.out.exists()), (2, False), text)
            self.assertIn("gpu_check: error: ", text.splitlines()[-1])

    def test_without_a_gpu_it_says_so_in_one_line(self) -> None:
        executable(self.folder / "path/nvidia-smi", "#!/bin/sh\nexit 9\n")
        code, _, text = self.visit("--call", 1)
        self.assertEqual((code, text), (3, "gpu_check: no GPU: nvidia-smi shows none; nothing was run\n"))


class PartsTest(FolderTest):
    def words(self, **more: str) -> Words:
        return Words(root=str(REPOSITORY), out=str(self.folder), libraries="", **more)

    def test_only_a_batch_of_a_sweep_may_lack_memory(self) -> None:
        sweep, launch = Part("sweep-fp16-vgg16", 3, 1, 1, {}), Part("launch-fp16-vgg16", 1, 1, 1, {})
        fits = ("64", 0, "total images/sec: 42.5")
        lacks = ("512", gpu_check.OUT_OF_MEMORY, "error: activations: not enough memory on the GPU")
        self.assertEqual(gpu_check.judge(sweep, [fits, lacks]), (GOOD, "64 42.5; 512 no memory"))
        broken = ("512", gpu_check.OUT_OF_MEMORY, "error: cuDNN: execution failed")  # a backend's exit code is the same
        self.assertEqual(gpu_check.judge(sweep, [fits, broken])[0], FAILED)
        self.assertEqual(gpu_check.judge(launch, [fits, lacks])[0], FAILED)

    def test_a_part_that_hangs_is_ended_with_its_children(self) -> None:
        child = self.folder / "child"
        part = Part("hangs", 1, 1, 2, {"": f"sh -c 'echo begun; sleep 86400 & echo $! >{child}; wait'"})
        self.assertEqual(gpu_check.run_part(part, self.words(), 100), (FAILED, "no end in time: begun"))
        eventually(lambda: not Path("/proc", child.read_text().strip()).exists())
        self.assertEqual(gpu_check.run_part(part, self.words(), 1)[0], CUT)  # the call's time ended, not the part's

    def test_each_call_fits_into_nine_minutes(self) -> None:
        plan = execute(SCRIPTS / "maintain/gpu_check", "--plan", code=0).stdout
        self.assertEqual(re.findall(r"--call (\d): about 8:\d\d of 9:00", plan), ["1", "2", "3"])
        for name in NAMES:
            self.assertIn(f"  {name} ", plan)

    @unittest.skipUnless(HVD_BENCH.with_name("train_step_bench").exists(), f"needs {HVD_BENCH} and train_step_bench")
    def test_the_programs_know_their_arguments_and_miss_only_the_gpu(self) -> None:
        programs = {name: str(HVD_BENCH.with_name(name)) for name in ("hvd_bench", "train_step_bench")}
        executable(self.folder / "mpirun", '#!/bin/sh\nshift 4\nexec "$@"\n')
        words = self.words(**programs, torch=sys.executable, gpus="4", mpirun=str(self.folder / "mpirun"))
        without_gpus = mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""})
        without_gpus.start()
        self.addCleanup(without_gpus.stop)
        for part in (*PARTS, *PARTS_OF_SEVERAL):
            if re.match("launch|train|replay|profile|choices|sweep|several-(fp16|coll|faults)", part.name):
                result, text = gpu_check.run_part(part, words, 100)
                self.assertEqual(result, FAILED)
                self.assertRegex(text, "exit code 2: (hvd_bench: error: --device cuda: |no GPU can be used)")
            elif part.name in ("quick-fp16-vgg16", "autotune-bf16-vgg16"):  # here PyTorch does not start
                self.assertEqual(gpu_check.run_part(part, words, 100)[0], CANNOT, part.name)

    @unittest.skipUnless(HVD_BENCH.exists() and shutil.which("mpirun"), f"needs {HVD_BENCH} and mpirun")
    def test_the_real_program_names_a_stopped_rank(self) -> None:
        command = f"mpirun -n 2 {HVD_BENCH.resolve()} --model resnet50 --image-size 32 --batch-size 2 --threads 1"
        command += " --no-db --num-iters 1000000 --num-warmup-batches 1 --max-time 600 --no-check --deadline-seconds 3"
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")
        environment = {**dict.fromkeys(names, "1"), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        part = Part("nccl", 1, 1, 300, {gpu_check.STOPPED: command}, environment=environment)
        result, text = gpu_check.run_part(part, self.words(), 300)
        self.assertEqual(result, GOOD, text)
