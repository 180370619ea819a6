"""Runs hvd_bench as the tasks of a Slurm step. The tasks join, are refused, are interrupted, or lose a rank."""

import os
import re
import signal
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from cluster_test import ClusterTest, Shape, main, profile
from slurm_cluster import Cluster

from program import HANG, PROGRAM

TWO_BY_TWO = ("-N2", "--ntasks-per-node=2")


@dataclass(frozen=True)
class Job:
    """A batch job whose only step would measure for ten minutes. `folder` contains its output and its store."""

    number: str
    folder: Path

    @property
    def error_text(self) -> str:
        return (self.folder / "err").read_text()


def submit(cluster: Cluster, name: str, *options: str, forward: str = "") -> Job:
    """Submits a job. `forward` is a line for the job's script, in which $child is the process id of the step."""
    folder = cluster.work / name
    folder.mkdir()
    command = f"{PROGRAM} --replay {profile(folder)} --num-iters 6000 --num-warmup-batches 1 --db {folder}/runs.db"
    script = f"#!/bin/bash\n{forward}\nsrun --mpi=pmix {command} &\nchild=$!\nwait $child\nwait $child\nexit $?\n"
    files = (f"--output={folder}/out", f"--error={folder}/err")
    return Job(cluster.submit(script, *TWO_BY_TWO, *files, *options), folder)


def start_limited(cluster: Cluster) -> dict[str, Job]:
    """Starts jobs that reach their time limit of a minute, Slurm's shortest. Meanwhile other tests run on n1 and n2.
    --signal=USR1 signals the tasks, and --signal=B:USR1 signals the script. Slurm checks every 30 s, so a signal may
    come up to 30 s early."""
    limit, warning = ("--exclude=n[1-2]", "--time=1"), 10
    return {
        "tasks": submit(cluster, "tasks", *limit, f"--signal=USR1@{warning}"),
        "script": submit(
            cluster, "script", *limit, f"--signal=B:USR1@{warning}", forward="trap 'kill -USR1 $child' USR1"
        ),
        "limit": submit(cluster, "limit", *limit),
    }


class Steps(ClusterTest):
    """The batch jobs replay a profile whose steps sleep, so the jobs need no processor."""

    shape = Shape(nodes=8, cpus=2, kill_wait_seconds=10)
    limited: dict[str, Job]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.limited = start_limited(cls.cluster)

    def test_resnet101_on_two_nodes(self) -> None:
        """Runs the command that a user types at a site whose default is PMIx."""
        self.need_hosts()
        arguments = ["--batch-size", "1", "--image-size", "32", "--classes", "10", "--threads", "1"]
        arguments += ["--num-warmup-batches", "1", "--num-iters", "3", "--efficiency", "--db", str(self.db)]
        env = {"SLURM_MPI_TYPE": "pmix"}
        command = [*TWO_BY_TWO, PROGRAM, "--model", "resnet101", *arguments]
        result = self.cluster.srun(*command, env=env).ended_with(0)
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
        self.assertRegex(facts["env.SLURM_JOB_NODELIST"], r"^n\[\d[-,]\d\]$")
        ((line,),) = self.query("SELECT command_line FROM session")
        self.assertIn("srun --mpi=pmix -N 2 -n 4", line)

    def test_open_mpi_joins_by_pmix_and_mpich_by_pmi2(self) -> None:
        self.need_hosts()
        words = ("--replay", str(profile(self.folder)), "--num-iters", "3", "--num-warmup-batches", "1", "--no-db")
        for library, pmi in (("openmpi", "pmix"), ("mpich", "pmi2")):
            if not (Path(PROGRAM).resolve().parents[1] / f"lib/hvd_bench/hvd_mpi_{library}.so").exists():
                continue
            with self.subTest(library):
                env = {"HVD_MPI": library}
                result = self.cluster.srun(f"--mpi={pmi}", *TWO_BY_TWO, PROGRAM, *words, env=env).ended_with(0)
                self.assertIn("4 ranks, 2 hosts", result.out)

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
        self.need_hosts()
        result = self.bench("doctor", tasks=("-N2", "--ntasks-per-node=2")).ended_with(0)
        self.assertEqual(result.out.count("SLURM_STEP_NUM_TASKS=4 (rank 0)"), 1, "rank 0's host in full")
        self.assertEqual(result.out.count("starts, world of 4"), 1, result)
        others = re.findall(r"^(n\d): (\w*)", result.out, re.MULTILINE)
        self.assertLessEqual(len({host for host, _ in others}), 1, "the other host")
        self.assertLessEqual({kind for _, kind in others}, {"warning"}, result)

    def test_a_usage_error_is_said_once(self) -> None:
        self.refused(self.bench("--model", "resnet102", tasks=TWO_BY_TWO), 2, "resnet102")
        unwritable = str(self.folder / "none" / "x.db")
        arguments = ("--replay", str(profile(self.folder)), "--db", unwritable)
        self.refused(self.bench(*arguments, tasks=TWO_BY_TWO), 2, "there is no directory")
        collectives = ("coll", "-b", "8", "-e", "8", "--startup-deadline-seconds", "86400")
        self.refused(self.bench(*collectives, "--db", unwritable, tasks=TWO_BY_TWO), 2, "there is no directory")
        self.refused(self.bench(*collectives, "-J", unwritable, tasks=TWO_BY_TWO), 2, "no file can be made")

    def measuring(self, job: Job, seconds: float = HANG) -> Job:
        """Waits until `job` has stored a sample. Returns `job`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for partial in job.folder.glob("*.partial"):
                try:
                    if self.query("SELECT count(*) FROM sample WHERE count > 0", partial) != [(0,)]:
                        return job
                except sqlite3.DatabaseError:
                    continue  # the session is writing the store
            time.sleep(0.5)
        raise AssertionError(f"nothing measured after {seconds:.0f} s\n{job.error_text}")

    def ended(self, job: Job, reason: str, *, state: str, code: str = "", timeout: float = HANG) -> None:
        """Asserts that the job ends in `state` (with exit code `code`, if given), that it prints one error line, which
        contains `reason`, and that its store has an incomplete run with samples."""
        found = self.cluster.finished(job.number, timeout)
        self.assertEqual(found["JobState"], state, job.error_text)
        if code:
            self.assertEqual(found["ExitCode"], code, job.error_text)
        lines = [line for line in job.error_text.splitlines() if line.startswith("hvd_bench: error:")]
        self.assertEqual(len(lines), 1, job.error_text)
        self.assertIn(reason, lines[0])
        self.folder, self.db = job.folder, job.folder / "runs.db"
        self.assert_incomplete_with_samples(reason)

    def test_scancel(self) -> None:
        job = self.measuring(submit(self.cluster, "cancelled"))
        self.cluster.run("scancel", job.number)
        self.ended(job, "SIGTERM", state="CANCELLED")

    def test_scancel_with_a_signal(self) -> None:
        job = self.measuring(submit(self.cluster, "told"))
        self.cluster.run("scancel", "--signal=USR1", job.number)
        self.ended(job, "SIGUSR1", state="FAILED", code="7:0")

    def test_the_warning_before_the_time_limit(self) -> None:
        self.ended(self.limited["tasks"], "SIGUSR1", state="FAILED", code="7:0")

    def test_the_warning_to_the_batch_script_is_passed_on(self) -> None:
        self.ended(self.limited["script"], "SIGUSR1", state="FAILED", code="7:0")

    def test_the_time_limit_itself(self) -> None:
        self.ended(self.limited["limit"], "SIGTERM", state="TIMEOUT")

    def rank_pid(self, job: Job, rank: int) -> int:
        program, ours = Path(PROGRAM).resolve(), {f"SLURM_JOB_ID={job.number}", f"SLURM_PROCID={rank}"}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_text(errors="replace")
                if (process / "exe").readlink() != program or str(self.cluster.folder) not in variables:
                    continue  # this process belongs to another test's cluster, whose nodes have the same names
                if ours.issubset(variables.split("\0")):
                    return int(process.name)
            except OSError:
                continue
        raise AssertionError(f"no process of rank {rank} of job {job.number}")

    def test_a_rank_is_killed(self) -> None:
        """When a rank dies, Slurm's PMIx plugin kills the whole step at once, so in general no rank can report or store
        anything. Samples that were saved before the kill are left, and merge accepts them."""
        job = self.measuring(submit(self.cluster, "bereaved"))
        os.kill(self.rank_pid(job, 3), signal.SIGKILL)
        self.assertEqual(self.cluster.finished(job.number, 60)["JobState"], "FAILED")
        self.assertRegex(job.error_text, r"n\d: (task |tasks 2-)3: Killed")  # Slurm 22.05, and 24.11
        # On a busy machine rank 0 may notice the loss and close its store before Slurm kills it.
        (partial,) = sorted(job.folder.glob("*.partial")) or sorted(job.folder.glob("*.db"))
        merged = self.folder / "merged.db"
        self.script("merge", "-o", str(merged), str(partial)).ended_with(0)
        self.assertEqual(self.query("SELECT status FROM run", merged), [("incomplete",)])
        ((ranks, least),) = self.query("SELECT count(*), min(count) FROM sample WHERE kind = 'step_seconds'", merged)
        self.assertEqual(ranks, 4)
        self.assertGreater(least, 0)


if __name__ == "__main__":
    main()
