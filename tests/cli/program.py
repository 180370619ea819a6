"""Runs the hvd_bench program under test. The test files in this folder share this module.

The environment variable HVD_BENCH holds the program's path. The module needs only Python 3.9 and its standard library.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from dataclasses import dataclass

PROGRAM = os.environ.get("HVD_BENCH", "hvd_bench")
MPIRUN = shutil.which("mpirun") if os.environ.get("HVD_TEST_MPI", "1") == "1" else None

# Most tests replay a profile whose steps of 30 ms only sleep. Such a run takes a quarter of a second on any processor.
SLEEPING = ["--replay", str(pathlib.Path(__file__).resolve().with_name("sleep.replay"))]
_SHORT = ["--num-warmup-batches", "1", "--num-iters", "3"]
TINY = [*SLEEPING, *_SHORT]
# This run ends only if the test ends it. Its deadlines never pass, so a rank that learns of a fault only by a deadline
# makes the test fail: it is still running after HANG.
NEVER = "1000000"
_ENDLESS = ["--num-warmup-batches", "1", "--num-iters", NEVER, "--max-time", NEVER]
_ENDLESS += ["--deadline-seconds", "86400", "--startup-deadline-seconds", "86400"]
ENDLESS = [*SLEEPING, *_ENDLESS]
NETWORK = ["--model", "vgg16", "--image-size", "32", "--batch-size", "2", "--classes", "10", "--threads", "1"]
# A step of this network takes some tens of milliseconds, and a whole run a second or two; without AVX-512 or on a busy
# machine, many times that.
TRAINING = [*NETWORK, *_SHORT]
TRAINING_ENDLESS = [*NETWORK, *_ENDLESS]

# A program that has not ended after so many seconds hangs. A test that passes never waits so long, whatever the
# processor is and whatever runs beside the test.
HANG = 600 * float(os.environ.get("HVD_TEST_PATIENCE", "1"))

_FOREIGN = ("SLURM_", "OMPI_", "PRTE_", "PMI_", "PMIX_", "LSB_", "JSM_")
_FOREIGN += ("HOROVOD_", "DNNL_", "ONEDNN_", "OMP_", "HWLOC_")
# These two variables imitate an older processor, so the tests must work with them.
_PROCESSOR = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment without the variables that launchers and libraries read, plus `extra`."""
    clean = {k: v for k, v in os.environ.items() if k in _PROCESSOR or not k.startswith(_FOREIGN)}
    clean.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        # Open MPI 4 reads the first of these two variables, and Open MPI 5 the second.
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        # Seconds from SIGTERM to SIGKILL. With the default of 1 s, a thread on a busy host may get no processor time
        # before SIGKILL. mpirun always waits twice this long, so a longer time would lengthen every test of a lost
        # rank.
        OMPI_MCA_odls_base_sigkill_timeout="3",
        PRTE_MCA_odls_base_sigkill_timeout="3",
    )
    clean.update(extra or {})
    return clean


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines in which hvd_bench reports an error, without mpirun's own lines."""
        return [line for line in self.err.splitlines() if line.startswith("hvd_bench: error: ")]

    def ended_with(self, code: int) -> Result:
        """Asserts the exit code. Returns this result."""
        assert self.code == code, f"exit code {code} was expected: {self}"
        return self

    def __str__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def execute(command: list[str], env: dict[str, str] | None = None, timeout: float = HANG) -> Result:
    begin = time.monotonic()
    options = {"capture_output": True, "text": True, "timeout": timeout, "check": False, "cwd": "/"}
    done = subprocess.run(command, env=environment(env), **options)
    return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """Runs hvd_bench with `arguments`. Adds --no-db unless `arguments` contain --db."""
    stored = [] if "--db" in arguments or "doctor" in arguments else ["--no-db"]
    return execute([PROGRAM, *arguments, *stored], env)


def mpirun(ranks: int, *arguments: str, env: dict[str, str] | None = None) -> Result:
    stored = [] if "--db" in arguments else ["--no-db"]
    return execute([str(MPIRUN), "-n", str(ranks), PROGRAM, *arguments, *stored], env)


def per_rank(*commands: list[str]) -> list[str]:
    """Returns an mpirun command in which rank N runs commands[N]. `mpirun a : b` would do the same, but mpirun of
    Open MPI 5.0.7 in Debian 13 crashes on such a command line."""
    cases = " ".join(f"{rank}) exec {shlex.join(command)} ;;" for rank, command in enumerate(commands))
    return [str(MPIRUN), "-n", str(len(commands)), "sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {cases} esac"]


def mpirun_is_open_mpi_5() -> bool:
    """Returns True if mpirun belongs to Open MPI 5. After SIGTERM, mpirun of Open MPI 5 forwards no more output of
    its ranks, and kills the ranks 250 ms later."""
    return MPIRUN is not None and re.search(r"\(Open MPI\) [5-9]", execute([MPIRUN, "--version"]).out) is not None


def retried_if_mpirun_kills_early(test: Callable[[ProgramTest], None]) -> Callable[[ProgramTest], None]:
    """Repeats a failed `test`, at most twice.

    mpirun kills the surviving ranks 250 ms (Open MPI 5) or 3 s (Open MPI 4) after SIGTERM. On a busy machine a rank
    may get no processor time before it is killed.
    """

    @functools.wraps(test)
    def tried(case: ProgramTest) -> None:
        for left in (2, 1, 0):
            try:
                return test(case)
            except AssertionError:
                if left == 0:
                    raise
            case.setUp()  # makes a new folder
        return None

    return tried


def takes_two_commands() -> bool:
    """Returns True if mpirun here can start two commands as one world."""
    return MPIRUN is not None and execute([MPIRUN, "-n", "1", "true", ":", "-n", "1", "true"]).code == 0


def may_mount() -> bool:
    """Returns True if the test can mount a small disk, which needs mount namespaces."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


class Running:
    """A running program. The constructor waits until its standard error contains `until`, if `until` is given."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None, until: str = "") -> None:
        self._begin = time.monotonic()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": "/"}
        self.process = subprocess.Popen(command, env=environment(env), **pipes)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if until:
            self.wait_for(until)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    def wait_for(self, text: str) -> None:
        """Waits until a line of standard error contains `text`. The line with "measuring" follows the first sample."""
        end = time.monotonic() + HANG
        while not any(text in line for line in self._lines):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self._reader.join(5)
                self._close()
                raise AssertionError(f"no '{text}' in:\n" + "".join(self._lines))
            time.sleep(0.05)

    def _close(self) -> None:
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def rank_pid(self, rank: int, wait: float = 0) -> int:
        """Returns the process id of a rank of mpirun. Waits up to `wait` seconds for mpirun to start the rank."""
        end = time.monotonic() + wait
        while (pid := self._find_rank(rank)) is None and time.monotonic() < end:
            time.sleep(0.01)
        if pid is None:
            raise AssertionError(f"rank {rank} is not among the children of mpirun")
        return pid

    def _find_rank(self, rank: int) -> int | None:
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                return int(child)
        return None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> Result:
        """Waits until the program has ended. After HANG, kills the program and raises AssertionError."""
        try:
            self.process.wait(HANG)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {HANG} s:\n" + "".join(self._lines)) from None
        seconds = time.monotonic() - self._begin  # since the start
        self._reader.join(5)
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        self._close()
        return Result(self.process.returncode, out, "".join(self._lines), seconds)


def processes_of(mark: str) -> list[str]:
    """Finds other processes with `mark` in their command line or environment. Returns the first 200
    bytes of command line and environment of each process."""
    commands = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and int(process.name) != os.getpid():
            commands.append(words[:200].decode(errors="replace"))
    return commands


def waits_for_a_peer(pid: int) -> bool:
    """Returns True if the process sleeps and used no processor time for half a second."""

    def look() -> tuple[str, str, str]:
        state, *rest = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state, rest[10], rest[11]  # user and system time in units of 10 ms

    before = look()
    time.sleep(0.5)
    return before[0] == "S" and look() == before


def eventually(condition: Callable[[], bool], seconds: float = HANG) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def query(sql: str, file: pathlib.Path, mode: str = "ro") -> list[tuple]:
    """Returns all rows of the query `sql`. A running session locks nothing, so its store is opened read-only, and may
    look incomplete, locked or malformed while the session writes it (sqlite3.DatabaseError). A session that was killed
    while it wrote leaves a journal, which SQLite can roll back only with `mode` "rw"."""
    connection = sqlite3.connect(f"{pathlib.Path(file).resolve().as_uri()}?mode={mode}", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


class ProgramTest(unittest.TestCase):
    """A test case with a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="hvd_cli_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.db = self.folder / "runs.db"

    def refused(self, result: Result, code: int, *texts: str) -> str:
        """Asserts exit code `code` and one error line that contains all of `texts`. Returns the line."""
        self.assertEqual(len(result.ended_with(code).errors), 1, result)
        for text in texts:
            self.assertIn(text, result.errors[0], result)
        self.assertNotIn("total images/sec", result.out)
        return result.errors[0]

    def totals(self, result: Result) -> list[str]:
        return [line for line in result.out.splitlines() if line.startswith("total images/sec: ")]

    def query(self, sql: str, file: pathlib.Path | None = None, mode: str = "ro") -> list[tuple]:
        return query(sql, file or self.db, mode)

    def stored_file(self) -> pathlib.Path:
        """Returns the store, or the partial file that a killed session left."""
        if self.db.exists():
            return self.db
        partials = list(self.folder.glob("*.partial"))
        self.assertEqual(len(partials), 1, list(self.folder.iterdir()))
        return partials[0]

    def wait_until_saved(self) -> None:
        """Waits until the running session has saved samples to disk, which happens every 5 s."""
        end = time.monotonic() + HANG
        while time.monotonic() < end:
            time.sleep(0.25)
            for file in self.folder.glob("*.partial"):
                with contextlib.suppress(sqlite3.DatabaseError):  # the session is writing the store
                    if self.query("SELECT 1 FROM sample LIMIT 1", file):
                        return
        self.fail("nothing was saved")

    def assert_incomplete_with_samples(self, reason: str) -> None:
        """Asserts that the store contains samples and marks the run incomplete for `reason`."""
        self.assertEqual(list(self.folder.glob("*.partial*")), [])
        rows = self.query("SELECT status, status_reason, measured_steps, finished_utc FROM run")
        self.assertEqual([row[0] for row in rows], ["incomplete"], rows)
        self.assertIn(reason, rows[0][1])
        self.assertIsNotNone(rows[0][3])
        counts = self.query("SELECT count FROM sample WHERE kind = 'step_seconds'")
        self.assertTrue(counts and all(count[0] >= 1 for count in counts), (rows, counts))


needs_mpi = unittest.skipUnless(MPIRUN, "needs mpirun and a build with MPI")
