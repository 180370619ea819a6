"""Runs hvdb gate and compare as a user does, with a stand-in for hvd_bench whose speed is known."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import jsonschema
import numpy as np
from limits import HANG

from harness import SCRIPTS, FolderTest, alter, eventually, executable, execute, unread
from synthetic_store import REPOSITORY, SessionSpec, add_session, make

from hvdb.base.errors import HvdbError, StoreError
from hvdb.judge.thresholds import Rule, Thresholds
from hvdb.read import runs, store
from hvdb.run import gate, gate_plan, side_command
from hvdb.run.stored_sides import StoredSides

SCHEMA = json.loads((REPOSITORY / "results" / "verdict.schema.json").read_text())

# Stands in for hvd_bench. Appends a session to --db. The option --learning-rate, which hvd_bench has, gives the speed.
STAND_IN = """#!{python}
    import os, signal, sqlite3, sys, time, zlib
    sys.path.insert(0, {tests!r})
    import numpy as np
    from pathlib import Path
    from synthetic_store import SessionSpec, add_session
    from hvdb.read import store
    words = [word.split("=", 1) for word in sys.argv[1:] if "=" in word]
    options = dict(words)
    labels = dict(value.split("=", 1) for name, value in words if name == "--label")
    fault = os.environ.get("FAULT", "")
    if fault in (labels["gate.side"] + labels["gate.pair"], labels["gate.side"]):
        if "USAGE" in os.environ:
            sys.exit(2)
        sys.exit("hvd_bench: rank 1 \\x1b[31mis lost") if "SILENT" not in os.environ else sys.exit(0)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if os.environ.get("HANG") == labels["gate.side"] + labels["gate.pair"]:
        signal.signal(signal.SIGTERM, lambda *_: Path(os.environ["PIDS"] + ".told").touch())
        Path(os.environ["PIDS"]).write_text(str(os.getpid()))
        time.sleep(86400)
    slow = float(options.get("--learning-rate", "1")) * float(os.environ.get("SLOW", "1"))
    rng = np.random.default_rng(zlib.crc32(repr(sorted(labels.items())).encode()))
    db = Path(options["--db"])
    made = sqlite3.connect(db) if db.exists() else store.create(db)
    seconds = 1.25 * slow * (1 + float(os.environ.get("SPREAD", "0.004")) * rng.standard_normal())
    facts = {{"label." + key: (value, 0) for key, value in labels.items()}}
    facts |= {{"cpu.model": ("Test", 1), "build.binary_hash": (os.environ.get("HASH", "0"), 0)}}
    spec = SessionSpec(noise=0.001, full=seconds, steps=9, provenance=facts,
                       status=os.environ.get("STATUS", "complete"),
                       started="2026-01-02T03:04:05.%06dZ" % int(labels["gate.pair"]))
    with made:
        add_session(made, spec, rng)
"""


class GateCase(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.db = self.folder / "gate.db"
        text = STAND_IN.format(python=sys.executable, tests=str(REPOSITORY / "tests" / "scripts"))
        self.bench = executable(self.folder / "hvd_bench", textwrap.dedent(text.replace("\n    ", "\n")))

    def run_it(
        self, command: str, *arguments: object, code: int | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "HVD_BENCH": str(self.bench), **environment}
        return execute(SCRIPTS / command, *arguments, code=code, timeout=HANG, cwd=self.folder, env=variables)

    def gate(self, *arguments: object, code: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run_it("gate", "--db", self.db, *arguments, code=code, **environment)


def annotations(output: str) -> list[tuple[str, str, str]]:
    """Returns (command, title, message) of the lines that GitHub's runner takes for workflow commands.

    Source: ActionCommand.cs and ActionCommandManager.cs of github.com/actions/runner.
    """
    found, token = [], None
    for line in map(str.strip, output.splitlines()):
        if token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif command := re.match(r"::(\S+?)(?: title=([^,:]*))?::(.*)", line):
            words = [command[1], command[2] or "", command[3]]
            for character in "\r\n:,%":
                words[1] = words[1].replace(f"%{ord(character):02X}", character)
            for character in "\r\n%":
                words[2] = words[2].replace(f"%{ord(character):02X}", character)
            found.append(tuple(words))
    assert token is None, "workflow commands stay stopped"
    return found


class GateTest(GateCase):
    def test_a_slower_side_is_a_regression_and_every_file_says_so(self) -> None:
        files = [self.folder / name for name in ("v.json", "v.xml", "comment")]
        done = self.gate("--b", "--learning-rate=1.05", *zip_flat(("--json", "--junit", "--markdown"), files), code=1)
        self.assertRegex(done.stdout, r"cell-1 .* \+[45]\.\d\d \[\+[345]\.\d\d, \+[456]\.\d\d\] .* 7 pairs +REGRESSION")
        self.assertIn("gate: REGRESSION (1 REGRESSION)", done.stdout)
        self.assertRegex(done.stderr, "at most 12 pairs, 24 runs of at most 5 s each: 2 min")
        self.assertRegex(
            done.stderr, r"pair 7 of at most 12, cell cell-1: B slower by \+[34567]\.\d %; at most .* left"
        )
        document = json.loads(files[0].read_text())
        jsonschema.validate(document, SCHEMA)
        cell = document["cells"][0]
        self.assertEqual((document["exit_code"], cell["verdict"], cell["observations"]), (1, "REGRESSION", [7, 7]))
        self.assertEqual(cell["code"], "slower")
        self.assertAlmostEqual(cell["slowdown"], 0.05, delta=0.01)
        case = ElementTree.parse(files[1]).getroot().find("testcase")
        self.assertIn("REGRESSION", case.find("failure").get("message"))
        self.assertIn("### gate: REGRESSION", files[2].read_text())

    def test_equal_sides_pass_and_the_store_says_so_again(self) -> None:
        done = self.gate("--b", "SLOW=1.0", "--cell", "small=--image-size 64", "--cell", "other=--batch-size 2", code=0)
        self.assertIn("gate: PASS (2 PASS)", done.stdout)
        again = self.run_it("compare", self.db, code=0)
        table = done.stdout.split("\n\n")[0]
        self.assertIn(table, again.stdout, "the verdict is a function of the store")
        refused = self.run_it("compare", self.db, "--threshold", "1")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("judged by the threshold that it was planned with", refused.stderr)

    def test_noise_is_inconclusive_and_says_what_could_have_been_seen(self) -> None:
        done = self.gate("--b", "SLOW=1.01", "--pairs", "7", "--explain", SPREAD="0.2", code=3)
        row = re.search(r"cell-1 .*\]\s+2\s+([\d.]+)\s+([\d.]+)\s+7 pairs  INCONCLUSIVE", done.stdout)
        self.assertIsNotNone(row, done.stdout)
        self.assertGreater(float(row[1]), 5, "percent")
        self.assertRegex(
            done.stdout, r"cell-1: too-noisy \(.*\); compared: 7 pairs in turn; (about \d+ pairs|no number)"
        )
        again = self.gate(
            "--b", "SLOW=1.01", "--pairs", "7", "--fail-on", "regression", "--github", code=0, SPREAD="0.2"
        )
        self.assertEqual([command for command, _, _ in annotations(again.stdout)], ["notice"])

    def test_a_pair_whose_side_fails_is_void_and_the_whole_is_no_pass(self) -> None:
        done = self.gate("--b", "SLOW=1.0", "--json", "v.json", "--junit", "v.xml", FAULT="b4", code=2)
        self.assertIn(
            "pair 4 of at most 12, cell cell-1: void: side b ended with exit code 1, and said: hvd_bench: rank 1 "
            r"\x1b[31mis lost",
            done.stderr,
        )
        self.assertRegex(done.stdout, r"cell-1 .* [6-9] pairs +PASS")
        self.assertRegex(done.stdout, "only side b failed in 1 and only side a in 0 of [7-9] pairs: no verdict on that")
        self.assertIn("gate: PASS (1 PASS); a side failed, so it is no PASS", done.stdout)
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertEqual((document["exit_code"], document["failures"]["b"], document["failures"]["a"]), (2, 1, 0))
        self.assertEqual(ElementTree.parse(self.folder / "v.xml").getroot().get("errors"), "1")
        again = self.run_it("compare", self.db, code=2)
        self.assertIn(done.stdout.split("\n\n")[0], again.stdout, "what failed is kept beside the store")

    def test_a_b_that_always_fails_is_a_regression_of_its_own(self) -> None:
        done = self.gate("--b", "SLOW=1.0", "--json", "v.json", "--github", FAULT="b", code=1)
        self.assertIn("only side b failed in 7 and only side a in 0 of 7 pairs: B fails where A does not", done.stdout)
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertEqual((document["cells"], document["failures"]["b_fails"]), ([], True))
        ((command, title, _),) = annotations(done.stdout)
        self.assertEqual((command, title), ("error", "gate: REGRESSION: a side failed"))

    def test_an_a_that_fails_is_nothing_to_compare_with(self) -> None:
        done = self.gate("--b", "SLOW=1.05", FAULT="a1")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "side a of pair 1 of cell cell-1 ended with exit code 1.* it failed in 1 of 1")
        self.assertEqual(self.gate("--b", "SLOW=1.05").returncode, 1, "the same command goes on")
        self.db.unlink()
        done = self.gate("--b", "SLOW=1.0", FAULT="a", code=2)
        self.assertIn("nothing to compare with; no pair was measured yet", done.stderr)

    def test_a_usage_error_is_no_regression(self) -> None:
        done = self.gate("--b", "SLOW=1.05", FAULT="b", USAGE="1", code=2)
        self.assertRegex(done.stderr, "side b of pair 1 of cell cell-1 ended with exit code 2")
        self.assertNotIn("pair 2", done.stderr)

    def test_a_gate_goes_on_where_it_stopped_and_only_with_its_plan(self) -> None:
        done = self.gate("--b", "SLOW=1.05", FAULT="a4", code=1)
        self.assertIn("side a", done.stdout)
        other = self.gate("--b", "SLOW=1.06", code=2)
        self.assertRegex(other.stderr, "was measured for another plan")
        again = self.gate("--b", "SLOW=1.05", code=1)
        self.assertNotIn("pair 1 of", again.stderr, "what was measured is not measured again")
        beside = self.folder / "gate.db.gate.json"
        good = json.loads(beside.read_text())
        strange = {**good, "failed": [{"cell": "cell-1", "pair": 999, "side": "b", "why": "x"}]}
        for wrong in ({**good, "plan": "x"}, {**good, "failed": [{"cell": "x"}]}, [], {**good, "ended": 3}, strange):
            beside.write_text(json.dumps(wrong))
            refused = self.run_it("compare", self.db, code=2)
            self.assertRegex(refused.stderr, "gate.db.gate.json: is not what a gate keeps beside its store")

    def test_an_interrupted_pair_is_counted_by_side_and_is_no_failure(self) -> None:
        second = gate_plan.order(OrderTest.PLAN.seed, 1)[1]  # both plans have the same seed, so the same order
        self.assertEqual(self.gate("--b", "SLOW=1.05", FAULT=f"{second}1", SILENT="1").returncode, 2)
        done = self.gate("--b", "SLOW=1.05", "--json", "v.json", code=1)
        self.assertRegex(
            done.stdout, r"left out: 1 of \d+ pairs: not complete: .*side " + second + " 1.*; measured twice: "
        )
        self.assertIn(
            " pairs: not complete", json.loads((self.folder / "v.json").read_text())["cells"][0]["left_out"][0]
        )
        self.assertNotIn("failed", done.stdout)

    def test_a_time_limit_judges_what_there_is_and_ends_the_gate(self) -> None:
        """The limit lets two or three pairs begin on any machine, because a pair takes longer than a third of it."""
        done = self.gate("--b", "SLOW=1.05", "--time-limit", "0.1", "--explain", PAUSE="1.2", code=3)
        self.assertRegex(done.stdout, r"cell-1 .* [1-5] pairs? +INCONCLUSIVE")
        self.assertIn("too-few-pairs", done.stdout)
        self.assertIn("its time limit ended the gate", done.stdout)
        again = self.gate("--b", "SLOW=1.05", "--time-limit", "0.1", code=3)
        self.assertNotIn("pair", again.stderr.replace("pairs", ""), "a gate whose time was up is over")
        self.assertIn("INCONCLUSIVE", self.run_it("compare", self.db, code=3).stdout)

    def test_what_cannot_act_is_said(self) -> None:
        done = self.gate("--b", "OMPI_MCA_coll=^tuned NOT_READ=1 LD_LIBRARY_PATH=/x SLOW=1.0", code=0)
        self.assertRegex(
            done.stdout, "side b: OMPI_MCA_coll chooses among MPI's reductions, and these runs reduce through"
        )
        self.assertIn("side b: NOT_READ is none that hvd_bench knows to be read", done.stdout)
        self.assertNotIn("LD_LIBRARY_PATH is none", done.stdout)
        self.assertIn("A and B differ in nothing that the runs recorded", done.stdout)
        self.db.unlink()
        self.assertIn("A and B are equal: what this shows is noise", self.gate("--b", "", code=0).stdout)

    def test_annotations_for_github(self) -> None:
        done = self.gate("--b", "--learning-rate=1.05", "--github", code=1)
        ((command, title, message),) = annotations(done.stdout)
        self.assertEqual((command, title), ("error", "gate: REGRESSION: cell-1"))
        self.assertRegex(
            message, r"^A images/s [\d.]+; .*; slowdown of B % \[95 %\] \+[45]\.\d\d .*; verdict REGRESSION$"
        )
        self.assertNotIn("::", self.run_it("compare", self.db, code=1).stdout)

    def test_a_reader_that_left_does_not_change_the_verdict(self) -> None:
        self.assertEqual(self.gate("--b", "SLOW=1.05").returncode, 1)
        words = [SCRIPTS / "compare", self.db, "--json", self.folder / "v.json"]
        self.assertEqual(unread(*words), (1, ""))
        self.assertEqual(json.loads((self.folder / "v.json").read_text())["exit_code"], 1)

    def test_one_gate_at_a_time(self) -> None:
        with gate.locked(self.db):
            done = self.gate("--b", "SLOW=1")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "another gate, or a run that it left behind, writes to it")

    def test_an_interrupt_leaves_nothing_running_and_the_gate_goes_on(self) -> None:
        words = [SCRIPTS / "gate", "--db", self.db, "--b", "SLOW=1.05"]
        environment = {**os.environ, "HVD_BENCH": str(self.bench), "HANG": "b2", "PIDS": str(self.folder / "pids")}
        begun = subprocess.Popen(words, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True)
        eventually((self.folder / "pids").exists)
        begun.send_signal(signal.SIGTERM)
        eventually((self.folder / "pids.told").exists)
        begun.send_signal(signal.SIGTERM)  # the program hangs; at the second signal the gate kills the program
        _, said = begun.communicate(timeout=HANG)
        self.assertEqual(begun.returncode, 7, said)
        process = int((self.folder / "pids").read_text())
        self.assertTrue(ends_soon(process))
        self.assertEqual(self.gate("--b", "SLOW=1.05").returncode, 1)

    def test_a_side_that_stores_nothing_is_an_error(self) -> None:
        done = self.gate("--b", "SLOW=1", FAULT="a1", SILENT="1", code=2)
        self.assertRegex(done.stderr, "side a of pair 1 of cell cell-1 ended with exit code 0 and stored no run")
        done = self.gate("--b", "SLOW=1", STATUS="incomplete", code=2)
        self.assertRegex(done.stderr, "cannot be used: .*incomplete")

    def test_bad_input(self) -> None:
        for arguments, message in (
            (("--b", "--db x"), "--b: --db is the gate's own"),
            (("--b", "'"), "--b ''': no closing quotation"),
            (("--b", "true extra"), "'extra' is not an option of hvd_bench"),
            (("--b", "no/such"), "--b: there is no program 'no/such'"),
            (("--b", "no-such --seed 2"), "--b: there is no program 'no-such' on the PATH"),
            (("--b", "", "--launch", "mpirun '"), "--launch 'mpirun '': no closing quotation"),
            (("--b", "", "--json", "gate.db"), "gate.db: is named twice"),
            (("--b", "", "--json", "x", "--junit", "./x"), "x: is named twice"),
            (("--b", "", "--json", "."), "is a folder"),
            (("--b", "", "--pairs", "101"), "not a number of pairs from 1 to 100"),
            (("--b", "", "--pairs", "5"), "5 pairs can never lead to a verdict"),
            (("--b", "", "--pairs", "x"), "'x' is not a number of pairs"),
            (("--b", "", "--threshold", "nan"), "'nan' is not a percentage above 0"),
            (("--b", "", "--cell", "a b=--seed 1"), "'a b' is not a name"),
            (("--b", "", "--cell", "a=--seed 1", "--cell", "a=--seed 2"), "two cells are named a"),
            (("--b", "commit:no-such-commit"), "commit:no-such-commit: git rev-parse"),
            (("--b", "", "--json", "no/v.json"), "there is no folder no"),
        ):
            with self.subTest(arguments):
                done = self.gate(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(message, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_a_program_that_was_rebuilt_ends_the_gate(self) -> None:
        self.assertEqual(self.gate("--b", "SLOW=1", FAULT="b2", SILENT="1").returncode, 2)
        done = self.gate("--b", "SLOW=1", HASH="rebuilt", code=4)
        self.assertRegex(done.stderr, "the program of side . was rebuilt since the first pair")

    def test_thresholds_from_a_file(self) -> None:
        file = self.folder / "t.toml"
        file.write_text(
            '[[threshold]]\nmodel = "vgg16"\npercent = 1\n'
            '[[threshold]]\nmodel = "resnet101"\nranks = 2\npercent = 10\nreason = "a slow runner"\n'
        )
        done = self.gate("--b", "SLOW=1.05", "--thresholds", file, code=0)
        self.assertRegex(done.stdout, r"cell-1 .* 10 .* PASS")
        self.assertIn("threshold: a slow runner", done.stdout)
        for text, message in (
            ("x = 1", "t.toml: x: an entry begins with [[threshold]]"),
            ("[[threshold]]", "t.toml: threshold[1]: percent is missing"),
            ("[[threshold]]\npercent = 0", "threshold[1].percent: 0.0 is not a slowdown above 0, up to 100 %"),
        ):
            with self.subTest(text):
                file.write_text(text)
                done = self.gate("--b", "", "--thresholds", file, "--dry-run")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(message, done.stderr)

    def test_a_dry_run_runs_nothing(self) -> None:
        self.gate("--b", "SLOW=2", "--dry-run", code=0)
        self.assertFalse(self.db.exists())


def ends_soon(process: int) -> bool:
    """Returns True if the process ends before HANG. A zombie counts as ended."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def zip_flat(names: tuple[str, ...], values: list[Path]) -> list[object]:
    return [word for pair in zip(names, values, strict=True) for word in pair]


class SaidTest(unittest.TestCase):
    def test_what_a_program_said_before_mpirun_framed_it(self) -> None:
        frame = ["-" * 74, "mpirun noticed that process rank 1 exited on signal 6.", "-" * 74]
        self.assertEqual(gate._last_words(["start", "mylib: queue full", *frame]), "mylib: queue full")
        self.assertIn("mpirun noticed", gate._last_words(["", *frame]))
        self.assertEqual(gate._last_words(["x" * 1000]), "x" * 300)
        self.assertEqual(gate._last_words(["---", ""]), "")


class ReadsTest(FolderTest):
    def test_a_gate_reads_and_checks_each_run_once(self) -> None:
        """Two cells of ten pairs. The sides spread too much for a verdict, so all pairs are measured. Runs of earlier
        pairs are damaged, so a second check would refuse the store, and a second reading would give them no time."""
        plan = gate_plan.Plan("", "", "", {"one": "", "two": ""}, Thresholds(0.02, ()), (10,), 5.0, 1)
        rng = np.random.default_rng(3)
        path = self.folder / "gate.db"

        def add_run(_: StoredSides, cell: str, side: str, pair: int) -> None:
            labels = {"cell": cell, "side": side, "pair": str(pair), "plan": plan.text()}
            facts = {f"label.gate.{key}": (value, 0) for key, value in labels.items()}
            made = sqlite3.connect(path) if path.exists() else store.create(path)
            earlier = "SELECT run_uuid FROM provenance WHERE key = 'label.gate.pair' AND CAST(value AS INTEGER) < ?"
            with made:
                made.execute(f"UPDATE sample SET data = zeroblob(8 * count) WHERE run_uuid IN ({earlier})", (pair - 1,))
                add_session(made, SessionSpec(steps=3, phases=("full",), provenance=facts), rng)
            made.close()

        side = side_command.Side("")
        bench = StoredSides(plan, {"a": side, "b": side}, {}, [], runs.GrowingStore(path), None, HANG, 0)
        with mock.patch.object(StoredSides, "run", add_run), contextlib.redirect_stderr(io.StringIO()):
            outcomes = gate.measure(bench).outcomes
        self.assertEqual([outcome.judgement.observations for outcome in outcomes], [(10, 10)] * 2)
        with self.assertRaisesRegex(StoreError, "gate.db: damaged"):
            runs.load([path])


class OrderTest(unittest.TestCase):
    RULES = (Rule(0.05, model="vgg16", reason="memory"), Rule(0.1, ranks=8))
    PLAN = gate_plan.Plan("", "", "", {"one": "", "two": ""}, Thresholds(0.02, RULES), (), 5.0, 1, 12)
    OLD = gate_plan.Plan("", "", "", {"one": "", "two": ""}, Thresholds(0.02, RULES), (6, 9, 12), 5.0, 1)

    def test_each_two_pairs_have_both_orders(self) -> None:
        orders = [gate_plan.order(self.PLAN.seed, pair) for pair in range(1, 401)]
        for first, second in zip(orders[::2], orders[1::2], strict=True):
            self.assertEqual({first, second}, {("a", "b"), ("b", "a")})
        heads = sum(order == ("a", "b") for order in orders[::2])
        self.assertTrue(60 < heads < 140, heads)

    def test_a_plan_comes_back_from_its_text_and_a_strangers_does_not(self) -> None:
        for plan in (self.PLAN, self.OLD):
            self.assertEqual(gate_plan.read(plan.text()), plan)
        good = json.loads(self.OLD.text())
        self.assertEqual(list(good)[-1], "seed", "as gates of before wrote it")
        for wrong in (
            *({**good, "looks": looks} for looks in ([], [9, 6], [0], [math.inf], [6.9], "6", [6, 1000])),
            *({**good, "thresholds": {"default": slow, "rules": []}} for slow in (-1, "x", 10**400, True)),
            *({**good, "thresholds": {"default": 0.02, "rules": rules}} for rules in ([{"slowdown": 2}], ["x"])),
            *({**good, "cells": cells} for cells in (["one"], "one", {}, {"a": 1})),
            *({**good, **change} for change in ({"thresholds": []}, {"seed": True}, {"a": {}}, {"more": 1})),
            *([], "x"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(HvdbError, "not a plan of a gate"):
                gate_plan.read(json.dumps(wrong, separators=(",", ":")))
        with self.assertRaisesRegex(HvdbError, "not a plan of a gate"):
            gate_plan.read("[" * 90_000)


class CompareTest(GateCase):
    def stores(self, count: int, slow: float, **of_b: object) -> tuple[Path, Path]:
        a, b = self.folder / "a.db", self.folder / "b.db"
        rng = np.random.default_rng(7)
        for path, factor, spec, seed in ((a, 1.0, {}, 1), (b, slow, of_b, 2)):
            times = 1.25 * factor * (1 + 0.003 * rng.standard_normal(count))
            make(path, *(SessionSpec(noise=0.001, steps=9, full=time, **spec) for time in times), seed=seed)
        return a, b

    def test_two_stores(self) -> None:
        a, b = self.stores(6, 1.05)
        done = self.run_it("compare", a, b, "--json", "v.json", code=1)
        self.assertIn("A and B were not measured in turn", done.stdout)
        self.assertRegex(done.stdout, r"exposed_communication: \+[345]\.\d+ \[\+\d.*\] % of A's step time")
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertEqual(self.run_it("compare", b, a).returncode, 0, "faster is no regression")

    def test_configurations_keep_their_own_names_and_verdicts(self) -> None:
        """Two cells differ only in their threads. Only the cell with one thread is slower in store b than in a."""
        a, b = self.folder / "a.db", self.folder / "b.db"
        rng = np.random.default_rng(8)
        for path, seed in ((a, 1), (b, 2)):
            specs = []
            for threads, factor in ((1, 1.5 if path == b else 1.0), (2, 1.0)):
                for noise in rng.standard_normal(8):
                    full = 1.25 * factor * (1 + 0.003 * noise)
                    specs.append(SessionSpec(noise=0.001, steps=9, full=full, columns={"threads": threads}))
            make(path, *specs, seed=seed)
        done = self.run_it("compare", a, b, code=1)
        self.assertRegex(done.stdout, r"threads 1 .*REGRESSION\n")
        self.assertRegex(done.stdout, r"threads 2 .*PASS\n")

    def test_a_configuration_that_one_side_lacks_is_no_pass(self) -> None:
        a, b = self.folder / "a.db", self.folder / "b.db"
        for path, threads, seed in ((a, (1, 2), 1), (b, (1,), 2)):
            make(path, *(SessionSpec(columns={"threads": n}) for n in threads for _ in range(8)), seed=seed)
        done = self.run_it("compare", a, b, "--threshold", "20", "--json", "v.json", "--junit", "v.xml", code=3)
        self.assertIn("threads 2: side B has no runs of it", done.stdout)
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertEqual((document["exit_code"], len(document["missing"])), (3, 1))
        self.assertEqual(ElementTree.parse(self.folder / "v.xml").getroot().get("errors"), "1")

    def test_annotations_of_cells_that_are_no_regression(self) -> None:
        """The names of the cells begin like a workflow command, and hold characters that GitHub decodes."""
        a, b = self.folder / "a.db", self.folder / "b.db"
        rng = np.random.default_rng(8)
        for path, threads, seed in ((a, (1, 2, 3), 1), (b, (1, 2), 2)):
            spreads = [(n, 0.2 if n == 2 else 0.001, noise) for n in threads for noise in rng.standard_normal(8)]
            specs = [SessionSpec(full=1.25 * math.exp(s * noise), columns={"threads": n}) for n, s, noise in spreads]
            make(path, *specs, seed=seed)
            alter(path, "UPDATE run SET model = ?", values=["::error title=x::100%25,\n::warning::\x1b"])
        done = self.run_it("compare", a, b, "--github", code=3)
        found = annotations(done.stdout)
        name = "::error title=x::100%25,\\n::warning::\\x1b, batch 8, 224 px, fp32, static, ranks 2, nodes 1, threads"
        self.assertEqual(
            [(command, title) for command, title, _ in found],
            [
                ("warning", f"compare: INCONCLUSIVE: {name} 2"),
                ("warning", "compare: INCONCLUSIVE: measured on one side only"),
                ("notice", f"compare: PASS: {name} 1"),
            ],
        )
        self.assertEqual(found[1][2], f"{name} 3: side B has no runs of it")

    def test_the_two_sides_are_two(self) -> None:
        a, _ = self.stores(5, 1.0)
        done = self.run_it("compare", a, a, code=4)
        self.assertRegex(done.stderr, "both sides hold run [0-9a-f]{8}")
        self.assertEqual(self.gate("--b", "SLOW=1.0").returncode, 0)
        done = self.run_it("compare", self.db, a, code=4)
        self.assertRegex(done.stderr, "gate.db: holds both sides of a gate; give it alone")

    def test_too_few_sessions_are_inconclusive(self) -> None:
        a, b = self.stores(1, 1.3)
        done = self.run_it("compare", a, b, code=3)
        self.assertRegex(done.stdout, r"\+30\.\d\d \[\?, \?\]")

    def test_what_is_not_comparable_is_refused(self) -> None:
        facts = {"cpu.model": ("Other <b>\x1b[31m", 1), "git.commit": ("abc", 1), "host.name": ("n1", 0)}
        a, b = self.stores(5, 1.0, provenance=facts, fingerprint="00000000000000bb")
        done = self.run_it("compare", a, b)
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertRegex(done.stderr, r"cpu.model: 'Test CPU' in A, 'Other <b>\\x1b\[31m' in B.*--expect cpu.model")
        done = self.run_it("compare", a, b, "--expect", "cpu.*", "--markdown", "comment", code=0)
        self.assertNotIn("<b>", (self.folder / "comment").read_text())
        self.assertNotIn("\x1b", done.stdout)

    def test_other_work_missing_and_empty(self) -> None:
        a, b = self.stores(5, 1.0, model="vgg16")
        self.assertEqual(self.run_it("compare", a, b).returncode, 4)
        self.assertRegex(self.run_it("compare", a).stderr, "holds no pairs of a gate; name the store of side B")
        make(self.folder / "cut.db", SessionSpec(status="incomplete"))
        done = self.run_it("compare", a, self.folder / "cut.db", code=2)
        self.assertRegex(done.stderr, "no complete, untraced, measured run or collective to compare")

    def test_a_strangers_labels(self) -> None:
        def session(**labels: str) -> SessionSpec:
            return SessionSpec(provenance={f"label.gate.{key}": (value, 0) for key, value in labels.items()})

        plan = OrderTest.PLAN.text()
        for labels, message in (
            ({"cell": "one", "side": "c", "pair": "1", "plan": plan}, "'c' is neither a nor b"),
            ({"cell": "one", "side": "a", "pair": "-1", "plan": plan}, "'-1' is not a number of a pair"),
            ({"cell": "one", "side": "a", "pair": "1", "plan": "{"}, "label gate.plan is not a plan"),
        ):
            with self.subTest(labels):
                self.db.unlink(missing_ok=True)
                make(self.db, session(**labels))
                done = self.run_it("compare", self.db)
                self.assertEqual((done.returncode, done.stdout), (4, ""))
                self.assertIn(message, done.stderr)


class RealTest(unittest.TestCase):
    """Runs a short gate with the real program on two equal sides. The gate also decomposes the step time."""

    @unittest.skipUnless(os.environ.get("HVD_BENCH"), "needs HVD_BENCH, a built hvd_bench")
    def test_a_short_gate(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            work = f"--replay {REPOSITORY}/tests/cli/sleep.replay --ranks 2 --num-warmup-batches 1"
            words = ["--b", "--seed 2", "--cell", f"{work} --num-iters 4 --efficiency", "--pairs", 6, "--threshold", 90]
            done = execute(SCRIPTS / "gate", *words, "--db", "g.db", "--seconds", 5, timeout=HANG, cwd=folder)
            self.assertIn(done.returncode, (0, 3), done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"cell-1 .* 6 pairs +(PASS|INCONCLUSIVE)")
            self.assertNotIn("which term moved is not known", done.stdout)
