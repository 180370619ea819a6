"""The shell entry points: a failed check fails the whole, the right Python is found, other systems get advice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from synthetic_store import REPOSITORY


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class EntryPointTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def checkout(self) -> Path:
        """A copy of the scripts in a repository of their own."""
        copy = self.folder / "checkout"
        shutil.copytree(REPOSITORY / "scripts", copy / "scripts")
        shutil.copytree(REPOSITORY / ".ci", copy / ".ci")
        done = shell("git init -q . && git add -A", copy)
        self.assertEqual(done.returncode, 0, done.stderr)
        return copy

    def program(self, name: str, text: str) -> None:
        """An executable in self.folder / bin."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    @unittest.skipUnless(shutil.which("shellcheck"), "needs shellcheck")
    def test_the_last_line_counts_and_a_failure_fails(self) -> None:
        copy = self.checkout()
        (copy / "scripts" / "install_deps").write_text("#!/usr/bin/env bash\n", encoding="utf-8")
        good = shell("scripts/test --only shell", copy)
        self.assertEqual(good.returncode, 0, good.stdout + good.stderr)
        self.assertEqual(good.stdout.splitlines()[-1], "1 passed, 0 failed")
        (copy / "scripts" / "bad.sh").write_text("#!/usr/bin/env bash\nrm -rf $1/*\n", encoding="utf-8")
        bad = shell("scripts/test --only shell", copy)
        self.assertEqual(bad.returncode, 1)
        self.assertEqual(bad.stdout.splitlines()[-1], "0 passed, 1 failed")
        self.assertIn("SC2086", bad.stderr)
        self.assertIn("run it alone: scripts/test --only shell", bad.stderr)

    def test_a_failing_build_is_counted_and_its_tests_are_not_run(self) -> None:
        copy = self.checkout_with_build("echo no compiler\nexit 1\n")
        done = shell("scripts/test --quick", copy)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed")
        self.assertIn("no compiler", done.stderr)

    def test_a_failing_build_beside_the_tests_is_counted(self) -> None:
        for build in ("echo no compiler\nexit 1\n", "echo no compiler\nkill -9 $PPID\n"):  # and a lane that dies
            copy = self.checkout_with_build(build)
            done = shell("scripts/test --only asan", copy)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed")
            self.assertIn("no compiler", done.stderr)
            shutil.rmtree(copy)

    def test_an_interrupted_run_leaves_no_build_behind(self) -> None:
        copy = self.checkout_with_build(f"echo $$ >{self.folder}/pid\nexec sleep 100\n")
        running = subprocess.Popen(["scripts/test", "--only", "asan"], cwd=copy, stdout=subprocess.DEVNULL)
        self.addCleanup(running.kill)
        note = self.folder / "pid"
        self.eventually(lambda: note.exists() and note.read_text().strip())
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(30), 130)
        process = Path("/proc", note.read_text().strip())
        self.eventually(lambda: not process.exists())

    def eventually(self, condition: Callable[[], object]) -> None:
        for _ in range(300):
            if condition():
                return
            time.sleep(0.1)
        self.fail("not within 30 s")

    def checkout_with_build(self, script: str) -> Path:
        """A checkout whose scripts/build does this, and which has nothing to install."""
        copy = self.checkout()
        (copy / "scripts" / "install_deps").write_text("#!/usr/bin/env bash\n", encoding="utf-8")
        (copy / "scripts" / "build").write_text("#!/usr/bin/env bash\n" + script, encoding="utf-8")
        return copy

    def test_a_python_without_numpy_is_passed_over(self) -> None:
        self.program("python3", "#!/bin/sh\nexit 1\n")
        script = 'source scripts/lib/python.sh && hvd_choose_python && echo "$HVD_PYTHON"'
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = shell(script, REPOSITORY, PATH=path, HVD_PYTHON="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(str(self.folder), done.stdout)
        check = "import numpy, matplotlib"
        self.assertEqual(shell(f"{done.stdout.strip()} -c '{check}'", REPOSITORY).returncode, 0)

    def test_other_systems_get_a_list(self) -> None:
        for name in ("bash", "dirname", "cat", "id", "env"):
            (self.folder / "bin").mkdir(exist_ok=True)
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        done = shell("scripts/install_deps", REPOSITORY, PATH=str(self.folder / "bin"))
        self.assertEqual(done.returncode, 2)
        for what in ("C++20", "MPI", "oneDNN", "SQLite"):
            self.assertIn(what, done.stderr)

    def test_without_root_or_sudo_it_says_what_to_ask_for(self) -> None:
        for name in ("bash", "dirname", "cat", "env"):
            (self.folder / "bin").mkdir(exist_ok=True)
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        self.program("dpkg-query", "#!/bin/bash\nexit 1\n")
        self.program("apt-get", "#!/bin/bash\necho must not be called; exit 1\n")
        self.program("id", "#!/bin/bash\necho 1000\n")
        done = shell("scripts/install_deps", REPOSITORY, PATH=str(self.folder / "bin"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("apt-get install g++ cmake", done.stderr)
        self.assertNotIn("must not be called", done.stdout)


if __name__ == "__main__":
    unittest.main()
