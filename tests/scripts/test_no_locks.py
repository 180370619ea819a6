"""hvd_bench and hvdb on a file system without locks, which the library HVD_NO_LOCKS (no_locks.cpp) imitates."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import numpy as np
from limits import HANG

from harness import SCRIPTS, FolderTest, execute
from synthetic_store import SessionSpec, add_session, make

from hvdb.base import locks
from hvdb.base.errors import HvdbError, StoreError
from hvdb.read import lockless, merge, runs, store

BENCH = os.environ.get("HVD_BENCH", "")
SHIM = os.environ.get("HVD_NO_LOCKS", "")
REPLAY = Path(__file__).parents[1] / "cli" / "sleep.replay"
TINY = ["--replay", REPLAY, "--num-warmup-batches", "1", "--num-iters", "3"]
NOTE = "its file system has no file locks"
HELD = "import sys; from pathlib import Path; from hvdb.campaign import stores; "
HELD += "print(*stores.held([Path(name) for name in sys.argv[1:]]))"
# Adds rows to the store argv[1] as merge does, and is killed before the copy becomes the store.
KILLED = """
import os, signal, sys
from pathlib import Path
from hvdb.read import lockless
output = Path(sys.argv[1])
with lockless.writers_kept_out(output, output) as lock, lockless.replacing(output, lock):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(path: Path) -> list[str]:
    """Returns the labels "cell" of all runs of a store that nobody is writing to, sorted."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in connection.execute("SELECT value FROM provenance WHERE key='label.cell' ORDER BY 1")]


@unittest.skipUnless(BENCH and SHIM, "needs hvd_bench and the library, which the build makes")
class WithoutLocks(FolderTest):
    """The programs run as users run them. The folder of the test has no locks."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.folder.resolve()
        self.db = self.folder / "a.db"
        self.out = self.folder / "out.db"
        asan = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
        self.environment = {
            **os.environ,
            "LD_PRELOAD": SHIM,
            "ASAN_OPTIONS": asan,
            "HVD_NO_LOCKS_IN": str(self.folder),
            "HVD_NO_LOCKS_ERRNO": "ENOLCK",
            "PYTHONPATH": str(SCRIPTS),
        }

    def execute(self, *words: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return execute(*words, code=code, env=self.environment, cwd=self.folder)

    def measure(self, cell: str, db: Path | None = None, code: int = 0) -> str:
        """Makes a run. Returns what hvd_bench prints on standard error."""
        return self.execute(BENCH, *TINY, "--db", db or self.db, "--label", f"cell={cell}", code=code).stderr

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def test_runs_accumulate_and_every_reader_reads_them(self) -> None:
        for error in ("ENOSYS", "ENOLCK", "EOPNOTSUPP", "EINVAL"):
            with self.subTest(error):
                self.environment["HVD_NO_LOCKS_ERRNO"] = error
                db = self.folder / f"{error}.db"
                for cell in ("x", "y"):
                    said = self.measure(cell, db)
                    self.assertEqual(said.count(NOTE), 1, said)
                self.assertEqual(rows(db), ["x", "y"])
                done = self.execute(BENCH, "stored", "cell", db, db)
                self.assertEqual((done.stdout, done.stderr.count(NOTE)), ("x\ny\n", 1), done.stderr)
                done = self.execute(sys.executable, "-B", "-c", HELD, db, db)
                self.assertIn(done.stdout, ("{'x', 'y'} []\n", "{'y', 'x'} []\n"))
                self.assertEqual(done.stderr.count(NOTE), 1, done.stderr)
                done = self.execute(SCRIPTS / "efficiency", db)
                self.assertIn("resnet50", done.stdout)
                self.assertEqual(done.stderr.count(NOTE), 1, done.stderr)
        self.assertEqual(self.names(), ["EINVAL.db", "ENOLCK.db", "ENOSYS.db", "EOPNOTSUPP.db"])

    def test_collectives(self) -> None:
        words = [BENCH, "coll", "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "10", "--no-bound", "--db", self.db]
        for count in (1, 2):
            self.assertEqual(self.execute(*words).stderr.count(NOTE), 1)
            with contextlib.closing(sqlite3.connect(f"file:{self.db}?immutable=1", uri=True)) as connection:
                self.assertEqual(connection.execute("SELECT count(*) FROM coll_session").fetchone(), (count,))
        self.assertEqual(self.names(), ["a.db"])

    def test_doctor_says_it(self) -> None:
        self.assertEqual(self.execute(BENCH, "doctor", "--db", self.db, code=None).stdout.count(NOTE), 1)

    def test_merge(self) -> None:
        for name in ("a.db", "b.db"):
            self.measure(name, self.folder / name)
        for inputs, cells in ((["a.db"], ["a.db"]), (["b.db"], ["a.db", "b.db"]), (["a.db", "b.db"], ["a.db", "b.db"])):
            done = self.execute(SCRIPTS / "merge", "-o", self.out, *inputs)
            self.assertEqual(done.stderr.count(NOTE), 1, done.stderr)
            self.assertEqual(rows(self.out), cells)
        self.assertEqual(self.names(), ["a.db", "b.db", "out.db"])

    def test_a_store_behind_a_link(self) -> None:
        self.measure("x")
        link = self.folder / "link.db"
        link.symlink_to("a.db")
        self.measure("y", link)
        self.execute(SCRIPTS / "merge", "-o", self.out, "a.db")
        self.measure("z", self.out)
        self.execute(SCRIPTS / "merge", "-o", link, self.out)
        self.assertTrue(link.is_symlink())
        self.assertEqual(rows(self.db), ["x", "y", "z"])
        self.assertEqual(self.names(), ["a.db", "link.db", "out.db"])

    def test_many_writers_at_once_lose_no_run(self) -> None:
        self.measure("other", self.folder / "b.db")
        words = [BENCH, *TINY, "--db", self.db]
        commands = [[*words, "--label", f"cell={number}"] for number in range(6)]
        commands += [[SCRIPTS / "merge", "-o", self.db, self.folder / "b.db"]] * 2
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        running = [subprocess.Popen(list(map(str, words)), env=self.environment, **pipes) for words in commands]
        seen: set[str] = set()
        while any(process.poll() is None for process in running):
            if self.db.exists():  # a reader always finds a complete store
                now = set(self.execute(BENCH, "stored", "cell", self.db).stdout.split())
                self.assertLessEqual(seen, now)
                seen = now
        for process in running:
            said = process.communicate(timeout=HANG)[1]
            self.assertEqual(process.returncode, 0, said)
        self.assertEqual(rows(self.db), ["0", "1", "2", "3", "4", "5", "other"])
        self.assertEqual(self.names(), ["a.db", "b.db"])

    def test_a_killed_writer_leaves_a_store_that_can_be_read_and_written(self) -> None:
        self.measure("x")
        for writer in ("hvd_bench", "merge"):
            with self.subTest(writer):
                before = rows(self.db)
                self.execute(sys.executable, "-B", "-c", KILLED, self.db, code=-signal.SIGKILL)
                self.assertIn("a.db.replacing", self.names())
                self.assertEqual(self.execute(BENCH, "stored", "cell", self.db).stdout.split(), before)
                self.db.with_name("a.db.replacing").unlink()
                if writer == "merge":
                    self.measure("z", self.out)
                    self.execute(SCRIPTS / "merge", "-o", self.db, self.out)
                else:
                    self.measure("y")
                self.assertEqual(rows(self.db), [*before, "z" if writer == "merge" else "y"])
        self.assertEqual(self.names(), ["a.db", "out.db"])

    def test_a_journal_beside_the_store_is_left_alone(self) -> None:
        """It may belong to a program on another host, on which the file system has locks."""
        self.measure("x")
        self.measure("y", self.folder / "b.db")
        with contextlib.closing(sqlite3.connect(self.db, isolation_level=None)) as connection:
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("BEGIN")
            connection.execute("UPDATE run SET status_reason = hex(zeroblob(40000))")  # more pages than the cache holds
            before = self.db.read_bytes()
            done = self.execute(SCRIPTS / "merge", "-o", self.db, "b.db", code=2)
            self.assertIn("a.db-journal: a program on a host with file locks writes to the store", done.stderr)
            said = self.measure("z", code=2)
            self.assertIn("a.db-journal: a program on a host with file locks writes to the store", said)
            (partial,) = self.folder.glob("a.db.*.partial")
            self.assertIn(f"are kept in {partial}, add them later with hvdb merge -o {self.db} {partial}", said)
            self.assertEqual(self.db.read_bytes(), before)
            self.assertEqual(self.execute(BENCH, "stored", "cell", self.db).stdout, "x\n")
            connection.execute("ROLLBACK")
        self.execute(SCRIPTS / "merge", "-o", self.db, partial, "b.db")
        self.assertEqual(rows(self.db), ["x", "y", "z"])


class GateTest(FolderTest):
    def test_nothing_keeps_a_second_gate_out(self) -> None:
        path = self.folder / "gate.lock"
        no_locks = mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "no locks"))
        with no_locks, contextlib.redirect_stderr(io.StringIO()) as said, locks.held(path, HvdbError("taken")):
            pass
        self.assertRegex(said.getvalue(), "note: .*gate.lock: its file system has no file locks .no locks., so nothing")
        self.assertEqual([file.name for file in self.folder.iterdir()], ["gate.lock"])


class WithoutLocksHere(FolderTest):
    """A folder with a store. For hvdb in this process, without_locks() takes its locks away."""

    def setUp(self) -> None:
        super().setUp()
        make(self.db, SessionSpec(), seed=1)
        self.enterContext(mock.patch.object(locks, "tell_once"))

    def without_locks(self) -> None:
        self.enterContext(mock.patch.object(locks, "fault", return_value="no locks"))

    def add(self, seed: int, path: Path | None = None) -> None:
        """Adds a session as a program that takes no locks."""
        uri = f"file:{path or self.db}?vfs=unix-none"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection, connection:
            add_session(connection, SessionSpec(), np.random.default_rng(seed))


class ReaderTest(WithoutLocksHere):
    """Readers in this process, with locks and without."""

    def test_what_changes_while_it_is_read_is_refused(self) -> None:
        for name, prepare in (("with locks", lambda: None), ("without", self.without_locks)):
            with self.subTest(name):
                prepare()
                refused = self.assertRaisesRegex(store.InUse, "changed while it was read")
                with refused, store.open_readonly(self.db) as connection:
                    connection.execute("SELECT count(*) FROM run").fetchone()
                    self.add(2 if name == "with locks" else 3)
        self.assertEqual(len(runs.load([self.db])), 9)

    def test_an_error_in_a_file_that_changes_is_blamed_on_the_change(self) -> None:
        self.without_locks()

        def half_written(*_: object, **__: object) -> None:
            self.add(2)
            raise StoreError("damaged")

        checked = mock.patch.object(store, "check", half_written)
        with checked, self.assertRaises(store.InUse), store.open_readonly(self.db):
            pass

    def test_a_store_that_is_replaced_meanwhile_is_read_as_it_was(self) -> None:
        self.without_locks()
        other = self.folder / "other.db"
        make(other, SessionSpec(model="vgg16"), seed=2)
        with store.open_readonly(self.db) as connection:
            merge.merge(self.db, [other])
            self.assertEqual(connection.execute("SELECT count(*), min(model) FROM run").fetchone()[:], (3, "resnet101"))
        self.assertEqual(len(runs.load([self.db])), 6)

    def test_what_may_change_in_place_is_read_from_a_copy(self) -> None:
        """A store with a journal is read as before its transaction, and a .partial as it was when it was copied."""
        partial = self.folder / "a.db.1a2b.partial"
        shutil.copyfile(self.db, partial)
        with store.open_readonly(partial) as connection:
            self.add(2, partial)
            self.assertEqual(connection.execute("SELECT count(*) FROM run").fetchone()[0], 3)
        self.without_locks()
        with contextlib.closing(sqlite3.connect(self.db, isolation_level=None)) as writer:
            writer.execute("PRAGMA cache_size = 1")
            writer.execute("BEGIN")
            writer.execute("UPDATE run SET final_loss = 1, status_reason = hex(zeroblob(40000))")
            before = self.db.read_bytes()
            self.assertEqual(len(runs.load([self.db])), 3)
            self.assertNotIn(1.0, {run.final_loss for run in runs.load([self.db])})
            self.assertEqual(self.db.read_bytes(), before)
            writer.execute("ROLLBACK")

    def test_reading_writes_nothing_to_the_folder(self) -> None:
        self.without_locks()
        before = self.folder.stat().st_mtime_ns
        with mock.patch.object(lockless, "_create", side_effect=AssertionError):
            runs.load([self.db])
        self.assertEqual(self.folder.stat().st_mtime_ns, before)


class WriterTest(WithoutLocksHere):
    """Merges in this process on a file system without locks."""

    def setUp(self) -> None:
        super().setUp()
        self.without_locks()
        self.other = self.folder / "other.db"
        make(self.other, SessionSpec(model="vgg16"), seed=2)
        self.lock = self.folder / "a.db.replacing"
        self.before = self.db.read_bytes()

    def refuses(self, message: str, *left: str) -> None:
        """Asserts that a merge fails with `message` and leaves the store as it was, and the files `left`."""
        with self.assertRaisesRegex(StoreError, message):
            merge.merge(self.db, [self.other])
        self.assertEqual(self.db.read_bytes(), self.before)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), sorted(["a.db", *left, "other.db"]))

    def meddle(self, act: Callable[[], None], *, first: bool = False) -> AbstractContextManager:
        """Lets another program act after, or first: before, the merge has added its rows to the copy."""
        add = merge._add

        def meddled(*arguments: object) -> None:
            for step in (act, lambda: add(*arguments)) if first else (lambda: add(*arguments), act):
                step()

        return mock.patch.object(merge, "_add", meddled)

    def take_over(self) -> None:
        """Removes the lock of the merge. The next writer takes it and has copied only a part of the store."""
        self.lock.unlink()
        self.lock.write_bytes(b"half")

    def test_the_file_of_a_killed_writer_keeps_the_next_one_out(self) -> None:
        self.lock.write_bytes(b"half")
        with mock.patch.object(store, "WAIT_SECONDS", 0.1):
            self.refuses(
                f"{self.lock}: another program adds runs to {self.db}, or was killed while it did; .* remove a.db."
                "replacing if no program writes to the store",
                "a.db.replacing",
            )
        self.lock.unlink()
        self.assertEqual(merge.merge(self.db, [self.other]).added, 3)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["a.db", "other.db"])

    def test_a_writer_whose_lock_was_removed_does_not_touch_the_next_ones_copy(self) -> None:
        for first in (True, False):
            with self.subTest(first), self.meddle(self.take_over, first=first):
                self.refuses("somebody removed it while this program used it", "a.db.replacing")
                self.assertEqual(self.lock.read_bytes(), b"half")
                self.lock.unlink()

    def test_a_lock_that_is_taken_over_just_before_the_copy_becomes_the_store(self) -> None:
        """The next writer's unfinished copy must not become the store."""
        link = os.link

        def late(source: Path, name: Path) -> None:
            link(source, name)
            if name.suffix == lockless.SUFFIX:
                self.take_over()

        with mock.patch.object(os, "link", late):
            merge.merge(self.db, [self.other])
        self.assertEqual((len(runs.load([self.db])), self.lock.read_bytes()), (6, b"half"))

    def test_without_hard_links(self) -> None:
        with mock.patch.object(os, "link", side_effect=OSError(errno.EPERM, "no links")):
            with self.meddle(self.take_over):
                self.refuses("somebody removed it while this program used it", "a.db.replacing")
            self.lock.unlink()
            self.assertEqual(merge.merge(self.db, [self.other]).added, 3)

    def test_a_store_that_changes_in_spite_of_the_lock_stays(self) -> None:
        def add_by_itself() -> None:
            self.add(3)
            self.before = self.db.read_bytes()

        with self.meddle(add_by_itself):
            self.refuses("a.db: changed while it was read")

    def test_a_journal_beside_the_copy_is_not_rolled_back(self) -> None:
        """A stranger's journal could name a file that SQLite deletes."""
        journal = self.folder / "a.db.replacing-journal"
        journal.write_bytes(b"\0" * 512 + bytes.fromhex("d9d505f920a163d7"))
        self.assertEqual(merge.merge(self.db, [self.other]).added, 3)
        self.assertFalse(journal.exists())
        self.assertEqual(stat.S_IMODE(self.db.stat().st_mode), stat.S_IMODE(self.other.stat().st_mode))


if __name__ == "__main__":
    unittest.main(verbosity=2)
