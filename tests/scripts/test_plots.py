"""Plots are really drawn, and carry the full ids of every run they show."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from synthetic_store import SessionSpec, make

from hvdb import efficiency, figure, plot_profile, plot_scaling, plot_waterfall, published, runs

OPERATIONS = [
    {
        "seq": i,
        "node": f"layer{i}.conv",
        "kind": kind,
        "implementation": "jit",
        "library": library,
        "seconds": 0.001 * (i + 1),
        "flops": 1e9,
        "bytes": 1e6,
    }
    for i, (kind, library) in enumerate([("conv", 1), ("relu", 0), ("conv", 1), ("softmax", 0)])
]


class PlotTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        cls.made = make(
            cls.folder / "a.db",
            SessionSpec(),
            SessionSpec(model="vgg16", ranks=4, full=1.6),
            SessionSpec(model="vgg16", traced=1, phases=("full",), operations=OPERATIONS),
        )
        cls.runs = runs.load([cls.folder / "a.db"])
        cls.cells = efficiency.cells(efficiency.select(cls.runs).runs)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.scratch.cleanup()

    def ids(self, path: Path) -> set[str]:
        text = figure.png_text(path)["Description"]
        self.assertTrue(text.startswith("runs: "))
        return set(text[len("runs: ") :].split())

    def test_scaling_names_all_its_runs(self) -> None:
        path = plot_scaling.draw(self.cells, published.load(), self.folder / "out" / "scaling.png")
        self.assertGreater(path.stat().st_size, 20_000)
        expected = {run for session in self.made[:2] for run in session.values()}
        self.assertEqual(self.ids(path), expected)

    def test_scaling_without_published_points_and_of_one_network(self) -> None:
        path = plot_scaling.draw(self.cells[:2], [], self.folder / "small.png")
        self.assertGreater(path.stat().st_size, 10_000)

    def test_waterfall_ends_at_the_efficiency(self) -> None:
        full = [run for run in self.runs if run.decomposition]
        self.assertEqual(len(full), 2)
        for run in full:
            self.assertAlmostEqual(plot_waterfall.levels(run)[-1][2], 100 * run.decomposition["efficiency"].fraction)
        path = plot_waterfall.draw(full, self.folder / "waterfall.png")
        self.assertEqual(self.ids(path), {run.uuid for run in full})

    def test_waterfall_draws_components_it_does_not_know(self) -> None:
        run = next(run for run in self.runs if run.decomposition)
        run.decomposition["gravity"] = run.decomposition.pop("stragglers")
        self.addCleanup(lambda: run.decomposition.update(stragglers=run.decomposition.pop("gravity")))
        fall = plot_waterfall.levels(run)
        self.assertIn("gravity", [name for name, _, _ in fall])
        self.assertAlmostEqual(fall[-1][2], 100 * run.decomposition["efficiency"].fraction)

    def test_profile(self) -> None:
        (profiled,) = (run for run in self.runs if run.operations)
        self.assertEqual(
            [(s.kind, s.count) for s in plot_profile.shares(profiled.operations)],
            [("conv", 2), ("softmax", 1), ("relu", 1)],
        )
        self.assertAlmostEqual(plot_profile.library_fraction(profiled.operations), 0.004 / 0.010)
        path = plot_profile.draw(profiled, self.folder / "profile.png")
        self.assertEqual(self.ids(path), {profiled.uuid})

    def test_labels_are_short(self) -> None:
        self.assertEqual(plot_profile.label("fc.backward_data"), "fc bwd data")
        self.assertEqual(plot_profile.label("conv_backward_weights"), "conv bwd weights")
        cut = plot_profile.label("mixed_6b.branch7x7.1.conv+mixed_6b.branch7x7.1.bn+relu", 21)
        self.assertEqual((len(cut), cut[10]), (21, "…"))

    def test_svg_carries_the_ids_too(self) -> None:
        path = plot_scaling.draw(self.cells, published.load(), self.folder / "scaling.svg")
        text = path.read_text(encoding="utf-8")
        for session in self.made[:2]:
            for run in session.values():
                self.assertIn(run, text)

    def test_equal_input_gives_equal_files(self) -> None:
        for form in ("png", "svg"):
            first = plot_scaling.draw(self.cells, [], self.folder / f"1.{form}").read_bytes()
            second = plot_scaling.draw(self.cells, [], self.folder / f"2.{form}").read_bytes()
            self.assertEqual(first, second, form)


if __name__ == "__main__":
    unittest.main()
