"""Tests results of collectives in stores: checks, merging, reading, drawing, and what hvd_bench coll writes."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import struct
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image
from test_hostile_text import CONTROLS, HOSTILE
from test_merge import digest, dump
from test_values import NOT_TEXT, Stores

from harness import FolderTest, SharedFolderTest, alter, call, execute
from synthetic_store import CollSpec, SessionSpec, make

from hvdb.base import data
from hvdb.base.errors import HvdbError, StoreError
from hvdb.read import coll_results, merge, names, runs, schema, store
from hvdb.read.coll_results import Panel, Point

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
PANEL = Panel("all_reduce", "float", "sum", "in place", 2)
TABLES = ("coll_session", *schema.COLL.children)
KINDS = ("seconds", "transfer_seconds", "skew_seconds", "last_rank", "round")
SCHEMA = data.SCHEMA_2.read_text(encoding="utf-8")


def version(path: Path) -> int:
    """Returns the schema version in the header of a store."""
    return store.read_header(path).version


def texts(table: str) -> list[str]:
    """Returns the columns that may hold any text."""
    (body,) = re.findall(rf"CREATE TABLE {table} \((.*?)\n\) STRICT", SCHEMA, re.DOTALL)
    return re.findall(r"^  (\w+) +TEXT NOT NULL(?! REFERENCES| CHECK)", body, re.MULTILINE)


class ValuesTest(Stores):
    SPECS = (SessionSpec(steps=5), CollSpec(sides=("ring", "shm")))

    def test_values_that_cannot_be_true(self) -> None:
        cases = {
            "coll_session SET ranks = 0": "ranks BETWEEN 1 AND 2147483647 .ranks 0",
            "coll_session SET ranks = 1": "session .*, cell 0: last_rank is none of the ranks",
            "coll_session SET nodes = 3": "table 'coll_session', row [0-9a-f-]{36}: .*nodes BETWEEN 1 AND ranks",
            "coll_session SET device = 'tpu'": "device IN .* .device tpu",
            "coll_session SET status = 'running'": "status IN .* .status running",
            "coll_session SET blocking = 4": "blocking 4",
            "coll_session SET clock_seconds = 9e999": "clock_seconds inf",
            "session SET uuid = 'no uuid at all'": "uuid NOT GLOB .* .uuid no uuid at all",
            "coll_session SET uuid = '12345678-1234'": "table 'coll_session', row 12345678-1234 belongs to no session",
            "coll_cell SET session_uuid = '12345678-1234'": "row 12345678-1234, 0 belongs to no coll_session",
            "coll_cell SET operation = 'reduce'": "operation IN .* .operation reduce",
            "coll_cell SET type = 'fp8'": "type IN .* .type fp8",
            "coll_cell SET reduction = ''": "reduction IN .*",
            "coll_cell SET bytes = -1": "bytes -1",
            f"coll_cell SET bytes = {1 << 61}": f"bytes {1 << 61}",
            "coll_cell SET count = -1": "count -1",
            "coll_cell SET samples = 0": "samples 0",
            "coll_cell SET samples = 7": "the cell has another number of samples",
            "coll_cell SET operations_per_sample = 0": "operations_per_sample 0",
            "coll_cell SET seconds = 0.0": "seconds BETWEEN 1e-12 AND 1e9 .seconds 0.0",
            "coll_cell SET seconds = -1.0": "seconds -1.0",
            "coll_cell SET seconds = 9e999": "seconds inf",
            "coll_cell SET seconds = 5.0": "seconds BETWEEN seconds_low AND seconds_high .seconds 5.0",
            "coll_cell SET seconds = NULL": "seconds_low IS NULL OR seconds NOT NULL",
            "coll_cell SET seconds_low = NULL": ".seconds_low IS NULL. = .seconds_high IS NULL.",
            "coll_cell SET ratio = 1, ratio_high = 1": ".ratio_low IS NULL. = .ratio_high IS NULL.",
            "coll_cell SET ratio = 3, ratio_low = 1, ratio_high = 2": "ratio BETWEEN ratio_low AND ratio_high",
            "coll_cell SET ratio = -1": "ratio -1",
            "coll_cell SET transfer_seconds = -1": "transfer_seconds -1",
            "coll_cell SET skew_seconds = 9e999": "skew_seconds inf",
            "coll_cell SET last_rank = 2": "last_rank is none of the ranks",
            "coll_cell SET last_rank = -1": "last_rank -1",
            "coll_cell SET last_rank_share = 1.5": "last_rank_share 1.5",
            "coll_cell SET bus_bytes_per_second = 9e999": "bus_bytes_per_second inf",
            "coll_cell SET bound = 9e999": "bound inf",
            "coll_cell SET wrong = -1": "wrong -1",
            "coll_cell SET settled = 2": "settled 2",
            "coll_sample SET kind = 'loss'": "kind IN .* .kind loss",
            "coll_sample SET count = 19": "length.data. = 8 [*] count .count 19",
            "coll_sample SET seq = 100 WHERE seq = 3": "cell 100: there are samples, and no cell",
        }
        self.refuses_each({f"UPDATE OR REPLACE {change}": message for change, message in cases.items()})

    def test_the_schema_has_the_names_of_the_program(self) -> None:
        known = {"operation": names.OPERATIONS, "type": names.TYPES, "reduction": names.REDUCTIONS}
        for column, expected in known.items():
            (listed,) = re.findall(rf"CHECK \({column} IN \((.*?)\)\)", SCHEMA, re.DOTALL)
            self.assertEqual(tuple(re.findall(r"'(\w+)'", listed)), expected)

    def test_samples_that_are_no_times_or_ranks(self) -> None:
        for kind in KINDS:
            for value in (math.nan, math.inf, -math.inf, -1.0):
                with self.subTest(f"{kind} {value}"):
                    data = struct.pack("<d", value) + bytes(8 * 19)
                    self.change(f"UPDATE coll_sample SET data = ? WHERE kind = '{kind}'", values=(data,))
                    self.refused(
                        f"damaged: table 'coll_sample', row .*, 0, {kind} holds .*, which is not a (time|number of)"
                    )

    def test_text_that_is_none(self) -> None:
        for text in (NOT_TEXT, "'a' || char(0) || 'b'"):
            places = [f"{table} SET {column}" for table in TABLES for column in texts(table)]
            self.refuses_each({f"UPDATE OR REPLACE {place} = {text}": "" for place in places})

    def test_tables_are_those_of_the_version(self) -> None:
        cases = {f"DROP TABLE {table}": f"damaged: its table '{table}' is missing" for table in TABLES}
        cases["PRAGMA user_version = 1"] = "holds a table 'coll_session', which schema version 1 does not have"
        cases["ALTER TABLE coll_cell ADD COLUMN more TEXT"] = "its table 'coll_cell' lacks columns of schema version 2"
        cases["CREATE VIEW coll_view AS SELECT 1"] = "holds a view 'coll_view'"
        self.refuses_each(cases, "{}")

    def test_a_program_that_knows_version_1_alone(self) -> None:
        """A program that knows only schema version 1 refuses a store with collectives in one line that says what to do.
        The program still reads stores that have only runs."""
        alone = self.folder / "runs.db"
        make(alone, SessionSpec(steps=5))
        self.assertEqual((version(alone), version(self.good)), (1, 2))
        with mock.patch.dict(schema.SCHEMAS):
            del schema.SCHEMAS[2]
            self.assertEqual(len(runs.load([alone])), 3)
            with self.assertRaisesRegex(StoreError, "good.db: schema version 2, this program knows 1; read it with"):
                runs.load([self.good])


class MergeTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.runs, self.coll, self.both = (self.folder / f"{name}.db" for name in ("runs", "coll", "both"))
        self.out = self.folder / "out.db"
        make(self.runs, SessionSpec(steps=5), seed=1)
        make(self.coll, CollSpec(), CollSpec(ranks=4), seed=2)
        make(self.both, SessionSpec(steps=5, model="vgg16"), CollSpec(ranks=8), seed=3)

    def test_tables_are_carried_over_in_every_order(self) -> None:
        files = [self.runs, self.coll, self.both]
        outcome = merge.merge(self.out, files)
        self.assertEqual((outcome.added, outcome.coll_added, outcome.coll_present), (6, 3, 0))
        self.assertEqual(version(self.out), 2)
        for number, order in enumerate((files[::-1], [self.coll, self.runs, self.both])):
            other = self.folder / f"other{number}.db"
            merge.merge(other, order)
            self.assertEqual(dump(other), dump(self.out))
        for table in TABLES:
            rows = [row for path in (self.coll, self.both) for row in self.rows(path, table)]
            self.assertEqual(sorted(self.rows(self.out, table)), sorted(rows), table)
            self.assertGreater(len(rows), 2)

    def rows(self, path: Path, table: str) -> list[tuple]:
        connection = sqlite3.connect(path)
        try:
            return connection.execute(f"SELECT * FROM {table}").fetchall()
        finally:
            connection.close()

    def test_twice_is_once(self) -> None:
        merge.merge(self.out, [self.coll, self.both])
        before = digest(self.out)
        code, said, _ = call("merge", "-o", self.out, self.both, self.coll)
        end = "; 0 sessions of collectives added, 3 were there already\n"
        self.assertEqual((code, said), (0, f"{self.out}: 0 runs added, 3 were there already{end}"))
        self.assertEqual(digest(self.out), before)

    def test_a_store_of_runs_keeps_its_version_until_it_gets_collectives(self) -> None:
        merge.merge(self.out, [self.runs])
        self.assertEqual(version(self.out), 1)
        merge.merge(self.out, [self.coll])
        self.assertEqual((version(self.out), len(runs.load([self.out]))), (2, 3))
        merge.merge(self.out, [self.both])
        self.assertEqual(merge.merge(self.out, [self.runs, self.coll, self.both]).coll_present, 3)

    def test_what_a_killed_job_left_is_taken_along(self) -> None:
        partial = self.folder / "runs.db.01234567-0123.partial"
        self.coll.rename(partial)
        os.utime(partial, (1.7e9, 1.7e9))
        outcome = merge.merge(self.out, [self.runs])
        self.assertEqual((outcome.added, outcome.coll_added), (3, 2))


class ReadTest(FolderTest):
    def test_a_cell(self) -> None:
        make(self.db, CollSpec(sizes=(4096,)))
        results = coll_results.read([self.db])
        (series,) = results.series
        self.assertEqual((series.panel, series.name, series.source), (PANEL, "hvd_bench coll (shm)", 0))
        self.assertEqual(results.sources, [coll_results.Source(self.db, "", "Test CPU")])
        (point,) = series.points
        self.assertEqual((point.size, point.settled), (4096, True))
        for seen, expected in zip((point.time, point.low, point.high, point.bound), (10, 9.9, 10.1, 5), strict=True):
            self.assertAlmostEqual(seen, expected)

    def test_sides_sessions_and_files_are_told_apart(self) -> None:
        made = make(self.db, CollSpec(sides=("ring", "shm")), CollSpec(started="2027", cell={"ragged": 1}))
        uuids = [stored["coll"] for stored in made]
        results = coll_results.read([self.db])
        seen = [(series.name, series.source) for series in results.series]
        self.assertEqual(seen, [("ring", 0), ("shm", 0), ("hvd_bench coll (shm), ragged", 1)])
        self.assertEqual([source.session for source in results.sources], uuids)
        chosen = coll_results.read([self.db], [uuids[1][:8]])
        self.assertEqual([series.name for series in chosen.series], ["hvd_bench coll (shm), ragged"])

    def test_cells_that_are_left_out(self) -> None:
        cases = {
            "wrong = 3": "3 wrong elements",
            "bytes = 0": "has no size, so it cannot be drawn",
            "seconds = NULL, seconds_low = NULL, seconds_high = NULL": "took less time than the clock can tell",
        }
        for number, (change, why) in enumerate(cases.items()):
            with self.subTest(change):
                file = self.folder / f"{number}.db"
                make(file, CollSpec(sizes=(4096,)))
                alter(file, f"UPDATE coll_cell SET {change}")
                results = coll_results.read([file])
                self.assertEqual(results.series, [])
                self.assertIn(why, results.left_out[0])
        make(self.db, CollSpec(sizes=(4096, 8192)))
        alter(self.db, "UPDATE coll_cell SET bytes = 4096")
        results = coll_results.read([self.db])
        self.assertEqual((len(results.series[0].points), len(results.left_out)), (1, 1))
        self.assertIn("occurs twice as hvd_bench coll (shm)", results.left_out[0])

    def test_an_interval_that_reaches_zero_is_not_drawn(self) -> None:
        make(self.db, CollSpec(sizes=(4096,), cell={"seconds_low": 0.0, "bound": None, "settled": 0}))
        ((point,),) = (series.points for series in coll_results.read([self.db]).series)
        self.assertEqual(point, Point(4096, 10.0, settled=False))

    def test_a_store_of_runs_has_none(self) -> None:
        make(self.db, SessionSpec(steps=5))
        with self.assertRaisesRegex(HvdbError, "a.db: holds no results of collectives; hvd_bench coll --db"):
            coll_results.read([self.db])

    def test_too_many_sides_are_refused(self) -> None:
        make(self.db, CollSpec(sides=tuple(map(str, range(49))), samples=1))
        code, _, err = call("collectives", self.db, "--out", self.folder)
        self.assertEqual(code, 2)
        self.assertIn("all_reduce has 49 sides in one diagram", err)
        code, _, err = call("collectives", self.db, "--out", self.folder, "--session", "no such one")
        self.assertEqual(code, 2)
        self.assertIn("nothing to draw", err)

    def test_readers_of_runs_say_that_there_are_none(self) -> None:
        make(self.db, CollSpec())
        out = self.folder / "out"
        for words, code in (
            (("efficiency", self.db), 2),
            (("efficiency", self.db, "--json"), 2),
            (("plot", self.db, "--out", out), 2),
            (("ranks", self.db), 2),
            (("rerun", "0123", self.db), 2),
            (("report", self.db), 0),
            (("report", self.db, "-o", self.folder / "page.html"), 0),
            (("reproduce", "horovod-512", "--db", self.db, "--device", "cpu"), 3),
        ):
            with self.subTest(words[0]):
                seen, _, err = call(*words)
                self.assertEqual(seen, code, err)
                self.assertRegex(err, r"^[^\n]*a\.db: no training runs, only results of collectives, which [^\n]*\n$")
        empty = self.folder / "empty.db"
        store.create(empty).close()
        self.assertNotIn("collectives", call("efficiency", empty)[2])

    def test_readers_of_runs_pass_over_collectives(self) -> None:
        session = SessionSpec(steps=12, replicates=0.01)
        make(self.folder / "runs.db", session)
        make(self.db, session, CollSpec())
        for words in (("efficiency", "--json"), ("ranks",)):
            alone, mixed = (call(words[0], self.folder / name, *words[1:]) for name in ("runs.db", "a.db"))
            self.assertEqual([text.replace("runs.db", "a.db") for text in alone[1:]], list(mixed[1:]), words)
            self.assertEqual(alone[0], mixed[0])


class HostileTest(FolderTest):
    """Tests a stranger's text in the tables of collectives."""

    def setUp(self) -> None:
        super().setUp()
        make(self.db, CollSpec(sides=("", "x")), CollSpec(ranks=4))
        connection = sqlite3.connect(self.db)
        with connection:
            for table in TABLES:
                for column in texts(table):
                    if column != "key":
                        connection.execute(f"UPDATE {table} SET {column} = ?", (HOSTILE,))
            connection.execute("UPDATE coll_provenance SET key = ? || key", (HOSTILE,))
            # Half of the sides are named like a path. The other sides have no name, so readers show their data plane.
            sides = "CASE seq % 2 WHEN 0 THEN '' ELSE '../../../../escaped/x' END"
            connection.execute(f"UPDATE coll_cell SET side = {sides}")
        connection.close()

    def test_figures_lie_in_their_folder_and_show_text(self) -> None:
        out = self.folder / "deep" / "er" / "plots"
        code, said, err = call("collectives", self.db, "--out", out, "--format", "svg", "--format", "png")
        self.assertEqual((code, err), (0, ""))
        self.assertNotRegex(said, CONTROLS)
        names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        self.assertEqual(names, ["a.db", "deep/er/plots/all_reduce.png", "deep/er/plots/all_reduce.svg"])
        drawn = (out / "all_reduce.svg").read_text(encoding="utf-8")
        self.assertNotIn("<script", drawn)
        self.assertNotRegex(drawn.replace("\t", ""), CONTROLS)
        self.assertIn("from a ", Image.open(out / "all_reduce.png").text["Description"])

    def test_what_readers_and_merge_print_steers_no_terminal(self) -> None:
        alter(self.db, "UPDATE coll_cell SET wrong = 5 WHERE seq = 1")
        forged = self.folder / "forged.db"
        forged.write_bytes(self.db.read_bytes())
        alter(forged, "UPDATE coll_session SET cache_bytes = 7")
        merged = self.folder / "merged.db"
        for words, code in (
            (("merge", "-o", merged, self.db), 0),
            (("merge", "-o", merged, forged), 4),
            (("efficiency", self.db), 2),
            (("report", merged), 0),
            (("collectives", merged, "--out", self.folder / "plots"), 0),
            (("collectives", merged, "--type", "half"), 2),
        ):
            with self.subTest(words[0]):
                seen, said, err = call(*words)
                self.assertEqual(seen, code, err)
                self.assertNotRegex(said + err, CONTROLS)
                self.assertLessEqual(len(err.splitlines()), 4 if words[0] == "collectives" else 1)


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
class ContractTest(SharedFolderTest):
    """hvd_bench coll writes one launch to a store and to JSON. hvdb must read equal results from both."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.json = cls.folder / "own.json"
        words = "--ranks 2 --collective all -b 4K -e 16K --warm --max-time 0.02 --compare memory=registered,plain"
        cls.launch(*words.split(), "-J", cls.json, "--db", cls.db)
        cls.document = json.loads(cls.json.read_text(encoding="utf-8"))

    @classmethod
    def launch(cls, *words: object) -> None:
        execute(PROGRAM, "coll", *words, code=0)

    def cells(self) -> list[dict]:
        with store.open_readonly(self.db) as connection:
            return [dict(row) for row in connection.execute("SELECT * FROM coll_cell ORDER BY seq")]

    def test_the_store_is_one_that_readers_and_merge_take(self) -> None:
        merged = self.folder / "merged.db"
        self.assertEqual(merge.merge(merged, [self.db]).coll_added, 1)
        self.assertEqual(dump(merged), dump(self.db))
        self.assertEqual(version(self.db), 2)

    def test_cells_are_those_of_the_json(self) -> None:
        forms = {
            (row["experiment_name"], row["variant"], row["size"], key == "in_place"): (row, row[key])
            for row in self.document["results"]
            for key in coll_results.PLACES
            if row[key]
        }
        cells = self.cells()
        self.assertEqual(len(cells), len(forms))
        for cell in cells:
            row, form = forms[cell["operation"], cell["side"], cell["bytes"], bool(cell["in_place"])]
            for column, value in (
                ("count", row["count"]),
                ("type", row["type"]),
                ("reduction", row["redop"]),
                ("root", int(row["root"])),
                ("data_plane", row["data_plane"]),
                ("samples", form["samples"]),
                ("operations_per_sample", form["operations_per_sample"]),
                ("last_rank", form["last_rank"]),
                ("wrong", form["nwrong"]),
                ("settled", form["settled"]),
                ("stop_reason", form["stop_reason"]),
                ("registered", cell["side"] != "memory=plain"),
                ("algorithm", "auto"),
            ):
                self.assertEqual(cell[column], value, column)
            for column, value, unit in (
                ("seconds", form["time"], 1e-6),
                ("seconds_low", form["time_low"], 1e-6),  # None if there are too few samples for an interval
                ("seconds_high", form["time_high"], 1e-6),
                ("algorithm_bytes_per_second", form["alg_bw"], 1e9),
                ("bus_bytes_per_second", form["bus_bw"], 1e9),
                ("bound", form["bound"], 1),
            ):
                self.assertEqual(cell[column] is None, value is None, column)
                if value is not None:
                    expected = value * unit
                    self.assertAlmostEqual(cell[column], expected, delta=1e-6 * abs(expected), msg=column)

    def test_samples_agree_with_the_stored_medians(self) -> None:
        with store.open_readonly(self.db) as connection:
            rows = connection.execute("SELECT seq, kind, data FROM coll_sample").fetchall()
        samples = {(row["seq"], row["kind"]): np.frombuffer(row["data"], dtype="<f8") for row in rows}
        for cell in self.cells():
            kinds = {kind: samples[cell["seq"], kind] for kind in KINDS}
            for kind in ("seconds", "transfer_seconds", "skew_seconds"):
                self.assertAlmostEqual(np.median(kinds[kind]), cell[kind], delta=1e-9 * cell[kind], msg=kind)
            share = np.mean(kinds["last_rank"] == cell["last_rank"])
            self.assertAlmostEqual(share, cell["last_rank_share"])
            self.assertTrue((np.diff(kinds["round"]) > 0).all())

    def test_the_same_is_drawn(self) -> None:
        def points(file: Path) -> dict:
            return {
                (series.panel, series.name, point.size): point
                for series in coll_results.read([file]).series
                for point in series.points
            }

        stored, written = points(self.db), points(self.json)
        self.assertEqual(set(stored), set(written))
        for cell, point in stored.items():
            for mine, theirs in zip(point.__dict__.values(), written[cell].__dict__.values(), strict=True):
                if isinstance(mine, float):
                    self.assertAlmostEqual(mine / theirs, 1, delta=1e-6)
                else:
                    self.assertEqual(mine, theirs)
        code, said, err = call("collectives", self.db, self.json, "--out", self.folder / "plots")
        self.assertEqual(code, 0, err)
        drawn = {Path(line).stem for line in said.splitlines()}
        self.assertEqual(drawn, set(coll_results.OPERATIONS) - {"barrier"})

    def test_provenance_is_filled_in(self) -> None:
        with store.open_readonly(self.db) as connection:
            facts = {row["key"]: row for row in connection.execute("SELECT * FROM coll_provenance")}
            (session,) = connection.execute("SELECT * FROM coll_session JOIN session USING (uuid)").fetchall()
        for key in ("cpu.model", "os.kernel", "build.compiler", "git.commit", "comm.library", "world.hosts"):
            self.assertTrue(facts[key]["value"], key)
        self.assertTrue(facts["cpu.model"]["in_fingerprint"])
        self.assertFalse(facts["git.commit"]["in_fingerprint"])
        self.assertRegex(session["fingerprint"], "^[0-9a-f]{16}$")
        self.assertIn("hvd_bench coll --ranks 2 --collective all", session["command_line"])
        self.assertEqual((session["status"], session["ranks"], session["warm"]), ("complete", 2, 1))
        self.assertEqual(session["oversubscribed"], int(len(os.sched_getaffinity(0)) < 2))

    def test_it_adds_to_a_store_of_runs(self) -> None:
        grown = self.folder / "grown.db"
        make(grown, SessionSpec(steps=5))
        before = [run.columns for run in runs.load([grown])]
        self.launch("-b", "1K", "-e", "1K", "--warm", "--max-time", "0.02", "--db", grown)
        self.assertEqual([run.columns for run in runs.load([grown])], before)
        self.assertEqual(len(coll_results.read([grown]).sources), 1)
