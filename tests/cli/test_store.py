"""Runs hvd_bench with bad, full, locked and damaged databases as --db."""

import os
import resource
import signal
import sqlite3
import unittest

from program import ENDLESS, PROGRAM, TINY, ProgramTest, Running, execute, may_mount, mpirun, needs_mpi, run


class Locked(ProgramTest):
    def test_locked_when_the_run_ends(self) -> None:
        self.assertEqual(run(*TINY, "--db", str(self.db)).code, 0)
        other = sqlite3.connect(self.db)
        self.addCleanup(other.close)
        other.execute("BEGIN EXCLUSIVE")
        result = run(*TINY, "--db", str(self.db)).ended_with(2)
        (partial,) = self.folder.glob("*.partial")
        self.assertEqual(len(result.errors), 1, result)
        self.assertIn("holds a lock", result.errors[0])
        self.assertIn(str(partial), result.errors[0])
        self.assertEqual(len(self.totals(result)), 1, "the result is printed all the same")
        self.assertEqual(self.query("SELECT status FROM run", partial), [("complete",)])


class Database(ProgramTest):
    def test_runs_accumulate(self) -> None:
        for _ in range(2):
            self.assertEqual(run(*TINY, "--db", str(self.db)).code, 0)
        self.assertEqual(self.query("SELECT count(*), count(DISTINCT fingerprint) FROM run"), [(2, 1)])
        self.assertEqual(self.query("SELECT DISTINCT status FROM run"), [("complete",)])
        self.assertEqual(self.query("PRAGMA integrity_check"), [("ok",)])
        self.assertEqual(sorted(os.listdir(self.folder)), ["runs.db"])

    @needs_mpi
    def test_bad_path_is_said_once_and_ends_all_ranks(self) -> None:
        self.refused(mpirun(2, *TINY, "--db", str(self.folder / "none" / "x.db")), 2, "there is no directory")

    @unittest.skipUnless(may_mount(), "needs mount namespaces")
    def test_full_disk(self) -> None:
        for size in ("16k", "56k"):  # 16k is too small for the schema, and 56k for the first record
            script = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
            arguments = [PROGRAM, *TINY, "--db", str(self.db)]
            result = execute(["unshare", "-rm", "sh", "-c", script, str(self.folder), *arguments])
            self.refused(result, 2, "runs.db", "the disk is full", "use --db on another")

    def test_a_file_that_may_not_grow_while_measuring(self) -> None:
        running = Running([PROGRAM, *ENDLESS, "--db", str(self.db)])
        self.wait_until_saved()
        room_for_the_reason = 8192
        limit = self.stored_file().stat().st_size + room_for_the_reason
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        running.wait_for("measuring goes on")
        running.send(signal.SIGTERM)
        result = running.finish().ended_with(7)
        self.assertEqual(len([line for line in result.errors if "ulimit -f" in line]), 1, result)
        self.assert_incomplete_with_samples("could not be saved")


if __name__ == "__main__":
    unittest.main(verbosity=2)
