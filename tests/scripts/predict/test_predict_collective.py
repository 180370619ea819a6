"""The time of a collective: its form is exact where the truth has that form, and its draws cover where it has not."""

import math
import sqlite3
import unittest
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np

from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict import collective
from hvdb.predict.collective import DRIFT, PRIOR_APART, CollectiveTimes, Drift, gather
from hvdb.predict.curve import Curve, ascending
from hvdb.predict.steps import Steps, World, steps

RECORDED = REPOSITORY / "results/recorded/2026-11-25-ring/after.db"
SIZES = [1 << k for k in range(14, 24)]


def cells(
    nodes: tuple[int, ...] = (2, 3, 4),
    algorithm: str = "ring",
    noise: float = 0.0,
    random: np.random.Generator | None = None,
    factor: Callable[[int], float] = lambda _: 1.0,
) -> list[CollectiveTimes]:
    """All-reduces whose truth is steps x latency_and_rate(bytes of a step) x factor(nodes), times lognormal noise.
    The smallest message tells the latencies that hide behind others."""
    made = []
    for count in nodes:
        world = World(count)
        form = steps("all_reduce", algorithm, world)
        for size in SIZES:
            empty = latency_and_rate(SIZES[0] * form.share)
            seconds = form.count * latency_and_rate(size * form.share) - form.hidden * empty
            samples = np.full(20, seconds * factor(count))
            if random:
                samples = samples * np.exp(noise * random.standard_normal(20))
            made.append(CollectiveTimes(world, size, samples))
    return made


def latency_and_rate(step_bytes: float) -> float:
    return 50e-6 + step_bytes / 1e9


class Form(unittest.TestCase):
    def test_steps_are_those_of_the_algorithms(self) -> None:
        for operation, algorithm, world, form in (
            ("all_reduce", "ring", World(8), Steps(14, 1 / 8)),
            ("all_reduce", "ring", World(8, 4), Steps(14, 1 / 32)),
            ("all_reduce", "flat ring", World(8, 4), Steps(62, 1 / 32)),
            ("reduce_scatter", "ring", World(4), Steps(4, 1 / 4)),
            ("all_gather", "ring", World(4), Steps(3, 1 / 4)),
            ("reduce_scatter", "ring", World(4, 2), Steps(8, 1 / 8)),
            ("all_gather", "ring", World(4, 2), Steps(7, 1 / 8)),
            ("all_reduce", "doubling", World(8), Steps(3, 1)),
            ("all_reduce", "doubling", World(6), Steps(4, 1, hidden=1, odd=True)),
            ("barrier", "", World(7), Steps(4, 0, odd=True)),
        ):
            with self.subTest(f"{operation} by {algorithm} on {world}"):
                self.assertEqual(steps(operation, algorithm, world), form)
        with self.assertRaisesRegex(HvdbError, "all_to_all by 'pairwise'"):
            steps("all_to_all", "pairwise", World(8))

    def test_latencies_of_doubling_that_hide_behind_others(self) -> None:
        # 3 nodes: the third gives its data to the first after one latency, when the second's is there already.
        for nodes, hidden in ((2, 0), (3, 1), (4, 0), (5, 1), (6, 1), (7, 0), (8, 0), (512, 0)):
            with self.subTest(nodes):
                self.assertEqual(steps("all_reduce", "doubling", World(nodes)).hidden, hidden)
                self.assertEqual(steps("barrier", "", World(nodes)).hidden, hidden)
                self.assertEqual(steps("all_reduce", "ring", World(nodes)).hidden, 0)
        for nodes in range(2, 70):  # as messages travel: a place has what its partner has, one latency later
            whole = 1 << (nodes.bit_length() - 1)
            at = [int(place < nodes - whole) for place in range(whole)]
            for distance in (1 << k for k in range(whole.bit_length() - 1)):
                at = [max(at[place], at[place ^ distance] + 1) for place in range(whole)]
            last = max([*at, *(at[place] + 1 for place in range(nodes - whole))])
            self.assertEqual(steps("all_reduce", "doubling", World(nodes)).latencies, last, nodes)
        curve = Curve(np.array([1024.0, 4096.0, 65536.0]), np.array([1.0, 1.5, 9.0]))
        form = steps("all_reduce", "doubling", World(6))
        seconds = [form.seconds(curve, size) for size in curve.bytes]
        self.assertEqual(seconds, [3.0, 4 * 1.5 - 1, 4 * 9.0 - 1])
        np.testing.assert_allclose(form.of_a_step(seconds), curve.seconds)

    def test_a_session_is_slow_at_all_sizes(self) -> None:
        still = cells()
        slow = [CollectiveTimes(cell.world, cell.size, 1.2 * cell.samples, "slow") for cell in still]
        cost = gather("all_reduce", "ring", [*still, *slow])
        drawn = [cost.draw(np.random.default_rng(number)).launched[World(4)].seconds for number in range(40)]
        ratios = [seconds / drawn[0] for seconds in drawn]
        for ratio in ratios:
            np.testing.assert_allclose(ratio, ratio[0])
        self.assertEqual({round(float(ratio[0]), 6) for ratio in ratios} - {1.0, 1.2, round(1 / 1.2, 6)}, set())
        self.assertGreater(len({round(float(ratio[0]), 6) for ratio in ratios}), 1)

    def test_ascending_is_the_nearest(self) -> None:
        np.testing.assert_allclose(ascending([1, 3, 2, 4]), [1, 2.5, 2.5, 4])
        np.testing.assert_allclose(ascending([3, 2, 1]), [2, 2, 2])

    def test_a_curve_goes_on_as_a_line_below_and_in_proportion_above(self) -> None:
        curve = Curve(np.array([1024.0, 4096.0]), np.array([1.0, 2.5]))
        self.assertEqual([curve.at(b) for b in (0, 512, 1024, 4096, 8192)], [0.5, 0.75, 1, 2.5, 5])
        self.assertAlmostEqual(curve.at(2560), 1.75)
        steep = Curve(curve.bytes, np.array([1.0, 5.0]))
        self.assertEqual([steep.at(b) for b in (0, 512)], [0, 0.5])
        self.assertEqual(Curve(curve.bytes, curve.seconds, fall=0.0).at(0), 1)

    def test_a_draw_below_the_smallest_step_lies_around_the_line(self) -> None:
        # 512 nodes make steps of 64 bytes, and the smallest that were measured have 4 KiB.
        cost = gather("all_reduce", "ring", cells())
        world, size = World(512), 1 << 15
        true = 2 * 511 * latency_and_rate(size / 512)
        self.assertAlmostEqual(cost.middle.seconds(world, size) / true, 1, places=6)
        random = np.random.default_rng(1)
        draws = [cost.draw(random) for _ in range(200)]
        still = [replace(d, a_step=tuple(replace(form, drift=Drift()) for form in d.a_step)) for d in draws]
        low, high = np.quantile([d.seconds(world, size) for d in still], [0.05, 0.95])
        # The slope below the smallest step moves it by 4 %; three worlds that agree may lie 1.4 % apart.
        self.assertTrue(0.92 * true < low < 0.97 * true and 1.03 * true < high < 1.08 * true, (low, true, high))

    def test_a_truth_of_the_form_is_found_on_every_world(self) -> None:
        for algorithm in ("ring", "doubling"):
            cost = gather("all_reduce", algorithm, cells(algorithm=algorithm))
            for nodes in (2, 4, 8, 64, 512):
                world = World(nodes)
                form = steps("all_reduce", algorithm, world)
                for size in (1 << 17, 1 << 20, 1 << 23):
                    if not cost.covers(world, size):
                        continue
                    true = form.count * latency_and_rate(size * form.share)
                    self.assertLess(abs(math.log(cost.middle.seconds(world, size) / true)), 1e-6, (nodes, size))
            assert cost.spread
            self.assertLess(cost.spread.apart.max(), PRIOR_APART, "worlds that agree are no prior")

    def test_outside_of_the_measured_steps_is_told(self) -> None:
        cost = gather("all_reduce", "ring", cells())
        self.assertTrue(cost.covers(World(512), 1 << 23))  # steps of 16 KiB
        self.assertFalse(cost.covers(World(512), 1 << 20))  # of 2 KiB
        self.assertFalse(cost.covers(World(2), 1 << 30))

    def test_one_node_has_no_steps_between_nodes(self) -> None:
        with self.assertRaisesRegex(TooLittle, "all_reduce by 'ring' on 1 ranks of 1 node has 0 sizes"):
            gather("all_reduce", "ring", cells()).require(World(1))

    def test_what_is_too_little_is_refused(self) -> None:
        for wanted, given in (
            ("2 numbers of nodes \\(2, 3\\), and 3", cells(nodes=(2, 3))),
            ("0 numbers of nodes \\(none\\)", []),
            ("4 nodes has 1 sizes", [*cells(nodes=(2, 3)), cells(nodes=(4,))[0]]),
            ("unlike", [*cells(), CollectiveTimes(World(2, 2), 8, np.ones(3))]),
        ):
            with self.subTest(wanted), self.assertRaisesRegex(HvdbError, wanted):
                gather("all_reduce", "ring", given).require(World(8))


class Recorded(unittest.TestCase):
    def test_eight_nodes_from_two_three_and_four(self) -> None:
        """On a shaped network, larger steps of 8 nodes take what 2, 3 and 4 nodes say, within 3 %."""
        connection = sqlite3.connect(f"{RECORDED.as_uri()}?immutable=1", uri=True)
        rows = connection.execute(
            "SELECT s.nodes, c.bytes, m.data FROM coll_session s JOIN coll_cell c ON c.session_uuid = s.uuid"
            " JOIN coll_sample m ON m.session_uuid = s.uuid AND m.seq = c.seq AND m.kind = 'seconds'"
        ).fetchall()
        connection.close()
        # Each world has four sizes. Their steps are of 64 KiB to 4 MiB, so they meet at equal bytes.
        every = [CollectiveTimes(World(nodes), size, np.frombuffer(data)) for nodes, size, data in rows]
        with mock.patch.object(collective, "MIN_SIZES", 4):
            middle = gather("all_reduce", "ring", [cell for cell in every if cell.world.nodes < 8]).middle
        errors = {
            cell.size: middle.seconds(cell.world, cell.size) / float(np.median(cell.samples)) - 1
            for cell in every
            if cell.world.nodes == 8
        }
        self.assertEqual(len(errors), 4)
        for size, error in errors.items():
            limit = 0.12 if size < 1 << 20 else 0.03  # a step of 64 KiB is shorter than the shaper's burst
            self.assertLess(abs(error), limit, (size, errors))


class Draws(unittest.TestCase):
    def test_equal_seeds_give_equal_draws(self) -> None:
        cost = gather("all_reduce", "ring", cells(noise=0.05, random=np.random.default_rng(1)))
        one, two = (cost.draw(np.random.default_rng(7)).seconds(World(64), 1 << 22) for _ in range(2))
        self.assertEqual(one, two)

    def test_a_drift_without_scatter_is_found(self) -> None:
        drift = math.log(1.05)
        cost = gather("all_reduce", "ring", cells(factor=lambda nodes: math.exp(drift * math.log2(nodes))))
        assert cost.spread
        self.assertTrue(0.3 * drift < cost.spread.drift.all < drift, cost.spread.drift)

    def test_a_latency_that_grows_with_the_nodes_is_found(self) -> None:
        """Each step takes 10 us more per doubling: large steps drift by nothing, and 8 nodes are as they would be."""
        made = cells()
        for cell in made:
            later = steps("all_reduce", "ring", cell.world).count * 10e-6 * (math.log2(cell.world.nodes) - 1)
            cell.samples[:] += later
        cost = gather("all_reduce", "ring", made)
        assert cost.spread
        self.assertGreater(cost.spread.drift.latency, 0.08)
        self.assertLess(abs(cost.spread.drift.all), 0.01)
        for size in (1 << 17, 1 << 23):
            true = 14 * (latency_and_rate(size / 8) + 2 * 10e-6)
            self.assertAlmostEqual(cost.middle.seconds(World(8), size) / true, 1, delta=0.06)

    def test_many_worlds_narrow_the_drift(self) -> None:
        few, many = (gather("all_reduce", "ring", cells(nodes=nodes)) for nodes in ((2, 3, 4), (2, 4, 8, 16, 32)))
        assert few.spread and many.spread
        self.assertTrue(many.spread.drift.error < 0.5 * few.spread.drift.error < 0.5 * DRIFT)

    def test_worlds_that_are_no_power_of_two_are_a_kind_of_their_own(self) -> None:
        # An odd world takes 1.3 times as long a step. 3 nodes tell of 6, and 2 and 4 of 8, without a wide band.
        odd = cells(algorithm="doubling", factor=lambda nodes: 1.3 if nodes == 3 else 1.0)
        cost = gather("all_reduce", "doubling", odd)
        random = np.random.default_rng(1)
        draws = [cost.draw(random) for _ in range(200)]
        for nodes, factor in ((6, 1.3), (8, 1.0)):
            form = steps("all_reduce", "doubling", World(nodes))
            size = 1 << 20
            true = factor * (form.count * latency_and_rate(size) - form.hidden * latency_and_rate(SIZES[0]))
            self.assertAlmostEqual(cost.middle.seconds(World(nodes), size) / true, 1, delta=1e-6)
            low, high = np.quantile([draw.seconds(World(nodes), size) for draw in draws], [0.05, 0.95])
            self.assertTrue(0.9 * true < low < true < high < 1.12 * true, (nodes, low / true, high / true))
        without = gather("all_reduce", "doubling", cells(nodes=(2, 4, 8), algorithm="doubling"))
        drawn = [without.draw(random).seconds(World(6), 1 << 20) for _ in range(200)]
        self.assertGreater(np.quantile(drawn, 0.95) / np.quantile(drawn, 0.05), 1.3, "no such world was measured")

    def test_a_draw_drifts_by_as_much_at_every_doubling(self) -> None:
        cost = gather("all_reduce", "ring", cells())
        random = np.random.default_rng(1)
        draws = [cost.draw(random) for _ in range(200)]
        size = 1 << 19
        for draw in draws:
            near, middle, far = (draw.seconds(World(n), n * size) / (2 * (n - 1)) for n in (8, 64, 512))
            form = draw.a_step[0]
            step, all_steps = 3 * form.drift.latency * form.curve.seconds[0], form.drift.all
            (centre,) = {float(at) for at in form.centre[form.curve.bytes >= size / 2][:2]}
            for lower, higher, nodes in ((near, middle, 8), (middle, far, 64)):
                expected = step * math.exp((math.log2(nodes) - centre) * all_steps)
                self.assertAlmostEqual(higher * math.exp(-3 * all_steps) - lower, expected, delta=1e-9 * near)
        assert cost.spread
        drifts = [d.a_step[0].drift.all for d in draws]
        self.assertAlmostEqual(np.std(drifts), cost.spread.drift.error, delta=0.003)

    def test_draws_lie_around_the_middle_where_latency_decides(self) -> None:
        # Steps of 8 KiB take 50 us of latency and 8 us for their bytes, and nobody knows how the latency drifts.
        cost, random = gather("all_reduce", "ring", cells()), np.random.default_rng(1)
        draws = [cost.draw(random) for _ in range(600)]
        for nodes in (8, 64):
            size = nodes << 13
            middle = np.median([draw.seconds(World(nodes), size) for draw in draws])
            self.assertAlmostEqual(middle / cost.middle.seconds(World(nodes), size), 1, delta=0.01)

    def test_another_launch_on_a_measured_world_differs(self) -> None:
        cost = gather("all_reduce", "ring", cells(noise=0.05, random=np.random.default_rng(1)))
        random, world, size = np.random.default_rng(1), World(4), 1 << 20
        draws = [cost.draw(random) for _ in range(200)]
        same = np.std([math.log(draw.same_launch().seconds(world, size)) for draw in draws])
        again = np.std([math.log(draw.seconds(world, size)) for draw in draws])
        self.assertTrue(0.005 < math.sqrt(again**2 - same**2) < 0.03, (same, again))

    def test_the_band_covers_nine_tenths_of_constructed_truths(self) -> None:
        """Worlds differ by a factor of 3 %, and drift by 1 % per doubling: the 90 % bands hold the truth."""
        random = np.random.default_rng(20261126)
        larger = (8, 128)
        inside, widths = dict.fromkeys(larger, 0), {nodes: [] for nodes in larger}
        for _ in range(100):
            drift = random.normal(0, 0.01)
            own = {n: math.exp(random.normal(0, 0.03) + drift * math.log2(n)) for n in (2, 3, 4, *larger)}
            cost = gather("all_reduce", "ring", cells(noise=0.05, random=random, factor=own.__getitem__))
            draws = [cost.draw(random) for _ in range(60)]
            for nodes in larger:
                size = nodes << 19
                low, high = np.quantile([draw.seconds(World(nodes), size) for draw in draws], [0.05, 0.95])
                true = 2 * (nodes - 1) * latency_and_rate(1 << 19) * own[nodes]
                inside[nodes] += bool(low <= true <= high)
                widths[nodes].append((high - low) / true)
        for nodes, widest in ((8, 0.35), (128, 0.5)):
            # If each of 100 bands holds the truth with probability 0.9, at least 83 of them do so in 98 of 100 cases.
            self.assertGreaterEqual(inside[nodes], 83, (nodes, inside))
            self.assertLess(np.median(widths[nodes]), widest, nodes)


if __name__ == "__main__":
    unittest.main()
