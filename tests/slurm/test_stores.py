"""Tests how hvdb.campaign reads stores: sessions, partial files of killed jobs, unreadable files, times of a pilot.
hvdb.campaign and `hvd_bench stored` must find the same cells."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import unittest
import uuid
from collections.abc import Mapping
from pathlib import Path

from campaigns import HANG, REPOSITORY, SCRIPTS, fault, slowness

from hvdb.campaign import stores
from hvdb.campaign.plan import PilotKey

SCHEMA = (REPOSITORY / "results" / "schema.sql").read_text(encoding="utf-8")
PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
RUN = {"origin": "measured", "phase": "full", "started_utc": "2026-01-02T03:04:05.000Z", "model": "vgg16"}
RUN |= {"batch_size": 4, "image_size": 224, "device": "cpu", "compute_type": "fp32", "allreduce_type": "fp32"}
RUN |= {"schedule": "static", "comm": "mpi", "data_plane": "shm", "world_size": 2, "allocation_size": 2}
RUN |= {"nodes": 1, "threads": 1, "seed": 1, "fingerprint": "0"}


def add_session(
    path: Path, cell: str, *statuses: str, seconds: int = 10, facts: Mapping[str, str] = {}, **columns: object
) -> None:
    """Adds a session with one run for each status to the store `path`. Makes the store if it does not exist.

    facts: those that are empty are left out.
    """
    fresh = not path.exists()
    connection = sqlite3.connect(path)
    if fresh:
        connection.executescript(SCHEMA)
    session = str(uuid.uuid4())
    connection.execute("INSERT INTO session VALUES (?, '2026-01-02T03:04:05.000Z', 'hvd_bench')", (session,))
    for status in statuses:
        finished = f"2026-01-02T03:{4 + (5 + seconds) // 60:02d}:{(5 + seconds) % 60:02d}.000Z"
        row = RUN | {"uuid": str(uuid.uuid4()), "session_uuid": session, "status": status, "finished_utc": finished}
        row |= columns
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO run ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        for key, value in {"label.cell": cell, **facts}.items():
            if value:
                connection.execute("INSERT INTO provenance VALUES (?, ?, ?, 0)", (row["uuid"], key, value))
    connection.commit()
    connection.close()


class StoresTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.a = self.folder / "a.db"

    def held(self, notes: int = 0) -> set[str]:
        cells, said = stores.held(stores.of_campaign(self.folder))
        self.assertEqual(len(said), notes, said)
        self.agrees(cells)
        return cells

    def agrees(self, cells: set[str]) -> None:
        """Asserts that `hvd_bench stored` finds the same cells in the same files."""
        if PROGRAM.is_file():
            command = [PROGRAM, "stored", "cell", *stores.of_campaign(self.folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
            self.assertEqual(set(done.stdout.split()), cells, done.stderr)

    def test_only_sessions_whose_runs_are_all_complete(self) -> None:
        add_session(self.a, "good", "complete", "complete", "complete")
        add_session(self.a, "cut", "complete", "incomplete")
        add_session(self.a, "at work", "complete", "running")
        add_session(self.a, "", "complete")
        self.assertEqual(self.held(), {"good"})
        add_session(self.folder / "b.db", "cut", "complete")
        self.assertEqual(self.held(), {"good", "cut"})

    def test_a_traced_session_counts_for_nothing(self) -> None:
        add_session(self.a, "good", "complete")
        add_session(self.a, "traced", "complete", "complete", traced=1)
        self.assertEqual(self.held(), {"good"})

    def test_a_session_that_replayed_another_recording_than_planned_counts_for_nothing(self) -> None:
        for cell, planned, played in (("good", "one", "one"), ("old_program", "one", ""), ("other", "one", "two")):
            add_session(self.a, cell, "complete", facts={"label.replay": planned, "replay.profile": played})
        add_session(self.a, "unplanned", "complete", facts={"replay.profile": "two"})
        self.assertEqual(self.held(), {"good", "old_program", "unplanned"})

    def test_what_a_killed_job_left(self) -> None:
        add_session(self.folder / "a.db.0a0b.partial", "unpublished", "complete")
        self.assertEqual(self.held(), {"unpublished"})

    def test_a_journal_is_rolled_back_on_a_copy(self) -> None:
        add_session(self.a, "kept", "complete")
        work = self.folder / "work.sqlite"
        shutil.copyfile(self.a, work)
        writer = sqlite3.connect(work, isolation_level=None)
        writer.executescript("PRAGMA cache_size = 1; BEGIN IMMEDIATE; DELETE FROM provenance; CREATE TABLE filler (x);")
        writer.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200) "
            "INSERT INTO filler SELECT randomblob(4000) FROM n"
        )
        shutil.copyfile(work, self.a)
        shutil.copyfile(f"{work}-journal", f"{self.a}-journal")
        writer.execute("ROLLBACK")
        writer.close()
        before = self.a.read_bytes()
        self.assertEqual(self.held(), {"kept"})
        self.assertEqual(self.a.read_bytes(), before)
        self.assertTrue(Path(f"{self.a}-journal").exists())

    def test_what_cannot_be_read_is_said_and_the_rest_counts(self) -> None:
        add_session(self.a, "good", "complete")
        (self.folder / "empty.db").touch()
        (self.folder / "text.db").write_text("x" * 200)
        (self.folder / "short.db").write_bytes(self.a.read_bytes()[:50])
        (self.folder / "cut.db").write_bytes(self.a.read_bytes()[:-4096])
        for name, pragma in (("newer", "user_version = 99"), ("foreign", "application_id = 7")):
            shutil.copyfile(self.a, self.folder / f"{name}.db")
            connection = sqlite3.connect(self.folder / f"{name}.db")
            connection.execute(f"PRAGMA {pragma}")
            connection.close()
        self.assertEqual(self.held(6), {"good"})
        said = "\n".join(stores.held(stores.of_campaign(self.folder))[1])
        for words in (
            "empty.db: empty",
            "text.db: not an SQLite",
            "cut.db: half-written or damaged",
            "schema version 99",
            "another program",
        ):
            self.assertIn(words, said)

    def change(self, name: str, *statements: str) -> None:
        """Copies the store a.db and changes the copy."""
        path = self.folder / f"{name}.db"
        shutil.copyfile(self.a, path)
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in ("PRAGMA writable_schema = ON", "PRAGMA ignore_check_constraints = ON", *statements):
            connection.execute(statement)
        connection.close()

    def test_a_damaged_or_forged_store_holds_nothing(self) -> None:
        add_session(self.a, "good", "complete")
        self.change("norank", "DROP TABLE rank")
        # This schema is not UTF-8. SQLite quotes it, so SQLite's message is not UTF-8 either.
        self.change(
            "schema", "UPDATE sqlite_schema SET sql = CAST(x'43524541544520ff1b5b' AS TEXT) WHERE name = 'rank'"
        )
        self.change("view", "DROP TABLE rank", "CREATE VIEW rank AS SELECT 1 AS rank")
        add_session(self.folder / "own.db", "own", "complete")
        cells, said = stores.held(stores.of_campaign(self.folder))
        self.assertEqual(cells, {"good", "own"})
        self.agrees(cells)
        told = "\n".join(said)
        for words in ("norank.db: damaged: its table 'rank' is missing", "schema.db: damaged", "view.db: holds a view"):
            self.assertIn(words, told)
        self.assertEqual(len(said), 3)
        self.assertNotIn("\x1b", told)

    def test_a_pilot_whose_times_are_none(self) -> None:
        for change in ("finished_utc = NULL", "started_utc = 'x'"):
            self.a.unlink(missing_ok=True)
            add_session(self.a, "x", "complete")
            self.change("b", f"UPDATE run SET {change}")
            self.assertIn("b.db: damaged: a session has no start and end", fault(stores.pilot, [self.folder / "b.db"]))

    def test_a_journal_that_names_another_file(self) -> None:
        """SQLite deletes the file that a journal names when it rolls back. A stranger's journal may name any file."""
        add_session(self.a, "good", "complete")
        journal = self.a.with_name("a.db-journal")
        journal.write_bytes(b"\0" * 512 + bytes.fromhex("d9d505f920a163d7"))
        link = self.folder / "link.db"
        link.symlink_to(self.a)
        for path in (self.a, link):
            cells, (note,) = stores.held([path])
            self.assertEqual(cells, set())
            self.assertIn("a.db-journal: names another file", note)

    def test_a_journal_that_is_a_pipe_is_not_waited_for(self) -> None:
        add_session(self.a, "good", "complete")
        os.mkfifo(self.folder / "a.db-journal")
        self.assertIn("a.db-journal: is not a file", self.held_elsewhere())

    def held_elsewhere(self) -> str:
        """Calls held() on a.db in a process without numpy. Returns the call's result as text."""
        script = (
            "import sys; sys.path.insert(0, sys.argv[2]); sys.modules['numpy'] = None\n"
            "from hvdb.campaign import stores\nfrom pathlib import Path\nprint(stores.held([Path(sys.argv[1])]))"
        )
        command = [sys.executable, "-B", "-c", script, self.a, SCRIPTS]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_numpy_is_not_needed(self) -> None:
        add_session(self.a, "good", "complete")
        self.assertEqual(self.held_elsewhere(), "({'good'}, [])\n")

    def test_pilot(self) -> None:
        add_session(self.a, "x", "complete", seconds=30)
        add_session(self.a, "x", "complete", "complete", seconds=75)
        add_session(self.a, "x", "incomplete", seconds=500)
        add_session(self.a, "x", "complete", seconds=12, allocation_size=1, world_size=1)
        add_session(self.a, "x", "complete", seconds=900, origin="simulated")
        add_session(self.a, "x", "complete", seconds=900, traced=1)
        found = stores.pilot([self.a]).seconds
        self.assertEqual(found, {PilotKey("vgg16", 4, "fp32", True): 75.0, PilotKey("vgg16", 4, "fp32", False): 12.0})
        empty = self.folder / "b.db"
        add_session(empty, "x", "incomplete")
        self.assertIn("hold no complete launch", fault(stores.pilot, [empty]))
        self.assertIn("--pilot /nowhere.db: no such file", fault(stores.pilot, [Path("/nowhere.db")]))

    def test_a_clock_that_was_set_back(self) -> None:
        add_session(self.a, "x", "complete", finished_utc="2020-01-01T00:00:00.000Z")
        self.assertIn("its host's clock was set back", fault(stores.pilot, [self.a]))
        add_session(self.a, "x", "complete", seconds=30)
        found = stores.pilot([self.a])
        self.assertEqual(list(found.seconds.values()), [30.0])
        self.assertEqual(len(found.notes), 1, found.notes)

    def test_a_thousand_job_files(self) -> None:
        import time

        add_session(self.a, "cell", "complete", "complete", "complete")
        content = self.a.read_bytes()
        for number in range(999):
            (self.folder / f"{number}.db").write_bytes(content)
        begin = time.process_time()
        cells, notes = stores.held(stores.of_campaign(self.folder))
        self.assertEqual((cells, notes), ({"cell"}, []))
        self.assertLess(
            time.process_time() - begin, 10 * slowness(), "status of a large campaign must not take minutes"
        )
