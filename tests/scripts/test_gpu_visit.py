"""Tests one call of gpu_check on a bundle of shell scripts: the result of each part, and the files that are left."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import unittest
import zipfile
from unittest import mock

from limits import HANG

from gpu_visits import FAILED, GTEST, PASSED, SKIPPED, Visited
from harness import SCRIPTS

from maintain.gpucheck import __main__ as program
from maintain.gpucheck import checks, comparing, ctest, host, nccl, parts, visit
from maintain.gpucheck.place import Place, find_place
from maintain.gpucheck.schedule import Estimate

sys.path.insert(0, str(SCRIPTS / "maintain" / "peers"))
import compare_gpu

# Stands in for compare_gpu.py. told.json gives the row that this program writes and its exit code. With --report, this
# program prints the names of the files that it got.
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
if "--clocks" in arguments:
    pathlib.Path(arguments[arguments.index("--clocks") + 1]).write_text("clocks")
print(arguments)
sys.exit(told["code"])
"""


# Stands in for mpirun. In the run with a stopped rank, a sleep takes the place of rank 1. The script waits until the
# sleep is stopped.
ENDS_WELL = 'echo "hvd_bench: error: rank 0 waited for rank 1"; exit 5'
FAKE_MPIRUN = f"""#!/bin/sh
echo "$NCCL_MULTI_RANK_GPU_ENABLE" "$@"
case "$*" in *--deadline-seconds*)
  OMPI_COMM_WORLD_RANK=1 sleep 60 >/dev/null 2>&1 &
  sleep 0.2
  echo "measuring full: step 3"
  until grep -q "^State:.T" /proc/$!/status; do sleep 0.02; done
  {ENDS_WELL};;
esac
shift 2; exec "$@"
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
        code, rows, text = self.visit("doctor", "train-*", "--minutes", "0.4")
        self.assertEqual(code, 3)
        self.assertEqual((rows["doctor"]["result"], rows["train-fp32-resnet50"]["result"]), ("good", "not yet"))
        self.assertEqual(rows["train-fp32-resnet50"]["reason"], "no time: 0:24 were given")
        self.assertIn("1 parts, about 0:02 of 0:24 (estimates): doctor 2 s", text)
        self.assertIn("missing: 1 of 2 parts, about 0:10 by estimate: train-fp32-resnet50\n", text)

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
    """Tests gpu_check with a pretended GPU."""

    device = "cuda"
    gpu = host.Gpu("NVIDIA H200", "9.0", 150121545728, "13.0")
    torch = (sys.executable, "2.9")

    def compared(self, code: int, troubles: tuple = (), missing: tuple = (), measured: bool = True) -> None:
        self.script("bundle/bin/train_step_bench", "")
        self.script("bundle/scripts/maintain/peers/compare_gpu.py", FAKE_COMPARISON)
        told = {"code": code, "measured": measured, "troubles": troubles, "missing": missing}
        self.script("bundle/scripts/maintain/peers/told.json", json.dumps(told))

    def test_the_comparison(self) -> None:
        self.compared(3, missing=("torch compile ended with exit code 1",))
        code, rows, text = self.visit("quick-fp16-vgg16", "autotune-bf16-vgg16", "train-fp16-vgg16")
        self.assertEqual(code, 0)
        expected = "1.23 x [1.20, 1.25] beside torch graph (torch compile ended with exit code 1)"
        self.assertEqual(rows["quick-fp16-vgg16"]["reason"], expected)
        quick = (self.folder / "out" / "quick-fp16-vgg16.txt").read_text()
        self.assertRegex(
            quick, r"--models vgg16 --dtypes fp16 --variants compile graph --device cuda --seconds [23]\d\d "
        )
        self.assertIn(f"--library-path {self.folder}/wheels", quick)
        self.assertRegex(quick, rf"--winners {self.folder}/out/winners ")
        self.assertRegex(quick, r"--batches 256 .*--compile-seconds 180 ")
        tuned = (self.folder / "out" / "autotune-bf16-vgg16.txt").read_text()
        self.assertRegex(tuned, r"--variants autotune .*--batches 256 .*--compile-seconds 300 ")
        self.assertEqual(rows["train-fp16-vgg16"]["reason"], "42 img/s, batch 256")
        self.assertIn("verdict of quick-fp16-vgg16.json autotune-bf16-vgg16.json\n", text)
        self.assertIn("verdict of quick-", (self.folder / "out" / "verdict.txt").read_text())
        # Beside each kept row there must be the row's log of clocks.
        for name in ("quick-fp16-vgg16", "autotune-bf16-vgg16"):
            self.assertEqual((self.folder / "out" / f"{name}.clocks.csv").read_text(), "clocks")

    def test_resnet50_is_said_beside_mlperf(self) -> None:
        code, rows, _ = self.visit("resnet50-*")
        self.assertEqual((code, list(rows)), (0, ["resnet50-fp16-256", "resnet50-fp16-400"]))
        expected = "42 img/s, batch 400; MLPerf Training v4.0, per GPU of 8 x H200: 7950 img/s"
        self.assertEqual(rows["resnet50-fp16-400"]["reason"], expected)
        text = (self.folder / "out" / "resnet50-fp16-400.txt").read_text()
        self.assertRegex(
            text, r"--model resnet50 --device cuda --dtype fp16 --batch-size 400 .*--tune --tuning-folder "
        )

    def test_steps_that_are_planned_in_several_ways(self) -> None:
        self.script(
            "bundle/bin/train_step_bench",
            """#!/bin/sh
case "$*" in *"bf16 "*--profile*) echo "no such type" >&2; exit 2;; *--profile*) n=20;;
  *"--images padded"*) n=31;; *"--batch 512"*) echo "needs 900 GiB" >&2; exit 8;; *"--batch 384"*) n=33;; *) n=30;; esac
echo "vgg16 batch 256 fp16, 1 threads, level 2: $n.4 img/s (median of 1 steps, best 40.2), 5 GFLOP/s, loss 1.0"
""",
        )
        code, rows, _ = self.visit("choices-bf16-vgg16", "profile-*-vgg16", "sweep-fp16-vgg16")
        self.assertEqual(code, 1)
        ways = "columns 30, padded 31, padded 31, columns 30"
        self.assertEqual(rows["choices-bf16-vgg16"]["reason"].replace(" img/s", ""), ways)
        self.assertEqual(rows["profile-fp16-vgg16"]["reason"], "20 img/s")
        self.assertEqual(rows["profile-bf16-vgg16"]["reason"], "no such type")
        swept = "batch 64 30 img/s, batch 128 30 img/s, batch 384 33 img/s, batch 512 no memory"
        self.assertEqual(rows["sweep-fp16-vgg16"]["reason"], swept)
        text = (self.folder / "out" / "choices-bf16-vgg16-1-padded.txt").read_text()
        self.assertRegex(text, r"--model vgg16 --dtype bf16 --batch 256 --winners .* --steps 60 --images padded\n")

    def test_compare_gpu_understands_what_it_is_given(self) -> None:
        self.compared(0)
        names = [f"{kind.name}-bf16-vgg16" for kind in comparing.KINDS]
        self.visit(*names)
        parsed = []
        for name in names:
            line = (self.folder / "out" / f"{name}.txt").read_text().splitlines()[0]
            with mock.patch.object(sys, "argv", shlex.split(line.removeprefix("$ "))[1:]):
                parsed.append(compare_gpu.parse_arguments())
        self.assertEqual([options.variants[0] for options in parsed], ["compile", "autotune"])
        self.assertEqual([list(options.batches) for options in parsed], [[256], [256]])
        self.assertEqual({options.dtypes[0] for options in parsed}, {"bf16"})
        # The peer of each comparison is the first variant of PyTorch that runs. The verdict counts the fastest of the
        # peers of all comparisons.
        self.assertEqual([options.first_variant_only for options in parsed], [True, True])
        self.assertEqual([options.clocks.suffix for options in parsed], [".partial", ".partial"])

    def test_a_comparison_with_trouble(self) -> None:
        self.compared(1, troubles=("ours: the loss is nan",))
        code, rows, _ = self.visit("quick-bf16-*")
        self.assertEqual(code, 1)
        self.assertEqual({row["reason"] for row in rows.values()}, {"ours: the loss is nan"})

    def test_torch_compile_that_cannot_work_is_no_failure(self) -> None:
        self.compared(3, missing=("torch compile: this host has no C compiler",), measured=False)
        code, rows, _ = self.visit("autotune-bf16-vgg16")
        self.assertEqual((code, rows["autotune-bf16-vgg16"]["result"]), (3, "cannot run"))
        self.assertEqual(rows["autotune-bf16-vgg16"]["reason"], "torch compile: this host has no C compiler")

    def test_a_comparison_that_lacked_time_is_not_finished(self) -> None:
        self.compared(3, missing=("torch graph: no time was left to start it",))
        code, rows, _ = self.visit("quick-fp16-vgg16", "--minutes", "5")
        self.assertEqual((code, rows["quick-fp16-vgg16"]["result"]), (3, "cut off"))
        code, rows, _ = self.visit("quick-fp16-vgg16")  # only the part's own time limit applies to this call
        self.assertEqual((code, rows["quick-fp16-vgg16"]["result"]), (0, "good"))

    def test_what_an_earlier_call_measured_stays_until_there_is_better(self) -> None:
        self.compared(0)
        self.visit("quick-fp16-vgg16")
        self.compared(1, troubles=("torch graph ended",), measured=False)
        code, _, _ = self.visit("quick-fp16-vgg16", "--again")
        (row,) = json.loads((self.folder / "out" / "quick-fp16-vgg16.json").read_text())
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

    def nccl_of(self, version: int, where: str = "wheels") -> None:
        """Makes an NCCL library that reports `version`, and passing tests of the engine."""
        source = self.script("nccl.c", f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}\n")
        library = self.folder / where / "libnccl.so.2"
        library.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=HANG)
        self.engine_tests(PASSED)

    def engine_tests(self, *cases: str) -> None:
        test = GTEST % (",".join(cases), 0)
        said = 'echo "$LD_LIBRARY_PATH $NCCL_MULTI_RANK_GPU_ENABLE $NCCL_MAX_CTAS"\n'
        self.script("bundle/tests/device_engine_gpu_test", test.replace("#!/bin/sh\n", "#!/bin/sh\n" + said))
        names = ("device_engine_gpu_test", "x")
        tests = [ctest.GpuTest(name, [f"{{root}}/tests/{name}"], 5.0) for name in names]
        ctest.write(tests, self.root / "tests" / "tests.json")
        self.script("bundle/bin/mpirun", FAKE_MPIRUN)

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_two_ranks_on_one_gpu(self) -> None:
        self.nccl_of(23007)
        code, rows, text = self.visit("nccl")
        expected = "^NCCL 2.30.7: tests 1 passed, 0 failed, 0 skipped; ResNet-50 by two ranks 42 img/s; "
        expected += r"rank 1 was stopped: the run ended \d\.\d s later and named it$"
        self.assertEqual(code, 0, text + rows["nccl"]["reason"])
        self.assertRegex(rows["nccl"]["reason"], expected)
        said = (self.folder / "out" / "tests" / "nccl-device_engine_gpu_test.txt").read_text()
        self.assertRegex(said, rf"\n{self.folder}/wheels:\S* 1 4\n")
        ran = (self.folder / "out" / "nccl-two-ranks.txt").read_text()
        self.assertRegex(ran, r"\n1 -n 2 \S+/hvd_bench --model resnet50 .*--comm nccl --share-gpus --nccl-max-ctas 4 ")

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_an_nccl_that_is_too_old_is_a_reason_and_one_can_be_given(self) -> None:
        self.nccl_of(22809)
        code, rows, _ = self.visit("nccl")
        self.assertEqual((code, rows["nccl"]["result"]), (3, "cannot run"))
        self.assertIn(
            "NCCL here is 2.28.9; two ranks on one GPU need 2.30: give it with --nccl", rows["nccl"]["reason"]
        )
        self.nccl_of(23004, "given")
        self.assertEqual(self.visit("nccl", "--nccl", str(self.folder / "given"))[0], 0)
        wheel = self.folder / "nvidia_nccl_cu13.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(self.folder / "given" / "libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2")
        code, rows, _ = self.visit("nccl", "--nccl", str(wheel), "--again")
        self.assertEqual((code, rows["nccl"]["reason"][:12]), (0, "NCCL 2.30.4:"))
        wheel.write_text("no wheel")
        code, rows, _ = self.visit("nccl", "--nccl", str(wheel), "--again")
        self.assertEqual(code, 3)
        self.assertIn("is neither a folder nor a wheel with libnccl.so.2", rows["nccl"]["reason"])

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_two_ranks_that_were_skipped_are_not_good(self) -> None:
        self.nccl_of(23007)
        self.engine_tests(PASSED, SKIPPED)
        code, rows, _ = self.visit("nccl")
        self.assertEqual((code, rows["nccl"]["result"]), (3, "cannot run"))
        self.assertIn("1 passed, 0 failed, 1 skipped", rows["nccl"]["reason"])

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_a_rank_that_does_not_notice_a_stopped_one_is_a_failure(self) -> None:
        self.nccl_of(23007)
        for after, words in (
            ("exit 0", "rank 1 was stopped, and the exit code was 0, not 5: abort hung, or was not told"),
            ("exit 5", "rank 1 was stopped, and nothing names it"),
            ("sleep 60", "rank 1 was stopped, and the exit code was -9, not 5: abort hung, or was not told"),
        ):
            self.script("bundle/bin/mpirun", FAKE_MPIRUN.replace(ENDS_WELL, after))
            with mock.patch.object(nccl, "WATCH_SECONDS", 2.0):
                code, rows, _ = self.visit("nccl", "--again")
            self.assertEqual((code, rows["nccl"]["result"]), (1, "FAILED"))
            self.assertIn(words, rows["nccl"]["reason"])

    def test_without_nccl(self) -> None:
        code, rows, _ = self.visit("nccl")
        self.assertEqual((code, rows["nccl"]["result"]), (3, "cannot run"))
        self.assertIn("there is no libnccl.so.2 here; ", rows["nccl"]["reason"])

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
