"""Tests plans: which cells they have, the allocation, order and estimated times of the cells, and refused plans."""

from __future__ import annotations

import dataclasses
import itertools
import unittest

from campaigns import MINIMAL, fault, plan_of, site_of, spec_of

from hvdb.campaign import plan
from hvdb.campaign.plan import ONE_NODE, ONE_RANK, SCALE, Pilot, PilotKey, Shape
from hvdb.campaign.script import launch_command


def cells(made: plan.Plan, job: str, repetition: int = 1) -> list[plan.Cell]:
    return list(next(j for j in made.jobs if j.name == job).cells[repetition])


class CellsTest(unittest.TestCase):
    def test_one_job_for_each_number_of_nodes(self) -> None:
        made = plan_of()
        self.assertEqual([j.name for j in made.jobs], [f"n{2**p:04d}" for p in range(8)])
        self.assertEqual(sorted(c.shape.ranks for c in cells(made, "n0001")), [1, 2, 4])
        self.assertEqual(sorted(c.shape.ranks for c in cells(made, "n0128")), [1, 4, 512])
        self.assertEqual(made.jobs[-1].shapes()[-1], Shape(512, 128, 4))

    def test_512_gpus_are_64_nodes_of_8(self) -> None:
        made = plan_of(machine=site_of("slurm-8gpu"))
        self.assertEqual(made.jobs[-1].shapes()[-1], Shape(512, 64, 8))

    def test_every_allocation_has_its_baselines(self) -> None:
        made = plan_of(spec_of(schedules='["static", "negotiated"]', dtypes='["fp32", "bf16"]', repetitions="2"))
        for job in made.jobs:
            for order in job.cells.values():
                for scale in (c for c in order if c.role == SCALE and c.shape.nodes > 1):
                    same = [c for c in order if (c.model, c.dtype, c.batch_size) == (scale.model, scale.dtype, 4)]
                    self.assertEqual(len([c for c in same if c.shape.ranks == 1]), 1)
                    nodes = [c for c in same if c.role == ONE_NODE and c.schedule == scale.schedule]
                    self.assertEqual([c.shape for c in nodes], [Shape(4, 1, 4)])
        # the points of the scaling curve on one node are also the baselines, so no cells are added for baselines
        self.assertEqual({c.role for c in cells(made, "n0001")}, {SCALE})

    def test_one_rank_is_measured_once_whatever_reduces_the_others(self) -> None:
        study = spec_of(schedules='["negotiated", "static"]', allreduce_dtypes='["bf16", "fp32"]', ranks="[1, 4]")
        alone = [c for c in cells(plan_of(study), "n0001") if c.shape.ranks == 1]
        self.assertEqual([(c.schedule, c.allreduce_dtype) for c in alone], [("negotiated", "bf16")])
        self.assertEqual(len(cells(plan_of(study), "n0001")), 1 + 4)

    def test_efficiency_is_asked_of_scale_cells_of_several_ranks(self) -> None:
        for c in cells(plan_of(), "n0002"):
            self.assertEqual("--efficiency" in c.arguments(), c.role == SCALE, c)
        off = plan_of(spec_of(efficiency="false"))
        self.assertFalse(any(c.efficiency for _, _, c in off.cells()))
        none = plan_of(spec_of(schedules='["none"]'))
        self.assertFalse(any(c.efficiency for _, _, c in none.cells()), "hvd_bench refuses --schedule none with it")

    def test_strong_scaling_divides_the_batch(self) -> None:
        text = 'name = "s"\nmodels = ["vgg16"]\nranks = [1, 2, 3, 4, 8, 16]\nallow_ragged = true\n'
        made = plan_of(spec_of(text + "[strong]\nglobal_batch = 64\nmax_batch_per_rank = 32"))
        batches = {c.shape.ranks: c.batch_size for _, _, c in made.cells() if c.role == SCALE}
        self.assertEqual(batches, {2: 32, 4: 16, 8: 8, 16: 4})
        baselines = {(c.allocation_nodes, c.batch_size) for _, _, c in made.cells() if c.role == ONE_RANK}
        self.assertEqual(baselines, {(1, 32), (2, 32), (4, 32)}, "one rank cannot hold 64")
        said = "\n".join(made.left_out)
        self.assertIn("strong, vgg16, 1 ranks: 64 images per rank, more than 32", said)
        self.assertIn("strong, vgg16, 3 ranks: do not divide 64 images", said)

    def test_a_cell_of_two_curves_is_run_once(self) -> None:
        both = spec_of(MINIMAL.replace("4", "8") + "[strong]\nglobal_batch = 64\n", ranks="[4, 8, 16]")
        made = plan_of(both)
        hashes = [c.hash for _, _, c in made.cells()]
        self.assertEqual(len(hashes), len(set(hashes)))
        at_eight = [c for c in cells(made, "n0002") if c.role == SCALE]
        self.assertEqual([c.batch_size for c in at_eight], [8], "64 images on 8 ranks are weak scaling's 8 per rank")

    def test_options_reach_the_command_line(self) -> None:
        study = spec_of(MINIMAL + '[options]\nreplay = "/r/{model}.txt"\nno-check = true', ranks="[1]")
        (cell,) = cells(plan_of(study), "n0001")
        self.assertEqual(
            " ".join(cell.arguments()),
            "--model vgg16 --batch-size 4 --dtype fp32 --allreduce-dtype fp32 --schedule static --seed 1 --device cuda "
            "--replay /r/vgg16.txt --no-check",
        )


class HashTest(unittest.TestCase):
    def test_everything_that_is_configured_changes_it(self) -> None:
        (cell,) = cells(plan_of(spec_of(ranks="[1]")), "n0001")
        changes = {"shape": Shape(2, 1, 2), "model": "resnet50", "batch_size": 5, "dtype": "bf16"}
        changes |= {"allreduce_dtype": "bf16", "schedule": "negotiated", "seed": 2, "efficiency": True}
        changes |= {"options": (("image-size", "32"),), "device": "cpu", "allocation_nodes": 2}
        changes |= {"repetition": 2, "site": "other", "surroundings": "00000000"}
        changes |= {"profile": "00000000"}
        self.assertEqual(set(changes) | {"role"}, {f.name for f in dataclasses.fields(cell)})
        hashes = {cell.hash} | {dataclasses.replace(cell, **{name: value}).hash for name, value in changes.items()}
        self.assertEqual(len(hashes), 1 + len(changes))
        self.assertEqual(dataclasses.replace(cell, role=ONE_RANK).hash, cell.hash)

    def test_it_does_not_change_by_itself(self) -> None:
        # resume looks for this value in stores on disk. If the value changes, resume runs every cell again.
        (cell,) = cells(plan_of(spec_of(ranks="[1]")), "n0001")
        self.assertEqual(cell.hash, "6fe4d1405223247d")

    def test_what_a_longer_spec_adds_leaves_the_rest_alone(self) -> None:
        short = {c.hash for _, _, c in plan_of(spec_of(order_seed="1")).cells()}
        more = MINIMAL.replace('["vgg16"]', '["resnet50", "vgg16"]')
        long = {c.hash for _, _, c in plan_of(spec_of(more, order_seed="9", repetitions="2", seeds="[3, 1]")).cells()}
        self.assertLess(short, long)


class OrderTest(unittest.TestCase):
    STUDY = MINIMAL.replace('["vgg16"]', '["vgg16", "resnet50", "inception3"]')

    def orders(self, **more: str) -> dict[int, list[str]]:
        made = plan_of(spec_of(self.STUDY, repetitions="6", ranks="[64]", **more))
        # model and role of each cell, without the repetition
        return {r: [f"{c.model} {c.role}" for c in made.jobs[0].cells[r]] for r in made.jobs[0].cells}

    def test_seeded_and_different_between_repetitions(self) -> None:
        first = self.orders()
        self.assertEqual(first, self.orders())
        self.assertNotEqual(first, self.orders(order_seed="2"))
        self.assertGreater(len({tuple(order) for order in first.values()}), 4)
        for order in first.values():
            self.assertEqual(sorted(order), sorted(first[1]))

    def test_baselines_stay_beside_what_they_are_for(self) -> None:
        for order in self.orders().values():
            models = [words.split()[0] for words in order]
            self.assertEqual(sum(a != b for a, b in itertools.pairwise(models)), 2, models)

    def test_no_role_is_always_first(self) -> None:
        made = plan_of(spec_of(ranks="[64]", repetitions="40"))
        first = {order[0].role for order in made.jobs[0].cells.values()}
        self.assertEqual(first, {SCALE, ONE_RANK, ONE_NODE})


class FitTest(unittest.TestCase):
    def test_ragged_counts_are_refused_unless_asked_for(self) -> None:
        said = fault(plan_of, spec_of(ranks="[4, 6]"))
        self.assertIn("ranks: 6: does not fill 2 nodes of 4 ranks on site slurm-4gpu", said)
        self.assertIn("allow_ragged = true", said)
        made = plan_of(spec_of(ranks="[4, 6]", allow_ragged="true"))
        self.assertEqual(made.jobs[1].shapes()[-1], Shape(6, 2, 4))
        self.assertTrue(made.jobs[1].shapes()[-1].ragged)

    def test_fewer_ranks_than_a_node_holds_are_not_ragged(self) -> None:
        made = plan_of(spec_of(ranks="[3]"))
        self.assertEqual(made.jobs[0].shapes(), [Shape(1, 1, 1), Shape(3, 1, 3)], "and the baseline")

    def test_a_count_larger_than_the_site(self) -> None:
        laptop = site_of("laptop", "node.ranks_per_node=[2]")
        self.assertIn(
            "ranks: 4: needs 2 nodes of 2 ranks, more than the 1", fault(plan_of, spec_of(ranks="[4]"), laptop)
        )
        made = plan_of(machine=laptop)
        self.assertEqual(sorted(c.shape.ranks for _, _, c in made.cells()), [1, 2])
        self.assertEqual(len(made.left_out), 8, "the default's larger counts are left out, and it is said")

    def test_ranks_per_node(self) -> None:
        summit = site_of("summit")
        self.assertEqual(plan_of(spec_of(ranks="[512]"), summit).jobs[0].nodes, 128)
        whole = plan_of(spec_of(ranks="[6, 12, 96]", ranks_per_node="6"), summit)
        self.assertEqual([j.nodes for j in whole.jobs], [1, 2, 16])
        said = fault(plan_of, spec_of(ranks_per_node="5"), summit)
        self.assertIn("ranks_per_node: 5, but site summit allows 4, 6", said)
        default = plan_of(spec_of(ranks_per_node="6"), summit)
        self.assertEqual([j.nodes for j in default.jobs], [1], "8, 16 ... do not fill nodes of 6")
        self.assertEqual(len(default.left_out), 7)


class TimeTest(unittest.TestCase):
    def test_walltime_is_the_sum_with_margin_and_warning(self) -> None:
        study = spec_of(MINIMAL + "[options]\nmax-time = 100", ranks="[8]")
        made = plan_of(study)
        # three cells of 100 s, each with a start-up of 60 s + 0.2 s per rank: 1, 4 and 8 ranks
        seconds = 3 * 160 + 0.2 * (1 + 4 + 8)
        self.assertAlmostEqual(made.jobs[0].seconds, seconds)
        self.assertEqual(made.jobs[0].walltime_seconds, 60 * -(-(1.2 * seconds + 120) // 60))
        self.assertAlmostEqual(made.jobs[0].node_hours, 2 * made.jobs[0].walltime_seconds / 3600)

    def test_too_long_jobs_are_split_between_blocks(self) -> None:
        study = spec_of(OrderTest.STUDY, ranks="[8]")
        short = site_of("slurm-4gpu", "walltime.maximum=00:50:00")
        made = plan_of(study, short)
        self.assertEqual([j.name for j in made.jobs], ["n0002-p1", "n0002-p2"])
        for job in made.jobs:
            self.assertLessEqual(job.walltime_seconds, 50 * 60)
        whole = {c.hash for _, _, c in plan_of(study).cells()}
        self.assertEqual({c.hash for _, _, c in made.cells()}, whole, "a shorter queue asks for the same cells")
        said = fault(plan_of, study, site_of("slurm-4gpu", "walltime.maximum=00:10:00"))
        self.assertIn("more than walltime.maximum = 00:10:00 of site slurm-4gpu; lower options.max-time", said)

    def test_a_pilot_shortens_but_never_passes_the_cap(self) -> None:
        study, machine = spec_of(ranks="[8]"), site_of()
        measured = Pilot({PilotKey("vgg16", 4, "fp32", True): 20.0, PilotKey("vgg16", 4, "fp32", False): 1000.0})
        made = plan.make(study, machine, measured)
        by_ranks = {c.shape.ranks: made.cell_seconds[c.hash] for _, _, c in made.cells()}
        self.assertAlmostEqual(by_ranks[8], 60 + 0.2 * 8 + 1.5 * 20)
        self.assertAlmostEqual(by_ranks[1], 60 + 0.2 + 300)
        self.assertEqual({c.hash for _, _, c in made.cells()}, {c.hash for _, _, c in plan_of(study).cells()})

    def test_without_arrays_every_repetition_is_a_job(self) -> None:
        made = plan_of(spec_of(ranks="[8]", repetitions="2"), site_of("slurm-4gpu", "submit.array=false"))
        self.assertEqual([(j.name, list(j.cells)) for j in made.jobs], [("n0002-r1", [1]), ("n0002-r2", [2])])
        with_arrays = plan_of(spec_of(ranks="[8]", repetitions="2"))
        self.assertEqual({c.hash for _, _, c in made.cells()}, {c.hash for _, _, c in with_arrays.cells()})


class LaunchTest(unittest.TestCase):
    def line(self, site_name: str, shape: Shape, *assignments: str) -> str:
        return " ".join(launch_command(site_of(site_name, *assignments), shape))

    def test_srun(self) -> None:
        self.assertEqual(
            self.line("slurm-4gpu", Shape(512, 128, 4)),
            "srun --mpi=pmix --nodes=128 --ntasks=512 --ntasks-per-node=4 --distribution=block:block "
            "--cpus-per-task=16 --cpu-bind=cores --gpu-bind=none",
        )
        self.assertIn(" --distribution=block:block,Pack ", self.line("slurm-4gpu", Shape(6, 2, 4)))
        self.assertNotIn("--distribution", self.line("slurm", Shape(4, 1, 4)))
        self.assertNotIn("gpus-per-task", self.line("slurm-8gpu", Shape(8, 1, 8)))
        self.assertIn("--ntasks=6 --ntasks-per-node=4 --distribution=block,Pack", self.line("slurm", Shape(6, 2, 4)))
        self.assertNotIn("cpus-per-task", self.line("slurm", Shape(4, 1, 4)))

    def test_jsrun(self) -> None:
        # OLCF documents these forms: 4 of 6 GPUs per node, whole nodes, and one resource set per GPU
        pieces = "-bpacked:7 -dpacked --smpiargs=-gpu"
        self.assertEqual(self.line("summit", Shape(512, 128, 4)), f"jsrun -n128 -r1 -a4 -c28 -g4 {pieces}")
        self.assertEqual(self.line("summit", Shape(12, 2, 6)), f"jsrun -n2 -r1 -a6 -c42 -g6 {pieces}")
        self.assertEqual(self.line("summit", Shape(1, 1, 1)), f"jsrun -n1 -r1 -a1 -c7 -g1 {pieces}")
        per_rank = self.line("summit", Shape(12, 2, 6), "launch.resource_sets=rank")
        self.assertEqual(per_rank, f"jsrun -n12 -r6 -a1 -c7 -g1 {pieces}")
        self.assertEqual(self.line("summit", Shape(6, 2, 4)), f"jsrun -n6 -r4 -a1 -c7 -g1 {pieces}")

    def test_mpirun(self) -> None:
        self.assertEqual(self.line("laptop", Shape(2, 1, 2)), "mpirun -n 2")
        two = self.line("laptop", Shape(2, 1, 2), "launch.cores_per_rank=3", 'launch.binding=["--bind-to","core"]')
        self.assertEqual(two, "mpirun -n 2 --map-by slot:PE=3 --bind-to core")
