"""Tests that plots are really drawn, and that they name the full ids of all runs that they show."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

from PIL import Image

from harness import SCRIPTS, SharedFolderTest, execute
from synthetic_store import SessionSpec, make, operation

from hvdb.base.errors import HvdbError
from hvdb.base.interval import Interval
from hvdb.judge import comparable, efficiency
from hvdb.read import layer_profile, published, runs
from hvdb.show import figure, markdown_page, plot_profile, plot_scaling, plot_waterfall, report, tables

LAYERS = [("conv", 1), ("relu", 0), ("conv", 1), ("softmax", 0)]
OPERATIONS = [operation(seq, kind=kind, library=library) for seq, (kind, library) in enumerate(LAYERS)]


class PlotTest(SharedFolderTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        traced = SessionSpec(model="vgg16", traced=1, phases=("full",), operations=OPERATIONS)
        cls.made = make(cls.db, SessionSpec(), SessionSpec(model="vgg16", ranks=4, full=1.6), traced)
        cls.runs = runs.load([cls.db])
        chosen = efficiency.select(cls.runs).runs
        cls.cells = efficiency.cells(chosen)
        (system,) = comparable.systems(chosen)
        cls.measured = report.Measured(system, cls.cells)

    def profiled(self) -> runs.Run:
        (found,) = (run for run in self.runs if run.operations)
        return found

    def ids(self, path: Path) -> set[str]:
        text = Image.open(path).text["Description"]
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

    def test_a_user_without_a_home(self) -> None:
        unknown = ["unshare", "--user", "--map-user=54321", "env", "-u", "HOME", "-u", "MPLCONFIGDIR"]
        if shutil.which("unshare") is None or execute(*unknown, "true").returncode != 0:
            self.skipTest("an unknown user needs user namespaces")
        execute(*unknown, SCRIPTS / "report", self.db, "--out", self.folder / "page.html", code=0)
        execute(*unknown, SCRIPTS / "plot", self.db, "--out", self.folder / "plots", code=0)
        gate = execute(
            *unknown, SCRIPTS / "gate", "--a", "~/hvd_bench", "--b", "~/x", "--db", self.folder / "x.db", code=2
        )
        self.assertIn("there is no program '~/hvd_bench'", gate.stderr)

    def waterfall(self, *shown: runs.Run) -> figure.Figure:
        with mock.patch.object(figure, "save") as save:
            plot_waterfall.draw(shown, Path("none.png"))
        fig = save.call_args[0][0]
        self.addCleanup(figure.plt.close, fig)
        return fig

    def test_waterfall_ends_at_the_efficiency(self) -> None:
        full = [run for run in self.runs if run.decomposition]
        self.assertEqual(len(full), 2)
        for names in (plot_waterfall.rows(full), []):
            for run in full:
                fall = plot_waterfall.levels(run, names)
                self.assertEqual([name for name, _, _ in fall], [*names, plot_waterfall.REST])
                self.assertAlmostEqual(fall[-1][2], 100 * run.decomposition["efficiency"].fraction.value)
        path = plot_waterfall.draw(full, self.folder / "waterfall.png")
        self.assertEqual(self.ids(path), {run.uuid for run in full})

    def test_waterfall_draws_components_it_does_not_know(self) -> None:
        run = next(run for run in self.runs if run.decomposition)
        run.decomposition["gravity"] = run.decomposition.pop("stragglers")
        self.addCleanup(lambda: run.decomposition.update(stragglers=run.decomposition.pop("gravity")))
        self.assertIn("gravity", plot_waterfall.rows([run]))
        fall = plot_waterfall.levels(run, plot_waterfall.rows([run]))
        self.assertAlmostEqual(fall[-1][2], 100 * run.decomposition["efficiency"].fraction.value)

    def test_all_panels_have_the_same_rows_and_the_same_axis(self) -> None:
        one, other = (run for run in self.runs if run.decomposition)
        self.addCleanup(one.decomposition.update, update=one.decomposition["update"])
        update = one.decomposition["update"]
        one.decomposition["update"] = replace(update, fraction=replace(update.fraction, low=-0.1, high=0.1))
        fig = self.waterfall(one, other)
        first, second = fig.axes
        self.assertEqual(first.get_xlim(), second.get_xlim())
        names = [text.get_text() for text in first.get_yticklabels()]
        parts = ["interference of the ranks", "waiting for stragglers", "exposed communication", "update"]
        self.assertEqual(names, ["ideal", *parts, plot_waterfall.REST, "efficiency"])
        self.assertEqual(sum(text.get_text() == plot_waterfall.REST for text in first.texts), 1, "update, in one run")
        self.assertFalse(any(text.get_text() == plot_waterfall.REST for text in second.texts))

    def test_parts_that_are_0_or_not_resolved_share_one_row(self) -> None:
        run = next(run for run in self.runs if run.decomposition)
        unresolved = [name for name, part in run.decomposition.items() if part.unresolved]
        self.assertEqual(unresolved, ["control_plane", "residual"])
        fig = self.waterfall(run)
        (axes,) = fig.axes
        bars = 2 + len(run.decomposition) - len(unresolved)
        self.assertEqual(len(axes.patches), bars, "the ideal, the joined parts, and a bar each")
        self.assertIn("0.9 %", [text.get_text() for text in axes.texts], "0.4 and 0.5 together")
        said = " ".join(text.get_text() for text in fig.texts).replace("\n", " ")
        self.assertIn("Whiskers: 95 % interval of the part.", said)
        self.assertIn("Joined in one row: control plane, residual.", said)

        page = markdown_page.text(report.document(self.runs, efficiency.select(self.runs), [self.measured], {}, []))
        self.assertIn("| residual | not resolved (0.5) | -0.1 to 1.1 |", page)
        self.assertIn("| waiting for stragglers | 2.0 | 1.4 to 2.6 |", page)

    def test_what_is_not_resolved(self) -> None:
        for low, high, expected in (
            (-0.01, 0.02, True),
            (0.0, 0.02, True),
            (-0.02, 0.0, True),
            (0.01, 0.02, False),
            (-0.02, -0.01, False),
            (0.0, 0.0, False),  # the part was 0 in every round, so its value is known
            (None, None, False),
        ):
            self.assertEqual(runs.Component(Interval(0.01, low, high), 1.0).unresolved, expected, (low, high))

    def test_profile(self) -> None:
        profiled = self.profiled()
        self.assertEqual(
            [(s.kind, s.count) for s in layer_profile.shares(profiled.operations)],
            [("conv", 2), ("softmax", 1), ("relu", 1)],
        )
        self.assertAlmostEqual(layer_profile.library_fraction(profiled.operations), 0.004 / 0.010)
        path = plot_profile.draw(profiled, self.folder / "profile.png")
        self.assertEqual(self.ids(path), {profiled.uuid})

    def test_the_kinds_of_a_profile_fill_every_moment(self) -> None:
        """The operations are conv, relu, conv and softmax, which has no colour of its own. They take 10 ms together."""
        seconds = (4e-3, 3e-3, 2e-3, 1e-3)
        work = [replace(o, seconds=s) for o, s in zip(self.profiled().operations, seconds, strict=True)]
        fig, ((axes,),) = figure.new(1, 1, 6, 3)
        self.addCleanup(figure.plt.close, fig)
        plot_profile._timeline(axes, work, {"conv": figure.BLUE, "relu": figure.SKY, plot_profile.OTHER: figure.FAINT})
        self.assertAlmostEqual(axes.get_xlim()[1], 10)
        conv, relu, other = (area.get_paths()[0] for area in axes.collections)
        for time, path in ((2, conv), (5.5, relu), (8, conv), (9.5, other)):
            for height in (1, 99):
                self.assertTrue(path.contains_point((time, height)), (time, height))

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

    def test_a_figure_that_is_too_large_is_refused_in_one_line(self) -> None:
        with self.assertRaisesRegex(HvdbError, "500 x 5 inches.*plot fewer networks"):
            figure.new(1, 1, 500, 5)
        grown, _ = figure.new(1, 1, 5, 5)
        grown.set_figheight(500)
        with self.assertRaisesRegex(HvdbError, "5 x 500 inches"):
            figure.save(grown, self.folder / "grown.svg", "title", [])

    def test_equal_input_gives_equal_files(self) -> None:
        for form in ("png", "svg"):
            first = plot_scaling.draw(self.cells, [], self.folder / f"1.{form}").read_bytes()
            second = plot_scaling.draw(self.cells, [], self.folder / f"2.{form}").read_bytes()
            self.assertEqual(first, second, form)


class ScalingTest(unittest.TestCase):
    """Tests what the scaling figure shows, and where."""

    def cells(self, *specs: SessionSpec) -> list[efficiency.EfficiencyRow]:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "a.db", *specs)
            loaded = runs.load([Path(folder) / "a.db"])
        return efficiency.cells(efficiency.select(loaded).runs)

    def with_efficiency(self, *figures: Interval) -> list[efficiency.EfficiencyRow]:
        (solo, full) = self.cells(SessionSpec())
        return [solo, *(replace(full, ranks=2 + i, efficiency=figures[i]) for i in range(len(figures)))]

    def drawn(
        self, cells: Sequence[efficiency.EfficiencyRow], points: Sequence[published.PublishedPoint]
    ) -> figure.Figure:
        with mock.patch.object(figure, "save") as save:
            plot_scaling.draw(cells, points, Path("none.png"))
        fig = save.call_args[0][0]
        self.addCleanup(figure.plt.close, fig)
        fig.canvas.draw()
        return fig

    def test_the_axis_reaches_what_is_drawn(self) -> None:
        for figures, top in (
            ([Interval(0.9, 0.8, 0.95)], 106),
            ([Interval(0.9, 0.8, 1.03)], 109),
            ([Interval(1.55, None, None)], 161),
            ([Interval(0.9, 0.8, 9.0)], 131),  # the baseline's 100, 25 of the interval above it, and 6 of room
            ([Interval(1.2, 1.1, 9.0), Interval(0.5, 0.4, 0.6)], 151),
            ([Interval(9.0, 8.0, 10.0)], 200),
        ):
            cells = self.with_efficiency(*figures)
            self.assertAlmostEqual(plot_scaling.efficiency_axis(cells, [])[1], top, msg=str(figures))
            axes = self.drawn(cells, []).axes[1]
            self.assertAlmostEqual(axes.get_ylim()[1], top, msg=str(figures))

    def test_the_axis_starts_below_every_bound(self) -> None:
        cells = self.with_efficiency(Interval(0.9, 0.41, 0.95))
        self.assertEqual(plot_scaling.efficiency_axis(cells, [])[0], 30)
        self.assertEqual(plot_scaling.efficiency_axis(self.with_efficiency(Interval(0.9, 0.0, 1.0)), [])[0], 0)

    def test_an_efficiency_without_a_useful_interval_has_no_figure(self) -> None:
        for figures, said in (
            ([Interval(0.851, 0.464, 1.014)], "not resolved:\nbetween 46 and 101 %"),
            ([Interval(0.898)], "not resolved:\ntoo few rounds for an interval"),
            ([Interval(8.0, 7.0, 9.5)], "not resolved:\nbetween 700 and 950 %"),
        ):
            fig = self.drawn(self.with_efficiency(*figures), [])
            self.assertEqual([text.get_text() for text in fig.axes[1].texts], [said])

    def test_what_lies_above_the_axis_is_an_arrow_with_its_number(self) -> None:
        cells = self.with_efficiency(Interval(1.99, 1.95, 2.1), Interval(8.0, 7.9, 8.1))
        fig = self.drawn(cells, [])
        texts = {text.get_text(): text for text in fig.axes[1].texts}
        self.assertEqual(set(texts), {"↑ 210", "↑ 800.0 %"})
        panel = fig.axes[1].get_window_extent()
        for text in texts.values():
            box = text.get_window_extent()
            self.assertGreater(box.y0, panel.y0)
            self.assertLess(box.y1, panel.y1 + 1)

    def test_one_colour_and_one_name_for_a_configuration_in_all_panels(self) -> None:
        def spec(model: str, kind: str, threads: int) -> SessionSpec:
            image = 299 if model == "inception3" else 224
            return SessionSpec(model=model, columns={"compute_type": kind, "threads": threads, "image_size": image})

        cells = self.cells(
            spec("inception3", "bf16", 1),
            spec("inception3", "fp32", 2),
            spec("resnet101", "fp32", 1),
            spec("resnet101", "fp32", 2),
            spec("vgg16", "fp32", 2),
        )
        fig = self.drawn(cells, [])
        (legend,) = fig.legends
        colour = {
            text.get_text(): line.get_color() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
        }
        names = [f"measured here ({words})" for words in ("bf16, 1 thread", "fp32, 2 threads", "fp32, 1 thread")]
        self.assertEqual(list(colour), [*names, "ideal"])
        self.assertEqual(len(set(colour.values())), 4)
        for panel, shown in zip(fig.axes[:3], ([0, 1], [2, 1], [1]), strict=True):
            drawn = {line.get_color() for line in panel.lines if line.get_marker() == "o"}
            self.assertEqual(drawn, {colour[names[i]] for i in shown}, panel.get_title())

    def test_more_configurations_than_colours_are_all_drawn(self) -> None:
        cells = self.cells(*(SessionSpec(batch_size=size) for size in (1, 2, 4, 8, 16, 32, 64)))
        fig = self.drawn(cells, [])
        curves = [line for line in fig.axes[0].lines if line.get_marker() in "ovX"]
        self.assertEqual(len({(line.get_color(), line.get_marker()) for line in curves}), 7)

    def test_the_legend_covers_nothing(self) -> None:
        sizes = (1, 2, 4, 8, 16, 32, 64)
        for models in (["vgg16"], ["resnet101", "vgg16"], ["inception3", "resnet101", "vgg16"]):
            cells = self.cells(
                *(SessionSpec(model=model, batch_size=size, ranks=8) for model in models for size in sizes)
            )
            fig = self.drawn(cells, published.load())
            legend = fig.legends[0].get_window_extent()
            self.assertGreater(len(fig.legends[0].get_texts()), 11)
            self.assertLessEqual(legend.x1, fig.bbox.width, models)
            for panel in fig.axes[len(models) :]:
                self.assertGreater(panel.xaxis.label.get_window_extent().y0, legend.y1, models)
            for text in fig.texts:
                self.assertLess(text.get_window_extent().x1, fig.bbox.width, text.get_text())

    def test_the_names_of_last_points_lie_in_the_figure_and_in_no_other_panel(self) -> None:
        models = ("inception3", "resnet101", "vgg16")
        for ranks in (2, 64, 512):
            fig = self.drawn(self.cells(*(SessionSpec(model=model, ranks=ranks) for model in models)), published.load())
            panels = fig.axes[:6]
            for panel in panels:
                (name,) = (text for text in panel.texts if text.get_fontweight() == "bold")
                box = name.get_window_extent()
                self.assertLess(box.x1, fig.bbox.width)
                others = [other for other in panels if other is not panel]
                self.assertFalse(any(box.overlaps(other.get_window_extent()) for other in others), (ranks, name))

    def test_published_points_are_drawn_beside_eight_ranks_and_more(self) -> None:
        for ranks, reach, drawn in ((4, 4 * 1.7, False), (8, 512 * 1.19, True)):
            fig = self.drawn(self.cells(SessionSpec(ranks=2), SessionSpec(ranks=ranks)), published.load())
            texts = [text.get_text() for text in fig.legends[0].get_texts()]
            self.assertEqual(any("published" in text for text in texts), drawn)
            self.assertEqual(any("Pascal" in text.get_text() for text in fig.texts), drawn)
            self.assertAlmostEqual(fig.axes[0].get_xlim()[1], reach)

    def test_rates_of_less_than_a_decade_have_ticks(self) -> None:
        axes = self.drawn(self.cells(SessionSpec()), []).axes[0]
        low, high = axes.get_ylim()
        self.assertGreaterEqual(sum(low <= tick <= high for tick in axes.get_yticks()), 2)

    def test_published_networks_are_named_as_in_their_file(self) -> None:
        fig = self.drawn(self.cells(SessionSpec(ranks=8)), published.load())
        texts = [text.get_text() for text in fig.legends[0].get_texts()]
        self.assertEqual(
            texts[2:],
            [
                "published, 16 GPUs, 25 Gbit/s RoCE (RDMA)",
                "published, 64 GPUs, 40 Gbit/s TCP",
                "published, 128 GPUs, 25 Gbit/s RoCE (RDMA)",
                "published, 512 GPUs, 25 Gbit/s RoCE (RDMA)",
            ],
        )


class NamesTest(unittest.TestCase):
    def test_the_waterfall_uses_the_reports_names(self) -> None:
        for component in plot_waterfall.STEPS:
            self.assertEqual(plot_waterfall.tick(component), tables.COMPONENTS[component])
        self.assertEqual(plot_waterfall.tick("dark_matter"), "dark matter")

    def test_a_gain_has_one_sign(self) -> None:
        self.assertEqual(plot_waterfall.amount(13.3, 155.0), "13.3 %, 155 ms")
        self.assertEqual(plot_waterfall.amount(-6.6, -77.0), "-6.6 %, -77 ms")
        self.assertEqual(plot_waterfall.amount(-0.01, -0.2), "0.0 %, 0 ms")
