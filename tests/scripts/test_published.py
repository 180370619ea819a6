"""Tests that the published figures are complete, consistent, and have sources."""

from __future__ import annotations

import unittest

import synthetic_store  # noqa: F401  (sets the path)

from hvdb.read import published


class PublishedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.points = published.load()

    def test_every_row_names_its_source(self) -> None:
        for point in self.points:
            self.assertRegex(point.source, r"^https://", point)
            self.assertTrue(point.images_per_second or point.efficiency_stated, point)

    def test_no_point_stands_twice(self) -> None:
        keys = [(point.setup, point.model) for point in self.points]
        self.assertEqual(len(keys), len(set(keys)))

    def test_stated_efficiencies_follow_from_the_rates(self) -> None:
        checked = 0
        for point in self.points:
            if point.efficiency_stated is not None and point.images_per_second is not None:
                # Efficiencies are stated to 0.1 %. One source truncates them, and the other sources round them.
                self.assertAlmostEqual(point.efficiency, point.efficiency_stated, delta=0.001, msg=str(point))
                checked += 1
        self.assertEqual(checked, 7)

    def test_the_figures_that_this_program_is_to_reproduce(self) -> None:
        at_512 = {p.model: p.efficiency for p in self.points if p.gpus == 512}
        self.assertEqual(at_512, {"inception3": 0.90, "resnet101": 0.90, "vgg16": 0.68})

    def test_points_of_real_systems_with_v100(self) -> None:
        """Efficiencies in %, worked by hand from the rates of the sources."""
        points = {p.setup: p for p in self.points if "V100" in p.hardware and p.gpus > 1}
        found = {setup: round(100 * (point.efficiency or 0), 1) for setup, point in points.items()}
        tf1, mxnet = {"dlperf-tf1-16": 87.9, "dlperf-tf1-32": 82.0}, {"dlperf-mxnet-16": 91.2, "dlperf-mxnet-32": 83.5}
        pytorch = {"dlperf-pytorch-16": 93.6, "dlperf-pytorch-32": 93.8}
        self.assertEqual(found, tf1 | mxnet | pytorch | {"horovod-416": 73.3})
        self.assertEqual({point.claim for point in points.values()}, {""}, "they decide no claim")
        self.assertEqual([p.setup for p in points.values() if p.efficiency_stated], ["horovod-416"])

    def test_baselines_exist_and_are_one_gpu(self) -> None:
        known = {(p.setup, p.model): p for p in self.points}
        for point in self.points:
            if point.baseline_setup:
                self.assertEqual(known[(point.baseline_setup, point.model)].gpus, 1)

    def test_headline_is_sorted(self) -> None:
        self.assertEqual([p.gpus for p in published.headline(self.points, "vgg16")], [16, 64, 128, 512])
