"""Gates, compares, follows and exports what hvd_bench coll stores. A stand-in whose speed is known makes the runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

import jsonschema
from limits import HANG

from harness import SCRIPTS, FolderTest, call, executable, execute, refused
from synthetic_store import REPOSITORY, CollSpec, SessionSpec, make

from hvdb.read import coll_runs

SCHEMA = json.loads((REPOSITORY / "results" / "verdict.schema.json").read_text())

MPICHS = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"

# Appends a launch of coll to --db. The variable SLOW of a side scales the time of the largest size.
STAND_IN = """#!{python}
    import os, sqlite3, sys, zlib
    sys.path.insert(0, {tests!r})
    import numpy as np
    from pathlib import Path
    from synthetic_store import CollSpec, add_coll, insert
    from hvdb.read import store
    assert sys.argv[1] == "coll", sys.argv
    Path("words").write_text(" ".join(sys.argv))
    words = [word.split("=", 1) for word in sys.argv[1:] if "=" in word]
    options = dict(words)
    labels = dict(value.split("=", 1) for name, value in words if name == "--label")
    side, pair = labels["gate.side"], labels["gate.pair"]
    if os.environ.get("FAULT", "") in (side + pair, side):
        sys.exit("rank 1 is lost")
    rng = np.random.default_rng(zlib.crc32((side + pair).encode()))
    db = Path(options["--db"])
    made = sqlite3.connect(db) if db.exists() else store.create(db)
    slow = float(os.environ.get("SLOW", "1")) * (1 + 0.004 * rng.standard_normal())
    sizes = tuple(map(int, os.environ.get("SIZES", "1024,65536").split(",")))
    cell = {{"wrong": 3}} if os.environ.get("WRONG") == side + pair else {{}}
    cell |= {{"data_plane": os.environ.get("PLANE", "shm")}}
    spec = CollSpec(sizes=sizes, seconds=1e-5 * slow, cell=cell | {{"in_place": 0}},
                    started="2026-01-02T03:04:05.%06dZ" % int(pair))
    with made:
        (uuid,) = add_coll(made, spec, rng).values()
        facts = {{"label." + key: value for key, value in labels.items()}}
        facts |= {{"env." + name: os.environ[name] for name in ("HOROVOD_CYCLE_TIME",) if name in os.environ}}
        for key, value in facts.items():
            insert(made, "coll_provenance", session_uuid=uuid, key=key, value=value, in_fingerprint=0)
"""


class CollGateTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.db = self.folder / "gate.db"
        text = STAND_IN.format(python=sys.executable, tests=str(REPOSITORY / "tests" / "scripts"))
        self.bench = executable(self.folder / "hvd_bench", textwrap.dedent(text.replace("\n    ", "\n")))

    def gate(self, *words: object, code: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [SCRIPTS / "gate", "--db", self.db, "--cell", "ar=coll -b 1K -e 64K -f 64", *words]
        environment = {**os.environ, "HVD_BENCH": str(self.bench), **variables}
        return execute(*command, code=code, cwd=self.folder, env=environment)

    def test_each_row_is_a_cell(self) -> None:
        done = self.gate("--b", "SLOW=1.1", "--json", "v.json", code=1)
        self.assertRegex(done.stdout, r"ar all_reduce float 1024 +\S+ us +\S+ us +\+(9|10)\.\d+ .* 8 pairs +REGRESSION")
        self.assertIn("gate: REGRESSION (2 REGRESSION)", done.stdout)
        self.assertNotIn("which term moved", done.stdout)
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertAlmostEqual(document["cells"][0]["images_per_second"]["a"], 1e5, delta=2e3)
        said = (self.folder / "words").read_text()
        for word in ("coll -b 1K", "--max-time=0.5", "--place=out", "--no-bound"):
            self.assertIn(word, said)
        again = execute(SCRIPTS / "compare", self.db, code=1)
        self.assertIn(done.stdout.split("\n\n")[0], again.stdout)
        self.assertIn("left out: ", call("history", self.db, code=2)[1], "pairs of a gate belong to no series")

    def test_a_cells_own_options_come_first(self) -> None:
        command = ["--cell", "ar=coll --place both --max-time 2", "--b", "SLOW=1.1"]
        execute(
            SCRIPTS / "gate", "--db", self.db, *command, cwd=self.folder, env={**os.environ, "HVD_BENCH": self.bench}
        )
        said = (self.folder / "words").read_text()
        self.assertIn("--place both --max-time 2", said)
        self.assertNotIn("--place=out", said)

    def test_a_time_limit_and_what_can_be_found_in_it(self) -> None:
        done = self.gate("--b", "SLOW=1.0", "--time-limit", "100", code=0)
        found = re.search(r"at this noise a slowdown of (\S+) % in the noisiest of 2 rows \(ar all_", done.stderr)
        self.assertTrue(2 < float(found[1]) < 20, found)

    def test_a_row_that_one_side_lacks_and_rows_in_common(self) -> None:
        done = self.gate("--b", "SIZES=1024", code=3)
        self.assertRegex(done.stdout, "ar all_reduce float 65536: .* side b [78]; measured twice")
        self.assertIn("INCONCLUSIVE (1 PASS, 1 INCONCLUSIVE)", done.stdout)
        self.db.unlink()
        done = self.gate("--b", "SIZES=2048", code=4)
        self.assertIn("A and B have no row in common; A has 'all_reduce float 1024', B has 'all_red", done.stderr)
        self.assertNotIn("pair 2", done.stderr)

    def test_only_what_cannot_act_is_said(self) -> None:
        side = f"HVD_MPI=/x/libmpi.so {MPICHS}=ring HOROVOD_CYCLE_TIME=3 LD_PRELOAD=/dev/null"
        done = self.gate("--b", side, "--pairs", 8, PLANE="mpi's own")
        self.assertNotIn("side b: ", done.stdout)
        self.db.unlink()
        done = self.gate("--b", f"{side} HVD_MIP=x", "--pairs", 8)
        said = [("HVD_MPI", "brings"), (MPICHS, "chooses"), ("LD_PRELOAD", "brings"), ("HVD_MIP", "is")]
        self.assertEqual(re.findall(r"side b: (\w+) (\w+)", done.stdout), said)

    def test_failures_and_wrong_elements(self) -> None:
        done = self.gate("--b", "SLOW=1.0", FAULT="b", code=1)
        self.assertIn("only side b failed in 8 and only side a in 0 of 8 pairs: B fails where A does not", done.stdout)
        self.db.unlink()
        done = self.gate("--b", "SLOW=1.0", WRONG="b2")
        self.assertIn("void: side b cannot be used: 2 with wrong elements", done.stderr)
        self.assertRegex(done.stdout, "a side failed, so it is no PASS")

    def test_bad_input(self) -> None:
        for words, message in (
            (("--cell", "t=--model vgg16", "--b", "X=1"), "trainings and rows of coll have different --seconds"),
            (("--cell", "x=coll --db y", "--b", "X=1"), "--cell x: --db is the gate's own"),
            (("--cell", "x=coll y", "--b", "X=1"), "--cell x: 'y' is not an option of hvd_bench"),
        ):
            self.assertIn(message, self.gate(*words, code=2).stderr)


class StoresTest(FolderTest):
    """Stores of launches that no gate made."""

    def make(self, name: str, count: int, slow: float = 1.0, **cell: object) -> Path:
        specs = [
            CollSpec(seconds=1e-5 * slow * (1 + 0.001 * (n % 7)), cell=cell, started=f"2026-01-02T03:{n:02}:05.000Z")
            for n in range(count)
        ]
        make(self.folder / name, *specs, seed=len(name))
        return self.folder / name

    def test_compare_history_and_export(self) -> None:
        a, b = self.make("a.db", 45), self.make("bb.db", 8, 1.2)
        out = call("compare", a, b, code=1)[1]
        self.assertRegex(out, r"all_reduce float 1024 in place, ranks 2, nodes 1 +10\.\d us +12\.\d us .*REGRESSION")
        self.assertRegex(call("history", a, "--threshold", "5", code=0)[1], r"1024 in place, .*operations/s.*PASS")
        lines = self.folder / "lines"
        out = call("export", b, "--jsonl", lines, "--prometheus", "-", code=0)[1]
        self.assertRegex(
            out, r'hvd_bench_collective_seconds\{row="all_reduce float 1024 in place",ranks="2",.*\} 1\.2\d*e-05'
        )
        values = json.loads(lines.read_text().splitlines()[0])
        self.assertEqual((values["format"], values["row"]), ("hvdb-collective", "all_reduce float 1024 in place"))
        self.assertAlmostEqual(values["seconds"], 1.2e-5)

    def test_trainings_and_collectives_of_one_store_keep_apart(self) -> None:
        make(self.folder / "both.db", SessionSpec(), CollSpec())
        out = call("export", self.folder / "both.db", "--jsonl", "-", code=0)[1]
        self.assertEqual(re.findall(r'"format": "([\w-]+)"', out), ["hvdb-run"] * 3 + ["hvdb-collective"] * 2)
        self.assertNotIn("all_reduce", call("efficiency", self.folder / "both.db", code=0)[1])

    def test_another_algorithm_is_another_series_and_wrong_elements_count_for_nothing(self) -> None:
        a, b = self.make("a.db", 8), self.make("bb.db", 8, algorithm="ring")
        refused("comm.algorithm: 'auto' in A, 'ring' in B", "compare", a, b, code=4)
        call("compare", a, b, "--expect", "comm.algorithm", "--expect", "fingerprint", "--threshold", "9", code=0)
        err = call("compare", a, self.make("ccc.db", 8, wrong=1), code=2)
        self.assertIn("left out: 16 with wrong elements", err[1])
        (row,) = coll_runs.load([self.make("d.db", 1, registered=0, reduction="max", side="memory=plain")])[:1]
        self.assertEqual(row.model, "all_reduce float max 1024 in place plain memory memory=plain")


class RealTest(FolderTest):
    @unittest.skipUnless(os.environ.get("HVD_BENCH"), "needs HVD_BENCH, a built hvd_bench")
    def test_a_short_gate_of_the_real_program(self) -> None:
        work = "ar=coll --ranks 2 -b 1K -e 64K -f 64 --max-time 0.02 -w 0"
        words = ["--cell", work, "--b", "--algorithm=shm", "--pairs", 7, "--threshold", 90, "--db", "g.db"]
        done = execute(SCRIPTS / "gate", *words, timeout=HANG, cwd=self.folder)
        self.assertIn(done.returncode, (0, 1, 3), done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ar all_reduce float 65536 .* 7 pairs ")
        self.assertNotIn("differ in nothing", done.stdout)


if __name__ == "__main__":
    unittest.main()
