"""The look back at published points, on constructed points whose parameters are known, and by hand.

Points and profiles are constructed: no test depends on what comes out for the points that were really published.
"""

import csv
import math
import os
import unittest
from pathlib import Path

import numpy as np

from harness import FolderTest

from hvdb.base import data
from hvdb.base.errors import HvdbError
from hvdb.read import published
from validation import lookback

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
ELEMENTS = 1 << 20  # of a gradient
ALONE = 64 / 100.0  # seconds: batch 64 at 100 images/s
TRUTH = {"rate": 0.7, "latency": 4e-5, "slowdown": 0.1, "noise": 0.0105, "ahead": 0}
NEAR = [("fused", "NCCL", 16), ("unfused", "NCCL, before tensor fusion", 16)]


def one(**values: float) -> lookback.Draws:
    return {name: np.array([value]) for name, value in (TRUTH | values).items()}


class ByHand(unittest.TestCase):
    def test_weights(self) -> None:
        weights = lookback.weigh(np.array([[0.90, 0.94], [0.80, 0.80]]), np.array([0.90, 0.82]))
        far = math.exp(-0.5 * 2**2)  # the second draw lies two sigma off in the first point
        np.testing.assert_allclose(weights, [1 / (1 + far), far / (1 + far)])
        none_is_near = lookback.weigh(np.array([[0.1, 0.2]]), np.array([9.0]))
        np.testing.assert_allclose(none_is_near, [0, 1], atol=1e-9)

    def test_percentiles(self) -> None:
        band = lookback.percentiles(np.array([10.0, 0.0, 20.0]), np.array([2.0, 1.0, 1.0]))
        self.assertEqual((band.low, band.value, band.high), (0, 10, 20))
        band = lookback.percentiles(np.arange(1001.0), np.ones(1001))
        np.testing.assert_allclose((band.low, band.value, band.high), (50, 500, 950), atol=1)

    def test_draws_lie_in_their_ranges(self) -> None:
        drawn = lookback.draw(lookback.RDMA, 400, seed=3)
        for name, (low, high) in lookback.RDMA.items():
            self.assertTrue(low <= drawn[name].min() < drawn[name].max() <= high, name)
        pairs = list(zip(drawn["noise"], drawn["ahead"], strict=True))
        self.assertEqual({pairs.count(pair) for pair in pairs}, {400 // 2 // lookback.NOISE_LEVELS})


class Simulated(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.rows = [self.row("roce25-1gpu", "none", 1, images_per_second=100.0)]

    def row(self, setup: str, reduction: str, gpus: int, **values: object) -> dict[str, object]:
        row = dict.fromkeys(data.PUBLISHED.read_text(encoding="utf-8").splitlines()[0].split(","), "")
        known = {"setup": setup, "reduction": reduction, "gpus": gpus, "model": "resnet101", "batch_per_gpu": 64}
        return {**row, **known, "network": "RDMA", "link_gbit": 25, **values}

    def profile(self, gradients: int) -> None:
        """1.5 s of compute, 0.5 s of update; gradients are ready evenly in the last second of compute."""
        lines = ["hvd-replay 2", "model resnet101", "unit images", "units_per_step 64", "device a test"]
        lines += ["compute_type fp32", "source_run none", "backward_end_seconds 1.5", "update_seconds 0.5"]
        lines += [f"gradient {ELEMENTS} 0 {0.5 + (k + 1) / gradients} g{k}" for k in range(gradients)]
        text = "\n".join([*lines, f"end {gradients}", ""])
        (self.folder / "resnet101-fp16.txt").write_text(text, encoding="utf-8")

    def write(self) -> Path:
        file = self.folder / "points.csv"
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, self.rows[0])
            writer.writeheader()
            writer.writerows(self.rows)
        return file

    def efficiency(self, reduction: str, gpus: int, drawn: lookback.Draws) -> float:
        """Returns what the truth `drawn` gives for a point."""
        self.rows.append(self.row("asked", reduction, gpus, efficiency_percent=50))
        points = published.load(self.write())
        self.rows.pop()
        look = lookback.Lookback(PROGRAM, self.folder, points, seed=9)
        return float(look.efficiencies(points[-1], drawn)[0])

    def report(self, draws: int = 20) -> list[str]:
        return list(lookback.report(PROGRAM, self.folder, self.write(), draws, seed=1))

    def test_one_gradient_is_reduced_by_a_ring_behind_the_backward_pass(self) -> None:
        self.profile(gradients=1)
        got = self.efficiency("NCCL", 32, one(noise=0, ahead=1))
        ring = 2 * 31 * (4e-5 + 4 * ELEMENTS / 32 / (0.7 * 25e9 / 8))
        self.assertAlmostEqual(got, ALONE / (ALONE + ring), places=5)

    def test_a_gradient_submitted_when_ready_waits_for_a_tick(self) -> None:
        self.profile(gradients=1)
        ahead, in_step = (self.efficiency("NCCL", 16, one(noise=0, ahead=x)) for x in (1, 0))
        self.assertTrue(0 < ALONE / in_step - ALONE / ahead < 0.007)

    def test_known_parameters_are_recovered(self) -> None:
        self.profile(gradients=40)
        truth = {(name, gpus): self.efficiency(name, gpus, one()) for _, name, gpus in (*NEAR, ("far", "NCCL", 128))}
        for setup, name, gpus in NEAR:
            self.rows.append(self.row(setup, name, gpus, efficiency_percent=100 * truth[name, gpus]))
        self.rows.append(self.row("far", "NCCL", 128, efficiency_percent=100 * truth["NCCL", 128]))
        lines = self.report(draws=400)
        far = next(line for line in lines if line.startswith("far"))
        self.assertIn("inside", far)
        prior, conditioned = (next(line for line in lines if line.startswith(x)) for x in ("prior", "conditioned"))
        error, width = (lambda line: (float(line.split()[-7].strip(",")), float(line.split()[-1])))(conditioned)
        self.assertLess(error, 3)
        self.assertLess(width, float(prior.split()[-1]))
        self.assertEqual(lines, self.report(draws=400))
        self.assertFalse([line for line in lines if not line.isprintable()])

    def test_damaged_points_are_one_line(self) -> None:
        self.profile(gradients=2)
        good = [self.row("near", "NCCL", 16, efficiency_percent=90), self.row("far", "NCCL", 32, efficiency_percent=80)]
        damages = {"gpus": "many", "link_gbit": "nan", "batch_per_gpu": -1, "model": "../../unknown", "network": "TCP"}
        for column, value in {**damages, "efficiency_percent": "x", "baseline_setup": "nowhere"}.items():
            with self.subTest(column=column), self.assertRaises((HvdbError, OSError)) as caught:
                self.rows[1:] = [good[0], {**good[1], column: value}]
                if column in ("model", "network"):
                    self.rows[1:] = [{**row, column: value} for row in good]
                self.report()
            self.assertNotIn("\n", str(caught.exception))
        self.rows[1:] = [good[0], {**good[1], "gpus": 10**9}]
        with self.assertRaisesRegex(HvdbError, "far, resnet101: no usable link"):
            self.report()

    def test_a_damaged_profile_is_one_line(self) -> None:
        self.rows += [self.row("near", "NCCL", 16, efficiency_percent=90)]
        self.rows += [self.row("far", "NCCL", 32, efficiency_percent=80)]
        self.profile(gradients=2)
        file = self.folder / "resnet101-fp16.txt"
        text = file.read_text(encoding="utf-8")
        for damaged in ("", "\0" * 99, text.replace(f"gradient {ELEMENTS} 0 1", "gradient 5 0"), text[:-20]):
            file.write_text(damaged, encoding="utf-8")
            with self.subTest(damaged=damaged[:9]), self.assertRaises(HvdbError) as caught:
                self.report()
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
