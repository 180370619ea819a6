"""Predictions beside what was measured and published: plots, the report, hvdb reproduce."""

import json
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import predicted as made
from html_check import Page
from PIL import Image
from test_hostile_text import CONTROLS, HOSTILE

from harness import FolderTest, call
from synthetic_store import SessionSpec, make

from hvdb.judge import efficiency
from hvdb.read import predictions, runs
from hvdb.show import figure, plot_scaling, plot_validation, predicted

TITLE = "PREDICTED, not measured: ResNet-50, fp32, 8 images a step, static, cpu"


class ShownTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "p.json"

    def write(self, document: dict[str, Any]) -> Path:
        self.file.write_text(json.dumps(document), encoding="utf-8")
        return self.file

    def drawn(self, function: object, *arguments: object) -> Any:
        """Returns the figure that `function` would save."""
        with mock.patch.object(figure, "write") as write:
            function(*arguments, Path("none.png"))
        self.addCleanup(figure.plt.close, write.call_args[0][0])
        return write.call_args[0][0]


class PlotTest(ShownTest):
    def setUp(self) -> None:
        super().setUp()
        make(self.db, SessionSpec(model="resnet50"))
        self.cells = efficiency.cells(efficiency.select(runs.load([self.db])).runs)

    def scaling(self, document: dict[str, Any]) -> Any:
        read = predictions.read(self.write(document))
        return self.drawn(lambda path: plot_scaling.draw(self.cells, [], path, [read]))

    def test_bands_of_every_what_if(self) -> None:
        fig = self.scaling(made.document())
        axes = fig.axes[1]
        (legend,) = fig.legends
        names = [text.get_text() for text in legend.get_texts() if "PREDICTED" in text.get_text()]
        usual = "PREDICTED, 90 % band (fp32, 8 images a step, static, cpu"
        self.assertEqual(names, [f"{usual})", f"{usual}; link-gbit=100)"])
        shaded = [c.get_paths()[0].vertices for c in axes.collections if type(c).__name__ != "LineCollection"]
        self.assertEqual([vertices[:, 1].min().round(6) for vertices in shaded], [65, 75], "the lows on 64 ranks")
        self.assertGreater(axes.get_xlim()[1], 64)
        self.assertLessEqual(axes.get_ylim()[0], 65)
        self.assertIn("Shaded: PREDICTED, not measured.", " ".join(t.get_text() for t in fig.texts).replace("\n", " "))

    def test_more_what_ifs_than_colours_and_two_files_alike(self) -> None:
        what_ifs = made.document()["what_ifs"] + [{**made.document()["what_ifs"][1], "text": str(i)} for i in range(9)]
        rows = [made.row(2, 0.9, what_if=i) for i in range(11)]
        fig = self.scaling(made.document(what_ifs=what_ifs, rows=rows))
        self.assertIn("6 more not drawn.", " ".join(t.get_text() for t in fig.texts).replace("\n", " "))
        read = predictions.read(self.write(made.document(rows=[made.row(2, 0.9)])))
        fig = self.drawn(lambda path: plot_scaling.draw(self.cells, [], path, [read, read]))
        self.assertEqual(len([c for c in fig.axes[1].collections if type(c).__name__ != "LineCollection"]), 2)

    def test_a_band_below_all_points_lies_on_the_axis(self) -> None:
        fig = self.scaling(made.document(rows=[made.row(2, 0.2)]))
        self.assertLessEqual(fig.axes[1].get_ylim()[0], 15)

    def test_the_command(self) -> None:
        self.write(made.document())
        _, out, err = call("plot", self.db, "--out", self.folder, "--predicted", self.file, "--format", "svg", code=0)
        self.assertIn("scaling.svg", out)
        self.assertEqual(err, "")
        digest = predictions.read(self.file).sha256[:12]
        self.assertIn(f"predictions: p.json (SHA-256 {digest})", (self.folder / "scaling.svg").read_text())
        self.write(made.document(model="vgg16"))
        _, _, err = call("plot", self.db, "--out", self.folder, "--predicted", self.file, code=0)
        self.assertIn("no measured vgg16 to draw it beside", err)
        self.file.write_text("{}", encoding="utf-8")
        _, out, err = call("plot", self.db, "--out", self.folder, "--predicted", self.file, code=2)
        self.assertEqual((out, err.count("\n")), ("", 1))
        self.assertIn("its format is not hvdb-prediction", err)

    def test_hostile_texts(self) -> None:
        schedule = {"text": "", "schedule": HOSTILE, "options": [], "hardware": {}}
        what_ifs = [schedule, {**schedule, "text": HOSTILE}]
        make(self.folder / "h.db", SessionSpec(model=HOSTILE[:20]))
        names = {"model": HOSTILE[:20], "unit": HOSTILE, "compute_type": HOSTILE}
        self.write(made.document(**names, device=HOSTILE, what_ifs=what_ifs))
        words = ("--predicted", self.file, self.folder / "h.db")
        for command in (("plot", "--out", self.folder, *words), ("report", *words), ("reproduce", "horovod-512")):
            more = ("--predicted", self.file) if command[0] == "reproduce" else ()
            _, out, err = call(*command, *more)
            self.assertNotRegex(out + err, CONTROLS)
        call("report", *words, "-o", self.folder / "r.html", code=0)
        self.assertEqual(Page((self.folder / "r.html").read_text(encoding="utf-8")).faults(), [])


class ValidationPlotTest(ShownTest):
    def cell(self, measured: float, kind: str = "calibrated", **changes: Any) -> dict[str, Any]:
        spans = {"step_seconds": measured, "low": 0.99 * measured, "high": 1.01 * measured}
        usual = {"block": 3, "kind": kind, "ranks": 8, "options": "--bucket-mb 1", "rate_mbit": 100, "latency_us": 1000}
        usual |= {"predicted": made.band(0.2, 0.02), "measured": spans, "trivial": {"linear": 0.3, "flat": 0.1}}
        return usual | changes

    def write_cells(self, *cells: dict[str, Any]) -> Path:
        return self.write({"format": "hvdb-validation", "version": 1, "cells": list(cells)})

    def test_points_bands_and_what_lies_outside(self) -> None:
        cells = [self.cell(0.2), self.cell(0.219), self.cell(0.25), self.cell(0.4, "beyond", trivial={"other": 0.4})]
        read = predictions.read_validation(self.write_cells(*cells))
        self.assertEqual([cell.is_inside for cell in read.cells], [True, True, False, False])
        calibrated = "2 of 3 in the band; median error 8.7 %\nbest guess from the session alone: median error 37.0 %"
        self.assertEqual(plot_validation.summary(read.cells[:3]), calibrated)
        fig = self.drawn(lambda path: plot_validation.draw([read], path))
        self.assertEqual([len(axes.lines) for axes in fig.axes], [3 + 1, 1 + 1], "cells, and the diagonal")
        self.assertEqual(fig.axes[0].texts[0].get_text(), calibrated)
        self.assertEqual(fig.axes[0].get_ylabel(), "PREDICTED step, ms")
        self.assertEqual(fig.axes[0].get_title("left").strip(), "8 nodes, on which training was measured before")

    def test_the_cells_of_several_records_share_a_figure(self) -> None:
        one = predictions.read_validation(self.write_cells(self.cell(0.2), self.cell(0.219)))
        other = predictions.read_validation(self.write_cells(self.cell(0.25, rate_mbit=200, ranks=6)))
        fig = self.drawn(lambda path: plot_validation.draw([one, other], path))
        self.assertEqual(len(fig.axes[0].lines), 3 + 1, "cells, and the diagonal")
        self.assertTrue(fig.axes[0].get_title("left").startswith("6 and 8 nodes"))
        lines = fig.axes[0].texts[0].get_text().splitlines()
        self.assertTrue(lines[0].startswith("2 of 3 in the band"))
        self.assertEqual(lines[2], "at 100, 200 Mbit/s: 2 of 2, 0 of 1")

    def test_an_axis_has_about_four_ticks(self) -> None:
        self.assertEqual(plot_validation.ticks(130, 690), [150, 200, 300, 500])
        self.assertEqual(plot_validation.ticks(9, 400), [10, 30, 100, 300])
        self.assertEqual(plot_validation.ticks(0.5, 2000), [1, 10, 100, 1000])
        self.assertIn(len(plot_validation.ticks(100, 121)), (3, 4, 5, 6))

    def test_the_command_needs_no_store(self) -> None:
        self.write_cells(self.cell(0.2))
        _, out, _ = call("plot", "--validation", self.file, "--out", self.folder, code=0)
        self.assertEqual(out.split(), [str(self.folder / "validation.png")])
        description = Image.open(self.folder / "validation.png").text["Description"]
        self.assertIn(predictions.read_validation(self.file).sha256, description)
        for words in ((), ("--validation", self.file, "--predicted", self.file)):
            self.assertIn("plot: ", call("plot", *words, "--out", self.folder, code=2)[2])

    def test_refused(self) -> None:
        cases = {
            "no cells": [],
            "cells[1].kind: 'other' is not one of calibrated, beyond": [self.cell(0.2, "other")],
            "cells[1].measured: has not low <= middle <= high": [
                self.cell(0.2) | {"measured": {"step_seconds": 0.2, "low": 0.3, "high": 0.4}}
            ],
            "cells[1].trivial.flat: -1 is not a number above 0": [self.cell(0.2, trivial={"flat": -1})],
            "cells[1].rate_mbit: None is not a number": [self.cell(0.2, rate_mbit=None)],
            "cells: [1, 1, 1, 1, 1, 1, ...] is not a list of at most 10000": [1] * 10_001,
        }
        for text, cells in cases.items():
            with self.subTest(text):
                self.write_cells(*cells)
                _, _, err = call("plot", "--validation", self.file, "--out", self.folder, code=2)
                self.assertIn(f"{self.file}: not a record of validate_prediction: {text}", err)


class ReportTest(ShownTest):
    def setUp(self) -> None:
        super().setUp()
        make(self.db, SessionSpec(model="resnet50"), SessionSpec(model="resnet50", ranks=4, full=1.6))

    def page(self, document: dict[str, Any]) -> str:
        _, out, _ = call("report", self.db, "--predicted", self.write(document), code=0)
        return out

    def test_measured_and_published_beside_it(self) -> None:
        page = self.page(made.document())
        self.assertIn(f"### {TITLE}", page)
        self.assertRegex(
            page, r"\| as the run was \| 2 \| 1 \| 222\.2 .*\| 90\.0 \\\[85\.0, 95\.0\\\] \| 80\.0 \\\[.* \| - \|"
        )
        self.assertIn("| as the run was | 64 | 32 | 285.7", page)
        self.assertRegex(page, r"\| link-gbit=100 \| 64 \| 32 \| .* \| 80\.0 .* \| - \| - \|")
        self.assertNotIn("Nothing measured is beside it", page)

    def test_only_what_agrees(self) -> None:
        changes = ({"compute_type": "bf16"}, {"unit": "tokens"}, {"units_per_step": 16}, {"device": "cuda"})
        for change in changes:
            with self.subTest(change):
                page = self.page(made.document(**change))
                self.assertIn("Nothing measured is beside it: of 2 rows of this network on several ranks", page)
                self.assertEqual("never validated on GPUs" in page, "device" in change)

    def test_published(self) -> None:
        page = self.page(made.document(model="vgg16", units_per_step=64, rows=[made.row(512, 0.7)]))
        self.assertRegex(page, r"\| as the run was \| 512 \| 256 .* \| - \| 68\.0 \(25 Gbit/s RoCE.*\) \|")

    def test_the_prediction_is_not_replaced(self) -> None:
        self.write(made.document())
        _, _, err = call("report", self.db, "--predicted", self.file, "-o", self.file, code=2)
        self.assertIn("is a prediction, which -o would replace", err)

    def test_html(self) -> None:
        file = self.folder / "r.html"
        call("report", self.db, "--predicted", self.write(made.document()), "-o", file, code=0)
        read = Page(file.read_text(encoding="utf-8"))
        self.assertEqual(read.faults(), [])
        self.assertIn(TITLE, read.headings)


class ReproduceTest(ShownTest):
    def setUp(self) -> None:
        super().setUp()
        make(self.db, SessionSpec())

    def reproduce(self, *words: object) -> str:
        return call("reproduce", "horovod-512", "--db", self.db, "--predicted", self.file, *words, code=3)[1]

    def test_the_column(self) -> None:
        self.write(made.document(model="vgg16", units_per_step=64, rows=[made.row(512, 0.7)], device="cuda"))
        shown = self.reproduce()
        self.assertIn(predicted.TITLE, shown)
        self.assertRegex(shown, r"VGG-16 +512 +68 .* - +70\.0 \[65\.0, 75\.0\] +- +- +not measured here")
        self.assertIn("PREDICTED, not measured, and no part of the verdict:\n  VGG-16, fp32, 64 images a step", shown)
        self.assertIn("never validated on GPUs\n", shown)
        document = json.loads(self.reproduce("--json"))
        (line,) = (line for line in document["lines"] if line["predicted"])
        self.assertEqual((line["point"]["model"], line["point"]["gpus"]), ("vgg16", 512))
        self.assertEqual(line["predicted"][0]["middle"], 0.7)
        self.assertEqual(document["predictions"][0]["sha256"], predictions.read(self.file).sha256)

    def test_what_does_not_agree_is_said_once(self) -> None:
        self.write(made.document(model="vgg16", units_per_step=8, rows=[made.row(512, 0.7)]))
        shown = self.reproduce()
        self.assertEqual(shown.count("not shown, because no row agrees in model, type, units per step and ranks"), 1)
        self.assertNotIn("70.0 [", shown)


if __name__ == "__main__":
    unittest.main()
