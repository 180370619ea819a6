"""hvdb predict on constructed stores: figures that can be computed by hand, the band, refusals, and the same bytes.

A stand-in simulates (stand_in.py), with a step that is a sum. The last test runs `hvd_bench simulate` itself.
"""

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import sys
import unittest
from pathlib import Path
from typing import Any

import numpy as np

from harness import FolderTest, call, executable
from synthetic_store import CollSpec, SessionSpec, make

from hvdb.base import identity
from hvdb.predict import draws

ELEMENTS = 1 << 20
SIZES = tuple(1 << k for k in range(14, 24))
PLAN = "0123456789abcdef"
SECONDS_A_BYTE = 1e-8  # of a step between nodes
FACTS = {"cpu.model": ("Test CPU", 1), "comm.algorithm": ("auto", 1), "engine.bucket_bytes": ("26214400", 1)}
FACTS |= {"engine.fusion_threshold_bytes": ("134217728", 1), "engine.cache_capacity": ("1024", 1)}
REAL = os.environ.get("HVD_BENCH", "hvd_bench")
STAND_IN = Path(__file__).with_name("stand_in.py")


def profile_text(source_run: str = "none", **header: object) -> str:
    """A profile of version 2: 0.9 s of compute, 0.1 s of update, two gradients of 4 MiB together."""
    known = {"model": "resnet101", "unit": "images", "units_per_step": 8, "device": "a test", "compute_type": "fp32"}
    known |= {"source_run": source_run, "backward_end_seconds": 0.9, "update_seconds": 0.1, **header}
    lines = [f"{key} {value}" for key, value in known.items()]
    half = ELEMENTS // 2
    lines += [f"gradient {half} 0.5 0.5 second", f"gradient {half} 0.9 0.9 first"]
    return "\n".join(["hvd-replay 2", *lines, "end 2", ""])


def training(ranks: int = 2, per_node: int = 1 << 20, **changes: Any) -> SessionSpec:
    """A session of no noise: 1 s alone, 1.02 s among others; its reductions take 0.1 s, half of it beside compute. The
    stand-in simulates its step of 1.12 s."""
    columns = {"plan_hash": PLAN, "data_plane": "shm" if per_node >= ranks else "ring over mpi"}
    usual = {"noise": 0.0, "full": 1.12, "provenance": FACTS, "columns": columns}
    return SessionSpec(ranks=ranks, ranks_per_host=per_node, **{**usual, **changes})


def collectives(nodes: int, operation: str = "all_reduce", plane: str = "ring over mpi", **changes: Any) -> CollSpec:
    """Collectives of one rank on each node, that take steps x SECONDS_A_BYTE x bytes of a step."""
    count = {"all_reduce": 2 * (nodes - 1), "reduce_scatter": nodes, "all_gather": nodes - 1, "barrier": 1}[operation]
    seconds = count * SECONDS_A_BYTE * SIZES[0] / nodes
    cell = {"operation": operation, "data_plane": plane, "reduction": "none" if operation == "all_gather" else "sum"}
    usual = {"ranks": nodes, "sizes": SIZES, "seconds": seconds, "columns": {"nodes": nodes}, "cell": cell}
    return CollSpec(**{**usual, **changes})


class PredictTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        python = f'#!/bin/sh\nexec {sys.executable} -B {STAND_IN} "$@"\n'
        self.enter(HVD_BENCH=str(executable(self.folder / "hvd_bench", python)), STAND_IN_PLAN=PLAN)
        self.profile, self.json = self.folder / "a.replay", self.folder / "a.json"

    def enter(self, **variables: str) -> None:
        before = {name: os.environ.get(name) for name in variables}

        def leave() -> None:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

        os.environ.update(variables)
        self.addCleanup(leave)

    def measure(
        self, *specs: SessionSpec | CollSpec, exposed: float = 0.05, copy: float = 0.0, **header: object
    ) -> None:
        """Makes the store, and the profile of its first session. exposed, copy: seconds of a step, of every rank."""
        made = make(self.db, *specs)
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            runs = connection.execute(
                "SELECT run_uuid, rank, count FROM sample WHERE kind = 'reduce_seconds'"
            ).fetchall()
            for run, rank, count in runs:
                for kind, seconds in (("exposed_seconds", exposed), ("copy_seconds", copy)):
                    row = (run, rank, kind, count, np.full(count, seconds, dtype="<f8").tobytes())
                    connection.execute("INSERT INTO sample VALUES (?, ?, ?, ?, ?)", row)
        source = next((uuids["solo"] for uuids in made if "solo" in uuids), "none")
        self.profile.write_text(profile_text(**{"source_run": source, **header}), encoding="utf-8")

    def predict(self, ranks: object, *words: object, code: int = 0) -> tuple[str, str]:
        draws = [] if "--draws" in words else ["--draws", 20]
        line = ["predict", self.db, "--profile", self.profile, "--ranks", ranks, *draws, *words]
        _, out, err = call(*line, code=code)
        return out, err

    def document(self, ranks: object, *words: object) -> dict[str, Any]:
        self.json.unlink(missing_ok=True)
        self.predict(ranks, "--json", self.json, *words)
        return json.loads(self.json.read_text(encoding="utf-8"))

    def refused(self, code: int, text: str, ranks: object = 2) -> None:
        out, err = self.predict(ranks, code=code)
        self.assertEqual(out, "")
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertRegex(err, text)


class OneNodeTest(PredictTest):
    def setUp(self) -> None:
        super().setUp()
        self.measure(training(), collectives(1, ranks=2, plane="shm", seconds=1e-5))

    def test_the_measured_world_by_hand(self) -> None:
        # The reductions took 0.1 s, so a message of 4 MiB takes 0.1 s in this training: 1.02 x 1 s + 0.1 s.
        made = self.document("1,2")
        alone, two = made["rows"]
        self.assertEqual(alone["efficiency"], {"low": 1, "middle": 1, "high": 1})
        self.assertAlmostEqual(alone["step_seconds"]["middle"], 1.0, 3)
        self.assertAlmostEqual(two["step_seconds"]["middle"], 1.12, 2)
        self.assertAlmostEqual(two["efficiency"]["middle"], 1 / 1.12, 2)
        self.assertAlmostEqual(two["parts"]["exposed"], 0.1 / 1.12, 2)
        self.assertAlmostEqual(two["parts"]["interference"], 0.02 / 1.12, 3)
        self.assertLess(two["step_seconds"]["low"], two["step_seconds"]["high"])
        self.assertEqual(
            (two["measured"]["efficiency"]["value"], two["measured"]["answer"]), (1 / 1.12, "89.3 [88.7, 89.9]")
        )
        self.assertAlmostEqual(two["measured"]["step"], 1.12)

    def test_jitter_is_counted_once(self) -> None:
        # A fifth of the collectives takes six times the median, which is twice the median on average. The reductions of
        # the training hold such times already: on average they took 0.1 s.
        samples = np.where(np.arange(20) % 5 == 0, 6e-5, 1e-5)
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            connection.execute("UPDATE coll_sample SET data = ? WHERE kind LIKE '%seconds'", (samples.tobytes(),))
        costs = self.folder / "costs.txt"
        self.enter(STAND_IN_COSTS=str(costs))
        made = self.document("2", "--draws", 200)
        self.assertAlmostEqual(made["rows"][0]["parts"]["exposed"], 0.1 / 1.12, delta=0.02)
        # Last came the band without the noise of steps, whose collectives take their mean.
        last = [line.split()[3:] for line in costs.read_text().splitlines() if line.startswith("all_reduce ")]
        self.assertEqual({tuple(factors) for factors in last}, {("2",)})

    def test_the_table_says_what_it_is(self) -> None:
        out, _ = self.predict("1,2")
        lines = out.splitlines()
        said = " ".join(lines[: lines.index("")])
        self.assertRegex(
            said,
            r"^PREDICTED, not measured: resnet101 \(fp32, 8 images a step, static\) on 1 node of 2 ranks: efficiency "
            r"89\.\d \[.*\] %, 14\.\d+ \[.*\] images/s\. It rests on 1 session of training on 1 node and on "
            r"collectives of 1 node; the band holds 90 % of the draws\. Of other schedules, .* gain anything\.$",
        )
        self.assertIn("--why: where the inputs come from, 0 warnings", out)
        self.assertLessEqual(max(map(len, lines[: lines.index("") + 5])), 100)
        out, _ = self.predict("1,2", "--why")
        lines = out.splitlines()
        self.assertRegex(lines[-1 - lines[::-1].index("") + 4], r"^ +2 +11[12]\d\.\d \[.*\] +89\.\d \[.*\] +89\.3 ")
        self.assertIn("measured    interference 1.02: 1 session on 1 node", lines)
        self.assertRegex(out, r"\nassumed     noise of several nodes")
        said = r"\nmeasured    reductions beside compute {}\.\d+: 1 session, over the same collectives alone"
        self.assertRegex(out, said.format(43))  # the times from the last arrival are 0.9 of the slowest rank's
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            connection.execute("UPDATE coll_session SET clock_seconds = 1")
        self.assertRegex(self.predict("1,2", "--why")[0], said.format(39))  # such clocks do not tell when ranks arrived

    def test_the_document(self) -> None:
        made = self.document("2", "--seed", 7)
        fields = "format version predicted confidence seed draws profile device ranks_per_node "
        fields += "inputs sessions collectives latest_input training what_ifs rows gains labels notes narrower"
        self.assertEqual(list(made), fields.split())
        self.assertEqual((made["format"], made["version"], made["seed"]), ("hvdb-prediction", 1, 7))
        plan = {
            "text": "",
            "schedule": "static",
            "options": ["--schedule", "static", "--bucket-mb", "25"],
            "hardware": {},
        }
        self.assertEqual(made["what_ifs"], [plan])
        with contextlib.closing(sqlite3.connect(self.db)) as connection:
            begun = "SELECT started_utc FROM run WHERE phase = 'full' UNION SELECT started_utc FROM coll_session"
            self.assertEqual(made["latest_input"], max(connection.execute(begun).fetchall())[0])
        self.assertEqual([Path(entry["file"]).name for entry in made["inputs"]], ["a.replay", "a.db"])
        for entry in made["inputs"]:
            self.assertEqual(entry["sha256"], hashlib.sha256(Path(entry["file"]).read_bytes()).hexdigest())
        fields = ["what_if", "ranks", "nodes", "step_seconds", "efficiency", "parts", "steps", "measured", "warnings"]
        self.assertEqual(list(made["rows"][0]), fields)
        self.assertEqual({label["kind"] for label in made["labels"]}, {"measured", "assumed"})
        self.assertEqual(set(made["narrower"]), {"collectives", "compute", "model", "overlap", "steps"})

    def test_same_inputs_and_seed_same_bytes(self) -> None:
        texts = []
        for seed in (1, 1, 2):
            self.document("2", "--seed", seed)
            texts.append(self.json.read_bytes())
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2].replace(b'"seed": 2', b'"seed": 1'))

    def test_a_prediction_is_not_overwritten_by_another(self) -> None:
        self.document("2")
        before = self.json.read_bytes()
        self.predict("2", "--json", self.json)
        out, err = self.predict("2", "--seed", 2, "--json", self.json, code=2)
        self.assertIn("PREDICTED", out)
        self.assertIn("exists and differs; runs may carry its hash", err)
        self.assertEqual(self.json.read_bytes(), before)

    def test_odd_values_are_one_line(self) -> None:
        for words, said in (
            (["--what-if", "--bucket-mb 1e-9"], "is not a size in MiB"),
            (["--what-if", "a" * 301], "has 301 letters"),
            (["--what-if=--"], "'--' is no value"),
            (["--draws=--"], "'--' is no value"),
            (["--draws", "\x1b[31m2"], r"\\x1b\[31m2"),
        ):
            with self.subTest(words):
                _, err = self.predict("2", *words, code=2)
                self.assertRegex(err.splitlines()[-1], said)
                self.assertNotIn("\x1b", err)
        _, err = self.predict("2", *(f"--what-if=--bucket-mb {n}" for n in range(1, 34)), code=2)
        self.assertIn("33 what-ifs, and at most 32", err)
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            connection.execute("UPDATE provenance SET value = '0' WHERE key = 'engine.bucket_bytes'")
        self.refused(2, "says that its buckets have no bytes")

    def test_times_that_no_clock_tells(self) -> None:
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            connection.execute("UPDATE coll_sample SET data = zeroblob(length(data)) WHERE kind LIKE '%seconds'")
            connection.execute("UPDATE coll_cell SET seconds = NULL, seconds_low = NULL, seconds_high = NULL")
        self.predict("2")

    def test_seeds_share_no_simulated_sequence(self) -> None:
        costs = self.folder / "costs.txt"
        self.enter(STAND_IN_COSTS=str(costs))
        seeds = []
        for seed in (1, 2):
            self.predict("2", "--seed", seed)
            seeds += [int(line.split()[1]) for line in costs.read_text().splitlines() if line.startswith("seed ")]
        self.assertGreaterEqual(seeds[1] - seeds[0], 2000)  # draw k simulates with seed + k

    def test_nothing_is_written_into_the_store(self) -> None:
        before = self.db.read_bytes()
        self.predict("2", "--json", self.json)
        self.assertEqual(self.db.read_bytes(), before)
        _, err = self.predict("2", "--json", self.db, code=2)
        self.assertIn("named twice", err)

    def test_several_nodes_are_not_predicted_from_one(self) -> None:
        self.refused(3, "4 ranks are 2 nodes, and these stores hold collectives of one node only", "1..8")

    def test_a_part_of_a_node_is_not_predicted(self) -> None:
        self.refused(2, "--ranks: nodes had 2 ranks each, and 3 ranks are no such nodes", 3)
        self.assertIn("note: not predicted: nodes had 2 ranks each, and 3 ranks", self.predict("2,3")[0])

    def test_ranks_that_are_no_list(self) -> None:
        for text in ("0", "2..1", "x", "2,,4", "9999999", "-1", ""):
            with self.subTest(text):
                _, err = self.predict(f" {text}", code=2)
                self.assertIn("is not a list such as 2,4,8 or 1..512", err)

    def test_another_plan_of_buckets(self) -> None:
        self.enter(STAND_IN_PLAN="ffffffffffffffff")
        self.refused(4, r"the buckets of run \w+ \(plan 0123456789abcdef\) are not those of this profile")

    def test_a_simulation_that_fails(self) -> None:
        for program, text in (
            (
                "#!/bin/sh\necho one >&2\necho hvd_bench: the last line >&2\nexit 2\n",
                "exit code 2: hvd_bench: the last line",
            ),
            (
                "#!/bin/sh\necho '{\"step\": 1}'\necho '{}'\n",
                "printed something else than results: 2 lines in place of 20",
            ),
            (
                "#!/bin/sh\nyes '{\"step\": -1}' | head -n 20\n",
                "printed something else than results: step: -1 is not a number above 0",
            ),
        ):
            with self.subTest(text):
                executable(self.folder / "hvd_bench", program)
                self.refused(2, text)


class SeveralNodesTest(PredictTest):
    def test_a_larger_world_by_hand(self) -> None:
        worlds = (2, 4, 8)
        self.measure(training(4, per_node=1), *map(collectives, worlds))
        made = self.document("2..64", "--draws", 200)  # the middle of 20 lies up to 1 % aside by chance
        self.assertEqual([row["ranks"] for row in made["rows"]], [2, 4, 8, 16, 32, 64])
        for row in made["rows"]:
            # In proportion to the bytes that a rank sends: 2 (N - 1) / N of the message. On 4 nodes 0.1 s.
            true = 1.02 + 0.1 * ((row["ranks"] - 1) / row["ranks"]) / (3 / 4)
            with self.subTest(row["ranks"]):
                self.assertAlmostEqual(row["step_seconds"]["middle"], true, 2)
                self.assertLess(row["step_seconds"]["low"], true)
                self.assertGreater(row["step_seconds"]["high"], true)
        widths = [row["step_seconds"]["high"] - row["step_seconds"]["low"] for row in made["rows"]]
        self.assertGreater(widths[-1], 1.1 * widths[0])  # the drift beyond the largest measured world
        self.assertIn("beyond the 8 nodes on which all_reduce was measured", made["rows"][-1]["warnings"])
        self.assertIn(
            "the slowest rank lies beyond what 160 recorded steps show", " ".join(made["rows"][-1]["warnings"])
        )
        self.assertEqual(made["rows"][1]["measured"]["efficiency"]["value"], 1 / 1.12)
        self.assertIsNone(made["rows"][2]["measured"])
        out, _ = self.predict("64", "--why")
        self.assertRegex(out, r"\nnarrower: .*: \d+\.\d of \d+\.\d points on 64 ranks")
        self.assertRegex(out, r"\nassumed     drift of all_reduce by 'ring' \S+: .* a doubling, \+- 0\.0\d+")
        self.assertIn("assumed     reductions beside compute elsewhere: on other worlds and for what-ifs", out)

    def test_large_worlds_get_fewer_steps(self) -> None:
        self.measure(training(4, per_node=1), *map(collectives, (2, 4, 8)))
        made = self.document("1,2,65536")
        # 20 draws of 65,536 ranks, and at most as many collectives as gradients, and one.
        self.assertEqual([row["steps"] for row in made["rows"]], [0, 200, int(5e8 / (20 * 65536 * 3))])

    def test_a_flat_ring_says_nothing_about_a_hierarchical_one(self) -> None:
        plane, flat = "hierarchical(shm+ring) over mpi", "ring over mpi"
        columns = {"plan_hash": PLAN, "data_plane": plane}

        def both(nodes: int) -> list[CollSpec]:
            there = {"ranks": 2 * nodes, "columns": {"nodes": nodes}}
            return [
                collectives(nodes, plane=plane, **there),
                collectives(nodes, plane=flat, **{**there, "seconds": 1.0}),
            ]

        self.measure(training(4, per_node=2, columns=columns), *(spec for nodes in (2, 3, 4) for spec in both(nodes)))
        out, _ = self.predict(16, "--why")
        self.assertRegex(out, r"\nmeasured    all_reduce by 'flat ring': 30 cells on 2, 3, 4 nodes")
        # Eight nodes take 14/8 of what two took, 0.1 s.
        middle = self.document(16, "--draws", 200)["rows"][0]["step_seconds"]["middle"]
        self.assertAlmostEqual(middle, 1.02 + 0.1 * 14 / 8, 2)
        said = "all_reduce by 'ring' has no cells that tell how much of its time is spent inside a node"
        self.assertIn(f"warning: 16 ranks: {said}", out)

    def test_a_measured_world_needs_no_others(self) -> None:
        self.measure(training(4, per_node=1), *map(collectives, (2, 4)))
        self.assertAlmostEqual(self.document("4")["rows"][0]["step_seconds"]["middle"], 1.12, 2)
        self.refused(3, "measured on 2 numbers of nodes .2, 4., and 3 are needed", 8)

    def test_too_few_sizes(self) -> None:
        few = [collectives(nodes, sizes=SIZES[:5]) for nodes in (2, 4, 8)]
        self.measure(training(4, per_node=1), *few)
        self.refused(3, "'ring' on 2 nodes has 5 sizes, and 6 are needed", 16)

    def test_each_schedule_gets_the_costs_that_it_needs(self) -> None:
        costs = self.folder / "costs.txt"
        self.enter(STAND_IN_COSTS=str(costs))
        others = [collectives(n, "barrier", sizes=(1,), cell={"operation": "barrier", "bytes": 0}) for n in (2, 4, 8)]
        for operation in ("all_reduce", "reduce_scatter", "all_gather"):
            others += [collectives(nodes, operation) for nodes in (2, 4, 8)]
        for schedule, keys, options in (
            ("static", {"all_reduce"}, "--bucket-mb"),
            ("sharded", {"reduce_scatter", "all_gather"}, "--bucket-mb"),
            ("negotiated", {"all_reduce", "cycle", "copy"}, "--fusion-threshold-mb 128 --cache-capacity 1024"),
        ):
            with self.subTest(schedule):
                self.db.unlink(missing_ok=True)
                columns = {"plan_hash": PLAN, "data_plane": "ring over mpi", "schedule": schedule}
                self.measure(training(4, per_node=1, columns=columns), *others)
                made = self.document("16")
                words = {line.split()[0] for line in costs.read_text().splitlines()}
                usual = {"all_reduce", "reduce_scatter", "all_gather", "cycle", "copy"}
                self.assertEqual(words & usual, keys)
                self.assertIn(options, " ".join(made["what_ifs"][0]["options"]))

    def test_what_ifs_of_the_schedule(self) -> None:
        others = [collectives(n, "barrier", sizes=(1,), cell={"operation": "barrier", "bytes": 0}) for n in (2, 4, 8)]
        others += [collectives(n, o) for n in (2, 4, 8) for o in ("all_reduce", "reduce_scatter", "all_gather")]
        self.measure(training(4, per_node=1), *others)
        for text, options in (
            ("--schedule=sharded", "--schedule sharded --bucket-mb 25"),
            ("--bucket-mb 2", "--schedule static --bucket-mb 2"),
            (
                "--schedule negotiated --fusion-threshold-mb 0.25",
                "--schedule negotiated --fusion-threshold-mb 0.25 --cache-capacity 1024",
            ),
        ):
            with self.subTest(text):
                made = self.document("4,16", f"--what-if={text}")
                self.assertEqual([plan["text"] for plan in made["what_ifs"]], ["", text])
                self.assertEqual(" ".join(made["what_ifs"][1]["options"]), options)
                self.assertEqual(
                    [(row["what_if"], row["ranks"]) for row in made["rows"]], [(0, 4), (0, 16), (1, 4), (1, 16)]
                )
                # The session measured the schedule of the run only.
                self.assertEqual([row["measured"] is None for row in made["rows"]], [False, True, True, True])
        out, _ = self.predict("16", "--what-if=--schedule=sharded", "--what-if", "--schedule negotiated")
        self.assertRegex(out, r"\n--schedule=sharded +16 +\d+\.\d \[.*\] +-?\d+\.\d \[.*\]\n--schedule negotiated +16 ")
        out, _ = self.predict("16", "--why", "--what-if", "--schedule negotiated")
        self.assertIn("assumed     copies 2.236e-10: memory of 1 to 20 GB/s", out)

    def test_what_ifs_that_are_refused(self) -> None:
        self.measure(training(4, per_node=1), *(collectives(nodes) for nodes in (2, 4, 8)))
        for code, text, said in (
            (2, "", "--what-if is empty"),
            (2, "--bucket-mb", "'--bucket-mb' has no value"),
            (2, "--bucket-mb 2 --bucket-mb 3", "'--bucket-mb' has no value, or two"),
            (2, "--bucket-mb -2", "is not a size in MiB"),
            (2, "--bucket-mb nan", "is not a size in MiB"),
            (2, "--schedule fast", "'fast' is not one of its values"),
            (2, "--model vgg16", "--model is no option of the schedule"),
            (2, "--fusion-threshold-mb 2", "no effect with --schedule static"),
            (2, "--schedule negotiated --bucket-mb 2", "no effect with --schedule negotiated"),
            (2, "--bucket-mb 25", "changes nothing"),
            (3, "--schedule sharded", "reduce_scatter by 'ring' was measured on 0 numbers of nodes"),
            (3, "--allreduce-dtype bf16", "rounds messages to bf16"),
        ):
            with self.subTest(text):
                out, err = self.predict("16", f"--what-if={text}", code=code)
                self.assertEqual((out, len(err.splitlines())), ("", 1), err)
                self.assertIn(said, err)

    def test_sessions_of_other_worlds_and_of_other_options(self) -> None:
        other = {**FACTS, "engine.bucket_bytes": ("1048576", 1)}
        sessions = [training(ranks, per_node=1) for ranks in (4, 2)] + [training(4, per_node=1, provenance=other)]
        self.measure(*sessions, *map(collectives, (2, 4, 8)))
        made = self.document("2,4")
        self.assertEqual(len(made["sessions"]), 2)
        self.assertRegex(" ".join(made["notes"]), "session .* is not used: it differs in engine.bucket_bytes")
        self.assertTrue(all(row["measured"] for row in made["rows"]))

    def test_other_numbers_of_ranks_on_a_node_are_compared_where_measured(self) -> None:
        # Two nodes of two ranks reduce in 0.02 s what four nodes of one reduce in 0.1 s.
        plane = "hierarchical(shm+ring) over mpi"
        pairs = training(4, per_node=2, full=1.04, columns={"plan_hash": PLAN, "data_plane": plane})
        there = {"ranks": 4, "columns": {"nodes": 2}, "plane": plane}
        coll = [*map(collectives, (2, 4, 8)), collectives(2, **there)]
        self.measure(training(4, per_node=1), pairs, *coll)
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            in_pairs = "SELECT uuid FROM run WHERE phase = 'full' AND nodes = 2"
            for kind, seconds in (("reduce_seconds", 0.02), ("exposed_seconds", 0.01)):
                blob = np.full(40, seconds, dtype="<f8").tobytes()
                update = (
                    f"UPDATE sample SET data = substr(?, 1, length(data)) WHERE kind = ? AND run_uuid IN ({in_pairs})"
                )
                connection.execute(update, (blob, kind))
        made = self.document(4)
        self.assertEqual(len(made["sessions"]), 1)
        gained = {one["text"]: one["efficiency"] for one in made["gains"]}["2 ranks on each node"]
        self.assertTrue(gained["low"] < 1 / 1.04 - 1 / 1.12 < gained["high"], gained)
        self.assertIn("2 ranks on each node (", self.predict(4)[0])
        self.assertNotIn("on each node (", self.predict(8)[0])  # four nodes of two ranks were not measured

    def test_five_sessions_of_a_world_tell_how_far_sessions_lie_apart(self) -> None:
        few = [training(4, per_node=1, full=1.12 * factor) for factor in (0.95, 1, 1.05, 1.0)]
        self.measure(*few, *map(collectives, (2, 4, 8)))
        self.assertRegex(
            self.predict("4", "--why")[0], r"assumed +spread between sessions: 0.85 % .* 0.7 % of the efficiency"
        )
        self.db.unlink()
        self.measure(*few, training(4, per_node=1), *map(collectives, (2, 4, 8)))
        self.assertRegex(
            self.predict("4", "--why")[0], r"measured +spread between sessions: 0 % .* 3.5 % of the efficiency"
        )

    def test_the_slowdown_scales_from_the_world_of_its_session(self) -> None:
        costs = self.folder / "costs.txt"
        self.enter(STAND_IN_COSTS=str(costs))
        self.measure(training(4, per_node=1), training(2, per_node=1), *map(collectives, (2, 4, 8)))
        self.predict(64)
        found = {float(line.split()[1]) for line in costs.read_text().splitlines() if line.startswith("slowdown ")}
        # 1 as measured, or in proportion to 1 / ((N - 1) / N): from 4 nodes, or from 2.
        for wanted, slowdown in zip((0.508, 0.762, 1.0), sorted(found), strict=True):
            self.assertAlmostEqual(slowdown, wanted, 3)

    def test_sessions_that_found_the_machine_faster_or_slower(self) -> None:
        slow = training(solo=2.0, none=2.04, full=2.14)
        self.measure(training(), slow, collectives(1, ranks=2, plane="shm", seconds=1e-5))
        (row,) = self.document("2")["rows"]
        self.assertAlmostEqual(row["step_seconds"]["low"], 1.02 + 0.1, delta=0.02)
        self.assertAlmostEqual(row["step_seconds"]["high"], 2.04 + 0.1, delta=0.04)
        self.assertAlmostEqual(row["efficiency"]["low"], 1 / 1.12, delta=0.015)
        self.assertAlmostEqual(row["efficiency"]["high"], 2 / 2.14, delta=0.015)

    def test_one_session_lies_as_far_aside_as_the_one_to_come(self) -> None:
        # Two sessions differ by two variances. One differs from the mean of two by one and a half, of which drawing one
        # of two shows a half; here it shows nothing, for they are equal.
        for sessions, variances in ((1, 2), (2, 1)):
            self.db.unlink(missing_ok=True)
            self.measure(*[training()] * sessions, collectives(1, ranks=2, plane="shm", seconds=1e-5))
            step = self.document("1", "--draws", 2000)["rows"][0]["step_seconds"]
            expected = 2 * 1.645 * draws.ALONE_SPREAD * math.sqrt(variances)
            self.assertAlmostEqual(math.log(step["high"] / step["low"]) / expected, 1, delta=0.08)

    def test_a_measured_efficiency_that_is_not_resolved(self) -> None:
        sessions = [training(full=1.25), training(full=2.5)]
        self.measure(*sessions, collectives(1, ranks=2, plane="shm", seconds=1e-5))
        self.assertRegex(
            self.predict(2)[0], r"\] +not resolved: between 40 and 81 +not resolved: between 40 and 80 %  "
        )


class RefusalTest(PredictTest):
    COLL = collectives(1, ranks=2, plane="shm", seconds=1e-5)

    def test_a_profile_of_something_else(self) -> None:
        for header in ({"units_per_step": 16}, {"model": "vgg16"}, {"compute_type": "bf16"}):
            with self.subTest(header):
                self.db.unlink(missing_ok=True)
                self.measure(training(), self.COLL, **header)
                self.refused(2, r"a\.replay: the profile is of .*, but its run \w+ is of resnet101, fp32, 8")

    def test_gradients_of_another_size(self) -> None:
        # On CPUs gradients begin at multiples of 32 elements, so a run may hold more bytes than its profile.
        for schedule in ("negotiated", "static"):
            for more, refused in ((0, False), (2 * 31 * 4, False), (1 << 20, True), (-4, True)):
                with self.subTest(schedule=schedule, more=more):
                    self.db.unlink(missing_ok=True)
                    columns = {"schedule": schedule, "plan_hash": PLAN, "gradient_bytes": 4 * ELEMENTS + more}
                    barrier = {"operation": "barrier", "bytes": 0, "data_plane": "shm"}
                    there = {"ranks": 2, "plane": "shm", "seconds": 1e-5}
                    coll = [self.COLL, collectives(1, "barrier", sizes=(1,), cell=barrier, **there)]
                    self.measure(training(columns=columns), *coll)
                    if refused:
                        self.refused(
                            4, r"run \w+ reduced \d+ bytes of gradients, and this profile has 1048576 elements"
                        )
                    else:
                        self.predict(2)

    def test_a_profile_that_contradicts_itself(self) -> None:
        self.measure(training(), self.COLL, backward_end_seconds=0.5)
        self.refused(2, "a.replay:1[0-9]: a gradient is ready after 0.9 s, but backward ends after 0.5 s")
        self.db.unlink()
        self.measure(training(), self.COLL, update_seconds="nan")
        self.refused(2, "a.replay:9: a time is not between")

    def test_a_source_run_that_is_not_there(self) -> None:
        self.measure(training(), self.COLL, source_run="another")
        self.assertRegex(self.predict(2)[0], r"note: run another is not in these stores; session \w+ of")
        self.measure(training(), source_run="another", model="vgg16") if not self.db.exists() else None
        self.profile.write_text(profile_text("another", model="vgg16"), encoding="utf-8")
        self.refused(3, "no session with the phases solo, none and full of vgg16, fp32, 8 images a step")

    def test_a_profile_of_another_recording_of_that_name(self) -> None:
        columns = {"plan_hash": PLAN, "data_plane": "shm", "device": "replay"}
        made = identity.of_content(profile_text().encode())
        for profile, code in (("1" * 16, 4), (made, 0), ("", 0)):
            facts = FACTS | ({"replay.profile": (profile, 1)} if profile else {})
            self.measure(training(provenance=facts, columns=columns), self.COLL, source_run="none")
            if code:
                self.refused(
                    4, f"a.replay: is profile {made}, and run .* replayed {profile}: the stores hold sessions of"
                )
            else:
                said = "does not say which recording it replayed"
                (self.assertNotIn if profile else self.assertIn)(said, self.predict(2)[0])
            self.db.unlink()

    def test_no_training(self) -> None:
        self.measure(self.COLL)
        self.refused(3, "no session with the phases solo, none and full of resnet101")

    def test_no_collectives(self) -> None:
        self.measure(training())
        self.refused(3, "hold no results of collectives that are like the reductions of this training")

    def test_other_collectives_are_left_out(self) -> None:
        others = [{"comm": "loopback"}, {"oversubscribed": 1}, {"warm": 1}, {"status": "incomplete"}]
        usual = {"ranks": 2, "plane": "shm", "seconds": 1e-5}
        self.measure(training(), *(collectives(1, columns={"nodes": 1, **other}, **usual) for other in others))
        self.refused(3, "hold no results of collectives that are like")

    def test_a_wrong_result(self) -> None:
        cell = {"operation": "all_reduce", "data_plane": "shm", "wrong": 3}
        self.measure(training(), collectives(1, ranks=2, cell=cell, seconds=1e-5))
        self.refused(2, "all_reduce of 16384 bytes had 3 wrong elements")

    def test_collectives_of_another_machine(self) -> None:
        facts = {**FACTS, "cpu.model": ("Other CPU", 1)}
        self.measure(training(provenance=facts), self.COLL)
        self.refused(4, "differ .cpu.model: 'Test CPU' and 'Other CPU'.")

    def test_ranks_that_share_processors(self) -> None:
        facts = {**FACTS, "caution.more_threads_than_cores": ("2 ranks on 1 core", 0)}
        self.measure(training(provenance=facts), self.COLL)
        self.refused(2, "had more threads than cores")
        self.db.unlink()
        self.measure(training(), training(provenance=facts), self.COLL)
        made = self.document(2)
        self.assertEqual(len(made["sessions"]), 1)
        self.assertRegex(" ".join(made["notes"]), r"session \w+ is not used: it had more threads than cores")

    def test_a_short_session(self) -> None:
        self.measure(training(steps=12), self.COLL)
        self.refused(3, "has 12 steps of each phase, and 20 are needed")

    def test_copies_are_counted_once_and_run_beside_compute(self) -> None:
        columns = {"plan_hash": PLAN, "data_plane": "shm", "schedule": "negotiated"}
        barrier = {"operation": "barrier", "bytes": 0, "data_plane": "shm"}
        others = self.COLL, collectives(1, "barrier", ranks=2, sizes=(1,), seconds=1e-5, cell=barrier)
        self.measure(training(columns=columns, full=1.16), *others, exposed=0.11, copy=0.04)
        (row,) = self.document(2)["rows"]
        self.assertAlmostEqual(row["step_seconds"]["middle"], 1.02 + 0.1 + 0.04, delta=0.002)
        # 0.03 s of 0.1 s of reductions and 0.04 s of copies ran beside compute.
        self.assertIn("measured    slowdown by overlap 1: 1 session on 1 node", self.predict(2, "--why")[0])

    def test_what_is_not_modelled(self) -> None:
        facts = {**FACTS, "comm.crossovers": ("all_reduce: ring", 1)}
        self.measure(training(provenance=facts), self.COLL)
        self.refused(2, "used crossovers of its own")
        self.db.unlink()
        columns = {"plan_hash": PLAN, "allreduce_type": "bf16", "data_plane": "shm"}
        self.measure(training(columns=columns), self.COLL)
        self.refused(3, "rounds messages to bf16 between nodes")

    def test_a_replay_on_gpus_rests_on_collectives_of_gpus(self) -> None:
        facts = {**FACTS, "gpu.name": ("NVIDIA H200", 1)}
        columns = {"plan_hash": PLAN, "device": "replay", "comm": "nccl", "data_plane": "nccl 2.27.3"}
        there = {"nodes": 1, "device": "cuda", "comm": "nccl"}
        gpus = collectives(1, ranks=2, plane="nccl 2.27.3", columns=there, seconds=1e-5)
        self.measure(training(columns=columns, provenance=facts), gpus)
        self.assertIn("note: never validated on GPUs", self.predict(2)[0])
        self.db.unlink()
        self.measure(training(columns=columns, provenance=facts), self.COLL)
        self.refused(3, "collective")

    def test_gpus_were_never_validated(self) -> None:
        columns = {"plan_hash": PLAN, "device": "cuda", "comm": "nccl", "data_plane": "nccl 2.27.3, memory registered"}
        there = {"nodes": 1, "device": "cuda", "comm": "nccl"}
        self.measure(
            training(columns=columns), collectives(1, ranks=2, plane="nccl 2.27.3", columns=there, seconds=1e-5)
        )
        self.assertIn("note: never validated on GPUs", self.predict(2)[0])

    def test_a_barrier_beside_nccl_is_a_barrier(self) -> None:
        columns = {
            "plan_hash": "",
            "device": "cuda",
            "comm": "nccl",
            "data_plane": "nccl 2.27.3",
            "schedule": "negotiated",
        }
        there = {"nodes": 1, "device": "cuda", "comm": "nccl"}
        usual = {"ranks": 2, "plane": "nccl 2.27.3", "columns": there, "seconds": 1e-5}
        barrier = {"operation": "barrier", "bytes": 0, "data_plane": "nccl 2.27.3"}
        coll = [collectives(1, **usual), collectives(1, "barrier", sizes=(1,), cell=barrier, **usual)]
        self.measure(training(columns=columns), *coll)
        self.assertIn("measured    barrier: 1 cell on 1 node", self.predict(2, "--why")[0])


if __name__ == "__main__":
    unittest.main()
