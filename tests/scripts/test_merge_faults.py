"""Merges while other processes write, are killed, or fill the disk. No session may be lost or merged only in part."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import unittest
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import numpy as np
from test_merge import LONG_AGO, TwoStores, digest

from harness import SCRIPTS, alter, execute
from synthetic_store import SessionSpec, add_session, make

from hvdb.base.errors import NotComparable, StoreError
from hvdb.read import merge, runs, store, values


def all_rows(path: Path) -> list[str]:
    with store.open_readonly(path) as connection:
        return sorted(connection.iterdump())


class Folder(TwoStores):
    def assert_no_working_file(self) -> None:
        self.assertEqual([p.name for p in self.folder.iterdir() if "merging" in p.name], [])


class WhileJobsWriteTest(Folder):
    def test_a_job_that_publishes_into_an_input_meanwhile(self) -> None:
        """A job adds sessions to a store, each in its own transaction, while the store is merged again and again."""
        script = (
            "import sys, time; sys.path.insert(0, sys.argv[1])\n"
            "import numpy as np, sqlite3\n"
            "from synthetic_store import SessionSpec, add_session\n"
            "connection = sqlite3.connect(sys.argv[2], timeout=30)\n"
            "for seed in range(100, 130):\n"
            "    with connection:\n"
            "        add_session(connection, SessionSpec(), np.random.default_rng(seed))\n"
            "    time.sleep(0.002)\n"
        )
        writer = subprocess.Popen([sys.executable, "-c", script, str(Path(__file__).parent), str(self.a)])
        merges = 0
        while writer.poll() is None:
            merge.merge(self.out, [self.a])
            merges += 1
            merged = runs.load([self.out])
            self.assertEqual(len(merged) % 3, 0, "a session is there whole or not at all")
            self.assertTrue(all(len(run.step_seconds_series()) == 40 for run in merged))
        self.assertEqual(writer.returncode, 0, "the writer must not fail because somebody reads")
        merge.merge(self.out, [self.a])
        self.assertEqual(len(runs.load([self.out])), 93)
        self.assertGreater(merges, 0)

    def test_a_store_that_a_live_transaction_holds_is_read_as_before_it(self) -> None:
        # The journal of a running writer is not hot. Merge must not roll back merge's private copy with this journal.
        writer = sqlite3.connect(self.a, isolation_level=None)
        self.addCleanup(writer.close)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM sample")
        self.assertTrue(self.a.with_name("a.db-journal").exists(), "the set-up must leave a journal")
        self.assertEqual(merge.merge(self.out, [self.a]).added, 3)
        self.assertTrue(all(len(run.step_seconds_series()) == 40 for run in runs.load([self.out])))
        writer.execute("ROLLBACK")

    def test_a_running_job_that_takes_no_locks(self) -> None:
        """hvd_bench writes its working file without locks. Merge must read one state of the file or refuse the file."""
        working = self.folder / "job.db.00000000-1111.partial"
        make(working, SessionSpec(status="running"), seed=9)
        script = (
            "import sqlite3, struct, sys, time\n"
            "connection = sqlite3.connect(f'file:{sys.argv[1]}?vfs=unix-none', uri=True)\n"
            "for state in range(int(sys.argv[2]), int(sys.argv[3])):\n"
            "    data = struct.pack('<500d', *[state] * 500)\n"
            "    with connection:\n"
            "        connection.execute('UPDATE run SET measured_steps = ?', (state,))\n"
            "        connection.execute('UPDATE sample SET data = ?, count = 500', (data,))\n"
            "    time.sleep(0.03)\n"
        )
        subprocess.run([sys.executable, "-c", script, str(working), "1", "2"], check=True)
        job = subprocess.Popen([sys.executable, "-c", script, str(working), "2", "120"])
        taken, refused = 0, set()
        while job.poll() is None:
            self.out.unlink(missing_ok=True)
            try:
                merge.merge(self.out, [working])
            except StoreError as error:
                refused.add(re.sub(r".*partial: ", "", str(error)))
                continue
            taken += 1
            merged = runs.load([self.out])
            states = {float(run.measured_steps) for run in merged}
            for run in merged:
                states |= {*run.highest("step_seconds"), *run.lowest("step_seconds")}
            self.assertEqual(len(states), 1, "a mixture of two states")
        self.assertEqual(job.returncode, 0, "the job must not notice")
        self.assertGreater(taken, 0)
        self.assertTrue(all("changed while it was read" in why or "in use" in why for why in refused), refused)

    def test_a_leftover_that_changes_while_it_is_copied_is_said_and_left_out(self) -> None:
        copyfile = shutil.copyfile
        journal = self.leftover.with_name(f"{self.leftover.name}-journal")

        def save() -> None:
            with contextlib.closing(sqlite3.connect(self.leftover)) as job, job:
                job.execute("UPDATE run SET measured_steps = measured_steps + 1")

        for change in (save, journal.touch):
            with self.subTest(change):
                self.make_leftover(status="running")

                def copy_while_it_changes(source: Path, target: Path, change: Callable[[], None] = change) -> None:
                    copyfile(source, target)
                    change()

                with unittest.mock.patch.object(shutil, "copyfile", copy_while_it_changes):
                    outcome = merge.merge(self.out, [self.a])
                self.assertEqual(len(outcome.left_out), 1)
                self.assertRegex(outcome.left_out[0], r"partial: changed while it was read; try again when its job")
                self.leftover.unlink()
        self.assertEqual(len(runs.load([self.out])), 3)

    def test_a_job_that_publishes_into_the_output_while_it_is_checked(self) -> None:
        """The check copies table by table, so without a transaction it would see runs without their session."""
        merge.merge(self.out, [self.a])
        copy = values._copy

        def published(connection: sqlite3.Connection, database: str, table: str, *rest: object) -> str | None:
            why = copy(connection, database, table, *rest)
            if (database, table) == ("present", "session"):
                with (
                    contextlib.suppress(sqlite3.OperationalError),  # the check keeps writers out
                    contextlib.closing(sqlite3.connect(self.out, timeout=0)) as writer,
                    writer,
                ):
                    add_session(writer, SessionSpec(), np.random.default_rng(100))
            return why

        with unittest.mock.patch.object(values, "_copy", published):
            self.assertEqual(merge.merge(self.out, [self.b]).added, 3)
        self.assertEqual(len(runs.load([self.out])), 6)

    def test_a_file_that_changes_without_locks_is_refused(self) -> None:
        """The file changes after merge has read it, as on a cluster's file system without locks between nodes."""
        absorb = merge.absorb

        def meddle(*arguments: object) -> object:
            taken = absorb(*arguments)
            with self.a.open("ab") as file:
                file.write(b"\0" * 4096)
            return taken

        merge.absorb = meddle
        self.addCleanup(setattr, merge, "absorb", absorb)
        with self.assertRaisesRegex(StoreError, "changed while it was read"):
            merge.merge(self.out, [self.a])
        self.assertFalse(self.out.exists())
        outcome = merge.merge(self.out, [self.b, self.a], skip_damaged=True)
        self.assertEqual((outcome.added, len(outcome.left_out)), (3, 1))
        self.assertEqual({run.model for run in runs.load([self.out])}, {"vgg16"})

    def test_a_store_being_copied_is_called_half_written(self) -> None:
        whole = self.a.read_bytes()
        copy = self.folder / "copy.db"
        for size in (50, 100, 4096, len(whole) // 2, len(whole) - 1):
            with self.subTest(size):
                copy.write_bytes(whole[:size])
                with self.assertRaisesRegex(StoreError, "half-written or damaged|damaged: 50 bytes only"):
                    merge.merge(self.out, [self.b, copy])
        self.assertFalse(self.out.exists())
        copy.write_bytes(whole)
        self.assertEqual(merge.merge(self.out, [self.b, copy]).added, 6)


class PublishedMeanwhileTest(Folder):
    """A job publishes its working file while a merge runs. The file disappears after the merge has found it."""

    def gone_after(self, owner: object, name: str, calls: int) -> None:
        """Makes the leftover. The leftover disappears after call number `calls` of the function owner.name."""
        self.leftover.unlink(missing_ok=True)
        self.make_leftover()
        function = getattr(owner, name)

        def followed(*arguments: object) -> object:
            nonlocal calls
            calls -= 1
            result = function(*arguments)
            if calls == 0:
                self.leftover.unlink()
            return result

        setattr(owner, name, followed)
        self.addCleanup(setattr, owner, name, function)

    def test_what_was_found_and_is_gone_is_a_note(self) -> None:
        moments = ((merge, "plan", 1), (merge, "absorb", 1), (store, "read_header", 3), (store, "_versions", 1))
        for moment in moments:
            with self.subTest(moment):
                self.out.unlink(missing_ok=True)
                self.gone_after(*moment)
                outcome = merge.merge(self.out, [self.a])
                self.assertFalse(self.leftover.exists())
                self.assertEqual((outcome.added, outcome.left_out, len(outcome.notes)), (3, [], 1))
                self.assertIn("no longer exists, because its job has just finished: merge again", outcome.notes[0])

    def test_a_path_that_is_too_long(self) -> None:
        deep = self.folder / ("d" * 200) / ("e" * 200)
        deep.mkdir(parents=True)
        long = deep / f"{'n' * 120}.db"
        self.a.rename(long)
        for output, store_file in ((self.out, long), (deep / f"{'o' * 100}.db", self.b)):
            with self.assertRaisesRegex(StoreError, "this path has [0-9]+ bytes, and SQLite opens at most 504"):
                merge.merge(output, [store_file])

    def test_nothing_is_made_where_that_was_all(self) -> None:
        self.a.unlink()
        self.b.unlink()
        self.gone_after(merge, "plan", 1)
        with self.assertRaisesRegex(
            StoreError, "nothing to merge: .*no longer exists, because its job has just finished"
        ):
            merge.merge(self.out, [self.folder])
        self.assertFalse(self.out.exists())

    def test_gone_between_the_listing_and_the_first_look(self) -> None:
        self.leftover.symlink_to("nowhere")
        outcome = merge.merge(self.out, [self.folder])
        self.assertEqual((outcome.added, len(outcome.notes)), (6, 1))
        self.assertIn("partial: no longer exists", outcome.notes[0])

    def test_a_pipe_with_the_name_of_a_leftover_is_not_waited_for(self) -> None:
        os.mkfifo(self.leftover)
        os.utime(self.leftover, (LONG_AGO, LONG_AGO))
        outcome = merge.merge(self.out, [self.folder])
        self.assertEqual(outcome.added, 6)
        self.assertIn("partial: is not a file: left out", outcome.notes[0])

    def test_what_was_named_must_be_there(self) -> None:
        for moment in ((merge, "plan", 1), (store, "read_header", 2), (store, "read_header", 4)):
            with self.subTest(moment):
                self.gone_after(*moment)
                with self.assertRaisesRegex(StoreError, "partial: no such file"):
                    merge.merge(self.out, [self.a, self.leftover])
                self.assertFalse(self.out.exists())


class StatesOfOneRunTest(Folder):
    """A leftover is merged while its run is incomplete. Later the same run is merged in its complete state."""

    def setUp(self) -> None:
        super().setUp()
        self.early, self.late = self.folder / "early.db", self.folder / "late.db"
        (made,) = make(self.early, SessionSpec(phases=("full",)), seed=5)
        self.uuid = made["full"]
        shutil.copy(self.early, self.late)
        alter(
            self.early,
            "UPDATE run SET status = 'running', measured_steps = 5, step_seconds = NULL, fingerprint = 'early'",
            "UPDATE sample SET count = 5, data = substr(data, 1, 40)",
        )

    def merged(self, *orders: list[Path]) -> list[str]:
        out = self.folder / f"out{len(list(self.folder.iterdir()))}.db"
        for order in orders:
            merge.merge(out, order)
        return all_rows(out)

    def test_the_finished_state_counts_in_any_order(self) -> None:
        want = self.merged([self.late])
        for orders in ([[self.early, self.late]], [[self.late, self.early]], [[self.early], [self.late]]):
            self.assertEqual(self.merged(*orders), want)
        self.assertEqual(self.merged([self.late], [self.early]), want)
        self.assertEqual(self.merged([self.early], [self.late], [self.early], [self.late]), want)

    def test_it_is_counted_and_the_second_time_changes_nothing(self) -> None:
        self.assertEqual(merge.merge(self.out, [self.early]).incomplete, 1)
        outcome = merge.merge(self.out, [self.late])
        self.assertEqual((outcome.added, outcome.superseded, outcome.present), (0, 1, 0))
        before = digest(self.out)
        outcome = merge.merge(self.out, [self.early, self.late])
        self.assertEqual((outcome.added, outcome.superseded, outcome.present), (0, 0, 1))
        self.assertEqual(digest(self.out), before)

    def test_of_two_unfinished_states_the_longer_counts(self) -> None:
        longer = self.folder / "longer.db"
        shutil.copy(self.late, longer)
        alter(longer, "UPDATE run SET status = 'running', measured_steps = 20, fingerprint = 'early'")
        self.assertEqual(self.merged([self.early, longer]), self.merged([longer, self.early]))
        self.assertEqual(self.merged([self.early, longer]), self.merged([longer]))

    def test_another_configuration_is_a_conflict_all_the_same(self) -> None:
        for statement in (
            "UPDATE run SET batch_size = 9",
            "UPDATE run SET allocation_size = 3",
            "UPDATE run SET seed = 2",
        ):
            forged = self.folder / "forged.db"
            shutil.copy(self.late, forged)
            alter(forged, statement)
            with self.subTest(statement), self.assertRaises(NotComparable):
                merge.merge(self.out, [self.early, forged])

    def test_two_unfinished_states_of_equal_length_that_differ_are_a_conflict(self) -> None:
        forged = self.folder / "forged.db"
        shutil.copy(self.early, forged)
        alter(forged, "UPDATE run SET final_loss = 7")
        with self.assertRaises(NotComparable):
            merge.merge(self.out, [self.early, forged])


class KilledTest(Folder):
    """Kills scripts/merge at many points. The output must be unchanged or complete. The next merge must complete it."""

    STEPS = """
import os, signal, sqlite3, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from hvdb.read import merge
left = int(sys.argv[2])
def trap(frame, event, argument):
    global left
    if event == "line" and frame.f_code.co_filename.endswith(("merge.py", "absorb.py")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trap
sys.settrace(trap)
merge.merge(Path(sys.argv[3]), [Path(p) for p in sys.argv[4:]])
"""

    def kill_after(self, lines: int, *inputs: Path) -> int:
        done = execute(sys.executable, "-B", "-c", self.STEPS, SCRIPTS, lines, self.out, *inputs)
        self.assertIn(done.returncode, (0, -signal.SIGKILL), done.stderr)
        return done.returncode

    def sweep(self, before: list[str] | None) -> None:
        want = self.folder / "want" / "out.db"
        want.parent.mkdir()
        merge.merge(want, [self.a, self.b])
        complete = all_rows(want)
        start = self.out.read_bytes() if before is not None else None
        states = set()
        lines = 40
        while True:
            self.out.unlink(missing_ok=True)
            if start is not None:
                self.out.write_bytes(start)
            code = self.kill_after(lines, self.a, self.b)
            if self.out.exists():
                merge.merge(self.out, [self.a])  # rolls back the output if the killed merge left a journal
                now = all_rows(self.out)
                self.assertIn(now, (before, complete), f"killed after {lines} lines")
                states.add(now == complete)
            else:
                self.assertIsNone(before, "the output has vanished")
            merge.merge(self.out, [self.a, self.b])
            self.assertEqual(all_rows(self.out), complete, f"killed after {lines} lines")
            self.assert_no_working_file()
            if code == 0:
                break
            lines += 37
        self.assertGreater(lines, 200, "the sweep must have met many points")
        if before is not None:
            self.assertEqual(states, {False, True})

    def test_with_a_new_output(self) -> None:
        self.sweep(None)

    def test_with_an_output_that_is_there(self) -> None:
        merge.merge(self.out, [self.a])
        self.sweep(all_rows(self.out))

    def test_in_the_middle_of_the_last_transaction(self) -> None:
        """The output contains half of the rows and has a hot journal. The next merge must roll the output back."""
        merge.merge(self.out, [self.a])
        before = all_rows(self.out)
        pid = os.fork()
        if pid == 0:
            try:
                connection = sqlite3.connect(self.out, isolation_level=None)
                connection.execute("PRAGMA cache_size = 1")
                connection.execute("BEGIN")
                for seed in range(100, 120):
                    add_session(connection, SessionSpec(), np.random.default_rng(seed))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        self.assertTrue(self.out.with_name("out.db-journal").exists(), "the set-up must leave a journal")
        outcome = merge.merge(self.out, [self.a])
        self.assertEqual((outcome.added, outcome.present), (0, 3))
        self.assertEqual(all_rows(self.out), before)

    def test_what_a_killed_merge_left_is_removed_and_said(self) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        here = self.folder / f"out.db.{socket.gethostname()}.{gone.pid}.merging"
        alive = self.folder / f"out.db.{socket.gethostname()}.{os.getppid()}.merging"
        elsewhere = self.folder / "out.db.node-17.3.merging"
        for path in (here, alive, elsewhere):
            path.write_bytes(b"x")
        notes = merge.merge(self.out, [self.a]).notes
        self.assertEqual([here.exists(), alive.exists(), elsewhere.exists()], [False, True, True])
        self.assertEqual(len(notes), 2, notes)
        self.assertIn("removed", " ".join(notes))
        self.assertIn("a merge on node-17", " ".join(notes))

    def test_what_no_merge_has_left_is_let_be(self) -> None:
        for process in ("\u00b2", "12345678901234567890", "x"):
            (self.folder / f"out.db.{socket.gethostname()}.{process}.merging").touch()
        self.assertEqual(merge.merge(self.out, [self.a]).notes, [])
        self.assertEqual(len(list(self.folder.glob("*.merging"))), 3)


class LinkTest(Folder):
    def test_links_to_themselves(self) -> None:
        loop = self.folder / "loop.db"
        loop.symlink_to(loop)
        for output, inputs, message in (
            (loop, [self.a], "loop.db: cannot be written: .*symbolic links"),
            (self.out, [self.a, loop], "loop.db: cannot be read: .*symbolic links"),
            (self.out, [self.folder], "loop.db: cannot be read: .*symbolic links"),
        ):
            with self.assertRaisesRegex(StoreError, message):
                merge.merge(output, inputs)
        self.assertFalse(self.out.exists())
        self.assert_no_working_file()


class FullDiskTest(Folder):
    def run_merge(self, limit_bytes: int) -> subprocess.CompletedProcess[str]:
        """Runs scripts/merge with a limit on file sizes. Writes beyond the limit fail as on a full disk."""
        script = f'ulimit -f {limit_bytes // 1024} && exec "$@"'
        return execute("bash", "-c", script, "-", SCRIPTS / "merge", "-o", self.out, self.a, self.b)

    def test_a_new_output(self) -> None:
        done = self.run_merge(40 << 10)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stderr, r"^scripts/merge: .*out.db: cannot be written: .*has space")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertFalse(self.out.exists())
        self.assert_no_working_file()

    def test_an_output_that_is_there_keeps_what_it_had(self) -> None:
        merge.merge(self.out, [self.a])
        self.b.unlink()
        make(self.b, SessionSpec(steps=3000), seed=2)
        merge.merge(self.folder / "c.db", [self.b])
        self.b = self.folder / "c.db"  # the working file will be as large as c.db
        before = all_rows(self.out)
        limit = self.b.stat().st_size + 4096  # large enough for the working file, too small for the output
        done = self.run_merge(limit)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("cannot be written", done.stderr)
        self.assertEqual(all_rows(self.out), before)
        self.assert_no_working_file()
        self.assertEqual(merge.merge(self.out, [self.b]).added, 3)

    def test_on_a_file_system_that_is_full(self) -> None:
        probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
        if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            self.skipTest("this machine does not let us mount a small file system")
        small = self.folder / "small"
        small.mkdir()
        script = (
            'mount -t tmpfs -o size=60k none "$1" && '
            '{ "$2" -o "$1/out.db" "$3" "$4"; code=$?; ls -A "$1"; exit $code; }'
        )
        done = execute("unshare", "-rm", "bash", "-c", script, "-", small, SCRIPTS / "merge", self.a, self.b, code=2)
        self.assertRegex(done.stderr, "cannot be written: database or disk is full")
        self.assertEqual(done.stdout, "", "nothing may be left behind")


class RaceTest(Folder):
    def published_first(self, path: Path) -> None:
        """Lets a second process merge `path` into the output just before this process publishes its own merge."""
        publish = merge._publish

        def late(*arguments: object) -> None:
            merge._publish = publish
            execute(SCRIPTS / "merge", "-o", self.out, path, code=0)
            publish(*arguments)

        merge._publish = late
        self.addCleanup(setattr, merge, "_publish", publish)

    def test_two_merges_into_one_new_output(self) -> None:
        """The second merge must add its sessions to the output of the first merge."""
        self.published_first(self.b)
        merge.merge(self.out, [self.a, self.b])
        self.assertEqual(len(runs.load([self.out])), 6)
        self.assert_no_working_file()

    def test_an_output_that_appears_in_the_meantime_is_checked(self) -> None:
        """Merge must not write to a stranger's file under the output's name, and must not run the file's triggers."""
        for message, statement in (
            ("holds a trigger 't'", "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM session; END"),
            ("out.db: damaged: .*step_seconds -1.0", "UPDATE run SET step_seconds = -1.0"),
            ("out.db: a database of another program", "PRAGMA application_id = 7"),
            ("another program has set its journal mode to WAL", "PRAGMA journal_mode = WAL"),
        ):
            with self.subTest(message):
                self.refuses_to_add(message, statement)

    def refuses_to_add(self, message: str, statement: str) -> None:
        publish = merge._publish
        forged = self.folder / "forged.db"
        shutil.copy(self.a, forged)
        alter(forged, statement)

        def late(*arguments: object) -> None:
            forged.rename(self.out)
            publish(*arguments)

        self.out.unlink(missing_ok=True)
        with unittest.mock.patch.object(merge, "_publish", late), self.assertRaisesRegex(StoreError, message):
            merge.merge(self.out, [self.b])
        connection = sqlite3.connect(self.out)
        self.addCleanup(connection.close)
        self.assertEqual(connection.execute("SELECT count(*) FROM run").fetchone(), (3,))
        self.assert_no_working_file()

    def test_a_conflict_that_arises_in_the_meantime_is_refused(self) -> None:
        forged = self.folder / "forged.db"
        shutil.copy(self.a, forged)
        alter(forged, "UPDATE run SET final_loss = 1.0")
        self.published_first(forged)
        with self.assertRaisesRegex(NotComparable, r"has different contents in .*out.db and in .*a.db"):
            merge.merge(self.out, [self.a, self.b])
        self.assertEqual({run.final_loss for run in runs.load([self.out])}, {1.0})
        self.assert_no_working_file()


class MemoryTest(Folder):
    MERGE = (
        "import re, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from hvdb.read import merge\n"
        "added = merge.merge(Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]).added\n"
        "kib = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1]\n"
        "print(added, int(kib) // 1024)\n"
    )

    def merge_in_new_process(self, name: str, jobs: list[Path]) -> tuple[int, int]:
        """Merges `jobs` into the store `name`. Returns the number of added runs and the process's peak MiB."""
        done = execute(sys.executable, "-B", "-c", self.MERGE, SCRIPTS, self.folder / name, *jobs, code=0)
        added, mib = map(int, done.stdout.split())
        return added, mib

    def test_memory_does_not_grow_with_the_number_of_files(self) -> None:
        jobs = [self.folder / f"job{number}.db" for number in range(36)]
        for seed, job in enumerate(jobs):
            make(job, SessionSpec(ranks=64, steps=2400, phases=("full",)), seed=seed)
        self.assertGreater(sum(job.stat().st_size for job in jobs), 120 << 20)
        _, few = self.merge_in_new_process("few.db", jobs[:6])
        added, many = self.merge_in_new_process("many.db", jobs)
        self.assertEqual(added, 36)
        self.assertLess(many, few + 70, "a cache of 64 MiB fills up, no more")
        added, again = self.merge_in_new_process("many.db", jobs)
        self.assertEqual(added, 0)
        self.assertLess(again, few + 40)
