"""Tests that a report gives advice exactly where there is evidence for it. Expected figures are computed by hand."""

from __future__ import annotations

import dataclasses
import unittest
from pathlib import Path

import numpy as np

from synthetic_store import REPOSITORY  # noqa: F401  (puts scripts/ on the path)

from hvdb.base.interval import Interval
from hvdb.judge import rank_work
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read.runs import Component, Fact, Run, Samples
from hvdb.show import advice
from hvdb.show.advice import Evidence, ReductionCost

MIB = 1 << 20


def make_run(
    parts: dict[str, Component] | None = None,
    facts: dict[str, object] | None = None,
    reduce_seconds: float | None = None,
    **columns: object,
) -> Run:
    """Returns a run of ResNet-101 on one node, with 8 ranks of 4 threads and 8 buckets of 25 MiB."""
    usual = {"uuid": "1a2b3c4d-0000", "model": "resnet101", "device": "cpu", "allreduce_type": "fp32"}
    usual |= {"schedule": "static", "world_size": 8, "nodes": 1, "threads": 4}
    usual |= {"buckets": 8, "gradient_bytes": 200 * MIB, "step_seconds": 1.0}
    run = Run({**usual, **columns}, {}, Path("a.db"))
    run.provenance = {key: Fact(str(value), True) for key, value in (facts or {}).items()}
    run.decomposition = parts or {}
    if reduce_seconds is not None:
        values = np.full(10, reduce_seconds)
        run.samples["reduce_seconds"] = Samples(values, values)
    return run


def part(fraction: float, half: float = 0.01, seconds: float = 0.3) -> Component:
    return Component(Interval(fraction, fraction - half, fraction + half), seconds)


def evidence(
    run: Run, *peers: Run, efficiency: Interval | None = None, examined: rank_work.Examined | None = None
) -> Evidence:
    cell = EfficiencyRow(
        {"model": run.model}, "full", run.world_size, 8, 1, 1, Interval(1.0), "images", efficiency, None, None, ()
    )
    return Evidence(run, cell, [run, *peers], examined)


def examined(slow: int | None) -> rank_work.Examined:
    """Examines eight ranks whose steps vary by 1 %. Rank `slow` is 10 % slower than the others."""
    seconds = 1 + 0.01 * np.random.default_rng(1).standard_normal((8, 100))
    if slow is not None:
        seconds[slow] *= 1.1
    run = make_run()
    run.ranks = [{"rank": rank, "host": "n1", "local_rank": rank} for rank in range(8)]
    return rank_work.examine(run, "compute_seconds", dict(enumerate(seconds)), 0.02, 1)


class RulesTest(unittest.TestCase):
    """Tests each rule twice: with the rule's evidence, and without one part of the evidence."""

    def test_latency_bound_buckets(self) -> None:
        """At 2 ms per bucket and 0.01 ms per MiB, 8 buckets of 25 MiB take 16 + 2 ms, so 89 % is latency."""
        exposed = {"exposed_communication": part(0.31)}
        run = make_run(exposed, reduce_seconds=0.018)
        other = make_run(reduce_seconds=0.006, buckets=2)
        said = str(advice.exposed_communication(evidence(run, other)))
        self.assertIn("exposed communication is 31.0 % [30.0, 32.0] of the step", said)
        self.assertIn("the buckets of 25.0 MiB are latency-bound (89 % of their time", said)
        self.assertIn("2 ms per bucket and 0.01 ms per MiB, fitted to 2 runs", said)
        self.assertTrue(said.endswith("try --bucket-mb 64"), said)

    def test_bandwidth_bound_buckets(self) -> None:
        """At 0.1 ms per bucket and 1 ms per MiB, 8 buckets of 25 MiB take 0.8 + 200 ms."""
        exposed = {"exposed_communication": part(0.31)}
        other = make_run(reduce_seconds=0.2002, buckets=2)
        run = make_run(exposed, reduce_seconds=0.2008)
        said = str(advice.exposed_communication(evidence(run, other)))
        self.assertIn("bandwidth-bound (100 % of their time", said)
        self.assertIn("a larger --batch-size", said)
        on_gpu = make_run(exposed, reduce_seconds=0.2008, device="cuda")
        self.assertIn("--allreduce-dtype bf16", str(advice.exposed_communication(evidence(on_gpu, other))))
        on_nodes = make_run(exposed, reduce_seconds=0.2008, nodes=2)
        self.assertIn("--allreduce-dtype bf16", str(advice.exposed_communication(evidence(on_nodes, other))))
        halved = make_run(exposed, reduce_seconds=0.2008, device="cuda", allreduce_type="bf16")
        self.assertNotIn("--allreduce-dtype", str(advice.exposed_communication(evidence(halved, other))))

    def test_few_buckets_that_hide_nothing(self) -> None:
        parts = {"exposed_communication": part(0.3, seconds=0.3)}
        run = make_run(parts, reduce_seconds=0.32, buckets=1)
        said = str(advice.exposed_communication(evidence(run)))
        self.assertIn("94 % of the reductions are exposed, because 1 bucket of 200.0 MiB", said)
        self.assertTrue(said.endswith("try smaller buckets, --bucket-mb 25.0"), said)
        hidden = make_run(parts, reduce_seconds=0.9, buckets=1)
        self.assertNotIn("smaller", str(advice.exposed_communication(evidence(hidden))))

    def test_one_size_of_buckets_does_not_tell(self) -> None:
        run = make_run({"exposed_communication": part(0.31)}, reduce_seconds=0.018)
        said = str(advice.exposed_communication(evidence(run, make_run(reduce_seconds=0.02))))
        self.assertTrue(said.endswith("measure --bucket-mb 64 too"), said)

    def test_communication_without_evidence(self) -> None:
        for run in (
            make_run({"exposed_communication": part(0.31)}),  # reductions were not timed
            make_run({"exposed_communication": part(0.31, half=0.4)}, reduce_seconds=0.1),  # the interval includes 0
            make_run({"exposed_communication": part(0.015)}, reduce_seconds=0.1),  # too small for advice
            make_run({"exposed_communication": Component(Interval(0.3), 0.3)}, reduce_seconds=0.1),  # no interval
            make_run({"exposed_communication": part(0.31)}, reduce_seconds=0.1, schedule="negotiated"),
            make_run({"exposed_communication": part(0.31)}, reduce_seconds=0.1, buckets=0),
        ):
            self.assertIsNone(advice.exposed_communication(evidence(run)), run.columns)

    def test_a_slow_rank(self) -> None:
        said = str(advice.slow_ranks(evidence(make_run(), examined=examined(5))))
        self.assertRegex(said, r"^rank 5 \(host n1, cpu\) is (9|10)\.\d % \[.*slower.*: look at that machine first")
        self.assertIsNone(advice.slow_ranks(evidence(make_run(), examined=examined(None))))

    def test_stragglers_that_are_no_rank(self) -> None:
        run = make_run({"stragglers": part(0.05)})
        self.assertIn("no rank is slow all the time", str(advice.slow_ranks(evidence(run, examined=examined(None)))))
        self.assertIsNone(advice.slow_ranks(evidence(run)), "whether a rank is slow was not seen")

    def test_interference(self) -> None:
        parts = {"interference": part(0.1)}
        said = str(advice.interference(evidence(make_run(parts, {"cpu.cores": 16}))))
        self.assertIn("8 ranks of 4 threads share 16 cores: try --threads 2", said)
        said = str(advice.interference(evidence(make_run(parts, {"cpu.cores": 32}))))
        self.assertIn("with a core for each of 8 x 4 threads", said)
        two_nodes = make_run(parts, {"cpu.cores": 16}, nodes=2)
        self.assertIn("with a core for each of 4 x 4", str(advice.interference(evidence(two_nodes))))
        self.assertIn("; then try fewer ranks of more --threads", said)
        self.assertIsNone(advice.interference(evidence(make_run(parts))), "the cores are not known")
        self.assertIsNone(advice.interference(evidence(make_run(None, {"cpu.cores": 16}))))
        self.assertIsNone(advice.interference(evidence(make_run(parts, {"cpu.cores": 16}, device="cuda"))))

    def test_two_ranks_of_a_node_are_not_made_fewer(self) -> None:
        """On two cores, two ranks of one thread can only lose one of the two ranks, and then nothing scales."""
        parts = {"interference": part(0.1), "overlap_slowdown": part(0.1)}
        for cores, threads, rule, expected in (
            (2, 1, advice.interference, "stop other programs and bind ranks to cores (mpirun --bind-to core)"),
            (2, 2, advice.interference, "try --threads 1"),
            (1, 1, advice.interference, "try fewer ranks on a node"),  # no number of threads gives each a core
            (4, 2, advice.overlap_slowdown, "try one compute thread fewer"),
        ):
            run = make_run(parts, {"cpu.cores": cores}, world_size=2, threads=threads)
            self.assertEqual(rule(evidence(run)).do, expected, (cores, threads))
        three = make_run(parts, {"cpu.cores": 3}, world_size=3, threads=1)
        self.assertIn("fewer ranks", advice.interference(evidence(three)).do)

    def test_a_part_is_evidence_only_if_it_is_known_within_a_factor_of_two(self) -> None:
        for low, high, known in ((0.0200, 0.0453, False), (0.0227, 0.0453, True), (0.03, 0.0601, False)):
            run = make_run({"residual": Component(Interval(0.0412, low, high), 0.3)})
            self.assertEqual(advice.unexplained(evidence(run)) is not None, known, (low, high))

    def test_a_run_whose_speed_or_efficiency_is_not_known_gives_no_evidence(self) -> None:
        run = make_run({"residual": part(0.1)})
        good = evidence(run, efficiency=Interval(0.9, 0.88, 0.92))
        for rate, efficiency, known in (
            (Interval(4.12, 4.0, 4.53), Interval(0.9, 0.88, 0.92), True),
            (Interval(4.12, 2.0, 4.53), Interval(0.9, 0.88, 0.92), False),
            (Interval(4.12, 4.0, 4.53), Interval(0.85, 0.46, 1.01), False),
            (Interval(4.12, 4.0, 4.53), Interval(0.9), False),
        ):
            cell = dataclasses.replace(good.cell, images_per_second=rate, efficiency=efficiency)
            said = advice.unexplained(dataclasses.replace(good, cell=cell))
            self.assertEqual(said is not None, known, (rate, efficiency))

    def test_a_busy_machine(self) -> None:
        parts = {"interference": part(0.1), "stragglers": part(0.05)}
        fact = "measurement.other_processors"
        for used, busy in (
            ("0.92 of 2", True),
            ("0.20 of 2", False),
            ("", False),
            ("nan of 2", False),
            ("1 of x", False),
        ):
            run = make_run(parts, {"cpu.cores": 2, fact: used}, world_size=2, threads=1)
            found = evidence(run, examined=examined(None), efficiency=Interval(0.9, 0.89, 0.91))
            self.assertEqual(advice.busy_machine(found) is not None, busy, used)
            self.assertEqual(len(advice.advise(found)), 1 if busy else 2, "other programs explain these two parts")
        said = str(advice.busy_machine(evidence(make_run(None, {fact: "0.92 of 2"}))))
        self.assertTrue(
            said.startswith("other programs used 0.92 of 2 processors meanwhile: stop other programs"), said
        )

    def test_a_training_by_pytorch_gets_no_options_of_hvd_bench(self) -> None:
        parts = {"input": part(0.1), "residual": part(0.05), "interference": part(0.1)}
        run = make_run(parts, {"cpu.cores": 16}, device="torch")
        (said,) = advice.advise(evidence(run))
        self.assertIn("waiting for input is 10.0 %", str(said))
        self.assertIn("workers of the loader", said.do)
        self.assertIsNone(advice.waiting_for_input(evidence(make_run({"update": part(0.1)}))))

    def test_a_training_by_pytorch_whose_reductions_cost_much_is_to_be_replayed(self) -> None:
        parts = {"exposed_communication": part(0.1), "overlap_slowdown": part(0.2)}
        (said,) = advice.advise(evidence(make_run(parts, device="torch")))
        self.assertIn("reductions cost 20.0 %", said.why)
        self.assertIn("the replay of its step", said.do)
        self.assertIsNone(advice.not_replayed(evidence(make_run({"input": part(0.1)}, device="torch"))))

    def test_overlap_slowdown(self) -> None:
        parts = {"overlap_slowdown": part(0.1)}
        said = str(advice.overlap_slowdown(evidence(make_run(parts, {"cpu.cores": 32}))))
        self.assertIn("8 x 4 compute threads leave none of 32 cores to the reductions", said)
        self.assertIsNone(advice.overlap_slowdown(evidence(make_run(parts, {"cpu.cores": 33}))))
        two = make_run(parts, {"cpu.cores": 2}, world_size=2, threads=1)
        self.assertIsNone(advice.overlap_slowdown(evidence(two)), "no core to spare")

    def test_control_plane(self) -> None:
        parts = {"control_plane": part(0.05)}
        said = str(advice.control_plane(evidence(make_run(parts, schedule="negotiated"))))
        self.assertEqual(said, "negotiation is 5.0 % [4.0, 6.0] of the step: try --schedule static, which has none")
        self.assertIsNone(advice.control_plane(evidence(make_run(parts))))

    def test_a_residual(self) -> None:
        self.assertIn("--timeline-filename", str(advice.unexplained(evidence(make_run({"residual": part(0.05)})))))
        self.assertIsNone(advice.unexplained(evidence(make_run({"residual": part(-0.05)}))), "a gain")

    def test_a_wide_interval(self) -> None:
        said = str(advice.wide_interval(evidence(make_run(), efficiency=Interval(0.9, 0.86, 0.93))))
        self.assertIn("the interval of the efficiency is 7.0 points wide", said)
        self.assertIn("four times as long", said)
        single = evidence(make_run(), efficiency=Interval(0.9, 0.86, 0.93))
        pooled = dataclasses.replace(single, cell=dataclasses.replace(single.cell, sessions=5))
        self.assertIn("four times as many sessions", str(advice.wide_interval(pooled)))
        said = str(advice.wide_interval(evidence(make_run(), efficiency=Interval(0.9))))
        self.assertIn("too few rounds for an interval: measure several times as long", said)
        for efficiency in (Interval(0.9, 0.89, 0.91), Interval(0.9, None, None, 0.8, 0.95), None):
            self.assertIsNone(advice.wide_interval(evidence(make_run(), efficiency=efficiency)))

    def test_no_baseline(self) -> None:
        self.assertIn("--efficiency", str(advice.no_baseline(evidence(make_run()))))
        self.assertIsNone(advice.no_baseline(evidence(make_run(), efficiency=Interval(0.9))))
        self.assertIsNone(advice.no_baseline(evidence(make_run(world_size=1))))

    def test_memory(self) -> None:
        run = make_run(None, {"memory.total_bytes": 1000 * MIB})
        shared = run.gradient_bytes or 0  # both ranks share this memory, and the peak of each includes it
        self.assertGreater(shared, 0)
        run.ranks = [{"rank": i, "host": "n1", "peak_bytes": 475 * MIB + shared} for i in range(2)]
        self.assertIn("950 MiB at their peaks, of 1000 MiB", str(advice.full_memory(evidence(run))))
        for rank in run.ranks:
            rank["peak_bytes"] -= shared // 2 + 26 * MIB
        self.assertIsNone(advice.full_memory(evidence(run)), "with what is shared counted twice it would be 90 %")
        run.ranks[1].update(host="n2", peak_bytes=475 * MIB)
        self.assertIsNone(advice.full_memory(evidence(run)))
        run.ranks[1].update(host="n1", peak_bytes=None)
        self.assertIsNone(advice.full_memory(evidence(run)))

    def test_engines_that_were_not_timed(self) -> None:
        facts = {"bound.step_seconds": 0.5, "gpu.option.tune": "no"}
        self.assertIn("2.0 times its roofline bound", str(advice.untuned(evidence(make_run(None, facts)))))
        for change in ({"gpu.option.tune": "yes"}, {"bound.step_seconds": 0.8}, {"bound.step_seconds": "nan"}):
            self.assertIsNone(advice.untuned(evidence(make_run(None, facts | change))), change)

    def test_every_rule_is_asked(self) -> None:
        rules = {
            name
            for name, value in vars(advice).items()
            if callable(value) and getattr(value, "__annotations__", {}).get("evidence") == "Evidence"
        }
        asked = {rule.__name__ for rule in (*advice.RULES, *advice.TORCH_RULES)}
        self.assertEqual(rules - {"advise", "_part"}, asked)

    def test_the_advice_about_the_largest_loss_is_first(self) -> None:
        parts = {"residual": part(0.05), "control_plane": part(0.04), "overlap_slowdown": part(0.2)}
        run = make_run(parts, {"cpu.cores": 32}, schedule="negotiated")
        found = advice.advise(evidence(run, efficiency=Interval(0.7, 0.64, 0.75)))
        self.assertEqual([said.loss for said in found], [0.2, 0.05, 0.04, 0.0])
        self.assertEqual(found[0].do, "try one compute thread or rank fewer")
        self.assertIn("11.0 points wide", found[-1].why)

    def test_nothing_stands_out(self) -> None:
        self.assertEqual(advice.advise(evidence(make_run(), efficiency=Interval(0.99, 0.985, 0.995))), [])


class ReductionCostTest(unittest.TestCase):
    """The times of reductions are made from known costs per bucket and per byte. The code must find these costs."""

    def runs(self, *shapes: tuple[int, int], per_bucket: float = 1e-3, per_byte: float = 1e-9) -> list[Run]:
        return [
            make_run(buckets=buckets, gradient_bytes=moved, reduce_seconds=per_bucket * buckets + per_byte * moved)
            for buckets, moved in shapes
        ]

    def test_found_again(self) -> None:
        for shapes in (((8, 10**8), (2, 10**8)), ((8, 10**8), (6, 5 * 10**8), (5, 9 * 10**7))):
            cost = advice.reduction_cost(self.runs(*shapes))
            self.assertAlmostEqual(cost.per_bucket, 1e-3)
            self.assertAlmostEqual(cost.per_byte, 1e-9, delta=1e-13)
            self.assertEqual(cost.runs, len(shapes))

    def test_sizes_that_are_nearly_equal_do_not_tell(self) -> None:
        self.assertIsNone(advice.reduction_cost(self.runs((8, 10**8), (7, 10**8))))
        self.assertIsNone(advice.reduction_cost([]))

    def test_costs_that_do_not_describe_every_run(self) -> None:
        runs = self.runs((8, 10**8), (2, 10**8), (4, 10**8))
        self.assertIsInstance(advice.reduction_cost(runs), ReductionCost)
        slow = make_run(buckets=4, gradient_bytes=10**8, reduce_seconds=0.5)
        self.assertIsNone(advice.reduction_cost([*runs, slow]))

    def test_a_cost_below_zero_is_none(self) -> None:
        """More buckets with equal bytes in total take less time here. A fit would give a negative cost per bucket."""
        runs = [make_run(buckets=8, reduce_seconds=0.1), make_run(buckets=2, reduce_seconds=0.2)]
        self.assertIsNone(advice.reduction_cost(runs))
