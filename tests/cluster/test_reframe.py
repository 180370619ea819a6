"""Runs docs/recipes/reframe with the real ReFrame on the tests' own Slurm, and lets it catch a regression."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import unittest
from pathlib import Path

from cluster_test import ROOT, ClusterTest, Shape, main, profile

from program import HANG, PROGRAM, Result

REFRAME = ROOT / "build" / "reframe" / "bin" / "reframe"
CHECK = ROOT / "docs" / "recipes" / "reframe" / "hvd_bench_check.py"
EARLIER = 19  # sessions that a verdict needs
STEP = 0.05  # seconds
SITE = """site_configuration = {{
    "systems": [{{
        "name": "tests", "hostnames": [".*"], "modules_system": "nomod",
        "stagedir": "{0}/stage", "outputdir": "{0}/output",
        "partitions": [{{"name": "nodes", "scheduler": "squeue", "launcher": "srun", "environs": ["none"]}}],
    }}],
    "environments": [{{"name": "none"}}],
    "general": [{{"colorize": False, "report_file": "{0}/report.json", "report_junit": None}}],
    "logging": [{{"handlers": [{{"type": "stream", "name": "stdout", "level": "info", "format": "%(message)s"}}],
                 "handlers_perflog": []}}],
}}
"""


@unittest.skipUnless(REFRAME.is_file(), "no ReFrame here (scripts/install_deps --tests installs it)")
class Check(ClusterTest):
    """The steps sleep, so a run takes a known time and no processor."""

    shape = Shape(nodes=2, cpus=2)

    def check(self, step_seconds: float, *arguments: str) -> Result:
        """Runs the check with a replay of steps that take `step_seconds`."""
        site = self.folder / "site.py"
        site.write_text(SITE.format(self.folder))
        (self.folder / "bin").mkdir(exist_ok=True)
        for name, target in (("hvd_bench", Path(PROGRAM).resolve()), ("hvdb", self.folder / "hvdb.sh")):
            link = self.folder / "bin" / name
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        hvdb = self.folder / "hvdb.sh"
        hvdb.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/scripts exec {sys.executable} -B -m hvdb "$@"\n')
        hvdb.chmod(0o755)
        path = os.pathsep.join([str(self.folder / "bin"), self.cluster.env["PATH"]])
        sizes = ["-P", "model=resnet101", "-P", "ranks=2", "-S", "num_iters=6", "-S", "num_warmup_batches=1"]
        sizes += ["-S", f"replay={profile(self.folder, step_seconds=step_seconds)}", "-S", "options=--threads 1"]
        command = [str(REFRAME), "-C", str(site), "-c", str(CHECK), "-r", "--performance-report", "--keep-stage-files"]
        return self.cluster.run(*command, *sizes, *arguments, env={"PATH": path}, timeout=HANG)

    def report(self) -> dict:
        """Returns what ReFrame's report says of the only test case."""
        (case,) = json.loads((self.folder / "report.json").read_text())["runs"][0]["testcases"]
        return case

    def earlier_sessions(self, step_seconds: float) -> Path:
        """Returns a store with as many sessions as a verdict needs, measured as the check does it."""
        baseline = self.folder / "baseline.db"
        words = [
            "--replay",
            str(profile(self.folder, step_seconds=step_seconds)),
            "--schedule",
            "static",
            "--efficiency",
        ]
        words += ["--db", str(baseline), "--num-iters", "6", "--num-batches-per-iter", "1", "--num-warmup-batches", "1"]
        session = f"srun --mpi=pmix {PROGRAM} {' '.join(words)} --threads 1 || exit 1"
        script = f"#!/bin/bash\nfor i in {{1..{EARLIER}}}; do {session}; done\n"
        log = self.folder / "baseline.log"
        job = self.cluster.submit(script, "-N2", "--ntasks-per-node=1", f"--output={log}")
        self.assertEqual(self.cluster.finished(job)["ExitCode"], "0:0", log.read_text())
        return baseline

    def test_it_runs_and_reports_without_a_baseline(self) -> None:
        done = self.check(STEP, "-S", f"baseline={self.folder}/not-yet.db")
        done.ended_with(0)
        case = self.report()
        self.assertEqual(case["result"], "pass", done)
        found = {name.rpartition(":")[2]: figures for name, figures in case["perfvalues"].items()}
        self.assertEqual(set(found), {"throughput_total", "throughput_iteration", "efficiency"})
        value, *_, unit, _ = found["throughput_total"]
        self.assertEqual(unit, "images/s")
        # A step sleeps for STEP, so it can't be faster: 2 ranks with a batch of 4.
        self.assertLessEqual(value, 1.001 * 8 / STEP)
        self.assertGreater(found["efficiency"][0], 0)
        kept = list((self.folder / "output").rglob("runs.db"))
        self.assertEqual(len(kept), 1, "the store is kept")

    def test_a_step_twice_as_long_as_before_is_a_regression(self) -> None:
        baseline = f"baseline={self.earlier_sessions(STEP)}"
        same = self.check(STEP, "-S", baseline, "-S", "threshold=25")
        self.assertEqual(self.report()["result"], "pass", same)
        halved = ", ".join(f"{name} = {name} / 2" for name in ("step_seconds", "step_seconds_low", "step_seconds_high"))
        with contextlib.closing(sqlite3.connect(self.folder / "baseline.db")) as store, store:
            store.execute(f"UPDATE run SET {halved}")  # another recording would be another series
        slow = self.check(STEP, "-S", baseline, "-S", "threshold=25")
        slow.ended_with(1)
        case = self.report()
        self.assertEqual((case["result"], case["fail_phase"]), ("fail", "performance"), slow)
        self.assertIn("throughput_total", slow.out)

    def test_a_run_that_fails_is_no_result(self) -> None:
        done = self.check(STEP, "-S", "options=--no-such-option").ended_with(1)
        self.assertEqual(self.report()["fail_phase"], "sanity", done)


if __name__ == "__main__":
    main()
