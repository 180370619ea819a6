"""Tests stores with impossible values. Every reader and merge must refuse the same files, by name and in one line.

ReadersTest runs the commands. The other tests call the check that ReadersTest finds in all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sqlite3
import struct
import unittest
import unittest.mock
from collections.abc import Mapping

import numpy as np
from limits import HANG

from harness import SCRIPTS, FolderTest, call, execute, refused
from synthetic_store import CollSpec, SessionSpec, add_coll, add_session, make, operation

from hvdb.base.errors import StoreError
from hvdb.read import merge, runs, schema, untrusted, values
from hvdb.show import tables

NOT_TEXT = "CAST(x'ff1b5b' AS TEXT)"
SPEC = SessionSpec(steps=5, operations=[operation(0)])


class Stores(FolderTest):
    """A test with a good store, and the place of a bad one. SPECS: the sessions in the good store."""

    SPECS: tuple[SessionSpec | CollSpec, ...] = (SessionSpec(steps=5, operations=[operation(0)], replicates=0.01),)

    def setUp(self) -> None:
        super().setUp()
        no_wait = unittest.mock.patch("os.fsync")  # saves time: no file here must survive a power failure
        no_wait.start()
        self.addCleanup(no_wait.stop)
        self.good, self.bad = self.folder / "good.db", self.folder / "bad.db"
        self.out = self.folder / "out.db"
        self.made = make(self.good, *self.SPECS)

    def change(self, *statements: str, values: tuple = (), afresh: bool = True) -> None:
        """Copies the good store to the bad store (unless afresh=False). Changes the bad store, ignoring its schema."""
        if afresh:
            shutil.copyfile(self.good, self.bad)
        connection = sqlite3.connect(self.bad, isolation_level=None)
        for pragma in ("synchronous = OFF", "writable_schema = ON", "ignore_check_constraints = ON"):
            connection.execute(f"PRAGMA {pragma}")
        for statement in statements:
            connection.execute(statement, values if "?" in statement else ())
        connection.close()

    def refused(self, message: str) -> None:
        """Asserts that the bad store is refused in one printable line that matches `message`."""
        with self.assertRaises(StoreError) as refusal:
            runs.load([self.bad])
        self.assertRegex(str(refusal.exception), f"bad.db: {message}")
        self.assertTrue(str(refusal.exception).isprintable(), refusal.exception)

    def refuses_each(self, cases: Mapping[str, str], message: str = "damaged: .*{}") -> None:
        """Changes the good store by each of `cases` alone. cases: statement -> what stands for {} in `message`."""
        for change, expected in cases.items():
            with self.subTest(change):
                self.change(change)
                self.refused(message.format(expected))


class ReadersTest(Stores):
    SPECS = (SessionSpec(steps=5), CollSpec())

    def test_every_command_refuses_the_same_in_one_line(self) -> None:
        """One store for each part of the check: a schema, a value, a text, a blob, and rows that contradict others."""
        output = self.folder / "output"
        commands = (
            ("efficiency", self.bad),
            ("report", self.bad),
            ("plot", self.bad, "--out", output),
            ("ranks", self.bad),
            ("compare", self.good, self.bad),
            ("history", self.bad),
            ("rerun", self.made[0]["full"], self.bad),
            ("reproduce", "horovod-512", "--db", self.bad),
            ("export", self.bad, "--jsonl", output),
            ("collectives", self.bad, "--out", output),
            ("merge", "-o", self.out, self.bad),
            ("merge", "-o", self.out, self.good, self.bad),
        )
        for change, message in (
            ("CREATE VIEW more AS SELECT 1", "holds a view 'more'"),
            ("UPDATE run SET nodes = -1", "damaged: table 'run', row [0-9a-f-]{36}: .*nodes -1"),
            ("UPDATE coll_cell SET seconds = 0.0", "damaged: table 'coll_cell', .*seconds 0.0"),
            (f"UPDATE run SET model = {NOT_TEXT}", "damaged: .*not UTF-8 text"),
            ("UPDATE sample SET data = zeroblob(40)", "damaged: .* step_seconds holds 0, which is not a time"),
            ("UPDATE rank SET rank = 7 WHERE rank = 1", "damaged: run .* has a rank 7, but 2 ranks"),
        ):
            self.change(change)
            for words in commands:
                with self.subTest(change, command=words[0]):
                    refused(f"bad.db: {message}", *words)
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["bad.db", "good.db"])
            outcome = merge.merge(self.out, [self.good, self.bad], skip_damaged=True)
            self.assertEqual((outcome.added, outcome.coll_added, len(outcome.left_out)), (3, 1, 1))
            self.assertIn("bad.db", outcome.left_out[0])
            self.assertEqual(len(runs.load([self.out])), 3, "what merge made can be read")
            self.out.unlink()


class GrowingStoreTest(Stores):
    """The good store has a session of three runs. The bad store gets a second session after the first read."""

    def setUp(self) -> None:
        super().setUp()
        shutil.copyfile(self.good, self.bad)
        self.rng = np.random.default_rng(2)
        self.store = runs.GrowingStore(self.bad)
        self.first = self.store.load()

    def grow(self, *statements: str, spec: SessionSpec | CollSpec = SPEC) -> None:
        connection = sqlite3.connect(self.bad)
        with connection:
            add = add_coll if isinstance(spec, CollSpec) else add_session
            add(connection, spec, self.rng)
        connection.close()
        self.change(*statements, afresh=False)

    def test_a_run_is_read_as_load_reads_it(self) -> None:
        self.grow()
        for run, same in zip(self.store.load(), runs.load([self.bad]), strict=True):
            self.assertEqual((run.columns, run.session, run.provenance), (same.columns, same.session, same.provenance))
            self.assertEqual(
                (run.ranks, run.decomposition, run.operations), (same.ranks, same.decomposition, same.operations)
            )
            np.testing.assert_equal(
                {kind: samples.highest for kind, samples in run.samples.items()},
                {kind: samples.highest for kind, samples in same.samples.items()},
            )

    def test_a_run_is_checked_and_read_once_and_collectives_never(self) -> None:
        """What was read is damaged, so a second check would refuse the store, and a second reading would differ."""
        self.grow("UPDATE run SET nodes = -1 WHERE rowid <= 3", "UPDATE sample SET data = x'' WHERE rowid = 1")
        self.grow("UPDATE coll_cell SET seconds = -1.0", spec=CollSpec())
        grown = self.store.load()
        self.assertEqual(len(grown), 6)
        self.assertLessEqual(set(map(id, self.first)), set(map(id, grown)), "the same objects")
        self.assertEqual(list(map(id, self.store.load())), list(map(id, grown)))
        self.refused("damaged: .*nodes -1")

    def test_a_run_that_was_running_is_read_again(self) -> None:
        self.grow("UPDATE run SET status = 'running' WHERE rowid = 6")
        self.assertEqual([run.status for run in self.store.load()].count("running"), 1)
        self.change("UPDATE run SET status = 'complete' WHERE rowid = 6", afresh=False)
        self.assertEqual({run.status for run in self.store.load()}, {"complete"})

    def test_a_run_that_was_removed_is_gone(self) -> None:
        self.change("DELETE FROM run WHERE phase = 'none'", afresh=False)
        self.assertEqual([run.phase for run in self.store.load()].count("none"), 0)
        self.bad.unlink()
        self.assertEqual(self.store.load(), [])

    def test_a_new_run_gets_every_check(self) -> None:
        new = "run_uuid = (SELECT uuid FROM run WHERE rowid = 6)"
        for statement, message in (
            ("UPDATE run SET nodes = -1 WHERE rowid = 6", "nodes BETWEEN .* .nodes -1"),
            (f"UPDATE provenance SET value = {NOT_TEXT} WHERE {new}", "damaged: .*UTF-8"),
            (f"UPDATE sample SET data = zeroblob(8 * count) WHERE {new}", "step_seconds holds 0, which is not a time"),
            (f"UPDATE rank SET rank = 7 WHERE rank = 1 AND {new}", "has a rank 7, but 2 ranks"),
            ("UPDATE run SET session_uuid = 'no-session' WHERE rowid = 6", "belongs to no session"),
            ("CREATE TABLE more (x)", "holds a table 'more'"),
        ):
            with self.subTest(statement):
                shutil.copyfile(self.good, self.bad)
                self.store.load()
                self.grow(statement)
                with self.assertRaisesRegex(StoreError, f"bad.db: .*{message}"):
                    self.store.load()


class ValuesTest(Stores):
    def test_every_number_has_a_rule(self) -> None:
        """Any seed and any loss is possible. Other tables or the blob give the bounds of the other numbers."""
        free = {"run": {"seed", "final_loss"}, "sample": {"count"}, "coll_sample": {"seq", "count"}}
        text = "".join(file.read_text(encoding="utf-8") for file in schema.SCHEMAS.values())
        for table, columns in schema.columns().items():
            (body,) = re.findall(rf"CREATE TABLE {table} \((.*?)\n\) STRICT", text, re.DOTALL)
            numbers = {column for column, kind in columns.items() if kind in ("INTEGER", "REAL")}
            ruled = {column for column in numbers if re.search(rf"^  {column} [^\n]*CHECK \({column}\b", body, re.M)}
            self.assertEqual(numbers - ruled, free.get(table, set()), table)

    def test_the_copies_have_lengths_in_place_of_blobs(self) -> None:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            schema.make_temporary_tables(connection, max(schema.SCHEMAS))
            tables = "\n".join(
                row[0] for row in connection.execute("SELECT sql FROM sqlite_temp_schema WHERE sql > ''")
            )
        self.assertIn("CHECK (data = 8 * count)", tables)
        self.assertNotIn("length(data)", tables)
        self.assertNotIn("BLOB", tables)

    def test_numbers_that_cannot_be_true(self) -> None:
        cases = {
            "run SET world_size = -2": "table 'run', row [0-9a-f-]{36}: .*world_size BETWEEN .* .world_size -2",
            "run SET world_size = 9": "world_size BETWEEN 1 AND allocation_size .world_size 9, allocation_size 2",
            "run SET allocation_size = 0": "allocation_size 0",
            "run SET nodes = -1": "nodes -1",
            "run SET batch_size = 0": "batch_size 0",
            "run SET image_size = -224": "image_size -224",
            "run SET measured_steps = -5": "measured_steps -5",
            "run SET step_seconds = -1.0": "step_seconds BETWEEN 1e-12 AND 1e9 .step_seconds -1.0",
            "run SET step_seconds = 0.0": "step_seconds 0.0",
            "run SET step_seconds = 9e999": "step_seconds inf",
            "run SET step_seconds_high = 9e999": "step_seconds_high inf",
            "run SET images_per_second = -1.0": "images_per_second -1.0",
            "rank SET planned_bytes = -1": "planned_bytes -1",
            "rank SET rank = 7 WHERE rank = 1": "run .* has a rank 7, but 2 ranks",
            "decomposition SET fraction = 9e999": "fraction inf",
            "decomposition SET low = 0.9, high = 0.4": "low BETWEEN -1e9 AND high .low 0.9, high 0.4",
            "operation SET seconds = -1": "seconds -1.0",
            "operation SET flops = 9e999": "flops inf",
            "sample SET count = -1 WHERE rank = 1": "count -1",
            "sample SET count = 4 WHERE rank = 1": ": length.data. = 8 [*] count .count 4, length.data. 40.;",
        }
        self.refuses_each({f"UPDATE {change}": message for change, message in cases.items()})

    def test_samples_that_are_no_times(self) -> None:
        for value in (float("nan"), float("inf"), -1.0, 0.0, 1e300):
            for kind, zero_is_a_time in (("step_seconds", False), ("compute_seconds", True)):
                if value == 0.0 and zero_is_a_time:
                    continue
                with self.subTest(f"{kind} {value}"):
                    data = struct.pack("<3d", 1.0, value, 1.0)
                    self.change(f"UPDATE sample SET data = ?, count = 3 WHERE kind = '{kind}'", values=(data,))
                    self.refused(f"damaged: table 'sample', row .*, 0, {kind} holds .*, which is not a time")

    def test_replicates_that_no_program_stored(self) -> None:
        many = "zeroblob(8 * 201), count = 201"
        numbers = {value: struct.pack("<d", value) + struct.pack("<199d", *[1.0] * 199) for value in (-1.0, math.inf)}
        numbers[math.nan] = struct.pack("<200d", *[math.nan] * 200)
        for kind, no in (("step_seconds_replicates", "not a time"), ("efficiency_replicates", "not an efficiency")):
            for value, data in numbers.items():
                with self.subTest(f"{kind} {value}"):
                    self.change(f"UPDATE sample SET data = ? WHERE kind = '{kind}'", values=(data,))
                    self.refused(f"damaged: table 'sample', row .*, 0, {kind} holds {value:g}, which is {no};")
            for change in (f"data = {many}", "data = x'', count = 0", "rank = 1"):
                with self.subTest(f"{kind} {change}"):
                    phase = "SELECT uuid FROM run WHERE phase = 'full'"
                    self.change(f"UPDATE sample SET {change} WHERE kind = '{kind}' AND run_uuid = ({phase})")
                    self.refused(f"damaged: table 'sample', row .*, [01], {kind}: .*rank = 0 AND count = 200")
        zero = struct.pack("<200d", *[0.0] * 200)
        self.change("UPDATE sample SET data = ? WHERE kind = 'step_seconds_replicates'", values=(zero,))
        self.refused("damaged: .*, 0, step_seconds_replicates holds 0, which is not a time;")

    def test_a_loss_may_be_anything(self) -> None:
        """A run states that its loss check failed. Its times are valid nevertheless."""
        data = struct.pack("<3d", 1.0, float("nan"), float("inf"))
        kind = "UPDATE sample SET kind = 'loss', data = ?, count = 3 WHERE kind = 'compute_seconds'"
        self.change(kind, "UPDATE run SET final_loss = 9e999", values=(data,))
        self.assertEqual(call("efficiency", self.bad)[0], 0)
        self.assertEqual(merge.merge(self.out, [self.bad]).added, 3)
        self.assertEqual(len(runs.load([self.out])), 3)

    def test_not_measured_is_null(self) -> None:
        self.change("UPDATE run SET step_seconds = NULL, status = 'incomplete'", "DELETE FROM sample")
        code, _, err = call("efficiency", self.bad, "--incomplete")
        self.assertEqual(code, 2)
        self.assertIn("nothing to show: left out 3 without samples", err)
        self.assertEqual(merge.merge(self.out, [self.bad]).added, 3)
        self.out.unlink()
        self.change("UPDATE run SET step_seconds = NULL", "DELETE FROM sample")
        self.refused("damaged: run .* is complete and has no step time")

    def test_text_that_is_none(self) -> None:
        places = ("run SET model", "session SET command_line", "provenance SET value", "rank SET host")
        for text in (NOT_TEXT, "'a' || char(0) || 'b'"):
            self.refuses_each({f"UPDATE {place} = {text}": "not UTF-8 text" for place in places})
        self.change(f"UPDATE run SET model = {NOT_TEXT} WHERE rowid = 1", "UPDATE run SET nodes = -1 WHERE rowid = 3")
        self.refused("damaged: table 'run' holds text that is not UTF-8;")

    def test_an_interval_has_two_ends(self) -> None:
        one_end = "UPDATE decomposition SET {} = NULL WHERE component = 'update'"
        no_interval = ", update: .*.low IS NULL. = .high IS NULL."
        cases = {one_end.format(end): no_interval for end in ("low", "high")}
        cases["UPDATE run SET step_seconds_low = NULL"] = ".step_seconds_low IS NULL. = .step_seconds_high IS NULL."
        self.refuses_each(cases)
        self.change("UPDATE decomposition SET low = NULL, high = NULL")
        self.assertEqual(call("report", self.bad)[0], 0)

    def test_a_model_has_a_name_of_some_length(self) -> None:
        self.change("UPDATE run SET model = model || ?", values=("-div1" * 1500,))
        self.refused("damaged: .*length.model. <= 200 .model resnet101-div1-")
        self.change("UPDATE run SET model = 'vgg16' || ?", values=("-div4-div2",))
        out = call("efficiency", self.bad)[1]
        self.assertIn("VGG-16 with 1/4 of its gradients with 1/2 of its gradients", out)

    def test_a_title_of_any_length(self) -> None:
        self.assertTrue(tables.title("m" + "-div1" * 5000).startswith("m with 1/1 of"))

    def test_a_profile_without_time(self) -> None:
        """A profile whose operations all take no time cannot be drawn."""
        self.change("UPDATE operation SET seconds = 0")
        code, out, err = call("plot", self.bad, "--out", self.folder / "plots")
        self.assertEqual(code, 0, err)
        self.assertNotIn("profile_", out)
        self.assertRegex(err, "left out: the profile of run .*: its operations take no time")
        self.change("UPDATE run SET status = 'incomplete'", afresh=False)
        code, _, err = call("plot", self.bad, "--out", self.folder / "plots")
        self.assertEqual(code, 2, err)
        self.assertIn("nothing to show", err)

    def test_a_run_without_samples_that_is_named(self) -> None:
        self.change("UPDATE run SET step_seconds = NULL, status = 'incomplete'", "DELETE FROM sample")
        run = self.made[0]["full"][:8]
        for command in ("efficiency", "report", "plot"):
            code, _, err = call(command, self.bad, "--run", run)
            self.assertEqual(code, 2, err)
            self.assertIn(f"run {run} holds no step times", err)

    def test_names_that_are_none(self) -> None:
        escape = "char(27) || '[2J12345678'"
        for place in ("run SET phase", "run SET uuid", "sample SET kind", "decomposition SET component"):
            texts = (escape, NOT_TEXT, "'efficiency' || char(0)")
            self.refuses_each({f"UPDATE OR REPLACE {place} = {text}": "" for text in texts})

    def test_a_file_brings_its_own_schema(self) -> None:
        """The file's schema has no CHECK, no STRICT and no references, so readers must check the values themselves."""
        loose = "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT, ', ''), 'STRICT', '')"
        for change, message in (
            ("UPDATE run SET world_size = 'many'", "another type than column run.world_size"),
            ("UPDATE run SET status = x'00'", "another type than column run.status"),
            ("UPDATE run SET model = x'1b'", "another type than column run.model"),
            ("UPDATE run SET session_uuid = 'aaaaaaaa'", "table 'run', row [0-9a-f-]{36} belongs to no session"),
            (
                "UPDATE OR REPLACE rank SET run_uuid = char(27) || '[2J'",
                "table 'rank', row .\\[2J, [01] belongs to no run",
            ),
            ("UPDATE sample SET data = 'text', count = 0", "another type than column sample.data"),
        ):
            with self.subTest(change):
                self.change(loose)
                self.change(change, afresh=False)
                self.refused(f"damaged: .*{message}")

    def test_a_number_that_is_stored_as_text(self) -> None:
        """A copy in a column INTEGER would be a number, which the original is not."""
        schema = "UPDATE sqlite_schema SET sql = replace(sql, 'world_size      {}', 'world_size      {}')"
        self.change(schema.format("INTEGER", "TEXT"))
        self.change("UPDATE run SET world_size = '1'", schema.format("TEXT", "INTEGER"), afresh=False)
        self.refused("damaged: .*(non-INTEGER value in|another type than column) run.world_size")

    def test_no_space_for_the_copies_is_not_the_stores_fault(self) -> None:
        facts = "SELECT uuid, 'fact' || i, 'a value', 0 FROM run, n"
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000)"
        self.change(f"{numbers} INSERT INTO provenance {facts}")
        make_tables = schema.make_temporary_tables

        def make_few(connection: sqlite3.Connection, version: int) -> None:
            make_tables(connection, version)
            connection.execute("PRAGMA temp.max_page_count = 1")

        with unittest.mock.patch.object(schema, "make_temporary_tables", make_few):
            _, _, err = call("efficiency", self.bad, code=2)
        self.assertIn("bad.db: cannot be checked: no space for a temporary file", err)

    def test_a_limit_on_temporary_files_is_not_the_stores_fault(self) -> None:
        """A quota, or a limit on the size of files, is another error than a full disk."""
        facts = "SELECT uuid, 'fact' || i, hex(zeroblob(2000)), 0 FROM run, n"
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000)"
        self.change(f"{numbers} INSERT INTO provenance {facts}")
        limited = 'trap "" XFSZ && ulimit -f 1024 && exec "$@"'  # 1 MiB
        for words in (("efficiency", self.bad), ("merge", "-o", self.out, self.bad)):
            done = execute("bash", "-c", limited, "-", SCRIPTS / words[0], *words[1:], code=2)
            self.assertIn("bad.db: cannot be checked: no space for a temporary file (disk I/O error)", done.stderr)
        self.change()
        for text, name, message in (
            ("unable to open database file", "SQLITE_CANTOPEN", "cannot be checked: no space for a temporary file"),
            ("disk I/O error", "SQLITE_IOERR_CORRUPTFS", "damaged: disk I/O error"),  # of the store itself
        ):
            error = sqlite3.OperationalError(text)
            error.sqlite_errorname = name
            with (
                unittest.mock.patch.object(values, "fault", side_effect=error),
                self.assertRaisesRegex(StoreError, message),
            ):
                runs.load([self.bad])


class SchemaTest(Stores):
    def test_what_would_run_an_expression_of_the_file(self) -> None:
        endless = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n)"
        virtual = "rootpage = 0, sql = 'CREATE VIRTUAL TABLE rank USING fts5(a)'"
        cases = {
            "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END": "holds a trigger 't'",
            "CREATE INDEX i ON run (abs(batch_size))": "holds a index 'i'",
            "ALTER TABLE run ADD COLUMN more TEXT AS (hex(zeroblob(100000000)))": "its table 'run' lacks columns",
            f"UPDATE sqlite_schema SET {virtual} WHERE name = 'rank'": "holds a table 'rank'",
        }
        self.refuses_each(cases, "{}")
        self.change("DROP TABLE rank", f"CREATE VIEW rank AS SELECT {endless} AS rank")
        self.refused("holds a view 'rank'")

    def test_comparisons_that_the_file_chose(self) -> None:
        """With the file's collation 'FULL' would equal the phase 'full', and UUIDs that differ in case would match."""
        cases = {
            "run": (("phase           TEXT", "phase TEXT COLLATE NOCASE"), "UPDATE run SET phase = upper(phase)"),
            "session": (
                ("uuid         TEXT PRIMARY KEY", "uuid TEXT collate/**/nocase PRIMARY KEY"),
                "UPDATE session SET uuid = upper(uuid)",
            ),
        }
        for table, (words, change) in cases.items():
            with self.subTest(table):
                self.change("UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2)", values=words)
                self.change("REINDEX", change, afresh=False)
                self.refused(f"its table '{table}' has a COLLATE clause, which no store of hvd_bench has")

    def test_conflicts_that_the_file_settles(self) -> None:
        """SQLite would ignore runs without a loss that merge adds to the file, without an error."""
        words = ("final_loss      REAL", "final_loss REAL NOT NULL on/**/conflict ignore")
        self.change("UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2)", values=words)
        message = "its table 'run' has a CONFLICT clause, which no store of hvd_bench has"
        self.refused(message)
        with self.assertRaisesRegex(StoreError, message):
            merge.merge(self.bad, [self.good])

    def test_our_schemas_have_no_clause_that_is_refused(self) -> None:
        for file in schema.SCHEMAS.values():
            self.assertIsNone(untrusted.FOREIGN_CLAUSE.search(file.read_text(encoding="utf-8")))

    def test_an_endless_check_is_not_evaluated(self) -> None:
        slow = "CHECK (''x'' NOT LIKE hex(zeroblob(100000000)))"
        change = f"replace(sql, 'model           TEXT NOT NULL', 'model TEXT NOT NULL {slow}')"
        self.change(f"UPDATE sqlite_schema SET sql = {change} WHERE name = 'run'")
        self.assertEqual(call("efficiency", self.bad)[0], 0)
        self.assertEqual(merge.merge(self.out, [self.bad]).added, 3)

    def test_a_damaged_schema_whose_message_is_no_utf8(self) -> None:
        """SQLite quotes the schema in its message. Python's sqlite3 cannot decode a message that is not UTF-8."""
        self.change("UPDATE sqlite_schema SET sql = CAST(x'43524541544520ff1b5b' AS TEXT) WHERE name = 'rank'")
        self.refused("damaged: text that is not UTF-8")

    def test_other_ways_to_write_a_file(self) -> None:
        """Reading a store with a write-ahead log would make files beside the store."""
        self.change("PRAGMA journal_mode = WAL")
        remedy = "close that program, then run: sqlite3 .*bad.db 'PRAGMA journal_mode = DELETE'"
        self.refused(f"another program has set its journal mode to WAL; {remedy}")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["bad.db", "good.db"])

    def test_a_journal_that_names_another_file(self) -> None:
        """SQLite deletes the file that a journal names when it rolls back. A stranger's journal may name any file."""
        shutil.copyfile(self.good, self.bad)
        journal = self.folder / "bad.db-journal"
        journal.write_bytes(b"\0" * 512 + untrusted.SUPER_JOURNAL_MAGIC)
        link = self.folder / "link.db"  # SQLite looks for the journal beside the link's target
        link.symlink_to(self.bad)
        for path in (self.bad, link):
            code, _, err = call("efficiency", path)
            self.assertEqual(code, 2)
            self.assertIn("bad.db-journal: names another file", err)

    def test_a_journal_that_is_a_pipe_is_not_waited_for(self) -> None:
        shutil.copyfile(self.good, self.bad)
        os.mkfifo(self.folder / "bad.db-journal")
        script = [str(SCRIPTS / "efficiency"), str(self.bad)]
        done = execute(*script, timeout=HANG, code=2)
        self.assertIn("bad.db-journal: is not a file", done.stderr)


class CautionTest(Stores):
    def caution(self, name: str, text: str, where: str = "1") -> None:
        connection = sqlite3.connect(self.good)
        with connection:
            connection.execute(
                f"INSERT INTO provenance SELECT uuid, 'caution.{name}', ?, 0 FROM run WHERE {where}", (text,)
            )
        connection.close()

    def test_cautions_are_shown_below_the_table_and_in_the_report(self) -> None:
        self.caution("bf16_without_amx", "bf16 without AMX is slow; use fp32")
        for command in ("efficiency", "report"):
            code, out, err = call(command, self.good)
            self.assertEqual((code, err), (0, ""))
            shown = [line for line in out.splitlines() if "ote: caution: bf16 without AMX is slow; use fp32" in line]
            self.assertEqual(len(shown), 1, out)
            self.assertIn(self.made[0]["solo"][:8], shown[0])

    def test_runs_whose_loss_collapsed_count_in_no_comparison(self) -> None:
        self.caution("collapsed_loss", "the loss fell below a thousandth of its first", "phase <> 'solo'")
        code, out, _ = call("efficiency", self.good)
        self.assertEqual(code, 0)
        self.assertIn("left out: 2 whose loss collapsed (caution.collapsed_loss; --run shows them)", out)
        self.assertNotIn(self.made[0]["full"][:8], out)
        code, out, _ = call("reproduce", "horovod-512", "--db", self.good)
        self.assertIn("left out: 2 whose loss collapsed", out)
        code, out, _ = call("report", self.good)
        self.assertIn("caution.collapsed_loss` |  | the loss fell below a thousandth", out, "provenance of all runs")
