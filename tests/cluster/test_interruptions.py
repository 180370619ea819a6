"""Interrupts campaigns in every way that Slurm knows. Each must complete, and must lose or repeat no finished run.

Steps sleep instead of computing, so that the tests can time the interruptions and need no processor. All interruptions
happen at the same time, each in a campaign on its own two nodes, so the tests wait only once for Slurm's delays.
"""

import signal
import sqlite3
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from campaign_test import Campaign
from cluster_test import ClusterTest, Shape, main, profile

from program import query

CELLS = 3  # a cell of four ranks on two nodes, and its two baselines: one rank, and all ranks of one node
SPEC = """
name = "sleep"
models = ["resnet50"]
ranks = [4]
efficiency = false
[weak]
batch_size = 4
[options]
replay = "{replay}"
image-size = 64
no-check = true
max-time = 60
num-warmup-batches = 1
num-iters = {steps}
"""
# An array of two jobs of one node. Each job has two cells: two ranks, and one rank.
ARRAY = SPEC.replace("ranks = [4]", "ranks = [2]\nrepetitions = 2")
ARRAY_CELLS = 4
CASES = ("warning", "time_limit", "cancel", "requeue", "preemption", "array", "node_failure")
NODES = {case: f"n[{2 * i + 1}-{2 * i + 2}]" for i, case in enumerate(CASES)}


class Interrupted(ClusterTest):
    """case_x interrupts a campaign in a thread. test_x, which a loop below adds, waits for the result of case_x."""

    shape = Shape(nodes=2 * len(CASES), cpus=2, kill_wait_seconds=10)
    outcomes: dict[str, Future]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        pool = ThreadPoolExecutor(len(CASES))
        cls.addClassCleanup(pool.shutdown, cancel_futures=True)
        cls.outcomes = {case: pool.submit(getattr(cls, f"case_{case}"), cls()) for case in CASES}

    def begun(self, case: str, steps: int = 60) -> tuple[Campaign, str]:
        """Starts a campaign of `steps` steps of 0.1 s a cell. Waits until its second cell runs. Returns campaign and
        job number."""
        folder = Path(tempfile.mkdtemp(prefix=case, dir=self.cluster.work))
        replay = profile(folder, step_seconds=0.1)
        campaign = Campaign(
            self.cluster, folder, SPEC.format(replay=replay, steps=steps), where=f"--nodelist={NODES[case]}"
        )
        campaign.submit()
        campaign.wait_until(lambda: campaign.events().count(" begin ") == 2, "the second cell")
        self.assertEqual(campaign.finished_cells(), 1)
        (job,) = campaign.numbers()
        campaign.wait_until(lambda: self.has_a_run_begun(campaign), "the second cell's run in its store")
        return campaign, job

    @staticmethod
    def has_a_run_begun(campaign: Campaign) -> bool:
        """Returns True if a run has ended its warm-up, which is when the run is first stored."""
        try:
            begun = "SELECT uuid FROM run WHERE status = 'running'"
            return any(query(begun, partial) for partial in campaign.folder.glob("stores/*.partial"))
        except sqlite3.DatabaseError:
            return False  # the session is writing the store

    def control(self, *words: str) -> None:
        """Runs scontrol, which must succeed."""
        self.cluster.run("scontrol", *words).ended_with(0)

    def start_at_once(self, campaign: Campaign, job: str, cells: int = CELLS) -> None:
        """Starts a requeued job at once, as an administrator may. By itself Slurm would start it two minutes later."""
        self.cluster.wait_for_state(job, "PENDING", "RUNNING")
        self.cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        campaign.wait_until_done(cells)
        self.assertIn("restart=1", campaign.events())

    def case_warning(self) -> None:
        campaign, job = self.begun("warning")
        self.cluster.run("scancel", "--batch", "--signal=USR1", job)
        campaign.wait_until_idle()
        self.assertIn("signal USR1", campaign.events())
        self.assertEqual(campaign.cells_in("done"), 1)
        stored = "SELECT status FROM run WHERE status_reason LIKE '%SIGUSR1%'"
        (store,) = campaign.stores
        self.assertEqual(query(stored, store), [("incomplete",)], "what the second cell had measured")
        campaign.resume()
        campaign.wait_until_done(CELLS)

    def case_time_limit(self) -> None:
        """The time limit is one minute, Slurm's shortest. Three cells take longer. Slurm compares every 30 s."""
        campaign, job = self.begun("time_limit", steps=200)
        self.control("update", f"jobid={job}", "timelimit=1")
        campaign.wait_until_idle(150)
        self.assertIn("signal", campaign.events(), "warned, or ended, by Slurm")
        self.assertLess(campaign.cells_in("done"), CELLS)
        campaign.resume()
        campaign.wait_until_done(CELLS)

    def case_cancel(self) -> None:
        campaign, _ = self.begun("cancel")
        campaign.cancel()
        campaign.wait_until_idle()
        self.assertEqual(campaign.cells_in("done"), 1)
        campaign.resume()
        campaign.wait_until_done(CELLS)

    def case_requeue(self) -> None:
        campaign, job = self.begun("requeue")
        self.control("requeue", job)
        self.start_at_once(campaign, job)

    def case_preemption(self) -> None:
        """A job of a partition with higher priority takes the nodes. Slurm sends the campaign's job SIGTERM and,
        ten seconds later, SIGKILL."""
        campaign, job = self.begun("preemption")
        where = (f"--nodelist={NODES['preemption']}", "--exclusive")
        urgent = self.cluster.submit("#!/bin/sh\nsleep 3\n", "--partition=urgent", *where)
        self.assertEqual(self.cluster.finished(urgent, 90)["JobState"], "COMPLETED")
        self.start_at_once(campaign, job)
        self.assertIn("requeue preempted", campaign.events())

    def case_array(self) -> None:
        """The preempted element of the array is the one whose job number is that of the array. The other goes on."""
        folder = Path(tempfile.mkdtemp(prefix="array", dir=self.cluster.work))
        spec = ARRAY.format(replay=profile(folder), steps=100)
        others = ",".join(nodes for case, nodes in NODES.items() if case != "array")
        campaign = Campaign(self.cluster, folder, spec, where=f"--exclude={others}")
        campaign.submit()
        (array,) = campaign.numbers()
        campaign.wait_until(
            lambda: sum(" begin " in log for log in campaign.event_logs()) == 2, "the first cells of both elements"
        )
        listed = self.cluster.run("squeue", "-h", "-r", "-t", "RUNNING", "-j", array, "-o", "%A %K %N").out
        elements = {number: (index, node) for number, index, node in map(str.split, listed.splitlines())}
        index, node = elements[array]
        urgent = self.cluster.submit("#!/bin/sh\nsleep 3\n", "--partition=urgent", f"--nodelist={node}", "--exclusive")
        self.assertEqual(self.cluster.finished(urgent, 90)["JobState"], "COMPLETED")
        self.start_at_once(campaign, f"{array}_{index}", ARRAY_CELLS)
        starts = [line for line in campaign.events().splitlines() if " start " in line]
        self.assertEqual(sorted("restart=1" in line for line in starts), [False, False, True], starts)

    def case_node_failure(self) -> None:
        campaign, job = self.begun("node_failure")
        node = NODES["node_failure"].partition("-")[2].rstrip("]")
        self.cluster.signal_daemon(f"n{node}", signal.SIGKILL)
        self.control("update", f"nodename=n{node}", "state=down", "reason=test")
        self.cluster.wait_for_state(job, "PENDING")
        self.cluster.start_node(f"n{node}")  # the node registers, and Slurm may use it again
        self.start_at_once(campaign, job)


for name in CASES:
    setattr(Interrupted, f"test_{name}", lambda self, name=name: self.outcomes[name].result())


if __name__ == "__main__":
    main()
