"""hvd_bench as the tasks of a Slurm step: joined, refused, interrupted, bereaved."""

import os
import signal
import sqlite3
import time
from pathlib import Path

from cluster_test import ClusterTest, Shape, main, profile

from program import PROGRAM

TWO_BY_TWO = ("-N2", "--ntasks-per-node=2")


class Steps(ClusterTest):
    shape = Shape(nodes=2, cpus=4)

    def test_resnet101_on_two_nodes(self) -> None:
        """What a user types where the site's default is PMIx."""
        arguments = ["--batch-size", "1", "--image-size", "32", "--classes", "10", "--threads", "1"]
        arguments += ["--num-warmup-batches", "1", "--num-iters", "3", "--efficiency", "--db", str(self.db)]
        env = {"SLURM_MPI_TYPE": "pmix"}
        command = [*TWO_BY_TWO, PROGRAM, "--model", "resnet101", *arguments]
        result = self.cluster.srun(*command, env=env, timeout=300)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(len(self.totals(result)), 1, result)
        self.assertIn("4 ranks, 2 hosts", result.out)
        rows = self.query("SELECT phase, world_size, nodes, device, status FROM run ORDER BY phase")
        expected = [("full", 4, 2), ("none", 4, 2), ("solo", 1, 1)]
        self.assertEqual(rows, [(*row, "cpu", "complete") for row in expected])
        hosts = self.query("SELECT rank, local_rank FROM rank JOIN run ON uuid = run_uuid WHERE phase = 'full'")
        self.assertEqual(sorted(hosts), [(0, 0), (1, 1), (2, 0), (3, 1)])
        ((checks, plane),) = self.query("SELECT checks, data_plane FROM run WHERE phase = 'full'")
        self.assertIn("gradients equal an independent sum", checks)
        self.assertIn("equal on all ranks", checks)
        self.assertIn("hierarchical(shm+ring over mpi)", plane)
        facts = dict(self.query("SELECT DISTINCT key, value FROM provenance WHERE key LIKE 'env.SLURM%'"))
        self.assertEqual(facts["env.SLURM_JOB_NUM_NODES"], "2")
        self.assertEqual(facts["env.SLURM_JOB_NODELIST"], "n[1-2]")
        ((line,),) = self.query("SELECT command_line FROM session")
        self.assertIn("srun --mpi=pmix -N 2 -n 4", line)

    def test_without_pmix_it_is_refused_once(self) -> None:
        replay = str(profile(self.folder))
        result = self.cluster.srun("--mpi=none", *TWO_BY_TWO, PROGRAM, "--replay", replay, "--no-db")
        line = self.refused(result, 2, "SLURM_STEP_NUM_TASKS=4", "separate world")
        self.assertIn("srun --mpi=pmix -n 4 hvd_bench", line)

    def test_in_a_batch_script_without_a_launcher_it_is_refused(self) -> None:
        replay = str(profile(self.folder))
        script = f"#!/bin/sh\n{PROGRAM} --replay {replay} --no-db\n"
        job = self.cluster.submit(script, "-N2", "--ntasks-per-node=2", f"--output={self.folder}/out")
        self.assertEqual(self.cluster.finished(job)["ExitCode"], "2:0")
        text = (self.folder / "out").read_text()
        self.assertIn("SLURM_NTASKS=4: the allocation holds 4 tasks", text)

    def test_doctor_knows_the_step(self) -> None:
        result = self.bench("doctor", tasks=("-N2", "--ntasks-per-node=2"))
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.out.count("SLURM_STEP_NUM_TASKS=4 (rank 0)"), 1, "rank 0's host in full")
        self.assertEqual(result.out.count("starts, world of 4"), 1, result)
        others = [line for line in result.out.splitlines() if line.startswith(("n1:", "n2:"))]
        self.assertTrue(all(line.startswith("n2: warning") for line in others), result)

    def test_a_usage_error_is_said_once(self) -> None:
        self.refused(self.bench("--model", "resnet102", tasks=TWO_BY_TWO), 2, "resnet102")
        unwritable = str(self.folder / "none" / "x.db")
        arguments = ("--replay", str(profile(self.folder)), "--db", unwritable)
        self.refused(self.bench(*arguments, tasks=TWO_BY_TWO), 2, "there is no directory")


class Interruptions(ClusterTest):
    """Replay sleeps, so these cost waiting and not computing."""

    shape = Shape(nodes=2, cpus=4, kill_wait_seconds=10)

    def start(self, *options: str, forward: str = "") -> str:
        """A batch job whose only step would measure for ten minutes; returns its id once it measures."""
        replay = profile(self.folder)
        command = f"{PROGRAM} --replay {replay} --num-iters 6000 --num-warmup-batches 1 --db {self.db}"
        script = f"#!/bin/bash\n{forward}\nsrun --mpi=pmix {command} &\nchild=$!\nwait $child\nwait $child\nexit $?\n"
        files = (f"--output={self.folder}/out", f"--error={self.folder}/err")
        job = self.cluster.submit(script, *TWO_BY_TWO, *files, *options)
        self.assertTrue(self.wait_for_samples(), (self.folder / "err").read_text())
        return job

    def wait_for_samples(self, seconds: float = 60) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for partial in self.folder.glob("*.partial"):
                try:
                    if self.query("SELECT count(*) FROM sample WHERE count > 0", partial) != [(0,)]:
                        return True
                except sqlite3.OperationalError:
                    continue  # just being written
            time.sleep(0.5)
        return False

    def ended(self, job: str, reason: str, code: str = "7:0", timeout: float = 60) -> str:
        """The job has failed with `code`, one line says `reason`, and what was measured is stored. Returns it."""
        state = self.cluster.finished(job, timeout)
        text = (self.folder / "err").read_text()
        if code:
            self.assertEqual(state["ExitCode"], code, text)
        lines = [line for line in text.splitlines() if line.startswith("hvd_bench: error:")]
        self.assertEqual(len(lines), 1, text)
        self.assertIn(reason, lines[0])
        self.assert_incomplete_with_samples(reason)
        return lines[0]

    def test_scancel(self) -> None:
        job = self.start()
        self.cluster.run("scancel", job)
        self.ended(job, "SIGTERM", code="")

    def test_scancel_with_a_signal(self) -> None:
        job = self.start()
        self.cluster.run("scancel", "--signal=USR1", job)
        self.ended(job, "SIGUSR1")

    def test_the_warning_before_the_time_limit(self) -> None:
        """--signal without B: goes to the step's tasks; Slurm may send it up to a minute early."""
        job = self.start("--time=2", "--signal=USR1@60")
        self.ended(job, "SIGUSR1", timeout=150)

    def test_the_warning_to_the_batch_script_is_passed_on(self) -> None:
        job = self.start("--time=2", "--signal=B:USR1@60", forward="trap 'kill -USR1 $child' USR1")
        self.ended(job, "SIGUSR1", timeout=150)

    def test_the_time_limit_itself(self) -> None:
        job = self.start("--time=1")
        self.ended(job, "SIGTERM", code="", timeout=150)
        self.assertEqual(self.cluster.job(job)["JobState"], "TIMEOUT")

    def rank_pid(self, rank: int) -> int:
        program = Path(PROGRAM).resolve()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "environ").read_bytes()
                ours = (process / "exe").readlink() == program and str(self.cluster.folder).encode() in words
            except OSError:
                continue
            if ours and f"SLURM_PROCID={rank}".encode() in words.split(b"\0"):
                return int(process.name)
        raise AssertionError(f"no process of rank {rank}")

    def test_a_rank_is_killed(self) -> None:
        """Slurm's PMIx plugin kills the whole step at once, so that nothing can be said or stored any more: what was
        saved while measuring is what there is, and merge takes it."""
        job = self.start()
        os.kill(self.rank_pid(3), signal.SIGKILL)
        self.assertEqual(self.cluster.finished(job, 60)["JobState"], "FAILED")
        self.assertIn("n2: task 3: Killed", (self.folder / "err").read_text())
        (partial,) = self.folder.glob("*.partial")
        merged = self.folder / "merged.db"
        result = self.script("merge", "-o", str(merged), str(partial))
        self.assertEqual(result.code, 0, result)
        self.assertEqual(self.query("SELECT status FROM run", merged), [("incomplete",)])
        ((ranks, least),) = self.query("SELECT count(*), min(count) FROM sample WHERE kind = 'step_seconds'", merged)
        self.assertEqual(ranks, 4)
        self.assertGreater(least, 0)


if __name__ == "__main__":
    main()
