"""Runs campaigns with the real hvd_bench on this machine: site "laptop", runs in the foreground, and interruptions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from campaigns import HANG, SCRIPTS, rows
from fake_cluster import wait_until
from test_life import LifeTest

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
MPIRUN = shutil.which("mpirun") if os.environ.get("HVD_TEST_MPI", "1") == "1" else None
# Each cell of this spec takes seconds on one core.
SPEC = """
name = "here"
models = ["vgg16"]
ranks = [1, 2]
[weak]
batch_size = 2
[options]
image-size = 32
classes = 10
threads = 1
num-warmup-batches = 1
num-iters = 3
"""
ENDLESS = SPEC.replace("num-iters = 3", "num-iters = 1000000\nmax-time = 600")
SITE = f"""
base = "laptop"
name = "here"
[program]
hvd_bench = "{PROGRAM}"
[program.environment]
OMPI_MCA_rmaps_base_oversubscribe = "1"
PRTE_MCA_rmaps_default_mapping_policy = ":oversubscribe"
"""


@unittest.skipUnless(PROGRAM.is_file() and MPIRUN, "needs hvd_bench and mpirun")
class LaptopTest(LifeTest):
    SCHEDULER_SITE = SITE

    def test_from_submit_to_complete_and_merged(self) -> None:
        said = self.submitted(SPEC)
        self.assertIn("n0001: done", said)
        self.assertEqual(self.counts(), {"done": 2})
        self.assertEqual(self.good("resume"), "nothing to hand in: all cells are held\n")
        (store,) = self.folder.glob("stores/*.db")
        facts = {}
        columns = "allocation_size, phase, key, value"
        for ranks, phase, key, value in rows(store, f"SELECT {columns} FROM run JOIN provenance ON run_uuid = uuid"):
            facts.setdefault((ranks, phase), {})[key] = value
        self.assertEqual(sorted(facts), [(1, "full"), (2, "full"), (2, "none"), (2, "solo")])
        self.assertEqual({labels["label.role"] for labels in facts.values()}, {"scale"})
        self.assertEqual({labels["label.order"] for labels in facts.values()}, {"1/2", "2/2"})
        measured, capped = self.hours("--pilot", store), self.hours()
        self.assertLess(measured, capped, "measured times are shorter than the cap")

    def hours(self, *words: object) -> float:
        """Runs generate --dry-run. Returns the upper limit that it prints for the campaign's hours."""
        done = self.call("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--dry-run", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("at most"))
        return float(line.split()[-1])

    def started(self, command: str) -> subprocess.Popen[str]:
        """Starts scripts/campaign in the background. Returns when a cell has stored samples."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words = [sys.executable, "-B", "-m", "hvdb", "campaign", command, str(self.folder)]
        child = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": SCRIPTS}, **pipes)
        # A run that is interrupted during its warm-up stores nothing, so wait for samples.
        wait_until(lambda: self.begun_runs("sample") > 0)
        return child

    def test_control_c_stores_what_there_is(self) -> None:
        self.generate(ENDLESS)
        child = self.started("submit")
        self.assertEqual(self.status()["counts"]["running"], 1)
        self.refused(self.call("resume", self.folder), "another scripts/campaign is submitting")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=HANG)
        self.assertEqual(child.returncode, 1)
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        self.assertIn("stopped during job n0001; what was measured is stored, resume goes on", said)
        self.check_stopped()

    def test_cancel_from_elsewhere(self) -> None:
        self.generate(ENDLESS)
        child = self.started("submit")
        self.assertIn("n0001 repetition 1: running, cancelled", self.good("cancel"))
        child.communicate(timeout=HANG)
        self.check_stopped()
        self.assertEqual(self.good("cancel"), "nothing is queued or running\n")

    def check_stopped(self) -> None:
        self.assertEqual(list(self.folder.glob("stores/*.partial")), [])
        (store,) = self.folder.glob("stores/*.db")
        ended = rows(store, "SELECT DISTINCT status, status_reason FROM run")
        self.assertTrue(ended)
        for status, reason in ended:
            self.assertEqual(status, "incomplete")
            self.assertIn("SIGUSR1", reason)
        standing = self.status()
        self.assertEqual(standing["counts"]["lacking"], 2)
        self.assertEqual(standing["units"][0]["note"], "was stopped by the warning before its end")

    def test_a_cell_that_the_program_refuses(self) -> None:
        self.generate(SPEC.replace("image-size = 32", "image-size = 7"))
        self.refused(self.call("submit", self.folder), "job n0001 ended with 1, the others were not started", code=1)
        standing = self.status(1)
        self.assertEqual([failure["code"] for failure in standing["failures"]], [2, 2])
        self.assertIn("needs images of at least 32x32", (self.folder / "logs" / "n0001.out").read_text())
