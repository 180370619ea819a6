"""Submits, watches, resumes, cancels and rejects campaigns, with stand-ins for Slurm and hvd_bench."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from campaigns import STAND_INS, campaign_here, rows
from fake_cluster import FakeCluster, Task, directive_words, kill_group, slurm_log, wait_until

SPEC = """
name = "life"
models = ["vgg16"]
ranks = [1, 2, 4, 8]
repetitions = 2
[weak]
batch_size = 4
"""
ONCE = SPEC.replace("repetitions = 2", "repetitions = 1")
SITE = f"""
base = "slurm"
name = "test"
[node]
ranks_per_node = [2]
[program]
hvd_bench = "{STAND_INS}/hvd_bench"
"""


class LifeTest(unittest.TestCase):
    SCHEDULER_SITE = SITE

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = Path(scratch.name)
        self.folder = self.top / "campaign"
        self.cluster = FakeCluster(self.top / "cluster")
        (self.top / "spec.toml").write_text(SPEC, encoding="utf-8")
        (self.top / "site.toml").write_text(self.SCHEDULER_SITE, encoding="utf-8")

    def call(self, command: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return campaign_here(command, *arguments, environment={**self.cluster.environment(), **environment})

    def generate(self, spec: str | None = None, *more: str) -> None:
        if spec is not None:
            (self.top / "spec.toml").write_text(spec, encoding="utf-8")
        site = self.top / "site.toml"
        done = self.call("generate", self.top / "spec.toml", "--site", site, "--out", self.folder, *more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def submitted(self, spec: str | None = None, *more: str) -> str:
        """Generates the campaign and submits it. Returns what submit printed."""
        self.generate(spec, *more)
        return self.good("submit")

    def good(self, command: str, *arguments: object) -> str:
        done = self.call(command, self.folder, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def refused(self, done: subprocess.CompletedProcess[str], *texts: str, code: int = 2) -> None:
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def status(self, code: int = 0) -> dict:
        done = self.call("status", self.folder, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(self.call("status", self.folder).returncode, code)
        return json.loads(done.stdout)

    def counts(self, code: int = 0) -> dict[str, int]:
        return {state: count for state, count in self.status(code)["counts"].items() if count}

    def unit(self, job: str, code: int = 0) -> dict:
        """Returns what status says about the first repetition of `job`."""
        return next(unit for unit in self.status(code)["units"] if unit["job"] == job)

    def begun_runs(self, table: str = "run") -> int:
        """Returns how many rows of `table` the running sessions have stored so far."""
        runs = 0
        for path in self.folder.glob("stores/*.partial"):
            uri = f"{path.as_uri()}?mode=ro"
            # An error means that the session is writing the store, or has just published it.
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
                runs += connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return runs

    def sessions(self) -> dict[str, int]:
        """Maps each cell to its number of complete sessions in all stores, partial files of killed jobs included."""
        found: set[tuple[str, str]] = set()
        for path in [*self.folder.glob("stores/*.db"), *self.folder.glob("stores/*.partial")]:
            query = """SELECT DISTINCT session_uuid, value FROM run JOIN provenance ON run_uuid = uuid
                       WHERE key = 'label.cell' AND status = 'complete'"""
            found |= set(rows(path, query))
        return dict(Counter(cell for _, cell in found))


class SubmitTest(LifeTest):
    def test_from_submit_to_complete(self) -> None:
        self.generate()
        # two repetitions of 8 cells: 1 and 2 ranks (n0001), 4 (n0002) and 8 (n0004) ranks with two baselines each
        self.assertEqual(self.counts(), {"lacking": 16})
        said = self.good("submit")
        self.assertIn("n0001: job 101, 4 cells in repetitions 1, 2", said)
        self.assertIn("n0004: job 103, 6 cells in repetitions 1, 2, after 101 has succeeded", said)
        self.assertEqual(self.counts(), {"queued": 16})
        self.assertEqual(self.cluster.ready(), [Task(101, 1), Task(101, 2)], "the others wait for the first job")
        self.cluster.run(Task(101, 1))
        self.assertEqual(self.counts(), {"done": 2, "queued": 14})
        self.cluster.run_all()
        standing = self.status()
        self.assertEqual(standing["counts"]["done"], 16)
        self.assertTrue(standing["complete"])
        self.assertEqual(standing["node_hours_left"], 0)
        self.assertEqual(set(self.sessions().values()), {1})
        self.assertEqual(self.good("resume"), "nothing to hand in: all cells are held\n")
        self.assertEqual(len(list(self.folder.glob("stores/*.db"))), 6, "one database per job and repetition")

    def test_labels_tell_what_a_session_was(self) -> None:
        self.submitted()
        self.cluster.run_all()
        manifest = json.loads((self.folder / "campaign.json").read_text())
        orders = set()
        for path in self.folder.glob("stores/n0002.*.db"):
            connection = sqlite3.connect(path)
            facts: dict[str, dict[str, str]] = {}
            for session, key, value in connection.execute(
                "SELECT session_uuid, key, value FROM run JOIN provenance ON run_uuid = uuid"
            ):
                facts.setdefault(session, {})[key] = value
            connection.close()
            for labels in facts.values():
                self.assertEqual(labels["label.campaign"], "life")
                self.assertEqual(labels["label.spec"], manifest["spec_hash"])
                self.assertEqual(labels["label.order_seed"], "1")
                orders.add((labels["label.repetition"], labels["label.order"]))
                self.assertIn(labels["label.role"], ("scale", "one_rank", "one_node"))
        self.assertEqual(orders, {(r, f"{n}/3") for r in "12" for n in (1, 2, 3)})

    def test_submit_is_for_the_first_time(self) -> None:
        self.submitted()
        self.refused(self.call("submit", self.folder), "was submitted before; resume")
        self.assertEqual(self.good("resume"), "nothing to hand in: the rest is at work\n")

    def test_a_step_that_is_recorded_anew_makes_new_cells(self) -> None:
        step = self.top / "vgg16.replay"
        step.write_bytes(b"one")
        self.submitted(ONCE + f'[options]\nreplay = "{self.top}/{{model}}.replay"\n')
        self.cluster.run_all()
        measured = set(self.sessions())
        self.assertEqual(self.good("resume"), "nothing to hand in: all cells are held\n")
        step.write_bytes(b"two")
        self.refused(
            self.call("resume", self.folder), f"{step}: was recorded anew: it is profile ", "generate it again"
        )
        self.generate()
        self.assertEqual(self.counts(), {"lacking": len(measured)})
        self.good("resume")
        self.cluster.run_all()
        self.assertEqual(len(self.sessions()), 2 * len(measured))
        step.unlink()
        self.refused(self.call("resume", self.folder), f"{step}: the recorded step cannot be read: No such file")

    def test_only(self) -> None:
        self.generate()
        self.assertIn("n0002: job 101", self.good("submit", "--only", "n0002"))
        self.assertEqual(self.cluster.ready(), [Task(101, 1), Task(101, 2)], "does not wait")
        self.refused(self.call("resume", self.folder, "--only", "n0003"), "no such job; jobs: n0001, n0002, n0004")

    def test_a_dry_run_submits_nothing(self) -> None:
        self.generate()
        self.assertIn("n0002: 6 cells in repetitions 1, 2 (after the first job)", self.good("submit", "--dry-run"))
        self.assertEqual(self.cluster.records(), [])
        self.good("submit")

    def test_without_the_gate_nothing_waits(self) -> None:
        self.submitted("first_job_gates = false\n" + SPEC)
        self.assertEqual(len(self.cluster.ready()), 6)

    def test_by_standard_input_and_without_arrays(self) -> None:
        self.submitted(None, "--set", "submit.by=stdin", "--set", "submit.array=false")
        self.assertEqual(
            [record["name"][-9:] for record in self.cluster.records()][:3], ["-n0001-r1", "-n0001-r2", "-n0002-r1"]
        )
        self.assertEqual(self.cluster.record(103)["after"], ["101", "102"])
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 16})

    def test_a_store_from_elsewhere_counts(self) -> None:
        self.generate()
        self.good("submit", "--only", "n0002")
        self.cluster.run_all()
        merged = self.top / "merged.db"
        (self.folder / "stores").rename(self.top / "old")
        (self.folder / "stores").mkdir()
        self.assertIn("n0002: 6 cells", self.good("resume", "--dry-run"))
        first, *others = sorted((self.top / "old").glob("*.db"))
        first.rename(merged)
        more = [word for path in [merged, *others] for word in ("--store", path)]
        self.assertNotIn("n0002", self.good("resume", "--dry-run", *more))
        self.refused(self.call("resume", self.folder, "--store", self.top / "none.db"), "none.db: no such file")


class RejectedTest(LifeTest):
    def test_no_scheduler_on_the_path(self) -> None:
        self.generate()
        plain = {"PATH": "/usr/bin:/bin"} if not Path("/usr/bin/squeue").exists() else {"PATH": str(self._bin())}
        for command in ("submit", "resume", "cancel"):
            with self.subTest(command):
                self.refused(self.call(command, self.folder, **plain), "squeue: not on the PATH", "login node")
        done = self.call("status", self.folder, "--json", **plain)
        self.assertEqual(done.returncode, 0, "status says what it can")
        self.assertIn("squeue: not on the PATH", json.loads(done.stdout)["notes"][0])

    def _bin(self) -> Path:
        """Makes a folder for PATH with the programs that a shell needs and without a scheduler."""
        folder = self.top / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("bash", "env", "dirname", "python3", "cat"):
            if not (folder / name).exists():
                (folder / name).symlink_to(f"/usr/bin/{name}")
        return folder

    def test_a_rejected_submission(self) -> None:
        self.cluster = FakeCluster(self.top / "cluster", reject="n0001")
        self.generate()
        self.refused(
            self.call("submit", self.folder),
            "job n0001: sbatch rejected it: sbatch: error: Batch job submission failed: Invalid account",
            "--set submit.partition",
        )
        self.assertEqual(self.cluster.records(), [])
        self.good("submit", "--dry-run")

    def test_a_submission_rejected_half_way_is_resumed(self) -> None:
        self.cluster = FakeCluster(self.top / "cluster", reject="n0004")
        self.generate()
        self.refused(self.call("submit", self.folder), "job n0004", "submitted before it: 2 jobs, which stay", code=1)
        self.assertEqual(self.counts(), {"queued": 10, "lacking": 6})
        self.cluster = FakeCluster(self.top / "cluster")
        self.assertIn("n0004: job 103, 6 cells in repetitions 1, 2, after 101", self.good("resume"))
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 16})

    def test_a_controller_that_does_not_answer(self) -> None:
        self.cluster = FakeCluster(self.top / "cluster", squeue="down")
        self.generate()
        self.refused(self.call("resume", self.folder), "Unable to contact slurm controller", "try again later")

    def test_two_at_a_time(self) -> None:
        import fcntl

        self.generate()
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refused(self.call("resume", self.folder), "another scripts/campaign is submitting")

    def test_damaged_stores_are_said_and_do_not_stop_it(self) -> None:
        self.submitted()
        self.cluster.run_all()
        broken = sorted(self.folder.glob("stores/n0002.r1.*.db"))[0]
        broken.write_bytes(broken.read_bytes()[:5000])
        (self.folder / "stores" / "empty.db").touch()
        standing = self.status()
        self.assertEqual(len(standing["notes"]), 2, standing["notes"])
        self.assertTrue(all("cells count as lacking" in note for note in standing["notes"]))
        self.assertEqual(standing["counts"]["lacking"], 3)
        self.assertIn("n0002: job 104, 3 cells in repetition 1", self.good("resume"))


class SurroundingsTest(LifeTest):
    """The user's variables of the scheduler, and a folder whose name is no plain word."""

    def test_variables_of_the_scheduler_do_not_reach_its_programs(self) -> None:
        self.submitted()
        hiding = {"SQUEUE_STATES": "RUNNING", "SLURM_CLUSTERS": "other", "SBATCH_ACCOUNT": "other"}
        done = self.call("resume", self.folder, **hiding)
        self.assertEqual((done.returncode, done.stdout), (0, "nothing to hand in: the rest is at work\n"))
        self.assertEqual(len(self.cluster.records()), 3)

    def test_a_job_inherits_nothing_of_the_allocation_in_which_it_is_submitted(self) -> None:
        self.generate(ONCE)
        outer = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS": "3", "SLURM_CONF": "/etc/our.conf"}
        step = {"PMIX_RANK": "0", "PMI_SIZE": "1", "PMIX_MCA_psec": "native", "OMPI_COMM_WORLD_SIZE": "4"}
        done = self.call("submit", self.folder, **outer, **step, LSB_JOBID="8", EDITOR="vi")
        self.assertEqual(done.returncode, 0, done.stderr)
        inherited = self.cluster.record(101)["environment"]
        left = {name: inherited[name] for name in (*outer, *step, "LSB_JOBID", "EDITOR") if name in inherited}
        self.assertEqual(left, {"SLURM_CONF": "/etc/our.conf", "PMIX_MCA_psec": "native", "EDITOR": "vi"})
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 8}, "srun refuses SLURM_MEM_PER_CPU beside SLURM_MEM_PER_NODE")

    def test_a_site_names_variables_to_keep(self) -> None:
        self.generate(ONCE, "--set", 'submit.keep_variables=["SBATCH_ACCOUNT", "HVD_CUDNN_ROOT"]')
        self.assertEqual(self.call("submit", self.folder, SBATCH_ACCOUNT="abc", SBATCH_QOS="x").returncode, 0)
        inherited = self.cluster.record(101)["environment"]
        self.assertEqual((inherited.get("SBATCH_ACCOUNT"), inherited.get("SBATCH_QOS")), ("abc", None))
        script = Path(self.cluster.record(101)["script"]).read_text(encoding="utf-8")
        self.assertRegex(script, r"\n  unset HOROVOD_.* HVD_NCCL_ROOT\n")
        self.assertNotIn("HVD_CUDNN_ROOT", script)

    def test_a_job_unsets_the_variables_of_the_program(self) -> None:
        """An exported HOROVOD_TIMELINE would trace every cell, and no table takes traced runs."""
        self.generate(ONCE, "--set", "program.environment.HOROVOD_CYCLE_TIME=7")
        seen = self.top / "seen"
        outer = {"HOROVOD_TIMELINE": "/tmp/trace", "HVD_MAX_CPU_ISA": "SSE2", "HOROVOD_CYCLE_TIME": "1"}
        self.assertEqual(self.call("submit", self.folder, **outer, FAKE_SEEN=str(seen)).returncode, 0)
        self.cluster.run(Task(101, 1))
        self.assertEqual(seen.read_text().splitlines(), ["HOROVOD_CYCLE_TIME=7"] * 2)

    def test_a_cell_whose_run_no_table_can_use_is_lacking(self) -> None:
        self.submitted(ONCE)
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 8})
        (store,) = self.folder.glob("stores/n0001*.db")
        with contextlib.closing(sqlite3.connect(store)) as connection, connection:
            connection.execute("UPDATE run SET traced = 1")
        self.assertEqual(self.counts(), {"done": 6, "lacking": 2})
        self.assertIn("n0001: job 104, 2 cells", self.good("resume"))
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 8})

    def test_folders_of_many_names(self) -> None:
        for name in ("two words", "100%j", "%%A", "#1", "a #b", "it's", 'say "this"', "$HOME`", "grün", "-x;&"):
            with self.subTest(name):
                self.cluster = FakeCluster(self.top / f"cluster of {name}")
                self.folder = self.top / name
                self.generate(ONCE)
                words = (self.top / "spec.toml", "--site", self.top / "site.toml", "--out", self.folder)
                said = self.call("generate", *words)
                self.assertEqual(shlex.split(said.stdout.partition("next: ")[2])[1:], ["submit", str(self.folder)])
                self.good("submit", "--only", "n0001")
                self.assertEqual(
                    slurm_log(self.cluster.record(101)["output"], 101, 1), f"{self.folder}/logs/n0001.101.1.out"
                )
                self.cluster.run_all()
                self.assertEqual(self.counts(), {"done": 2, "lacking": 6})
                resume = self.call("status", self.folder).stdout.partition("nothing is at work on 6 of them: ")[2]
                self.assertEqual(shlex.split(resume)[1:], ["resume", str(self.folder)])
                self.good("resume")
                self.cluster.run_all()
                merge = self.call("status", self.folder).stdout.partition("complete; next: ")[2]
                self.assertEqual(shlex.split(merge)[1:], ["-o", "life.db", f"{self.folder}/stores/*.db"])

    def test_folders_that_slurm_cannot_take(self) -> None:
        for name, why in (("back\\slash", "Slurm does not replace %j"), ("two\nlines", "use an --out without '\\n'")):
            with self.subTest(name):
                words = ("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--out", self.top / name)
                self.refused(self.call(*words), why)
                self.assertFalse((self.top / name).exists())

    def test_fields_of_the_site_that_are_no_plain_words(self) -> None:
        fields = {"account": "two words", "constraint": 'a"b\\c', "reservation": "it's #1", "qos": "x&y"}
        self.generate(ONCE, *(word for key, value in fields.items() for word in ("--set", f"submit.{key}={value}")))
        lines = (self.folder / "jobs" / "n0001.sh").read_text(encoding="utf-8").splitlines()
        found = [directive_words(line.removeprefix("#SBATCH ")) for line in lines if line.startswith("#SBATCH ")]
        for key, value in fields.items():
            self.assertIn([f"--{key}={value}"], found)


class FailureTest(LifeTest):
    def cell(self, job: str, repetition: int, ranks: int) -> str:
        manifest = json.loads((self.folder / "campaign.json").read_text())
        cells = next(j for j in manifest["jobs"] if j["name"] == job)["cells"][str(repetition)]
        return next(cell[0] for cell in cells if cell[2] == ranks)

    def test_a_failed_cell(self) -> None:
        self.submitted()
        bad = self.cell("n0002", 1, 4)
        self.cluster.run_all(**{f"FAKE_CODE_{bad}": "8"})
        standing = self.status(1)
        self.assertEqual(standing["counts"], {"done": 15, "running": 0, "queued": 0, "failed": 1, "lacking": 0})
        (failure,) = standing["failures"]
        self.assertEqual((failure["job"], failure["cell"], failure["code"]), ("n0002", bad, 8))
        text = self.call("status", self.folder).stdout
        self.assertIn(f"n0002 r1 {bad}: vgg16 batch 4 fp32 static, 4 ranks: exit code 8", text)
        self.assertIn("scripts/campaign resume", text)
        self.assertIn("n0002: job 104, 1 cells in repetition 1", self.good("resume"))
        self.assertEqual(self.cluster.tasks(), [Task(104, 1)], "only the repetition that lacks a cell")
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 16})
        self.assertEqual(set(self.sessions().values()), {1})

    def test_a_lost_rank_ends_the_job_and_leaves_the_others_for_resume(self) -> None:
        self.submitted(ONCE)
        self.cluster.run(Task(101, 1))
        manifest = json.loads((self.folder / "campaign.json").read_text())
        first = manifest["jobs"][1]["cells"]["1"][0][0]
        self.assertEqual(self.cluster.run(Task(102, 1), **{f"FAKE_CODE_{first}": "5"}), 1)
        standing = self.status(1)
        self.assertEqual(self.unit("n0002", code=1)["note"], "stopped because a rank was lost")
        self.assertEqual(standing["jobs"]["n0002"], {"done": 0, "running": 0, "queued": 0, "failed": 1, "lacking": 2})

    def test_when_the_first_job_fails_the_others_do_not_start(self) -> None:
        self.submitted()
        bad = self.cell("n0001", 2, 2)
        self.cluster.run_all(**{f"FAKE_CODE_{bad}": "2"})
        standing = self.status(1)
        self.assertEqual(standing["counts"], {"done": 3, "running": 0, "queued": 0, "failed": 1, "lacking": 12})
        self.assertIn("left the queue without starting", self.unit("n0004", code=1)["note"])
        said = self.good("resume")
        self.assertIn("n0001: job 104, 1 cells in repetition 2", said)
        self.assertIn("n0004: job 106, 6 cells in repetitions 1, 2, after 104 has succeeded", said)
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 16})

    def test_when_one_element_of_the_first_job_has_failed_the_others_wait_for_the_rest_of_it(self) -> None:
        self.submitted()
        self.cluster.run(Task(101, 1), **{f"FAKE_CODE_{self.cell('n0001', 1, 2)}": "2"})
        self.cluster.set_state(Task(101, 2), "RUNNING")
        for job in (102, 103):
            self.cluster.set_state(Task(job, 1), "CANCELLED")  # Slurm: DependencyNeverSatisfied
            self.cluster.set_state(Task(job, 2), "CANCELLED")
        said = self.good("resume")
        self.assertIn("n0002: job 105, 6 cells in repetitions 1, 2, after 101_2 104 has succeeded", said)
        self.cluster.run(Task(101, 2))
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 16})

    def test_a_program_that_is_not_there(self) -> None:
        self.submitted(None, "--set", f"program.hvd_bench={self.top}/nothing")
        self.cluster.run_all()
        standing = self.status()
        self.assertIn("nothing is not there; build or install it", standing["units"][0]["note"])
        self.assertEqual(self.cluster.record(101)["states"]["1"], "FAILED")

    def test_a_site_whose_set_up_fails(self) -> None:
        self.generate(None, "--set", 'program.setup=["true", "false", "touch /nowhere"]')
        self.good("submit", "--only", "n0001")
        self.cluster.run_all()
        self.assertIn("set-up failed", self.status()["units"][0]["note"])
        modules = ["--set", 'program.modules=["gcc"]', "--set", 'program.setup=["module() { return 1; }"]', "--replace"]
        self.generate(None, *modules)

    def test_the_warning_stops_a_job_in_order(self) -> None:
        self.submitted(ONCE)
        self.cluster.run(Task(101, 1))
        child = self.cluster.start(Task(102, 1), FAKE_SLOW="60")
        self.addCleanup(kill_group, child)
        wait_until(lambda: self.status()["counts"]["running"] == 1)
        self.assertEqual(self.status()["seconds_left"], 3723)
        wait_until(lambda: list(self.folder.glob("stores/n0002*.partial")))
        child.send_signal(signal.SIGUSR1)  # like --signal=B:USR1, signals only the script
        self.assertEqual(child.wait(30), 1)
        self.cluster.set_state(Task(102, 1), "FAILED")
        standing = self.status()
        self.assertEqual(standing["jobs"]["n0002"]["lacking"], 3)
        self.assertEqual(standing["units"][1]["note"], "was stopped by the warning before its end")
        self.assertEqual(list(self.folder.glob("stores/*.partial")), [], "hvd_bench stored what it had")
        (log,) = self.folder.glob("events/n0002*.log")
        self.assertEqual(log.read_text().count(" begin "), 1, "nothing more was started")
        self.good("resume")
        self.cluster.run_all()
        self.assertEqual(self.counts(), {"done": 8})

    def test_too_little_time_left_starts_nothing(self) -> None:
        self.generate(ONCE)
        self.good("submit", "--only", "n0002")
        script = Path(self.cluster.record(101)["script"])
        text = script.read_text()
        script.write_text(text.replace("\nwalltime_seconds=", "\nwalltime_seconds=200  # "))
        self.assertEqual(self.cluster.run(Task(101, 1)), 1)
        self.assertEqual(self.unit("n0002")["note"], "ended with too little time left for 3 cells")

    def test_node_failure_and_requeue_go_on_where_it_was(self) -> None:
        self.submitted(ONCE)
        self.cluster.run(Task(101, 1))
        points = self.top / "points"
        kill = {"FAKE_POINTS": str(points), "FAKE_KILL_AT": "10"}  # the second cell reaches point 10
        self.assertEqual(self.cluster.run(Task(102, 1), **kill), -9)
        self.assertIn("was killed during cell", self.unit("n0002")["note"])
        done_before = self.sessions()
        self.cluster.set_state(Task(102, 1), "PENDING")
        self.assertEqual(self.unit("n0002")["state"], "queued")
        self.assertEqual(self.cluster.run(Task(102, 1), restart=1), 0)
        self.assertLessEqual(done_before.items(), self.sessions().items())
        self.assertEqual(set(self.sessions().values()), {1})
        self.assertEqual(len(list(self.folder.glob("stores/n0002.r1.102.1.db"))), 1, "an attempt has its own file")

    def test_a_full_disk_is_said(self) -> None:
        self.generate()
        self.good("submit", "--only", "n0001")
        (self.folder / "events").rmdir()
        (self.folder / "events").write_text("not a folder")
        self.assertEqual(self.cluster.run(Task(101, 1)), 2)
        self.assertIn("cannot be written; is the disk full?", self.cluster.log(Task(101, 1)))


class CancelTest(LifeTest):
    def test_cancel(self) -> None:
        self.generate()
        self.assertEqual(self.good("cancel"), "nothing is queued or running\n")
        self.good("submit")
        self.cluster.run(Task(101, 1))
        said = self.good("cancel", "--only", "n0002")
        self.assertEqual(len(said.splitlines()), 2)
        self.assertIn("n0002 repetition 1: queued, cancelled (102_1)", said)
        self.good("cancel")
        self.assertEqual(self.cluster.tasks(), [])
        self.assertEqual(self.counts(), {"done": 2, "lacking": 14})
        self.assertIn("n0001: job 104, 2 cells in repetition 2", self.good("resume"))

    def test_other_peoples_jobs_are_left_alone(self) -> None:
        self.submitted()
        other = self.top / "other"
        site = self.top / "site.toml"
        self.call("generate", self.top / "spec.toml", "--site", site, "--out", other)
        self.assertEqual(self.call("submit", other).returncode, 0)
        self.good("cancel")
        self.assertEqual(len(self.cluster.tasks()), 6, "the other campaign's, of the same spec")
