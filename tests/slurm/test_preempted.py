"""Slurm counts a preempted job that exits normally as finished, so the job must requeue itself. A job that was not
preempted must not."""

from __future__ import annotations

import json
import os
import signal

from campaigns import HANG
from fake_cluster import Task, kill_group, wait_until
from test_life import ONCE, LifeTest

ONE = ONCE.replace("ranks = [1, 2, 4, 8]", "ranks = [4]")
JOB = Task(101, 1)


class PreemptedTest(LifeTest):
    def terminated(self, *, preempts: bool, state: str = "RUNNING", more: tuple[str, ...] = ()) -> str:
        """Sends SIGTERM to all processes of a job that Slurm reports in `state`. Returns the job's state afterwards."""
        (self.cluster.folder / "limits.json").write_text(json.dumps({"preempts": preempts}), encoding="utf-8")
        self.submitted(ONE, *more)
        child = self.cluster.start(JOB, FAKE_SLOW="60")
        self.addCleanup(kill_group, child)
        wait_until(lambda: list(self.folder.glob("stores/*.partial")))
        self.cluster.set_state(JOB, state)
        os.killpg(child.pid, signal.SIGTERM)
        self.assertEqual(child.wait(30), 1)
        return self.cluster.record(JOB.job)["states"]["1"]

    def events(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("events/*.log"))

    def test_it_is_requeued_and_goes_on(self) -> None:
        self.assertEqual(self.terminated(preempts=True), "PENDING")
        self.assertIn("requeue preempted", self.events())
        self.assertEqual(next(iter(self.status()["units"]))["state"], "queued")
        self.assertEqual(self.cluster.run(JOB, restart=1), 0)
        self.assertEqual(self.counts(), {"done": 3})

    def test_an_array_loses_only_the_preempted_element(self) -> None:
        """Slurm gives the last element of an array the number of the array, which means all elements."""
        (self.cluster.folder / "limits.json").write_text('{"preempts": true}', encoding="utf-8")
        self.submitted(ONE.replace("repetitions = 1", "repetitions = 3"))
        elements = [Task(101, index) for index in (1, 2, 3)]
        children = [self.cluster.start(task, FAKE_SLOW="60") for task in elements]
        for child in children:
            self.addCleanup(kill_group, child)
        wait_until(lambda: len(list(self.folder.glob("stores/*.partial"))) == 3)
        os.killpg(children[2].pid, signal.SIGTERM)
        self.assertEqual(children[2].wait(HANG), 1)
        self.assertEqual(self.cluster.record(101)["states"], {"1": "RUNNING", "2": "RUNNING", "3": "PENDING"})
        os.killpg(children[0].pid, signal.SIGTERM)
        self.assertEqual(children[0].wait(HANG), 1)
        self.assertEqual(self.cluster.record(101)["states"], {"1": "PENDING", "2": "RUNNING", "3": "PENDING"})

    def test_a_signal_alone_requeues_nothing(self) -> None:
        self.assertEqual(self.terminated(preempts=False), "RUNNING")
        self.assertNotIn("requeue", self.events())

    def test_a_cancelled_job_stays_away(self) -> None:
        self.assertEqual(self.terminated(preempts=True, state="CANCELLED"), "CANCELLED")

    def test_a_site_without_requeueing(self) -> None:
        self.assertEqual(self.terminated(preempts=True, more=("--set", "submit.requeue=false")), "RUNNING")
