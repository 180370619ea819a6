"""Runs hvd_bench coll, which times and checks collective operations, with ranks as threads and as processes."""

import contextlib
import csv
import json
import os
import re
import shlex
import signal
import sqlite3
import unittest

from program import (
    MPIRUN,
    PROGRAM,
    TINY,
    ProgramTest,
    Result,
    Running,
    eventually,
    execute,
    may_mount,
    mpirun_is_open_mpi_5,
    needs_mpi,
    per_rank,
    retried_if_mpirun_kills_early,
    waits_for_a_peer,
)

QUICK = ["-b", "1K", "-e", "64K", "-f", "64", "--max-time", "0.1", "-w", "1", "--warm"]
# Only the test ends this run, and its deadlines never pass. --no-bound: the first sample is of the operation itself.
ENDLESS = ["--warm", "-b", "1K", "-e", "4K", "--no-bound", "--max-time", "1e7", "--target-interval", "1e-4"]
ENDLESS += ["--deadline-seconds", "86400", "--startup-deadline-seconds", "86400"]
UNDER_MPIRUN = [str(MPIRUN), "-n", "2", PROGRAM, "coll"]


def coll(*arguments: str, ranks: int = 2) -> Result:
    return execute([PROGRAM, "coll", "--ranks", str(ranks), *arguments])


def rows(text: str) -> list[list[str]]:
    """Returns the table's rows, split into columns as scripts for nccl-tests split them."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


class Coll(ProgramTest):
    def measuring(self, *command: str) -> Running:
        """Starts a session that would measure for ever. Returns when it has a sample."""
        self.json = self.folder / "coll.json"
        files = ["-J", str(self.json), "--db", str(self.db)]
        return Running([*command, *ENDLESS, *files], until="coll: measuring")

    def require_stored_incomplete(self, reason: str) -> None:
        """Asserts that the store has one session, which ended early and has samples."""
        (session,) = self.query("SELECT status, status_reason, ranks FROM coll_session", self.stored_file())
        self.assertEqual((session[0], session[2]), ("incomplete", 2))
        self.assertIn(reason, session[1])
        samples = "SELECT min(sample.count) FROM coll_sample AS sample JOIN coll_cell USING (session_uuid, seq)"
        self.assertGreater(self.query(samples, self.stored_file())[0][0], 0)

    def test_rows_are_those_of_nccl_tests(self) -> None:
        result = coll(*QUICK).ended_with(0)
        table = rows(result.out)
        expected = [["1024", "256", "float", "sum", "-1"], ["65536", "16384", "float", "sum", "-1"]]
        self.assertEqual([row[:5] for row in table], expected)
        for row in table:
            size, microseconds, algbw, busbw = (float(row[i]) for i in (0, 5, 6, 7))
            self.assertGreater(microseconds, 0)
            rounding = 0.005 * (1 + algbw / microseconds)  # algbw and microseconds are printed with two decimals
            self.assertAlmostEqual(algbw, size / microseconds / 1e3, delta=rounding * 1.1)
            self.assertEqual(algbw, busbw)  # because the factor 2 (n - 1) / n is 1 for n = 2 ranks
            self.assertEqual((row[8], row[12]), ("0", "0"))
        self.assertIn("# Out of bounds values : 0 OK", result.out)

    def test_every_collective_and_the_files(self) -> None:
        json_file, csv_file = self.folder / "coll.json", self.folder / "coll.csv"
        secret = {"MY_TOKEN": "hush", "OMP_NUM_THREADS": "1"}
        files = ["-J", str(json_file), "--csv", str(csv_file)]
        execute([PROGRAM, "coll", "--ranks", "3", *QUICK, "--collective", "all", *files], env=secret).ended_with(0)
        document = json.loads(json_file.read_text())
        self.assertEqual(
            (document["version"], document["status"], document["out_of_bounds"]),
            (2, "complete", {"count": 0, "okay": "true"}),
        )
        self.assertEqual(len(document["config"]["devices"]), 3)
        self.assertNotIn("hush", json_file.read_text())
        self.assertIn("env.OMP_NUM_THREADS=1", document["env"])
        names = [row["experiment_name"] for row in document["results"]]
        pairs = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
        self.assertEqual(names, [*(name for name in pairs for _ in range(2)), "barrier"])
        for row in document["results"]:
            form = row["in_place"] or row["out_of_place"]
            self.assertEqual(form["nwrong"], None if row["experiment_name"] == "barrier" else 0)
            low, high = form["time_low"], form["time_high"]
            # On a busy machine the time cap may end a cell before there are enough samples for an interval.
            self.assertTrue((low is None and high is None) or low <= form["time"] <= high, form)
            self.assertGreaterEqual(form["skew"], 0)
            spread = row["in_place_per_iter" if row["in_place"] else "out_of_place_per_iter"]
            self.assertLessEqual(spread["min_us"], spread["p50_us"])
            self.assertLessEqual(spread["p99_us"], spread["max_us"])
            self.assertIn(form["last_rank"], (0, 1, 2))
        with csv_file.open() as lines:
            table = list(csv.DictReader(lines))
        forms = [row[place] for row in document["results"] for place in ("out_of_place", "in_place")]
        self.assertEqual(len(table), sum(form is not None for form in forms))
        self.assertEqual({row["wrong"] for row in table if row["collective"] != "barrier"}, {"0"})

    def test_comparison(self) -> None:
        # A cell ends after its ten samples, however long they take, because any interval is narrow enough.
        enough = ["--max-time", "1e7", "-n", "10", "--target-interval", "1"]
        result = coll(*QUICK, *enough, "--compare", "algorithm=ring,shm", "--place", "out").ended_with(0)
        self.assertIn("all_reduce, algorithm=ring, over ring", result.out)
        self.assertIn("all_reduce, algorithm=shm, over shm", result.out)
        # At each of the two sizes there is one ratio with an interval: the ratio of the second variant to the first
        # variant.
        self.assertEqual(result.out.count("["), 2, result)

    def test_a_models_buckets(self) -> None:
        words = ["--from-model", "resnet50", "--max-time", "0.02", "--warm", "--place", "in", "--no-bound"]
        result = coll(*words).ended_with(0)
        sizes = [int(row[0]) for row in rows(result.out)]
        self.assertEqual(sizes, sorted(sizes))
        self.assertGreater(sum(size >= 25 << 20 for size in sizes), 0, sizes)
        self.assertRegex(result.out, r"(?m)^# One step of resnet50, \d+ buckets of .*: all_reduce sum: .* us in place$")

    def test_a_recorded_steps_buckets(self) -> None:
        lines = ["hvd-replay 2", "model mine", "unit sequences", "units_per_step 4", "device none", "compute_type fp32"]
        lines += ["source_run none", "backward_end_seconds 0.1", "update_seconds 0"]
        lines += [f"gradient {count} 0.1 0.1 g{count}" for count in (1000, 300, 1001)]
        file = self.folder / "mine.replay"
        file.write_text("\n".join([*lines, "end 3", ""]))
        words = ["--from-replay", str(file), "--max-time", "0.02", "--warm", "--place", "in", "--no-bound"]
        one = coll(*words).ended_with(0)
        self.assertEqual([int(row[0]) for row in rows(one.out)], [4 * 2301], one)
        self.assertIn("# One step of mine, 1 buckets of", one.out)
        several = coll(*words, "--bucket-mb", str(4 * 1300 / 2**20)).ended_with(0)
        self.assertEqual([int(row[0]) for row in rows(several.out)], [4 * 1001, 4 * 1300], several)
        before = file.read_text()
        self.refused(coll(*words, "-J", f"{self.folder}/./mine.replay"), 2, "is the file of --from-replay")
        self.assertEqual(file.read_text(), before)
        file.write_text(before.replace("end 3", "end 4"))
        self.assertIn("mine.replay:", coll(*words).ended_with(2).err)
        file.unlink()
        self.refused(coll(*words), 2, "mine.replay: cannot read the replay file")

    def test_solo(self) -> None:
        result = execute([PROGRAM, "coll", *QUICK]).ended_with(0)
        self.assertIn("# 1 ranks on 1 node(s), solo", result.out)
        self.assertRegex(result.out, "bus bandwidth +: not measured, because one rank .*: mpirun -n N")
        for row in rows(result.out):
            self.assertGreater(float(row[6]), 0)
            self.assertEqual((row[7], row[10], row[11]), ("-", "-", "-"), row)

    @needs_mpi
    def test_processes(self) -> None:
        result = execute([*UNDER_MPIRUN, *QUICK, "--collective", "all_reduce,all_to_all"]).ended_with(0)
        self.assertEqual(len(rows(result.out)), 4)
        self.assertIn("2 ranks on 1 node(s), mpi", result.out)

    @needs_mpi
    def test_vectors_are_limited_on_one_rank(self) -> None:
        command = [PROGRAM, "coll", "--warm", "-b", "1K", "-e", "1K"]
        result = execute(per_rank(["env", "HVD_MAX_CPU_ISA=SSE2", *command], command))
        self.refused(result, 6, "HVD_MAX_CPU_ISA is SSE2 on rank 0", "not set on rank 1")

    def test_a_signal_keeps_what_was_measured(self) -> None:
        running = self.measuring(PROGRAM, "coll", "--ranks", "2")
        running.send(signal.SIGTERM)
        result = running.finish().ended_with(7)
        self.assertIn("# INCOMPLETE           : stopped by SIGTERM", result.out)
        document = json.loads(self.json.read_text())
        self.assertEqual((document["status"], document["status_reason"]), ("incomplete", "SIGTERM"))
        self.require_stored_incomplete("SIGTERM")

    @needs_mpi
    @unittest.skipIf(mpirun_is_open_mpi_5(), "mpirun of Open MPI 5 forwards nothing after a signal")
    def test_a_signal_to_mpirun(self) -> None:
        running = self.measuring(*UNDER_MPIRUN)
        running.send(signal.SIGTERM)
        running.finish()
        self.assertEqual(json.loads(self.json.read_text())["status"], "incomplete")

    @needs_mpi
    @unittest.skipIf(mpirun_is_open_mpi_5(), "mpirun of Open MPI 5 forwards nothing after a signal")
    @retried_if_mpirun_kills_early
    def test_a_lost_rank_leaves_what_was_measured(self) -> None:
        running = self.measuring(*UNDER_MPIRUN)
        os.kill(running.rank_pid(1), signal.SIGKILL)
        result = running.finish()
        self.assertIn("# INCOMPLETE           : stopped by rank 1", result.out)
        self.assertIn("is lost", result.err)
        document = json.loads(self.json.read_text())
        self.assertEqual(document["status"], "incomplete")
        self.assertIn("rank 1", document["status_reason"])
        forms = [row[place] for row in document["results"] for place in ("out_of_place", "in_place")]
        self.assertTrue(any(form and form["samples"] for form in forms), forms)
        self.require_stored_incomplete("rank 1")

    @needs_mpi
    @unittest.skipIf(mpirun_is_open_mpi_5(), "mpirun of Open MPI 5 forwards nothing after a signal")
    @retried_if_mpirun_kills_early
    def test_a_forced_end_leaves_what_was_measured(self) -> None:
        running = self.measuring(*UNDER_MPIRUN)
        os.kill(running.rank_pid(1), signal.SIGSTOP)
        root = running.rank_pid(0)
        self.assertTrue(eventually(lambda: waits_for_a_peer(root)))  # then rank 0 does not check for signals
        os.kill(root, signal.SIGTERM)
        result = running.finish()
        self.assertIn("stopped in the middle of an operation by SIGTERM; the results so far are printed", result.err)
        self.assertIn("# INCOMPLETE           : stopped by SIGTERM", result.out)
        self.assertEqual(json.loads(self.json.read_text())["status"], "incomplete")
        self.require_stored_incomplete("SIGTERM")

    def test_the_store_accumulates(self) -> None:
        for options in (["--collective", "all"], ["--compare", "memory=registered,plain"]):
            result = coll(*QUICK, *options, "--db", str(self.db)).ended_with(0)
            self.assertIn(f"coll: stored in {self.db}", result.err)
        self.assertEqual(self.query("SELECT status, ranks, comm FROM coll_session"), [("complete", 2, "loopback")] * 2)
        self.assertEqual(self.query("SELECT count(*), sum(wrong) FROM coll_cell WHERE side <> ''"), [(8, 0)])
        cell = "operation = 'barrier' AND bytes = 0 AND wrong IS NULL AND reduction = 'none'"
        self.assertEqual(self.query(f"SELECT count(*) FROM coll_cell WHERE {cell}"), [(1,)])
        self.assertEqual(self.query("SELECT count(*) FROM coll_cell WHERE ratio IS NOT NULL"), [(4,)])
        facts = {key for (key,) in self.query("SELECT DISTINCT key FROM coll_provenance")}
        self.assertLessEqual({"cpu.model", "git.commit", "comm.library", "world.hosts", "option.seed"}, facts)
        self.assertEqual(os.listdir(self.folder), ["runs.db"])

    @needs_mpi
    def test_one_rank_writes_the_store(self) -> None:
        command = [str(MPIRUN), "-n", "4", PROGRAM, "coll", *QUICK, "--no-bound", "--db", str(self.db)]
        execute(command).ended_with(0)
        self.assertEqual(self.query("SELECT ranks, (SELECT count(*) FROM session) FROM coll_session"), [(4, 1)])
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(self.query("SELECT oversubscribed FROM coll_session"), [(int(cores < 4),)])
        self.assertEqual(os.listdir(self.folder), ["runs.db"])

    def test_a_store_that_cannot_be_written_is_refused_before_anything_is_measured(self) -> None:
        self.refused(coll(*ENDLESS, "--db", str(self.folder / "none" / "x.db")), 2, "there is no directory")
        self.db.write_text("somebody else's")
        self.refused(coll(*ENDLESS, "--db", str(self.db)), 2, "is not a SQLite database")
        self.assertEqual(self.db.read_text(), "somebody else's")
        same = str(self.folder / "x")
        self.refused(coll(*ENDLESS, "--db", same, "-J", f"{self.folder}/./x"), 2, "--db and -J name the same file")
        self.assertEqual(coll(*QUICK, "--db", str(self.db), "--no-db").code, 0)
        self.assertEqual(os.listdir(self.folder), ["runs.db"])

    @needs_mpi
    def test_a_refused_output_ends_all_ranks_under_a_launcher_that_ends_nobody(self) -> None:
        """mpirun ends all ranks when one leaves, srun does not. The test hides mpirun from its ranks and from mpirun
        that a rank left with an error. Each rank writes its exit code to a file."""
        # A rank takes its number, and the variables of Slurm, from those of mpirun. MPI itself needs only PMIX_*.
        step = 'SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID="$rank" SLURM_LOCALID="$rank"'
        hidden = "-u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_LOCAL_RANK"
        for refused, text in (
            (["--db", "/no/such/folder/x"], "there is no directory"),
            (["-J", "/no/such/folder/x"], "no file can be made"),
        ):
            command = shlex.join([PROGRAM, "coll", *ENDLESS, *refused])
            codes = shlex.quote(str(self.folder))
            script = f'rank=$OMPI_COMM_WORLD_RANK; env {hidden} {step} {command}; echo $? > {codes}/"$rank"'
            result = execute([str(MPIRUN), "-n", "2", "sh", "-c", script])
            ended = {file.name: file.read_text() for file in self.folder.iterdir()}
            self.assertEqual(ended, {"0": "2\n", "1": "2\n"}, result)
            self.refused(result, 0, text)

    def test_a_store_that_is_locked_at_the_end(self) -> None:
        self.assertEqual(coll(*QUICK, "--db", str(self.db)).code, 0)
        with contextlib.closing(sqlite3.connect(self.db)) as other:
            other.execute("BEGIN EXCLUSIVE")
            result = coll(*QUICK, "--db", str(self.db))
        (partial,) = self.folder.glob("*.partial")
        self.refused(result, 2, "holds a lock", str(partial))
        self.assertIn("# Out of bounds values : 0 OK", result.out)
        self.assertEqual(self.query("SELECT status FROM coll_session", partial), [("complete",)])

    @needs_mpi
    @unittest.skipUnless(may_mount(), "a small disk needs user namespaces")
    def test_shared_memory_that_is_too_small(self) -> None:
        command = shlex.join([*UNDER_MPIRUN, "--warm", "-b", "1K", "-e", "64M"])
        small = f"mount -t tmpfs -o size=48m none /dev/shm && exec {command}"
        result = execute(["unshare", "-rm", "sh", "-c", small]).ended_with(2)
        self.assertRegex(result.err, r"rank\(s\) of this host in /dev/shm, and .* is free; -e [0-9]+ would fit")

    @needs_mpi
    @unittest.skipUnless(may_mount(), "a /dev/shm of a rank's own needs mount namespaces")
    def test_ranks_without_a_common_shared_memory(self) -> None:
        command = [PROGRAM, "coll", *QUICK]
        # Where only the loopback interface is up, Open MPI 5 uses it only if it is told to.
        over_loopback = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        apart = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs "$0" none /dev/shm && exec "$@"', "-orw", *command]
        for algorithm in ("auto", "ring"):
            tail = ["--algorithm", algorithm]
            result = execute(per_rank([*command, *tail], [*apart, *tail], [*apart, *tail]), over_loopback)
            result.ended_with(8)
            for text in ("error: rank 1 (host ", ", rank 2 (host ", "common /dev/shm", "--ipc=host"):
                self.assertIn(text, result.errors[0])
        read_only = ["-oro" if word == "-orw" else word for word in apart]
        result = execute(per_rank(read_only, read_only), over_loopback).ended_with(8)
        self.assertRegex(result.errors[0], "error: rank 0 [(]host .*a /dev/shm that they can write")

    @unittest.skipUnless(may_mount(), "another /dev/shm needs mount namespaces")
    def test_doctors_advice_for_shared_memory_holds(self) -> None:
        for options, finding in (("ro", "cannot be used (Read-only file system)"), ("size=64k", "free, less than")):
            mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o {options} none /dev/shm && exec "$0" "$@"']
            result = execute([*mount, PROGRAM, "doctor"])
            self.assertRegex(result.out, rf"warning +/dev/shm +.*{re.escape(finding)}")
            self.assertIn("run the ranks as threads of one process (--ranks N", result.out)
            execute([*mount, PROGRAM, "coll", "--ranks", "2", *QUICK]).ended_with(0)
            execute([*mount, PROGRAM, *TINY, "--ranks", "2", "--no-db"]).ended_with(0)

    def test_help(self) -> None:
        result = execute([PROGRAM, "coll", "--help"]).ended_with(0)
        for text in ("-b,--minbytes", "--compare", "-G,--cudagraph", "--db FILE", "Exit codes"):
            self.assertIn(text, result.out)
        self.assertIn("coll", execute([PROGRAM, "--help"]).out)


if __name__ == "__main__":
    unittest.main()
