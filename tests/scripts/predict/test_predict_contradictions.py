"""Inputs of a prediction that disagree with one another are refused, or named in one line."""

import contextlib
import sqlite3
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from test_predict import FACTS, SIZES, PredictTest, collectives, profile_text, training
from test_predict_link import osu

from hvdb.predict import noise


class ContradictionTest(PredictTest):
    def setUp(self) -> None:
        super().setUp()
        # These tests read notes. What would gain most takes most of the time.
        patched = mock.patch("hvdb.predict.prediction._candidates", return_value=[])
        patched.start()
        self.addCleanup(patched.stop)

    def stored(self, *changes: str) -> None:
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            for change in changes:
                connection.execute(change)

    def said(self, text: str, ranks: object = 4, *words: object) -> None:
        out, _ = self.predict(ranks, *words)
        self.assertRegex(out, rf"\nnote: .*{text}")

    def test_a_profile_of_another_step(self) -> None:
        self.measure(training(4, per_node=1), collectives(4), backward_end_seconds=2.7, update_seconds=0.3)
        self.refused(
            2, "a.replay: the profile's step takes 3 s, and one rank alone took 1 s in the sessions .*: they", 4
        )
        self.profile.write_text(profile_text(backward_end_seconds=1.2), encoding="utf-8")
        self.said("the profile's step takes 1.3 s, and one rank alone 1 s in the sessions")

    def test_a_profile_in_other_units(self) -> None:
        self.measure(training(4, per_node=1), collectives(4), unit="tokens")
        self.refused(2, "the profile is of resnet101, fp32, 8 tokens a step, but its run .* 8 images", 4)

    def test_a_profile_whose_gradients_are_ready_at_once_or_that_is_noisy(self) -> None:
        self.measure(training(4, per_node=1), collectives(4))
        early = profile_text().replace("0.5 0.5", "0 0").replace("0.9 0.9", "0 0")
        self.profile.write_text(early, encoding="utf-8")
        self.said("all gradients are ready as the step begins, so all reductions are taken for hidden")
        factors = " ".join(["1"] * 16 + ["1.5"] * 4)
        self.profile.write_text(profile_text(factors=factors), encoding="utf-8")
        self.said("a tenth of the recorded steps took 50 % longer than others; record where nothing else runs")

    def test_a_described_link_that_cannot_be_that_of_the_collectives(self) -> None:
        # 10 ns for a byte are 0.8 Gbit/s.
        self.measure(training(4, per_node=1), *map(collectives, (2, 4)))
        for gbit, said in (
            (10, r"--link-gbit 10: collectives got 0.889 Gbit/s of the link on 2, 4 nodes"),
            (0.5, "of another"),
        ):
            out, err = self.predict(8, "--link-gbit", gbit, "--latency-us", 10, code=2)
            self.assertEqual((out, len(err.splitlines())), ("", 1))
            self.assertRegex(err, said)
        self.said(
            "--link-gbit 2: collectives got 0.889 Gbit/s of the link, 44 % of it",
            8,
            "--link-gbit",
            2,
            "--latency-us",
            9,
        )

    def test_collectives_of_two_networks(self) -> None:
        fast = collectives(8, seconds=14 * 0.5e-8 * SIZES[0] / 8)
        self.measure(training(4, per_node=1), *map(collectives, (2, 4)), fast)
        self.said("'ring': a large step takes 2 times as long on 2 nodes as on 8: are both of one network")

    def test_a_size_that_is_slower_than_a_larger_one(self) -> None:
        self.measure(training(4, per_node=1), *map(collectives, (2, 4, 8)))
        slow = f"SELECT seq FROM coll_cell WHERE bytes = {SIZES[4]}"
        self.stored(f"UPDATE coll_sample SET data = x'{np.full(20, 0.05).tobytes().hex()}' WHERE seq IN ({slow})")
        self.said(f"on 2 nodes: {SIZES[4]} bytes took 50 ms, longer than {SIZES[5]} bytes .*: measure it again")

    def test_sessions_that_are_copies_or_lie_aside(self) -> None:
        self.measure(*[training(4, per_node=1, noise=0.01)] * 2, collectives(4))
        with contextlib.closing(sqlite3.connect(self.db)) as connection, connection:
            runs = connection.execute("SELECT uuid, phase FROM run ORDER BY rowid").fetchall()
            for (run, phase), (copy, also) in zip(runs[:3], runs[3:], strict=True):
                self.assertEqual(phase, also)
                connection.execute("DELETE FROM sample WHERE run_uuid = ?", (copy,))
                columns = "rank, kind, count, data"
                connection.execute(
                    f"INSERT INTO sample (run_uuid, {columns}) SELECT ?, {columns} FROM sample WHERE run_uuid = ?",
                    (copy, run),
                )
        made = self.document(4)
        self.assertEqual(len(made["sessions"]), 1)
        self.assertRegex(" ".join(made["notes"]), r"session \w+ is not used: it has the samples of session \w+")
        self.db.unlink()
        usual = [training(4, per_node=1, noise=0.001) for _ in range(3)]
        self.measure(*usual, training(4, per_node=1, noise=0.001, solo=1.4, none=1.43, full=1.53), collectives(4))
        self.said(r"session \w+: one rank alone took 14\d\d ms, and 100\d(\.\d)? ms in the others; leave its store out")

    def test_sessions_of_another_world_do_not_lie_aside(self) -> None:
        there = [
            training(ranks, per_node=1, noise=0.001, none=none, full=none + 0.1)
            for ranks, none in ((4, 1.02), (2, 1.2))
        ]
        self.measure(*there * 3, collectives(4), collectives(2))
        self.assertNotIn("leave its store out", self.predict(4)[0])

    def test_ranks_that_are_faster_among_others_than_alone(self) -> None:
        self.measure(training(4, per_node=1, none=0.947, full=0.97), collectives(4), exposed=0.0)
        out, _ = self.predict(4)
        self.assertRegex(out, r"\(above 100 %: ranks among others compute \d\.\d % faster than one rank alone\)")
        self.assertRegex(out, r"note: session \w+: ranks among others were 5.3 % faster than one alone")

    def test_cautions_of_a_session_come_along(self) -> None:
        facts = {**FACTS, "caution.busy": ("other programs took 0.7 processors", 0)}
        self.measure(training(4, per_node=1, provenance=facts), collectives(4))
        self.said(r"session \w+: other programs took 0.7 processors")

    def test_inputs_that_are_not_used(self) -> None:
        self.measure(training(4, per_node=1), *map(collectives, (2, 4, 8)))
        file = self.folder / "osu.txt"
        file.write_text(osu(us_a_byte=0.02), encoding="utf-8")
        self.said(
            "--link-gbit and --latency-us are not used: collectives were measured",
            4,
            "--link-gbit",
            1,
            "--latency-us",
            9,
        )
        self.said(r"osu.txt is not used: it counts for its 16 ranks alone", 8, "--imported", f"{file}=16")
        self.said(r"osu.txt is not used: hvd_bench coll measured 8 nodes, too", 8, "--imported", f"{file}=8")

    def test_an_imported_table_counts_for_its_world(self) -> None:
        self.measure(training(4, per_node=1), *map(collectives, (2, 4, 8)))
        file = self.folder / "osu.txt"
        file.write_text(osu(us_a_byte=0.2), encoding="utf-8")  # ten times as slow
        with_it, without = (self.document(16, *words)["rows"][0] for words in (("--imported", f"{file}=16"), ()))
        self.assertGreater(with_it["step_seconds"]["middle"], without["step_seconds"]["middle"] + 0.5)
        two = ["--imported", f"{file}=16", "--imported", f"{self.copied(file)}=32"]
        self.db.unlink()
        self.measure(training(4, per_node=1), collectives(4))
        _, err = self.predict(64, *two, code=3)
        self.assertIn("say by --algorithm what the imported tables of [16, 32] nodes used", err)

    def copied(self, file: Path) -> Path:
        other = file.with_name("other.txt")
        other.write_bytes(file.read_bytes())
        return other


class NoiseTest(unittest.TestCase):
    """The tail of hosts and steps."""

    def nodes(self, count: int, steps: int, random: np.random.Generator) -> list[list[np.ndarray]]:
        return [[np.exp(random.exponential(0.02, steps))] for _ in range(count)]

    def test_the_slowest_of_many_lies_beyond_the_recorded_steps(self) -> None:
        # The true quantile of the 3,200 steps of a pool is exp(0.02 x ln 3200) = 1.175. Few recorded ones end before.
        random = np.random.default_rng(1)
        for hosts, steps, near in ((2, 36, 0.15), (8, 200, 0.05)):
            with self.subTest(steps=steps):
                nodes = self.nodes(hosts, steps, random)
                slowest = [max(s.max() for node in noise.pool(nodes, random) for s in node) for _ in range(40)]
                self.assertGreater(np.median(slowest), max(s.max() for node in nodes for s in node) - 0.02)
                self.assertAlmostEqual(float(np.median(slowest)), 1.175, delta=near)
                self.assertGreater(max(slowest) / min(slowest), 1.05, "the tail is not known")

    def test_the_middle_and_what_hits_all_hosts_stay(self) -> None:
        random = np.random.default_rng(2)
        nodes = self.nodes(4, 60, random)
        together = [[series * (1 + 0.3 * (np.arange(60) // 10 % 2))] for node in nodes for series in node]
        made = noise.pool(together, random)
        middle = np.median([np.median(series) for node in made for series in node])
        wanted = np.median([np.median(series) for node in together for series in node])
        self.assertAlmostEqual(middle / wanted, 1, delta=0.2)
        pairs = np.corrcoef([node[0] for node in made[:8]])[np.triu_indices(8, 1)]
        self.assertGreater(np.mean(pairs), 0.5)

    def test_a_level_is_drawn_with_the_spread_of_the_recorded_hosts(self) -> None:
        apart = [[np.full(40, 1 + 0.03 * k)] for k in (-1, 0, 1)]
        self.assertGreater(noise.level_spread(apart), 0.02)
        self.assertAlmostEqual(noise.level_spread(apart[:1]), noise.PRIOR_LEVEL)


if __name__ == "__main__":
    unittest.main()
