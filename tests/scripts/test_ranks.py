"""Tests slow ranks. A rank that was made slow is found, no other rank is accused, and missing data is named clearly."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from limits import HANG, slowness
from PIL import Image
from test_hostile_text import CONTROLS, HOSTILE

from harness import SCRIPTS, FolderTest, call, execute, refused, unread
from synthetic_store import SessionSpec, make

from hvdb.judge import rank_work, slow_ranks
from hvdb.read import runs
from hvdb.show import plot_ranks

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))


def correlated(rng: np.random.Generator, shape: tuple[int, int], rho: float) -> np.ndarray:
    """Draws AR(1) series of variance 1 along the last axis."""
    noise = rng.standard_normal(shape)
    for step in range(1, shape[1]):
        noise[:, step] = rho * noise[:, step - 1] + np.sqrt(1 - rho * rho) * noise[:, step]
    return noise


# Each function draws the noise of all times as logarithms (ranks, steps), without differences between healthy ranks.
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: 0.01 * rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: 0.01 * rng.standard_t(2, shape).clip(-500, 500),
    "drift": lambda rng, shape: (
        0.01 * rng.standard_normal(shape) + 0.02 * rng.standard_normal((shape[0], 1)) * np.linspace(-0.5, 0.5, shape[1])
    ),
    "autocorrelation": lambda rng, shape: 0.01 * correlated(rng, shape, 0.6),
    "common noise": lambda rng, shape: (
        0.01 * rng.standard_normal(shape) + 0.3 * rng.standard_t(2, (1, shape[1])).clip(-50, 50)
    ),
    "pauses": lambda rng, shape: (
        0.01 * rng.standard_normal(shape) + (rng.random(shape) < 0.05) * rng.exponential(1.0, shape)
    ),
    "uneven noise": lambda rng, shape: 0.01 * rng.lognormal(0, 0.5, (shape[0], 1)) * rng.standard_normal(shape),
}


def healthy(rng: np.random.Generator, noise: str, shape: tuple[int, int], spread: float) -> np.ndarray:
    """Draws seconds (ranks, steps) of healthy ranks. `spread` is the standard deviation between ranks."""
    return 0.1 * np.exp(NOISE[noise](rng, shape) + spread * rng.standard_normal((shape[0], 1)))


class PureTest(unittest.TestCase):
    """Compares results with values that are computed by hand or by simple loops."""

    def test_a_time_is_compared_with_the_median_of_the_others(self) -> None:
        for times, others in (
            ([1, 2, 4, 8], [4, 4, 2, 2]),  # the medians of 2, 4, 8, of 1, 4, 8, of 1, 2, 8 and of 1, 2, 4
            ([1, 4, 16], [8, 4, 2]),  # the median of two is their geometric mean
            ([1, 3], [3, 1]),
            ([5, 5, 5, 5], [5, 5, 5, 5]),
        ):
            seconds = np.array(times, dtype=float)[:, None]
            expected = np.log(times) - np.log(others)
            np.testing.assert_allclose(slow_ranks.log_ratios(seconds)[:, 0], expected, atol=1e-12)

    def test_percent_follow_from_the_seconds_for_any_number_of_members(self) -> None:
        rng = np.random.default_rng(8)
        for members in (2, 3, 4, 5, 8):
            found = slow_ranks.compare(healthy(rng, "pauses", (members, 30), 0.01), 0.02)
            seconds = np.log([finding.seconds for finding in found])
            others = [np.median(np.delete(seconds, member)) for member in range(members)]
            np.testing.assert_allclose([finding.slower for finding in found], np.expm1(seconds - others), atol=1e-12)

    def test_noise_does_not_hide_a_slow_member_of_few(self) -> None:
        rng = np.random.default_rng(9)
        for members in (3, 4, 5):
            times = np.exp(rng.normal(0, 0.02, (members, 2000)))
            times[1] *= 1.05
            self.assertAlmostEqual(slow_ranks.compare(times, 0.02)[1].slower, 0.05, delta=0.003)

    def test_every_member_and_step_against_a_loop(self) -> None:
        rng = np.random.default_rng(4)
        for members in (2, 3, 4, 5, 8, 9):
            seconds = np.exp(rng.integers(-3, 4, (members, 50)))  # whole exponents, so that some times are equal
            ratios = slow_ranks.log_ratios(seconds)
            for member in range(members):
                others = np.median(np.log(np.delete(seconds, member, axis=0)), axis=0)
                np.testing.assert_allclose(ratios[member], np.log(seconds[member]) - others, atol=1e-12)

    def test_scores(self) -> None:
        """The median of the values is 2. The median of their deviations 2, 1, 0, 1, 98 is 1."""
        values = np.array([0.0, 1.0, 2.0, 3.0, 100.0])
        np.testing.assert_allclose(slow_ranks.scores(values), np.array([-2, -1, 0, 1, 98]) / 1.4826)
        np.testing.assert_allclose(slow_ranks.scores(values, 10.0), np.array([-0.2, -0.1, 0, 0.1, 9.8]))

    def test_ranks_without_noise_have_finite_scores(self) -> None:
        """Equal times have a median absolute deviation of 0, which is replaced by 0.01 %."""
        seconds = np.ones((8, 20))
        findings = slow_ranks.compare(seconds, 0.02)
        self.assertEqual([(f.slower, f.low, f.high, f.score) for f in findings], [(0.0, 0.0, 0.0, 0.0)] * 8)
        seconds[5] = 1.05
        findings = slow_ranks.compare(seconds, 0.02)
        self.assertEqual([f.slow for f in findings], [rank == 5 for rank in range(8)])
        self.assertAlmostEqual(findings[5].slower, 0.05)
        self.assertAlmostEqual(findings[5].score or 0, np.log(1.05) / 1e-4)

    def test_the_threshold_is_for_the_lower_end(self) -> None:
        seconds = healthy(np.random.default_rng(6), "normal", (8, 100), 0.0)
        seconds[2] *= 1.05
        low = slow_ranks.compare(seconds, 0.02)[2].low
        self.assertTrue(slow_ranks.compare(seconds, low)[2].slow)
        above = slow_ranks.compare(seconds, low + 1e-9)[2]
        self.assertEqual((above.slow, above.unclear), (False, True))

    def test_equal_input_gives_equal_output(self) -> None:
        seconds = healthy(np.random.default_rng(2), "pauses", (6, 30), 0.01)
        self.assertEqual(slow_ranks.compare(seconds, 0.02), slow_ranks.compare(seconds, 0.02))
        slow_ranks.critical_score.cache_clear()
        first = slow_ranks.critical_score(6, 3)
        slow_ranks.critical_score.cache_clear()
        self.assertEqual(slow_ranks.critical_score(6, 3), first)

    def test_two_and_three_ranks_are_accused_where_all_intervals_are_apart(self) -> None:
        for ranks_, factors, slow in (
            (2, (1, 1.05), [1]),
            (2, (1, 1.015), []),
            (3, (1.05, 1, 1), [0]),
            (3, (1.05, 1.05, 1), []),
            (3, (1.04, 1, 1.08), [2]),
        ):
            seconds = healthy(np.random.default_rng(8), "common noise", (ranks_, 200), 0.0)
            findings = slow_ranks.compare(seconds * np.array(factors)[:, None], 0.02)
            self.assertEqual([rank for rank, f in enumerate(findings) if f.slow], slow, factors)
            self.assertEqual({f.score for f in findings}, {None})

    def test_a_node_that_is_slow_as_a_whole(self) -> None:
        rng = np.random.default_rng(12)
        hosts = [f"n{rank // 4}" for rank in range(16)]
        seconds = healthy(rng, "common noise", (16, 100), 0.003)
        seconds[8:12] *= 1.05
        findings = slow_ranks.examine(seconds, hosts, 0.02)
        self.assertEqual((findings.slow_nodes, findings.slow_ranks), (["n2"], []))
        seconds[1] *= 1.06
        findings = slow_ranks.examine(seconds, hosts, 0.02)
        self.assertEqual((findings.slow_nodes, findings.slow_ranks, findings.unclear_ranks), (["n2"], [1], []))

    def test_one_slow_rank_is_no_slow_node(self) -> None:
        seconds = healthy(np.random.default_rng(13), "normal", (4, 200), 0.001)
        seconds[3] *= 1.08  # makes the median of rank 3's node, which has two ranks, 4 % slower
        findings = slow_ranks.examine(seconds, ["a", "a", "b", "b"], 0.02)
        self.assertTrue(findings.nodes["b"].slow)
        self.assertEqual((findings.slow_nodes, findings.slow_ranks), ([], [3]))

    def test_one_of_two_nodes(self) -> None:
        """All ranks of one node are slow. They are half of all ranks, so no rank is an outlier. The node must be found
        slow."""
        seconds = healthy(np.random.default_rng(14), "normal", (8, 200), 0.001)
        seconds[4:] *= 1.05
        findings = slow_ranks.examine(seconds, ["a"] * 4 + ["b"] * 4, 0.02)
        self.assertEqual((findings.slow_nodes, findings.slow_ranks, findings.unclear_ranks), (["b"], [], []))

    def test_nodes_are_compared_only_if_one_has_several_ranks_and_there_are_others(self) -> None:
        seconds = np.ones((4, 10))
        for hosts in ([], ["a"] * 4, ["a", "b", "c", "d"]):
            self.assertEqual(slow_ranks.examine(seconds, hosts, 0.02).nodes, {})
        self.assertEqual(list(slow_ranks.examine(seconds, ["b", "a", "b", "c"], 0.02).nodes), ["b", "a", "c"])


class StatisticsTest(unittest.TestCase):
    """Counts verdicts on simulated runs with fixed seeds."""

    def test_the_largest_score_of_healthy_members_passes_the_critical_one_as_rarely_as_it_says(self) -> None:
        """The largest score is expected above the critical score in 3 % of 4000 runs, which is 120. The standard error
        of this count is 11."""
        for members in (4, 5, 16):
            rng = np.random.default_rng(members)
            seconds = np.exp(0.01 * rng.standard_normal((members, 4000)))
            largest = slow_ranks.scores(slow_ranks.log_ratios(seconds).T).max(axis=1)
            self.assertAlmostEqual(np.sum(largest > slow_ranks.critical_score(members)), 120, delta=40)

    def test_an_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """Two ranks differ by 3 %. In 99 % of 1000 series the interval should contain 3 %. The standard
        error of this share is 0.3 %."""
        for noise in ("normal", "heavy tails", "autocorrelation", "common noise", "pauses"):
            for steps in (10, 60):
                rng = np.random.default_rng(steps)
                held = 0
                for _ in range(1000):
                    seconds = healthy(rng, noise, (2, steps), 0.0) * np.array([[1.03], [1.0]])
                    finding = slow_ranks.compare(seconds, 0.02)[0]
                    held += finding.low <= 0.03 <= finding.high
                # A series of 10 steps is too short to show its autocorrelation, so fewer intervals contain the truth.
                least = 935 if (noise, steps) == ("autocorrelation", 10) else 980
                self.assertGreaterEqual(held, least, f"{noise}, {steps} steps")

    def test_a_rank_that_is_5_percent_slower_is_found(self) -> None:
        for noise in NOISE:
            for members in (8, 64):
                rng = np.random.default_rng(21)
                hits = beside = 0
                for _ in range(100):
                    seconds = healthy(rng, noise, (members, 100), 0.003)
                    seconds[members // 3] *= 1.05
                    slow = [rank for rank, f in enumerate(slow_ranks.compare(seconds, 0.02)) if f.slow]
                    hits += members // 3 in slow
                    beside += len(slow) - (members // 3 in slow)
                self.assertGreaterEqual(hits, 95, f"{noise}, {members} ranks")
                self.assertLessEqual(beside, members, f"{noise}, {members} ranks")

    def test_at_most_one_healthy_rank_in_a_hundred_is_accused(self) -> None:
        """Tests the usual threshold, and a threshold near 0, where only the outlier rule decides.

        Without a threshold, 0.75 % of the ranks in worlds of four are expected to be accused: 37 of this test's 4900.
        """
        for members in (4, 8, 32):
            accused = {0.02: 0, 1e-9: 0}
            simulated = 0
            for noise in NOISE:
                rng = np.random.default_rng(33)
                for _ in range(700 // members):
                    seconds = healthy(rng, noise, (members, 60), 0.02)
                    simulated += members
                    for threshold in accused:
                        accused[threshold] += sum(f.slow for f in slow_ranks.compare(seconds, threshold))
            for threshold, count in accused.items():
                self.assertLessEqual(100 * count / simulated, 1, f"{members} ranks, threshold {threshold}")

    def test_two_and_three_ranks_that_differ_by_less_than_the_threshold_are_not_accused(self) -> None:
        for members in (2, 3):
            for noise in NOISE:
                rng = np.random.default_rng(34)
                accused = sum(
                    finding.slow
                    for _ in range(300 // members)
                    for finding in slow_ranks.compare(healthy(rng, noise, (members, 60), 0.005), 0.02)
                )
                self.assertLessEqual(accused, 3, f"{members} ranks, {noise}")


class StoreTest(FolderTest):
    """Runs hvdb ranks on stores with known slow ranks."""

    def put(self, seconds: np.ndarray, kind: str = "compute_seconds") -> None:
        """Replaces every run's samples of `kind` by `seconds`, and puts four ranks on each node."""
        samples = [(values.astype("<f8").tobytes(), len(values), kind, rank) for rank, values in enumerate(seconds)]
        places = [(f"n{rank // 4}", rank % 4, rank) for rank in range(len(seconds))]
        connection = sqlite3.connect(self.db)
        with connection:
            connection.executemany("UPDATE sample SET data = ?, count = ? WHERE kind = ? AND rank = ?", samples)
            connection.executemany("UPDATE rank SET host = ?, local_rank = ? WHERE rank = ?", places)
        connection.close()

    def make(
        self, world: int = 8, steps: int = 60, slow: Sequence[int] = (), factor: float = 1.05, **spec: object
    ) -> str:
        """Makes a store with one full run in which the ranks `slow` are slower by `factor`. Returns the run's UUID."""
        spec = {"phases": ("full",), "columns": {"nodes": -(-world // 4)}, **spec}
        made = make(self.db, SessionSpec(ranks=world, steps=steps, **spec))
        seconds = healthy(np.random.default_rng(5), "common noise", (world, steps), 0.001)
        seconds[list(slow)] *= factor
        self.put(seconds)
        return made[0]["full"]

    def call(self, *words: object, code: int = 0) -> tuple[str, str]:
        """Runs `hvdb ranks STORE words`. Returns standard output and standard error."""
        _, out, err = call("ranks", self.db, *words, code=code)
        self.assertNotRegex(out + err, CONTROLS)
        return out, err

    def refused(self, message: str, *words: object, code: int) -> None:
        refused(message, "ranks", self.db, *words, code=code)

    def test_a_slow_rank_is_named(self) -> None:
        uuid = self.make(slow=[5])
        out, err = self.call(code=1)
        lines = out.splitlines()
        self.assertEqual(err, "")
        self.assertIn(f"run {uuid[:8]} of ", lines[0])
        self.assertIn("compute_seconds (forward and backward", lines[1])
        self.assertEqual(lines[2].split()[:5], ["rank", "host", "node", "device", "ms"])
        self.assertRegex(lines[4], r"^ +5  n1 +1  cpu +\d+ +[45]\.\d \[[34]\.\d, [56]\.\d\]  slow$")
        self.assertEqual([line.endswith("  ok") for line in lines[5:12]], [True] * 7)
        closing = r"^rank 5 \(host n1, cpu\) is [45]\.\d % \[\d\.\d, \d\.\d\] slower than the median of the other"
        self.assertRegex(lines[12], closing)

    def test_a_reader_that_left_does_not_change_the_verdict(self) -> None:
        self.make(slow=[5])
        for words in ((), ("--json",)):
            self.assertEqual(unread(SCRIPTS / "ranks", self.db, *words), (1, ""))

    def test_nobody_is_slow(self) -> None:
        self.make()
        self.assertIn("\nno rank is slower than the others by 2 % or more\n", self.call()[0])

    def test_what_an_interval_does_not_exclude_is_said(self) -> None:
        self.make(world=4, steps=12)
        self.put(healthy(np.random.default_rng(1), "normal", (4, 12), 0) ** 3)
        self.assertRegex(self.call()[0], r"2 % or more, as far as can be told: intervals reach up to \d\.\d %\n")

    def test_other_load_lowers_the_certainty(self) -> None:
        self.make(slow=[2], factor=1.025)
        connection = sqlite3.connect(self.db)
        self.addCleanup(connection.close)
        row = "INSERT OR REPLACE INTO provenance (run_uuid, key, value, in_fingerprint) SELECT uuid, ?, ?, 0 FROM run"
        for used, busy in (("0.05 of 8", False), ("1.20 of 8", True)):
            with connection:
                connection.execute(row, ("measurement.other_processors", used))
            self.assertEqual("other programs" in self.call(code=3)[0], busy)
        load = r"other programs used 1\.20 of 8 processors meanwhile"
        unclear = rf"\nrank 2 .* is not clear: slower by \d\.\d % \[.*\]: {load}; stop them and measure again\n"
        self.assertRegex(self.call(code=3)[0], unclear)
        self.assertRegex(self.call("--threshold", 1, code=1)[0], rf"\nnote: {load}: times are uncertain\n")

    def test_a_rank_that_may_be_slow(self) -> None:
        """The rank's interval includes the threshold, so the rank must be called neither slow nor healthy."""
        self.make(slow=[2], factor=1.025)
        out, _ = self.call(code=3)
        line = (
            r"\nrank 2 \(host n0, cpu\) may be slow, by \d\.\d % \[.*\]: its interval reaches below 2 %; more samples"
        )
        self.assertRegex(out, line)
        self.call("--threshold", 1, code=1)
        self.call("--threshold", 4, code=0)

    def test_a_rank_among_others_that_differ_as_much(self) -> None:
        self.make(world=4)
        self.put(np.outer((1.00, 1.06, 1.10, 1.20), healthy(np.random.default_rng(1), "normal", (1, 60), 0)[0]))
        out, _ = self.call(code=3)
        self.assertRegex(out, r"\nrank 3 \(.*: the others differ from each other too much, or too few")

    def test_a_slow_node_is_named_and_not_its_ranks(self) -> None:
        self.make(world=16, slow=range(4, 8))
        out, _ = self.call(code=1)
        self.assertRegex(out, r"\nall 4 ranks of node n1 are slow: the node is \d\.\d % \[\d\.\d, \d\.\d\] slower than")
        self.assertEqual((out.count("  slow node\n"), out.count("\nrank ")), (4, 1), out)

    def test_two_ranks_have_no_majority(self) -> None:
        self.make(world=2, slow=[1])
        out, _ = self.call(code=1)
        self.assertIn("\nrank 1 (host n0, cpu) is ", out)
        self.assertIn("\nnote: 2 ranks have no majority", out)

    def test_only_the_slowest_are_listed(self) -> None:
        self.make(world=20, slow=[7])
        self.assertIn("\nthe slowest 16 of 20 ranks (--all shows them all)\n", self.call(code=1)[0])
        out = self.call("--all", code=1)[0]
        self.assertNotIn("--all", out)
        self.assertEqual(out.count("  ok\n"), 19)

    def test_json(self) -> None:
        uuid = self.make(slow=[5])
        document = json.loads(self.call("--json", code=1)[0])
        (run,) = document["runs"]
        self.assertEqual((document["threshold"], document["confidence"], document["refused"]), (0.02, 0.99, {}))
        self.assertEqual((run["run"], run["slow_ranks"], run["slow_nodes"], run["exit_code"]), (uuid, [5], [], 1))
        self.assertEqual([rank["rank"] for rank in run["ranks"]], list(range(8)))
        self.assertAlmostEqual(run["ranks"][5]["slower"], 0.05, delta=0.01)
        self.assertEqual(set(run["nodes"]), {"n0", "n1"})

    def test_what_is_chosen(self) -> None:
        made = make(
            self.db,
            SessionSpec(started="2026-01-01T00:00:00.000Z"),
            SessionSpec(started="2026-01-02T00:00:00.000Z"),
            SessionSpec(started="2026-01-03T00:00:00.000Z", traced=1),
            SessionSpec(started="2026-01-04T00:00:00.000Z", origin="simulated"),
            SessionSpec(started="2026-01-05T00:00:00.000Z", status="incomplete"),
        )

        def shown(*words: object) -> list[str]:
            return [run["run"] for run in json.loads(call("ranks", self.db, "--json", *words)[1])["runs"]]

        self.assertEqual(set(shown()), {made[1]["none"], made[1]["full"]})
        self.assertEqual(shown("--phase", "full"), [made[1]["full"]])
        self.assertEqual(shown("--run", made[0]["none"][:8]), [made[0]["none"]])
        self.assertEqual(shown("--phase", "full", "--traced"), [made[2]["full"]])
        self.assertEqual(shown("--phase", "none", "--origin", "simulated"), [made[3]["none"]])
        self.assertEqual(shown("--phase", "full", "--incomplete"), [made[4]["full"]])
        said = self.call()[0]
        for line in ("5 of one rank", "2 older of the same configuration (--run shows them)", "2 traced or profiled"):
            self.assertIn(f"\nleft out: {line}", said)

    def test_one_rank_has_nobody_beside_it(self) -> None:
        make(self.db, SessionSpec())
        self.refused("one rank has no others", "--phase", "solo", code=3)

    def test_step_times_alone_tell_only_where_nothing_is_reduced(self) -> None:
        """In phase full all ranks have equally long steps, because each rank waits for the slowest rank."""
        make(self.db, SessionSpec(ranks=4, phases=("none", "full")))
        self.change("DELETE FROM sample WHERE kind = 'compute_seconds'")
        self.put(healthy(np.random.default_rng(5), "normal", (4, 60), 0.001), "step_seconds")
        self.refused("step times only .*cannot be told from those that wait for it", "--phase", "full", code=3)
        self.assertIn("own work: step_seconds (", self.call("--phase", "none")[0])
        self.change("DELETE FROM sample")
        self.refused("no samples of its ranks", "--phase", "none", code=3)

    def test_gpus_of_several_models_are_not_compared(self) -> None:
        names = {"gpu.name": ("NVIDIA H200; NVIDIA H100", 1)}
        self.make(provenance=names, columns={"device": "cuda"})
        self.refused("different GPUs .gpu.name: NVIDIA H200; NVIDIA H100.*measure each model alone", code=4)

    def test_equal_gpus_with_another_power_limit(self) -> None:
        facts = {"gpu.name": ("NVIDIA H200", 1), "gpu.power_limit_watts": ("700; 500", 1)}
        self.make(slow=[6], provenance=facts, columns={"device": "cuda"})
        out, _ = self.call(code=1)
        self.assertIn("rank 6 (host n1, GPU 2) is ", out)
        self.assertIn("\nnote: the ranks' GPUs differ in power_limit_watts: 700; 500\n", out)
        self.assertIn(", NVIDIA H200, phase full", out.splitlines()[0])

    def test_samples_that_do_not_tell(self) -> None:
        self.make(steps=9)
        self.refused("9 samples of a rank are too few: 10 at least", code=3)
        self.db.unlink()
        self.make()
        self.change("UPDATE sample SET data = zeroblob(length(data)) WHERE kind = 'compute_seconds' AND rank = 2")
        self.refused("times of 0", code=3)
        self.change("DELETE FROM sample WHERE rank IN (2, 6) AND kind = 'compute_seconds'")
        self.refused("compute_seconds of 2 of its 8 ranks is missing, the first is rank 2", code=3)
        self.change("UPDATE run SET world_size = 2147483647, allocation_size = 2147483647")
        self.refused("of 2147483641 of its 2147483647 ranks is missing", code=3)

    def test_a_rank_with_fewer_samples(self) -> None:
        """A killed job leaves ranks with unequal numbers of samples. Only the samples that all ranks have are used."""
        self.make(slow=[5], status="incomplete")
        self.change("UPDATE sample SET data = substr(data, 1, 320), count = 40 WHERE rank = 3")
        out, _ = self.call("--incomplete", code=1)
        self.assertIn("\nnote: some ranks have up to 20 samples more than others; the first 40 of each are used", out)

    def test_hosts_that_are_not_known(self) -> None:
        self.make(slow=[5])
        self.change("DELETE FROM rank WHERE rank = 5")
        out, _ = self.call(code=1)
        self.assertIn("\nrank 5 (cpu) is ", out)
        self.assertIn("\nnote: the store does not say on which host each rank ran", out)

    def test_hostile_text(self) -> None:
        self.make(world=16, slow=range(4, 8))
        self.change("UPDATE rank SET host = ? || host || ?", HOSTILE, "x" * 10000)
        self.change("UPDATE run SET model = ?, compute_type = ?, started_utc = ?", HOSTILE, HOSTILE, HOSTILE)
        out, _ = self.call("--out", self.folder / "out", "--format", "svg", code=1)
        self.assertIn("node \\x1b[2J\\x1b]0;t", out)
        self.assertLess(max(map(len, out.splitlines()[2:])), 400)
        self.call("--json", code=1)

    def test_the_picture_names_its_run(self) -> None:
        uuid = self.make(world=16, slow=[5])
        out, _ = self.call("--out", self.folder / "out", "--format", "png", "--format", "svg", code=1)
        files = [self.folder / "out" / f"ranks_full_{uuid[:8]}.{form}" for form in ("png", "svg")]
        self.assertEqual(out.splitlines()[-2:], list(map(str, files)))
        self.assertEqual(Image.open(files[0]).text["Description"], f"runs: {uuid}")
        self.assertIn(uuid, files[1].read_text(encoding="utf-8"))

    def test_many_ranks_and_samples(self) -> None:
        """The plot of 512 ranks with 1000 samples each must need only the memory and time that a login node allows."""
        self.make(world=512, steps=1000, slow=[77, 300])
        code = (
            "import resource, sys; sys.path.insert(0, 'scripts'); from hvdb.__main__ import main\n"
            "code = main(sys.argv[1:]); use = resource.getrusage(resource.RUSAGE_SELF)\n"
            "print(code, use.ru_maxrss // 1024, use.ru_utime + use.ru_stime, file=sys.stderr)"
        )
        root = Path(__file__).resolve().parents[2]
        words = ["ranks", str(self.db), "--out", str(self.folder)]
        done = execute(sys.executable, "-B", "-c", code, *words, cwd=root, check=True)
        code, mebibytes, seconds = map(float, done.stderr.split()[-3:])
        self.assertEqual(code, 1, done.stderr)
        self.assertIn("\nrank 77 (", done.stdout)
        self.assertLess(mebibytes, 500)
        self.assertLess(seconds, 30 * slowness())


class PictureTest(unittest.TestCase):
    def test_many_samples_are_drawn_as_medians_of_neighbours(self) -> None:
        ratios = np.array([[1.0, 2.0, 9.0, 5.0, 5.0, 8.0]])
        np.testing.assert_array_equal(plot_ranks.columns(ratios, 6), ratios)
        np.testing.assert_array_equal(plot_ranks.columns(ratios, 2), [[2.0, 5.0]])

    def test_the_scale_of_colours_holds_the_threshold_and_is_not_one_pause(self) -> None:
        percent = np.full((10, 100), 0.5)
        percent[0, 0] = 900.0
        self.assertEqual(plot_ranks.limit(percent, 0.02), 4.0)
        self.assertEqual(plot_ranks.limit(20 * percent, 0.02), 10.0)


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
class ProgramTest(unittest.TestCase):
    def test_a_run_of_the_program(self) -> None:
        """A replay does not compute, so its four ranks are equally fast even if they share cores."""
        with tempfile.TemporaryDirectory() as folder:
            step, db = Path(folder) / "a.replay", Path(folder) / "a.db"
            lines = ["hvd-replay 1", "model tiny", "batch_size 1", "image_size 8", "device test", "compute_type fp32"]
            lines += ["source_run none", "forward_seconds 0", "backward_end_seconds 0.02", "update_seconds 0"]
            lines += ["gradient 100 0.01 0.01 fc.weight", "end 1"]
            step.write_text("\n".join(lines) + "\n", encoding="utf-8")
            words = ["--replay", step, "--comm", "loopback", "--ranks", "4", "--num-warmup-batches", "2", "--quiet"]
            words += ["--num-iters", "20", "--efficiency", "--db", db]
            execute(PROGRAM, *words, timeout=HANG, code=0)
            _, out, _ = call("ranks", db, "--threshold", 900, "--phase", "full", code=0)
            self.assertIn("replayed compute", out)
            self.assertEqual(out.count("  replay  "), 4)
            (full,) = (run for run in runs.load([db]) if run.phase == "full")
            ((_, by_rank),) = runs.samples_of_ranks([(full, rank_work.kind_of(full))])
            for values in by_rank.values():
                self.assertAlmostEqual(float(np.median(values)), 0.02, delta=0.01)
