"""Kills campaigns at many points. A campaign must lose no finished run, and must resume without repeating one.

Some tests kill a job, between any two commands of its script and at every step of hvd_bench's writing to its store.
Other tests kill scripts/campaign, between any two of its lines and while sbatch runs. HVD_KILL_STEP=1 tests every
point. By default the tests skip some points to save time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from campaigns import HANG, SCRIPTS
from fake_cluster import Task, kill_group, wait_until
from test_life import ONCE, SPEC, LifeTest

# Counts the commands that a job's script runs, functions included, and kills the job's process group before command
# KILL_AT.
COUNT_COMMANDS = """
case $0 in */script-*.sh)
  set -T
  hvd_test_n=0
  trap 'hvd_test_n=$((hvd_test_n + 1)); if [ "$hvd_test_n" = "${KILL_AT-}" ]; then kill -9 0; fi' DEBUG
esac
"""
# Runs main() of scripts/campaign, counts the lines of the given modules, and kills the process before line KILL_AT.
COUNT_LINES = """
    import os, signal, sys
    sys.path.insert(0, {scripts!r})
    from hvdb.cli import main
    seen, last = 0, int(os.environ["KILL_AT"])
    files = tuple({scripts!r} + "/hvdb/campaign/" + name for name in {modules})
    def trace(frame, event, argument):
        global seen
        code = frame.f_code  # imports, and loops over the environment's variables, do nothing that a kill could disturb
        if not code.co_filename.startswith(files) or code.co_name.startswith(("<", "for_scheduler")):
            return None
        if event == "line":
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    sys.exit(main(["campaign", *sys.argv[1:]]))
"""
STEP = int(os.environ.get("HVD_KILL_STEP", "4"))
ONE = ONCE.replace("ranks = [1, 2, 4, 8]", "ranks = [4]")


def counting_lines(*modules: str) -> str:
    """Returns a program that runs scripts/campaign and is killed at a line of `modules`."""
    return textwrap.dedent(COUNT_LINES).format(scripts=SCRIPTS, modules=modules)


class KillTest(LifeTest):
    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.top / "ledger"
        self.stored = {"FAKE_LEDGER": str(self.ledger)}

    def durable(self) -> list[str]:
        """Returns the cells whose results have reached the disk, the earliest first."""
        return self.ledger.read_text().split() if self.ledger.exists() else []

    def check_nothing_lost_or_repeated(self) -> None:
        self.assertLessEqual(set(self.durable()), set(self.sessions()), "a finished run is lost")
        self.assertEqual(len(self.durable()), len(set(self.durable())), "a finished run was repeated")
        self.assertEqual(set(self.sessions().values()) | {1}, {1}, "a cell is stored twice")

    def fresh(self, spec: str = ONE) -> None:
        """Restores the state before the first kill: the campaign is generated and nothing is submitted."""
        if not hasattr(self, "generated"):
            self.generate(spec)
            self.generated = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        for path in [*self.folder.rglob("*"), *self.cluster.folder.rglob("*")]:
            if path.is_file() and path.name != "limits.json" and path not in self.generated:
                path.unlink()
        for path, content in self.generated.items():
            path.write_bytes(content)
        self.ledger.unlink(missing_ok=True)

    def finish(self, cells: int) -> None:
        self.check_nothing_lost_or_repeated()
        while self.good("resume") != "nothing to hand in: all cells are held\n":
            self.cluster.run_all(**self.stored)
        self.check_nothing_lost_or_repeated()
        self.assertEqual(self.counts(), {"done": cells})
        self.assertEqual(len(self.durable()), cells)


class KilledJobTest(KillTest):
    def killed_at(self, number: int, environment: dict[str, str]) -> bool:
        """Runs the job with a kill at point `number`. Returns False if the job ended before that point."""
        self.fresh()
        self.good("submit")
        code = self.cluster.run(Task(101, 1), **environment, **self.stored)
        if code == 0:
            return False
        self.assertEqual(code, -9)
        self.check_nothing_lost_or_repeated()
        if number % 2:  # the scheduler starts the job again, as after a node's failure
            self.cluster.set_state(Task(101, 1), "PENDING")
            self.assertEqual(self.cluster.run(Task(101, 1), restart=1, **self.stored), 0)
        self.finish(3)
        return True

    def every(self, step: int, environment: dict[str, str], key: str) -> int:
        for number in range(1, 1000, step):
            (self.top / "points").unlink(missing_ok=True)
            with self.subTest(point=number):
                if not self.killed_at(number, {**environment, key: str(number)}):
                    return number - 1
        raise AssertionError("the job never came to its end")

    def test_between_any_two_commands_of_the_script(self) -> None:
        hook = self.top / "count.sh"
        hook.write_text(COUNT_COMMANDS, encoding="utf-8")
        points = self.every(STEP, {"BASH_ENV": str(hook)}, "KILL_AT")
        self.assertGreater(points, 60, "the hook did not count")

    def test_at_every_step_of_storing(self) -> None:
        points = self.every(1, {"FAKE_POINTS": str(self.top / "points")}, "FAKE_KILL_AT")
        self.assertGreater(points, 20, "the stand-in did not count")

    def test_killed_again_and_again(self) -> None:
        """Each attempt gets a little further than the previous attempt, and no cell is done twice."""
        self.fresh()
        self.good("submit")
        attempts = 0
        for attempts in range(1, 30):
            points = self.top / f"points{attempts}"
            kill = {"FAKE_POINTS": str(points), "FAKE_KILL_AT": "7"}
            if self.cluster.run(Task(101, 1), restart=attempts, **kill, **self.stored) == 0:
                break
            self.check_nothing_lost_or_repeated()
        self.assertGreater(attempts, 2)
        self.finish(3)


class KilledCallerTest(KillTest):
    def campaign_killed_at(self, number: int, command: str) -> int:
        program = counting_lines("life.py", "scheduler.py")
        environment = {**self.cluster.environment(), "KILL_AT": str(number)}
        words = [sys.executable, "-B", "-c", program, command, str(self.folder)]
        return subprocess.run(words, env=environment, capture_output=True, timeout=HANG, check=False).returncode

    def check_queue(self, jobs: int) -> None:
        """Asserts that after resume every job is in the queue exactly once."""
        # the submission of a killed caller may keep the lock for a moment
        wait_until(lambda: self.call("resume", self.folder).returncode == 0)
        names = [record["name"] for record in self.cluster.records()]
        self.assertEqual(len(names), jobs, names)
        self.assertEqual(len(set(names)), jobs, "submitted twice")

    def test_between_any_two_lines_of_submit(self) -> None:
        survived = False
        for number in range(1, 1000, 5 * STEP):
            with self.subTest(line=number):
                self.fresh(SPEC)
                survived = self.campaign_killed_at(number, "submit") == 0
                self.check_queue(3)
            if survived:
                break
        self.assertTrue(survived)
        self.assertGreater(number, 100, "the tracer did not count")

    def test_while_the_scheduler_answers(self) -> None:
        for when, queued in (("before", 0), ("after", 1), ("late", 0)):
            with self.subTest(when):
                self.fresh(SPEC)
                environment = {**self.cluster.environment(), "FAKE_KILL_CALLER": when, "FAKE_ANSWER_SECONDS": "5"}
                command = [sys.executable, "-B", "-m", "hvdb", "campaign", "submit", str(self.folder)]
                environment["PYTHONPATH"] = SCRIPTS
                done = subprocess.run(command, env=environment, capture_output=True, timeout=HANG, check=False)
                self.assertEqual(done.returncode, -9)
                self.assertEqual(len(self.cluster.records()), queued)
                if when == "late":
                    self.refused(self.call("resume", self.folder), "another scripts/campaign is submitting")
                    wait_until(lambda: self.cluster.records())
                self.check_queue(3)

    def test_generate(self) -> None:
        """If generate is killed while it writes, no job script is incomplete. A second call completes the folder."""
        self.generate()
        whole = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        program = counting_lines("folder.py")
        site = str(self.top / "site.toml")
        words = ["generate", str(self.top / "spec.toml"), "--site", site, "--out", str(self.folder)]
        for number in range(1, 120, 5 * STEP):
            with self.subTest(line=number):
                for path in whole:
                    path.unlink(missing_ok=True)
                command = [sys.executable, "-B", "-c", program, *words]
                environment = {**os.environ, "KILL_AT": str(number)}
                subprocess.run(command, env=environment, capture_output=True, timeout=HANG, check=False)
                for path in self.folder.rglob("*"):
                    if path in whole:
                        self.assertEqual(path.read_bytes(), whole[path])
                self.generate()
                self.assertEqual({path: path.read_bytes() for path in whole}, whole)


class RunningCampaignTest(KillTest):
    def test_a_job_that_still_runs_is_left_alone(self) -> None:
        """While a job runs, resume neither submits that job again nor touches its file."""
        self.fresh()
        self.good("submit")
        child = self.cluster.start(Task(101, 1), FAKE_SLOW="30", **self.stored)
        self.addCleanup(kill_group, child)
        wait_until(lambda: self.begun_runs() > 0)
        (partial,) = self.folder.glob("stores/*.partial")
        before = partial.read_bytes()
        self.assertEqual(self.good("resume"), "nothing to hand in: the rest is at work\n")
        self.assertEqual(partial.read_bytes(), before)
        self.assertEqual(len(self.cluster.records()), 1)
