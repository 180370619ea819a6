"""The figure of predicted against measured step times."""

import contextlib
import io
import json
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image

from harness import TESTBED, FolderTest, execute

from hvdb.show import figure
from validation import __main__ as validate
from validation import held_out, plot


class PlotTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "cells.json"

    def cell(self, measured: float, kind: str = "calibrated", **changes: Any) -> dict[str, Any]:
        spans = {"step_seconds": measured, "low": 0.99 * measured, "high": 1.01 * measured}
        usual = {"block": 3, "kind": kind, "ranks": 8, "options": "--bucket-mb 1", "rate_mbit": 100, "latency_us": 1000}
        usual |= {"predicted": {"low": 0.18, "middle": 0.2, "high": 0.22}, "measured": spans}
        usual |= {"trivial": {"linear": 0.3, "flat": 0.1}}
        return usual | changes

    def write_cells(self, *cells: dict[str, Any]) -> Path:
        document = {"format": "hvdb-validation", "version": 1, "cells": list(cells)}
        self.file.write_text(json.dumps(document), encoding="utf-8")
        return self.file

    def drawn(self, *records: held_out.Validation) -> Any:
        """Returns the figure that plot.draw() would save."""
        with mock.patch.object(figure, "write") as write:
            plot.draw(records, Path("none.png"))
        self.addCleanup(figure.plt.close, write.call_args[0][0])
        return write.call_args[0][0]

    def test_points_bands_and_what_lies_outside(self) -> None:
        cells = [self.cell(0.2), self.cell(0.219), self.cell(0.25), self.cell(0.4, "beyond", trivial={"other": 0.4})]
        read = held_out.read(self.write_cells(*cells))
        self.assertEqual([cell.is_inside for cell in read.cells], [True, True, False, False])
        calibrated = "2 of 3 in the band; median error 8.7 %\nbest guess from the session alone: median error 37.0 %"
        self.assertEqual(plot.summary(read.cells[:3]), calibrated)
        fig = self.drawn(read)
        self.assertEqual([len(axes.lines) for axes in fig.axes], [3 + 1, 1 + 1], "cells, and the diagonal")
        self.assertEqual(fig.axes[0].texts[0].get_text(), calibrated)
        self.assertEqual(fig.axes[0].get_ylabel(), "PREDICTED step, ms")
        self.assertEqual(fig.axes[0].get_title("left").strip(), "8 nodes, on which training was measured before")

    def test_the_cells_of_several_records_share_a_figure(self) -> None:
        one = held_out.read(self.write_cells(self.cell(0.2), self.cell(0.219)))
        other = held_out.read(self.write_cells(self.cell(0.25, rate_mbit=200, ranks=6)))
        fig = self.drawn(one, other)
        self.assertEqual(len(fig.axes[0].lines), 3 + 1, "cells, and the diagonal")
        self.assertTrue(fig.axes[0].get_title("left").startswith("6 and 8 nodes"))
        lines = fig.axes[0].texts[0].get_text().splitlines()
        self.assertTrue(lines[0].startswith("2 of 3 in the band"))
        self.assertEqual(lines[2], "at 100, 200 Mbit/s: 2 of 2, 0 of 1")

    def test_every_axis_has_round_ticks(self) -> None:
        wide = [self.cell(0.2), self.cell(0.25, predicted={"low": 0.13, "middle": 0.2, "high": 0.6})]
        for cells in (wide, [self.cell(0.2)]):
            read = held_out.read(self.write_cells(*cells))
            (axes,) = self.drawn(read).axes
            (low, high), ticks = axes.get_xlim(), axes.get_xticks()
            self.assertGreaterEqual(sum(low <= tick <= high for tick in ticks), 2, ticks)
            self.assertEqual(list(ticks), list(axes.get_yticks()))

    def test_the_command(self) -> None:
        self.write_cells(self.cell(0.2))
        done = execute(TESTBED / "validate_prediction", "plot", self.file, "--out", self.folder, code=0)
        self.assertEqual(done.stdout.split(), [str(self.folder / "validation.png")])
        description = Image.open(self.folder / "validation.png").text["Description"]
        self.assertIn(held_out.read(self.file).sha256, description)

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
                said = io.StringIO()
                with contextlib.redirect_stderr(said):
                    self.assertEqual(validate.main(["plot", str(self.file), "--out", str(self.folder)]), 2)
                self.assertIn(f"{self.file}: not a record of validate_prediction: {text}", said.getvalue())


if __name__ == "__main__":
    unittest.main()
