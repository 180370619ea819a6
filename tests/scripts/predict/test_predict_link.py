"""Costs that hvd_bench did not measure: a described link, a changed link, and collectives of other programs."""

import contextlib
import json
import math
import sqlite3
import unittest
from pathlib import Path

import numpy as np
from test_imported_collectives import document
from test_predict import FACTS, PLAN, SECONDS_A_BYTE, SIZES, PredictTest, collectives, training
from test_predict_collective import cells, latency_and_rate

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict import imported, link
from hvdb.predict.collective import Collective, CollectiveTimes, gather
from hvdb.predict.fabric import Fabric
from hvdb.predict.link import SHARE, TIMES, Link
from hvdb.predict.steps import World

LINK = Link(gbit=8, latency_us=10)  # 1e9 bytes a second
MIB = 1 << 20


def inside(ranks: int, seconds_a_byte: float = 1e-10) -> list[CollectiveTimes]:
    """An all-reduce on one node."""
    return [CollectiveTimes(World(1, ranks), size, size * seconds_a_byte * np.ones(5)) for size in SIZES]


def of_link(operation: str, algorithm: str, world: World, within: list[CollectiveTimes] | None = None) -> Collective:
    """A collective between nodes of which only the link is known."""
    made = gather(operation, algorithm, [], inside=within or [], link=LINK, ranks_per_node=world.ranks_per_node)
    made.require(world)
    return made


class DeclaredTest(unittest.TestCase):
    def seconds(self, operation: str, algorithm: str, world: World, *inner: CollectiveTimes) -> float:
        return of_link(operation, algorithm, world, [*inner]).middle.seconds(world, MIB)

    def test_the_middle_by_hand(self) -> None:
        latency, rate = math.sqrt(3) * 10e-6, 0.8e9
        for operation, algorithm, world, steps, sent in (
            ("all_reduce", "ring", World(4), 6, MIB / 4),
            ("all_reduce", "doubling", World(4), 2, MIB),
            ("all_reduce", "ring", World(4, 2), 6, MIB / 4),  # two ranks send an eighth each, over one link
            ("reduce_scatter", "ring", World(4, 2), 8, MIB / 8),  # one rank of a node sends to another node
            ("all_reduce", "nccl", World(4, 2), 14, MIB / 8),
            ("all_gather", "nccl", World(4), 3, MIB / 4),
            ("barrier", "", World(8, 2), 3, 0),
        ):
            with self.subTest(f"{operation} by '{algorithm}' on {world}"):
                true = steps * (latency + sent / rate)
                self.assertAlmostEqual(self.seconds(operation, algorithm, world) / true, 1, 9)
        split = self.seconds("all_reduce", "ring", World(4, 2), *inside(2)) - self.seconds(
            "all_reduce", "ring", World(4, 2)
        )
        self.assertAlmostEqual(split, MIB * 1e-10)

    def test_draws_fill_the_priors(self) -> None:
        cost = of_link("all_reduce", "ring", World(2))
        random = np.random.default_rng(1)
        drawn = [cost.draw(random, link.quality(random)) for _ in range(500)]
        for size, least, most in (
            (0, 2 * TIMES[0] * 10e-6, 2 * TIMES[1] * 10e-6),
            (1 << 40, 2**40 / 1e9, 2**40 / 0.6e9),
        ):
            found = [draw.seconds(World(2), size) for draw in drawn]
            self.assertGreater(min(found), 0.999 * least)
            self.assertLess(max(found), 1.001 * most)
            self.assertGreater(max(found) / min(found), 0.95 * most / least)
        self.assertEqual(SHARE, (0.6, 1.0))

    def test_a_collective_without_known_steps_is_refused(self) -> None:
        with self.assertRaisesRegex(HvdbError, "all_reduce by 'mpi's own'"):
            of_link("all_reduce", "mpi's own", World(4))

    def test_a_link_needs_both_figures(self) -> None:
        self.assertIsNone(link.declared(None, None))
        self.assertEqual(link.declared("8", "10"), LINK)
        for gbit, latency, text in (
            ("8", None, "name both"),
            ("0", "1", "link-gbit: '0' is not a number from 0.001 to"),
            ("1", "nan", "latency-us: 'nan'"),
            ("inf", "1", "link-gbit"),
            ("x", "1", "'x' is not"),
        ):
            with self.subTest(text), self.assertRaisesRegex(HvdbError, text):
                link.declared(gbit, latency)


class HierarchicalTest(unittest.TestCase):
    def test_the_part_inside_a_node_does_not_grow_with_the_nodes(self) -> None:
        def true(nodes: int, size: int) -> float:
            return size * 1e-10 + 2 * (nodes - 1) * latency_and_rate(size / (2 * nodes))

        measured = [CollectiveTimes(World(n, 2), size, np.full(20, true(n, size))) for n in (2, 3, 4) for size in SIZES]
        size, world = 1 << 23, World(64, 2)
        split = gather("all_reduce", "ring", measured, inside=inside(2)).middle
        self.assertAlmostEqual(split.seconds(world, size) / true(64, size), 1, 6)
        whole = gather("all_reduce", "ring", measured).middle
        self.assertGreater(abs(whole.seconds(world, MIB) / true(64, MIB) - 1), 0.01)
        with_node = {("all_reduce", "ring"): measured, ("all_reduce", "shm"): inside(2)}
        found = Fabric("auto", "hierarchical", 2, with_node).tables("all_reduce", world)["all_reduce"].middle
        self.assertEqual(found.seconds(world, size), split.seconds(world, size))
        # One node that is slower than several tells nothing about their part inside.
        self.assertIsNone(gather("all_reduce", "ring", measured, inside=inside(2, 1e-7)).middle.inner)

    def test_a_drawn_split_keeps_the_measured_worlds(self) -> None:
        measured = [CollectiveTimes(World(n, 2), size, np.full(20, 3e-9 * size)) for n in (2, 3, 4) for size in SIZES]
        drawn = gather("all_reduce", "ring", measured, inside=inside(2)).draw(np.random.default_rng(1))
        self.assertAlmostEqual(drawn.same_launch().seconds(World(3, 2), MIB) / (3e-9 * MIB), 1, 6)


def middle(fabric: Fabric, world: World, size: float) -> float:
    """Returns the seconds of an all-reduce of `size` bytes in the middle of all draws."""
    known = fabric.tables("all_reduce", world)["all_reduce"]
    return fabric.drawn(known, -1, np.random.default_rng).seconds(world, size)


class ChangedTest(unittest.TestCase):
    """The truth is 50 us and 1e9 bytes a second: 8 Gbit/s."""

    def changed(self, present: Link | None = None, nodes: tuple[int, ...] = (2, 3, 4), **values: str) -> float:
        """Returns the seconds of a step of 512 KiB on 4 nodes."""
        fabric = Fabric("auto", "ring over mpi", 1, {("all_reduce", "ring"): cells(nodes=nodes)}, link=present)
        wanted = link.change((name.replace("_", "-"), text) for name, text in values.items())
        return middle(fabric.changed(wanted), World(4), 1 << 21) / 6

    def test_the_curve_and_one_world_alike(self) -> None:
        empty, sent = 50e-6, (1 << 19) / 1e9
        for nodes in ((2, 3, 4), (4,)):
            for present, values, true in (
                (None, {"oversubscription": "4"}, empty + 4 * sent),
                (None, {"link_gbit": "16"}, empty + sent / 2 / 0.8),  # 0.8 of the line, the middle of the prior
                (Link(10, 25), {"link_gbit": "20"}, empty + sent / 2),  # 0.8 of it, as of the present line
                (None, {"latency_us": "100"}, 100e-6 * math.sqrt(3) + sent),
                (Link(10, 25), {"latency_us": "100"}, 4 * empty + sent),
                (Link(10, 25), {"latency_us": "100", "link_gbit": "20", "oversubscription": "2"}, 4 * empty + sent),
            ):
                with self.subTest(nodes=nodes, **values):
                    self.assertAlmostEqual(self.changed(present, nodes, **values) / true, 1, delta=0.02)

    def test_a_declared_link_is_another_one(self) -> None:
        fabric = Fabric("auto", "shm", link=LINK).changed(link.change([("link-gbit", "4"), ("oversubscription", "2")]))
        self.assertAlmostEqual(middle(fabric, World(4), 1 << 40) / (1.5 * 2**40 / 0.8e9 * 4), 1, 6)

    def test_one_node_keeps_its_cost(self) -> None:
        shm = {("all_reduce", "shm"): [CollectiveTimes(World(1, 2), size, np.ones(3)) for size in SIZES]}
        fabric = Fabric("auto", "shm", 2, shm)
        changed = fabric.changed(link.change([("oversubscription", "4")]))
        self.assertEqual(middle(changed, World(1, 2), MIB), middle(fabric, World(1, 2), MIB))

    def test_the_part_inside_a_node_keeps_its_time(self) -> None:
        world, size = World(4, 2), 1 << 23
        for nodes in ((2, 3, 4), (4,)):
            ring = [
                CollectiveTimes(World(n, 2), s, np.full(5, 3e-9 * s + 2 * (n - 1) * latency_and_rate(s / (2 * n))))
                for n in nodes
                for s in SIZES
            ]
            measured = {("all_reduce", "ring"): ring, ("all_reduce", "shm"): inside(2, 3e-9)}
            changed = Fabric("auto", "", 2, measured).changed(link.change([("oversubscription", "4")]))
            true = 3e-9 * size + 6 * latency_and_rate(4 * size / 8)
            self.assertAlmostEqual(middle(changed, world, size) / true, 1, delta=0.01)

    def test_a_rate_that_nothing_tells(self) -> None:
        barrier = {("barrier", ""): [CollectiveTimes(World(n), 0, np.ones(3)) for n in (2, 3, 4)]}
        fabric = Fabric("auto", "", 1, barrier).changed(link.change([("link-gbit", "4")]))
        with self.assertRaisesRegex(TooLittle, "name it by --link-gbit"):
            fabric.tables("barrier", World(8))

    def test_what_is_no_change(self) -> None:
        for pairs, text in (
            ([("link-gbit", "1"), ("link-gbit", "1")], "link-gbit occurs twice"),
            ([("nodes", "4")], "'nodes' is not one of link-gbit, latency-us, oversubscription"),
            ([("oversubscription", "0.5")], "oversubscription: '0.5' is not a number from 1 to 1000"),
            ([("latency-us", "-1")], "latency-us: '-1'"),
        ):
            with self.subTest(text), self.assertRaisesRegex(HvdbError, text):
                link.change(pairs)


def osu(name: str = "Allreduce", sizes: tuple[int, ...] = SIZES, us_a_byte: float = 0.001) -> str:
    rows = [f"{size} {size * us_a_byte:.3f}" for size in sizes]
    return "\n".join([f"# OSU MPI {name} Latency Test v7.4", "# Size       Avg Latency(us)", *rows, ""])


class ImportedTest(PredictTest):
    def file(self, text: str, name: str = "osu.txt") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def test_an_all_gather_of_osu_counts_what_a_rank_gives(self) -> None:
        made = imported.cells(imported.read(f"{self.file(osu('Allgather'))}=4"), "float", 1)
        self.assertEqual([cell.size for cell in made["all_gather"]], [4 * size for size in SIZES])

    def test_files_that_do_not_fit(self) -> None:
        name, result = self.file(osu()), document()
        result["results"] = [{**result["results"][1], "size": size} for size in SIZES[:5]]
        nccl = self.file(json.dumps(result), "nccl.json")
        for text, kind, per_node, fault in (
            (f"{name}", "float", 1, "osu.txt does not say on how many ranks .* write --imported .*osu.txt=RANKS"),
            (f"{name}=1", "float", 1, "1 is not a number of ranks from 2"),
            (f"{name}=99999999999", "float", 1, "is not a number of ranks"),
            (f"{name}=3", "float", 2, "osu.txt: 3 ranks on 2 nodes, but the training had 2 on each node"),
            (f"{nccl}", "float", 1, "nccl.json: 4 ranks on 2 nodes, but the training had 1"),
            (f"{nccl}=8", "float", 2, "nccl.json was measured on 4 ranks, not on 8"),
            (f"{name}=4", "half", 1, "osu.txt has times of float by 'sum', but the training sums half"),
            (f"{nccl}", "float", 2, "nccl.json: all_reduce has 5 sizes, and 6 are needed"),
            (f"{self.file(osu('Broadcast'), 'b.txt')}=4", "float", 1, "b.txt has none of all_reduce, reduce_scatter"),
            (f"{self.folder / 'none.txt'}=4", "float", 1, "none.txt: cannot be read"),
            (f"{self.file('x', 'x.txt')}=4", "float", 1, "x.txt: not a result of nccl-tests"),
        ):
            with self.subTest(fault), self.assertRaisesRegex(HvdbError, fault):
                imported.cells(imported.read(text), kind, per_node)

    def test_its_own_world_by_hand(self) -> None:
        # A message of 4 MiB takes 4.2 ms.
        self.measure(training(), collectives(1, ranks=2, plane="shm", seconds=0.1 / (1 << 22) * SIZES[0]))
        words = ("--imported", f"{self.file(osu())}=8")
        made = self.document(8, *words)
        self.assertAlmostEqual(made["rows"][0]["step_seconds"]["middle"], 1.02 + 0.0042, 2)
        self.assertIn("imported", {label["kind"] for label in made["labels"]})
        self.assertRegex(" ".join(made["notes"]), r"osu.txt has one mean for each size: no jitter .* \+- 10 %")
        self.assertEqual([Path(one["file"]).name for one in made["inputs"]], ["a.replay", "a.db", "osu.txt"])
        out, _ = self.predict(8, *words, "--why")
        self.assertIn("\nimported    all_reduce: 10 cells on 4 nodes", out)
        _, err = self.predict(16, *words, code=3)
        self.assertIn("measured on 0 numbers of nodes", err)

    def test_a_stated_algorithm_is_that_of_all_sizes_between_nodes(self) -> None:
        for plane, stated, world, name in (
            ("ring over mpi", "doubling", World(4), "doubling"),
            ("nccl 2.27.3", "ring", World(4), "ring"),
            ("nccl 2.27.3", "ring", World(4, 2), "flat ring"),
            ("nccl 2.27.3", "ring", World(1, 2), "nccl"),
        ):
            found = Fabric("auto", plane, stated=stated)
            self.assertEqual(found.algorithms("all_reduce", world), {"all_reduce": name})

    def test_one_mean_is_no_narrow_band(self) -> None:
        cells = imported.cells(imported.read(f"{self.file(osu())}=4"), "float", 1)["all_reduce"]
        cost = gather("all_reduce", "ring", [], cells)
        drawn = [cost.draw(np.random.default_rng(k)).seconds(World(4), MIB) for k in range(200)]
        self.assertAlmostEqual(float(np.std(np.log(drawn))), 0.1, delta=0.02)

    def test_other_worlds_with_a_stated_algorithm(self) -> None:
        self.measure(training(4, per_node=1), collectives(4))
        files = []
        for nodes in (2, 4, 8):  # 10 ns for a byte of a step, as the store has it
            ring = 1e6 * SECONDS_A_BYTE * 2 * (nodes - 1) / nodes
            files += ["--imported", f"{self.file(osu(us_a_byte=ring), f'{nodes}.txt')}={nodes}"]
        _, err = self.predict(32, *files, code=3)
        self.assertEqual(len(err.splitlines()), 1)
        made = self.document(32, *files, "--algorithm", "ring")
        (row,) = made["rows"]
        self.assertAlmostEqual(row["step_seconds"]["middle"], 1.02 + 0.1 * (31 / 32) / (3 / 4), delta=0.02)
        kinds = {label["name"]: label["kind"] for label in made["labels"]}
        self.assertEqual(kinds["algorithm of imported collectives"], "assumed")
        _, err = self.predict(32, "--algorithm", "ring", code=2)
        self.assertIn("--algorithm says what --imported files hold", err)

    def test_a_replay_on_gpus_rests_on_tables_of_nccl_tests(self) -> None:
        """Two nodes of two GPUs replayed; nccl-tests measured 2, 3 and 4 such nodes."""
        facts = {**FACTS, "gpu.name": ("NVIDIA H200", 1)}
        columns = {"plan_hash": PLAN, "device": "replay", "comm": "nccl", "data_plane": "nccl 2.27.3"}
        self.measure(training(4, per_node=2, columns=columns, provenance=facts))
        half = "time algbw busbw #wrong"
        files = []
        for nodes in (2, 3, 4):
            devices = "".join(
                f"#  Rank {rank:2} Group  0 Pid 1{rank} on n{rank // 2} device  {rank % 2} [0x07] NVIDIA H200\n"
                for rank in range(2 * nodes)
            )
            ranks = 2 * nodes
            rows = [(size, 20.0 + 1e-3 * size * 2 * (ranks - 1) / ranks) for size in SIZES]
            lines = [f"{size} {size // 4} float sum -1 " + f"{us:.2f} 1.0 1.0 0 " * 2 for size, us in rows]
            table = (
                f"# Collective test starting: all_reduce_perf\n{devices}# size count type redop root {half} {half}\n"
            )
            files += ["--imported", self.file(table + "\n".join(lines) + "\n", f"{nodes}.txt")]
        made = self.document(16, *files, "--algorithm", "ring")
        self.assertEqual((made["rows"][0]["ranks"], made["rows"][0]["nodes"]), (16, 8))
        self.assertIn("never validated on GPUs", " ".join(made["notes"]))
        self.assertIn("imported", {label["kind"] for label in made["labels"]})


class OptionsTest(PredictTest):
    """One node was measured, with two ranks."""

    LINK = ("--link-gbit", "10", "--latency-us", "20")

    def setUp(self) -> None:
        super().setUp()
        columns = {"plan_hash": "", "data_plane": "shm", "schedule": "negotiated"}
        barrier = {"operation": "barrier", "bytes": 0, "data_plane": "shm"}
        self.measure(
            training(columns=columns),
            collectives(1, ranks=2, plane="shm", seconds=0.1 / (1 << 22) * SIZES[0]),
            collectives(1, "barrier", ranks=2, sizes=(1,), seconds=1e-5, cell=barrier),
            copy=1e-6,
        )

    def test_several_nodes_from_one_and_a_link(self) -> None:
        made = self.document("2..64", *self.LINK)
        low, middle, high = (made["rows"][-1]["step_seconds"][name] for name in ("low", "middle", "high"))
        # Inside a node 0.1 s, between nodes 2 x 31 / 32 x 4 MiB at 0.6 to 1 of 10 Gbit/s, and 62 steps.
        between = 2 * 31 / 32 * (1 << 22) / 1.25e9
        self.assertAlmostEqual(middle, 1.02 + 0.1 + between / 0.8 + 62 * 20e-6 * math.sqrt(3), delta=0.02)
        self.assertGreater(high - low, 0.5 * between * (1 / 0.6 - 1))
        kinds = {label["name"]: label["kind"] for label in made["labels"]}
        self.assertEqual(kinds["link between nodes"], "data sheet")
        self.assertEqual(kinds["what collectives get of the link"], "assumed")
        self.assertIn(
            "all_reduce by 'ring' between nodes comes from the described link alone", made["rows"][-1]["warnings"]
        )
        self.assertNotIn("link", " ".join(made["rows"][0]["warnings"]))

    def test_the_load_on_one_node_may_not_be_that_of_a_network(self) -> None:
        # Now the collectives of one node take a tenth of what the reductions took in the training.
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            connection.execute("UPDATE coll_sample SET data = ?", (np.full(20, 0.01).tobytes(),))
        made = self.document("64", *self.LINK, "--draws", 100)
        band = made["rows"][0]["step_seconds"]
        alone = 0.01 + 2 * 31 / 32 * (1 << 22) / 1e9 + 62 * 20e-6 * math.sqrt(3)
        self.assertLess(band["low"], 1.02 + 2 * alone)
        self.assertGreater(band["high"], 1.02 + 6 * alone)
        self.assertEqual(max(made["narrower"], key=made["narrower"].get), "overlap")

    def test_training_of_one_rank_or_of_several_nodes_without_collectives(self) -> None:
        for ranks, source in (
            (1, "as fast as alone: no collectives"),
            (2, "1 session, over what the described link pro"),
        ):
            self.db.unlink()
            self.measure(training(ranks, per_node=1))
            made = self.document("16", *self.LINK)
            labels = {label["name"]: label["source"] for label in made["labels"]}
            self.assertIn(source, labels["reductions beside compute"])
            self.assertIn("the described link alone", " ".join(made["rows"][0]["warnings"]))

    def test_without_a_link_the_line_names_it(self) -> None:
        for words, code, text in (
            ((), 3, "or describe the link by --link-gbit and --latency-us"),
            (self.LINK[:2], 2, "name both"),
            (("--link-gbit", "-5", "--latency-us", "1"), 2, "link-gbit: '-5' is not a number"),
        ):
            out, err = self.predict(4, *words, code=code)
            self.assertEqual((out, len(err.splitlines())), ("", 1))
            self.assertIn(text, err)

    def test_what_ifs_of_the_link(self) -> None:
        made = self.document("2,64", *self.LINK, "--what-if", "link-gbit=1", "--what-if", "latency-us=2000")
        self.assertEqual([one["hardware"] for one in made["what_ifs"]], [{}, {"link_gbit": 1}, {"latency_us": 2000}])
        one, slow_rate, slow_steps = (made["rows"][place] for place in (1, 3, 5))
        between = 2 * 31 / 32 * (1 << 22) / 1.25e8 / 0.8
        self.assertAlmostEqual(slow_rate["step_seconds"]["middle"], one["step_seconds"]["middle"] + 0.9 * between, 2)
        self.assertGreater(slow_steps["step_seconds"]["middle"], one["step_seconds"]["middle"] + 62 * 0.002)
        here, changed = (made["rows"][place]["step_seconds"]["middle"] for place in (0, 2))
        self.assertAlmostEqual(here, changed, 3)  # one node has no link
        self.assertIn("scaled", {label["kind"] for label in made["labels"]})
        for text in ("link-gbit=0", "colour=1", "link-gbit=1 link-gbit=2"):
            _, err = self.predict(2, "--what-if", text, code=2)
            self.assertIn(f"--what-if '{text}'", err)


if __name__ == "__main__":
    unittest.main()
