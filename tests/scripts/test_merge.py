"""Tests merging. It must be repeatable, leave inputs unchanged, refuse damage and conflicts, and include leftovers."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from pathlib import Path

from harness import FolderTest, alter
from synthetic_store import CollSpec, SessionSpec, make

from hvdb.base.errors import NotComparable, StoreError
from hvdb.read import merge, runs, store

LONG_AGO = 1_700_000_000
ROTATED = "data = CAST(substr(data, 9) || substr(data, 1, 8) AS BLOB)"
# Changes of one row of each table -> what merge calls the record to which the row belongs.
CHANGES = {
    "UPDATE run SET step_seconds = step_seconds / 2 WHERE phase = 'full'": "run",
    f"UPDATE sample SET {ROTATED} WHERE rank = 1": "run",
    "UPDATE provenance SET value = 'faster CPU' WHERE key = 'cpu.model'": "run",
    "UPDATE session SET command_line = 'another'": "session",
    "UPDATE coll_session SET cache_bytes = 1": "session of collectives",
    "UPDATE coll_provenance SET value = 'faster CPU' WHERE key = 'cpu.model'": "session of collectives",
    "UPDATE coll_cell SET skew_seconds = skew_seconds / 2 WHERE seq = 1": "session of collectives",
    f"UPDATE coll_sample SET {ROTATED} WHERE kind = 'round'": "session of collectives",
}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flipped(store: bytes) -> bytes:
    """Returns the store with damage that a reader finds only if it reads the whole file."""
    return store[:4096] + b"\xff" * 4096 + store[8192:]


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.iterdump())
    finally:
        connection.close()


class TwoStores(FolderTest):
    """A test with two stores to merge, and the place of a partial file that a job left beside the first store."""

    def setUp(self) -> None:
        super().setUp()
        self.a, self.b = self.folder / "a.db", self.folder / "b.db"
        self.out = self.folder / "out.db"
        self.leftover = self.folder / "a.db.00000000-1111.partial"
        make(self.a, SessionSpec(), seed=1)
        make(self.b, SessionSpec(model="vgg16"), seed=2)

    def make_leftover(self, seconds: float = LONG_AGO, **spec: object) -> None:
        """Makes the partial file of a job. The job's last write to the file was at the time `seconds`."""
        make(self.leftover, SessionSpec(**spec), seed=9)
        os.utime(self.leftover, (seconds, seconds))


class MergeTest(TwoStores):
    def test_two_stores_become_one(self) -> None:
        outcome = merge.merge(self.out, [self.a, self.b])
        self.assertEqual((outcome.added, outcome.present, outcome.incomplete), (6, 0, 0))
        self.assertEqual({run.model for run in runs.load([self.out])}, {"resnet101", "vgg16"})
        originals = {run.uuid: run for run in runs.load([self.a, self.b])}
        for run in runs.load([self.out]):
            original = originals.pop(run.uuid)
            self.assertEqual(run.columns, original.columns)
            self.assertEqual(run.step_seconds_series().tolist(), original.step_seconds_series().tolist())
            self.assertEqual(run.provenance, original.provenance)
            self.assertEqual(run.decomposition, original.decomposition)
        self.assertFalse(originals)

    def test_names_that_are_not_utf8(self) -> None:
        inputs = [path.rename(path.with_name(f"{path.stem}\udcff.db")) for path in (self.a, self.b)]
        out = self.folder / "out\udcff.db"
        self.assertEqual(merge.merge(out, inputs[:1]).added, 3)
        self.assertEqual(merge.merge(out, inputs).added, 3)
        self.assertEqual(len(runs.load([out])), 6)

    def test_merging_again_changes_no_byte(self) -> None:
        merge.merge(self.out, [self.a, self.b])
        before = digest(self.out)
        outcome = merge.merge(self.out, [self.b, self.a])
        self.assertEqual((outcome.added, outcome.present), (0, 6))
        self.assertEqual(digest(self.out), before)

    def test_inputs_are_untouched(self) -> None:
        before = {path: (digest(path), path.stat().st_mtime_ns) for path in (self.a, self.b)}
        self.a.chmod(0o444)
        merge.merge(self.out, [self.a, self.b])
        self.assertEqual({path: (digest(path), path.stat().st_mtime_ns) for path in (self.a, self.b)}, before)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["a.db", "b.db", "out.db"])

    def refuses_changed(self, inputs: list[Path], output: Path) -> None:
        """Merges `inputs` and a copy of self.whole in which one row is changed, for a row of each table."""
        before = digest(output) if output.exists() else None
        forged = self.folder / "forged.db"
        for statement, what in CHANGES.items():
            with self.subTest(statement, output=output.name):
                forged.write_bytes(self.whole.read_bytes())
                alter(forged, statement)
                with self.assertRaisesRegex(NotComparable, f"^{what} .* has different contents"):
                    merge.merge(output, [*inputs, forged])
                self.assertEqual(digest(output) if output.exists() else None, before)

    def test_one_uuid_with_two_contents_is_refused_and_nothing_is_merged(self) -> None:
        self.whole = self.folder / "whole.db"
        make(self.whole, SessionSpec(steps=5), CollSpec(), seed=3)
        self.refuses_changed([self.b, self.whole], self.folder / "new.db")
        merge.merge(self.out, [self.a])
        self.refuses_changed([self.whole], self.out)  # this output has no tables of collectives
        merge.merge(self.out, [self.whole])
        self.refuses_changed([self.b], self.out)

    def test_damaged_files_are_refused(self) -> None:
        whole = self.a.read_bytes()
        cases = {
            "half": (whole[: len(whole) // 2], "damaged"),
            "flipped": (flipped(whole), "damaged"),
            "empty": (b"", "empty file"),
            "text": (b"total images/sec: 12\n" * 50, "not an SQLite file"),
        }
        for name, (content, message) in cases.items():
            with self.subTest(name):
                bad = self.folder / f"{name}.db"
                bad.write_bytes(content)
                with self.assertRaisesRegex(StoreError, message):
                    merge.merge(self.out, [self.b, bad])
                self.assertFalse(self.out.exists())
        with self.assertRaisesRegex(StoreError, "no such file"):
            merge.merge(self.out, [self.folder / "absent.db"])

    def test_all_files_that_cannot_be_taken_are_named_at_once(self) -> None:
        (self.folder / "empty.db").write_bytes(b"")
        alter(self.b, "PRAGMA user_version = 99")
        with self.assertRaisesRegex(StoreError, "2 of 3 files .*--skip-damaged.*empty file.*schema version 99"):
            merge.merge(self.out, [self.folder / "empty.db", self.a, self.b, self.a])
        self.assertFalse(self.out.exists())

    def test_skip_damaged_leaves_out_and_says_so(self) -> None:
        whole = self.b.read_bytes()
        bad = {"half.db": whole[: len(whole) // 2], "flipped.db": flipped(whole), "text.db": b"total\n" * 50}
        for name, content in bad.items():
            (self.folder / name).write_bytes(content)
        outcome = merge.merge(self.out, [*(self.folder / name for name in bad), self.a], skip_damaged=True)
        self.assertEqual((outcome.added, len(outcome.left_out)), (3, 3))
        for name in bad:
            self.assertTrue(any(name in line for line in outcome.left_out), outcome.left_out)
        with self.assertRaises(NotComparable, msg="a conflict is no damage"):
            alter(self.a, "UPDATE run SET final_loss = 1.0")
            merge.merge(self.out, [self.a], skip_damaged=True)

    def test_nothing_left_to_merge_makes_no_file(self) -> None:
        (self.folder / "empty.db").write_bytes(b"")
        with self.assertRaisesRegex(StoreError, "nothing to merge.*empty file"):
            merge.merge(self.out, [self.folder / "empty.db"], skip_damaged=True)
        self.assertFalse(self.out.exists())

    def test_a_folder_means_the_stores_in_it(self) -> None:
        jobs = self.folder / "jobs"
        jobs.mkdir()
        with self.assertRaisesRegex(StoreError, "without stores"):
            merge.merge(self.out, [jobs])
        self.a.rename(jobs / "a.db")
        (jobs / "slurm-1.out").write_text("total images/sec: 1")
        leftover = jobs / "b.db.00000000-1111.partial"
        self.b.rename(leftover)
        os.utime(leftover, (LONG_AGO, LONG_AGO))
        self.assertEqual(merge.merge(jobs / "all.db", [jobs]).added, 6)
        again = merge.merge(jobs / "all.db", [jobs])
        self.assertEqual((again.added, again.present), (0, 6))

    def test_leftovers_become_incomplete(self) -> None:
        self.make_leftover(status="running", steps=5)
        outcome = merge.merge(self.out, [self.a])
        self.assertEqual((outcome.added, outcome.incomplete), (6, 3))
        cut = [run for run in runs.load([self.out]) if run.status == "incomplete"]
        self.assertEqual({run.status_reason for run in cut}, {merge.LEFTOVER_REASON})
        self.assertEqual({len(run.step_seconds_series()) for run in cut}, {5})
        before = digest(self.out)
        again = merge.merge(self.out, [self.leftover])
        self.assertEqual((again.added, again.present), (0, 3))
        self.assertEqual(digest(self.out), before)

    def test_the_leftover_of_a_job_that_may_still_run_is_left_alone(self) -> None:
        self.make_leftover(time.time(), status="running")
        outcome = merge.merge(self.out, [self.a])
        self.assertEqual(outcome.added, 3)
        self.assertIn("may still run", outcome.notes[0])
        self.assertEqual(merge.merge(self.out, [self.leftover]).added, 3)

    def test_a_leftover_with_a_hot_journal_is_read_as_of_its_last_commit(self) -> None:
        # A process dies inside a transaction. The file then contains half of the transaction, which a reader must undo
        # with the journal.
        leftover = self.folder / "dead.db"
        make(leftover, SessionSpec(status="running"), seed=9)
        pid = os.fork()
        if pid == 0:
            connection = sqlite3.connect(leftover, isolation_level=None)
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("BEGIN")
            connection.execute("DELETE FROM sample")
            connection.execute("UPDATE run SET status = 'complete'")
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertTrue(leftover.with_name("dead.db-journal").exists(), "the set-up must leave a journal")
        before = digest(leftover)
        outcome = merge.merge(self.out, [leftover])
        self.assertEqual((outcome.added, outcome.incomplete), (3, 3))
        self.assertTrue(all(len(run.step_seconds_series()) for run in runs.load([self.out])))
        self.assertEqual(digest(leftover), before)

    def test_every_module_of_sqlite_tells_of_a_hot_journal(self) -> None:
        """pysqlite3 names only the primary code of an error, and Python before 3.11 none."""
        for name in (None, "SQLITE_READONLY", "SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_DBMOVED"):
            error = sqlite3.OperationalError("attempt to write a readonly database")
            if name:
                error.sqlite_errorname = name
            self.assertEqual(store.needs_rollback(error), name != "SQLITE_READONLY_DBMOVED", name)

    def test_output_that_cannot_be_written(self) -> None:
        with self.assertRaisesRegex(StoreError, "cannot be written"):
            merge.merge(self.folder / "no" / "such" / "folder.db", [self.a])
        with self.assertRaisesRegex(StoreError, "is the output as well"):
            merge.merge(self.a, [self.a])

    def test_output_of_another_schema_is_refused(self) -> None:
        alter(self.b, "PRAGMA user_version = 7")
        before = digest(self.b)
        with self.assertRaises(StoreError):
            merge.merge(self.b, [self.a])
        self.assertEqual(digest(self.b), before)

    def test_readonly_connection_cannot_write(self) -> None:
        with self.assertRaises(StoreError), store.open_readonly(self.a) as connection:
            connection.execute("DELETE FROM run")
