"""Tests gpu_check over several calls. Each call continues where the previous call stopped and keeps finished parts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from limits import HANG

from gpu_visits import PASSED, Visited
from harness import SCRIPTS, eventually, execute

from hvdb import whole_file
from maintain.gpucheck import __main__ as program
from maintain.gpucheck import checks, ctest, host, parts, schedule
from maintain.gpucheck.ledger import Ledger
from maintain.gpucheck.schedule import Estimate, Outcome, Result

# Runs gpu_check on the test's bundle in a process that can be killed. gpu_check is made to believe that the process's
# Python has PyTorch. The arguments are the bundle and the arguments of gpu_check.
ALONE = """
import pathlib, sys
sys.path.insert(0, {scripts!r})
from maintain.gpucheck import __main__ as program, host
program.ROOT = pathlib.Path(sys.argv.pop(1))
host.find_torch = lambda given: (sys.executable, "fake")
sys.exit(program.main())
"""
# Stands in for gpu_torch.py. Writes its process id to `child`, and takes very long for its first answer.
BUSY = """
import os, pathlib, time
print("ready synthetic", flush=True)
input()
pathlib.Path({child!r}).write_text(str(os.getpid()))
time.sleep(120)
"""


class LedgerTest(Visited):
    PARTS = (Estimate("a", 10, 20), Estimate("quick", 5, 20), Estimate("sweep", 30, 60))

    def test_it_comes_back_as_it_was(self) -> None:
        Ledger(self.folder, self.PARTS).put(Outcome("a", Result.GOOD, 7.5, "fine", 10, "2026-01-01T00:00:00", 1))
        again = Ledger(self.folder, self.PARTS)
        self.assertEqual(again.results(), {"a": Result.GOOD})
        self.assertEqual([o.part for o in again.outcomes()], ["a", "quick", "sweep"])
        self.assertEqual(again.outcomes()[0].seconds, 7.5)
        (row, *_) = json.loads((self.folder / "summary.json").read_text())
        # The part's row has both the measured and the estimated time.
        self.assertEqual((row["seconds"], row["estimate_seconds"]), (7.5, 10))

    def test_what_was_not_asked_for_this_time_is_kept(self) -> None:
        Ledger(self.folder, self.PARTS).put(Outcome("a", Result.GOOD))
        Ledger(self.folder, self.PARTS[2:]).write()
        self.assertEqual(Ledger(self.folder, self.PARTS).results(), {"a": Result.GOOD})

    def test_a_file_that_is_not_ours(self) -> None:
        for text in ("{", "[]x", '[{"part": "a"}]', "[1]"):
            (self.folder / "summary.json").write_text(text)
            with self.assertRaisesRegex(ValueError, "not a summary of gpu_check"):
                Ledger(self.folder, self.PARTS)


class ResumeTest(Visited):
    def calls(self) -> list[str]:
        """Returns the commands of all calls of hvd_bench so far."""
        file = self.folder / "calls"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    def setUp(self) -> None:
        super().setUp()
        self.bench(f"echo \"$@\" >>{self.folder}/calls; echo 'total images/sec: 42.5'")

    def test_the_second_call_goes_on(self) -> None:
        code, rows, _ = self.visit("tests")
        self.assertEqual((code, self.calls()), (0, []))
        self.assertEqual(rows["tests"]["result"], "good")
        self.tests("not JSON: run again, they would fail")
        code, rows, text = self.visit("doctor", "train-*", "tests")
        self.assertEqual((code, self.calls()), (0, ["doctor", "--model"]))
        self.assertEqual([row["call"] for row in rows.values()], [2, 2, 1])
        self.assertNotIn("missing", text)
        machine = json.loads((self.folder / "out" / "machine.json").read_text())
        self.assertEqual(len(machine), 2)
        code, _, text = self.visit("doctor", "train-*", "tests")
        self.assertEqual((code, len(self.calls())), (0, 2))
        self.assertIn("0 parts, about 0:00 (estimates): nothing", text)

    def test_again_repeats(self) -> None:
        self.visit("doctor")
        self.visit("doctor", "--again")
        self.assertEqual(self.calls(), ["doctor", "doctor"])

    def test_a_failure_is_a_result_and_not_repeated_by_itself(self) -> None:
        self.bench(f"echo doctor >>{self.folder}/calls; echo unfit; exit 1")
        self.assertEqual(self.visit("doctor")[0], 1)
        self.assertEqual(self.visit("doctor")[0], 1)
        self.assertEqual(self.calls(), ["doctor"])

    def test_what_the_end_of_the_call_cut_off_is_done_again(self) -> None:
        """The part takes 60 s, but the first call has only about 15 s left for it."""
        self.bench("sleep 60")
        part = parts.Part(Estimate("doctor", 0.1, 60), "hangs", checks.doctor)
        with (
            mock.patch.object(program, "parts_for", return_value=[part]),
            mock.patch.object(schedule, "CLOSING_SECONDS", 1.0),
        ):
            code, rows, _ = self.visit("doctor", "--minutes", str(16 / 60))
            self.assertEqual((code, rows["doctor"]["result"]), (3, "cut off"))
            self.assertRegex(rows["doctor"]["reason"], "^time limit of 1?[0-9] s; ")
            self.bench("echo well")
            code, rows, _ = self.visit("doctor")
        self.assertEqual((code, rows["doctor"]["reason"]), (0, "well"))

    def test_killed_at_once_it_leaves_what_is_finished_and_no_program(self) -> None:
        self.bench(f"[ $1 = doctor ] && exit 0; echo $$ >{self.folder}/child; exec sleep 60")
        self.kill_when_busy("tests", "doctor", "train-*", "choices-*")
        text = (self.folder / "out" / "summary.txt").read_text()
        self.assertRegex(
            text, r"doctor +good .*\ntrain-fp32-resnet50 +cut off .*gpu_check ended.*\n(.*\n)*tests +not yet "
        )
        self.assertIn("missing: 3 of 4 parts", text)
        self.bench("echo 'total images/sec: 42.5'")
        code, rows, _ = self.visit("tests", "doctor", "train-*")
        self.assertEqual((code, [row["call"] for row in rows.values()]), (0, [1, 2, 2]))

    def test_killed_at_once_it_leaves_no_server_of_a_comparison(self) -> None:
        shutil.copytree(SCRIPTS / "maintain" / "peers", self.root / "scripts" / "maintain" / "peers")
        (self.root / "scripts" / "hvdb").mkdir()
        for name in ("__init__.py", "whole_file.py"):
            shutil.copy(SCRIPTS / "hvdb" / name, self.root / "scripts" / "hvdb" / name)
        self.script("bundle/scripts/maintain/peers/gpu_torch.py", BUSY.format(child=str(self.folder / "child")))
        self.script("bundle/bin/train_step_bench", "#!/bin/sh\n")
        self.kill_when_busy("quick-*")

    def test_ended_in_the_tests_it_ends_them_and_keeps_what_is_finished(self) -> None:
        """gpu_check runs the tests in threads. Its signal handler must end the tests of all threads."""
        self.script("bundle/tests/x", f"#!/bin/sh\necho $$ >{self.folder}/child; exec sleep 86400\n")
        ctest.write([ctest.GpuTest("x", ["{root}/tests/x"], 86400.0)], self.root / "tests" / "tests.json")
        self.kill_when_busy("doctor", "tests", with_signal=signal.SIGTERM)
        text = (self.folder / "out" / "summary.txt").read_text()
        self.assertRegex(text, r"tests +(cut off|not yet) ")
        self.assertTrue((self.folder / "out.tar.gz").exists())

    def kill_when_busy(self, *arguments: str, with_signal: int = signal.SIGKILL) -> None:
        """Ends gpu_check once its child has written a process id to self.folder / child. The child must end too."""
        script = ALONE.format(scripts=str(SCRIPTS))
        command = [sys.executable, "-B", "-c", script, str(self.root), str(self.folder / "out"), *arguments]
        process = subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.DEVNULL)
        child = self.folder / "child"
        eventually(lambda: child.exists() and child.read_text().strip())
        process.send_signal(with_signal)
        process.wait()
        pid = int(child.read_text())
        eventually(lambda: not alive(pid))

    def refused(self, words: str) -> None:
        """Asserts that gpu_check refuses a call with one line that contains `words`."""
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(OSError):
            self.visit("doctor")  # a refused call leaves no summary for visit() to read
        self.assertEqual(len(said.getvalue().splitlines()), 1)
        self.assertIn(words, said.getvalue())

    def test_a_folder_of_somebody_else_is_left_alone(self) -> None:
        self.script("out/thesis.txt", "")
        self.refused("is not empty, and not of an earlier call")
        self.assertEqual(os.listdir(self.folder / "out"), ["thesis.txt"])

    def test_a_call_that_was_killed_over_its_first_file_is_no_hindrance(self) -> None:
        (self.folder / "out").mkdir()
        machine = self.folder / "out" / "machine.json"
        with whole_file.replacing(machine) as left:
            left.write_text("[")
        machine.rename(left)
        code, rows, _ = self.visit("doctor")
        self.assertEqual((code, rows["doctor"]["result"]), (0, "good"))
        self.assertFalse(left.exists())
        left.write_text("[")  # a call that was killed while it wrote leaves this file
        self.assertEqual(self.visit("doctor")[0], 0)
        self.assertFalse(left.exists())

    def test_results_of_another_gpu_are_not_mixed(self) -> None:
        self.visit("doctor")
        (self.folder / "out" / "summary.json").unlink()
        self.device, self.gpu = "cuda", host.Gpu("NVIDIA H200", "9.0", 150121545728, "13.0")
        self.refused("has results of another machine (no GPU")

    def test_a_machine_file_that_is_not_ours(self) -> None:
        for text in ('[{"gpu": "x"}]', '[{"gpu": {"driver": "13.0"}}]', "[[]]", "[]", "5"):
            self.script("out/machine.json", text)
            self.refused("is not empty, and not of an earlier call")

    def test_a_directory_that_is_none(self) -> None:
        out = self.folder / "out"
        out.symlink_to("out")  # a link to itself
        self.refused("out is not a directory: name another")
        out.unlink()
        out.write_text("")
        self.refused("out is not a directory: name another")

    def test_winners_of_another_visit_are_there_before_anything_runs(self) -> None:
        for name, text in (("a.winners", "of old"), ("b.winners", "of old"), ("notes.txt", "")):
            self.script(f"old/{name}", text)
        self.script("out/winners/a.winners", "of this visit")
        (self.folder / "out" / "machine.json").write_text('[{"gpu": null}]')
        self.bench(f"cat {self.folder}/out/winners/*")
        code, rows, _ = self.visit("doctor", "--winners", str(self.folder / "old"))
        self.assertEqual((code, rows["doctor"]["result"]), (0, "good"))
        self.assertIn("of this visitof old", (self.folder / "out" / "doctor.txt").read_text())
        self.assertEqual(sorted(os.listdir(self.folder / "out" / "winners")), ["a.winners", "b.winners"])
        machine = json.loads((self.folder / "out" / "machine.json").read_text())
        self.assertEqual(machine[-1]["winners_copied"], 1)

    def test_a_folder_without_winners_is_refused_before_anything_is_written(self) -> None:
        self.script("old/notes.txt", "")
        for name in ("old", "none"):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
                self.visit("doctor", "--winners", str(self.folder / name))
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(f"--winners: there is no {self.folder}/{name}/*.winners: ", said.getvalue().splitlines()[-1])
        self.assertFalse((self.folder / "out").exists())

    def test_interrupted_before_the_parts_it_says_so_in_one_line(self) -> None:
        """The signal arrives while gpu_check looks for PyTorch, which takes seconds."""
        with (
            contextlib.redirect_stderr(io.StringIO()) as said,
            mock.patch.object(program, "make_visit", side_effect=lambda *_: os.kill(os.getpid(), signal.SIGTERM)),
            self.assertRaises(FileNotFoundError),  # visit() raises this error, because there is no summary
        ):
            self.visit("doctor")
        self.assertEqual(said.getvalue(), "gpu_check: interrupted; what is finished stays in the directory\n")

    def test_a_visit_goes_on_when_its_reader_has_gone(self) -> None:
        script = ALONE.format(scripts=str(SCRIPTS))
        command = [sys.executable, "-B", "-c", script, str(self.root), str(self.folder / "out"), "doctor", "tests"]
        for where, code in (("| true", 0), (">/dev/full", 2)):
            line = f"set -o pipefail; {shlex.join(command)} --again --device cpu {where}"
            done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False, timeout=HANG)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (code, code // 2), done.stderr)
            rows = json.loads((self.folder / "out" / "summary.json").read_text())
            self.assertEqual([row["result"] for row in rows], ["good", "good"])
            (self.folder / "out.tar.gz").unlink()

    def test_the_list_knows_the_folder(self) -> None:
        self.tests(PASSED)
        self.visit("tests")
        program = str(SCRIPTS / "maintain" / "gpu_check")
        command = [program, str(self.folder / "out"), "--device", "cpu", "--list"]
        done = execute(*command, check=True)
        self.assertRegex(done.stdout, r"(?m)^  tests .*\(good\)$")
        self.assertRegex(done.stdout, r"(?m)^\* doctor ")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"  # a zombie counts as dead
