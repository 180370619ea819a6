"""Collectives beside other libraries: cells, hostile samples and records, the judgement, and the measuring programs."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import math
import mmap
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

from synthetic_store import REPOSITORY

from collpeers import __main__ as command
from collpeers import cells, judge, libraries, machine, page, record, samples
from collpeers.record import Launch, Plan
from hvdb import coll_results
from hvdb.errors import HvdbError

ENGINE = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("engine_collectives")
CELL = "all_reduce/fp32/1024/in/100"
PLAN = Plan("a machine", {"cores": 2}, {"ours": "1", "mpich": "5", "gloo": "2"}, [CELL], 24, 3, 1, 0, 7)


def rounds(*seconds: float) -> dict[int, float]:
    return dict(enumerate(seconds))


def launches(library: str, seconds: dict[int, float], wrong: int = 0) -> list[Launch]:
    return [Launch(i, "cores", library, None, {CELL: samples.Result((s,), wrong)}) for i, s in seconds.items()]


class CellTest(unittest.TestCase):
    def test_sets_hold_cells_only(self) -> None:
        for name, texts in cells.SETS.items():
            for text in texts:
                self.assertIsNotNone(cells.parse(text), f"{name}: {text}")

    def test_gradients_are_those_of_the_networks(self) -> None:
        self.assertEqual(cells.GRADIENTS["resnet101"], 178_196_640)
        self.assertIn("(vgg16)", cells.title("all_reduce/fp32/553430176/in/1"))

    def test_what_is_no_cell(self) -> None:
        for text in (
            "all_reduce/fp32/1023/in/1",  # no whole elements
            "all_reduce/fp32/0/in/1",
            "barrier/fp32/4/in/1",
            "broadcast/fp32/4/out/1",
            "all_to_all/fp32/4/in/1",
            "all_reduce/fp32/4/in/0",
            "all_reduce/fp8/4/in/1",
            "all_reduce/fp32/4/in/1\n",
            f"all_reduce/fp32/{cells.MOST_BYTES + 4}/in/1",
            "--corrupt",
        ):
            self.assertIsNone(cells.parse(text), text)
            with self.assertRaisesRegex(HvdbError, "neither a set of cells"):
                cells.chosen([text])

    def test_each_cell_is_chosen_once(self) -> None:
        self.assertEqual(cells.chosen([CELL, "many", CELL]), [CELL, "all_reduce/fp32/1024/in/1000"])

    def test_broad_gives_each_rank_an_element(self) -> None:
        few, many = cells.chosen(["broad"], 2), cells.chosen(["broad"], 32)
        self.assertEqual(few, cells.SETS["broad"])
        self.assertIn("all_reduce/fp32/4/in/100", many)
        left_out = {"reduce_scatter/fp32/64/out/100", "all_gather/fp32/64/out/100", "all_to_all/fp32/64/out/100"}
        self.assertEqual(set(few) - set(many), left_out)
        self.assertFalse(
            [cell for cell in few if "/4/" in cell and cell.split("/")[0] not in ("all_reduce", "broadcast")]
        )
        self.assertEqual(len(cells.SETS["core"]), 30)

    def test_pools_of_buffers(self) -> None:
        self.assertEqual(cells.pool_bytes(["all_reduce/fp32/1024/in/100"], 1000), 102_400)
        self.assertEqual(cells.pool_bytes(["all_reduce/fp32/4000/in/1", "all_gather/fp32/8/out/2"], 1000), 5000)


class SamplesTest(unittest.TestCase):
    GOOD: ClassVar = {"cell": CELL, "ranks": 2, "wrong": 0, "seconds": [1e-3, 2e-3]}

    def read(self, *rows: dict | str) -> dict[str, samples.Result]:
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        return samples.printed(text, [CELL], ranks=2)

    def test_lines_of_the_launcher_are_skipped(self) -> None:
        found = self.read("a warning of mpirun", "", self.GOOD, "another one")
        self.assertEqual(found, {CELL: samples.Result((1e-3, 2e-3), 0)})

    def test_an_operation_that_a_library_lacks_has_no_samples(self) -> None:
        self.assertEqual(self.read({**self.GOOD, "seconds": []})[CELL].seconds, ())

    def test_hostile_lines(self) -> None:
        hostile: list[dict | str] = [
            {**self.GOOD, "cell": "all_reduce/fp32/2048/in/1"},
            {**self.GOOD, "cell": ["a"]},
            {**self.GOOD, "cell": "\x1b[2J"},
            {**self.GOOD, "ranks": 3},
            {**self.GOOD, "ranks": True},
            {**self.GOOD, "wrong": -1},
            {**self.GOOD, "wrong": 0.5},
            {**self.GOOD, "wrong": 1 << 63},
            {**self.GOOD, "seconds": "1"},
            {**self.GOOD, "seconds": [0]},
            {**self.GOOD, "seconds": [-1.0]},
            {**self.GOOD, "seconds": [True]},
            {**self.GOOD, "seconds": [None]},
            {**self.GOOD, "seconds": [[1.0]]},
            {**self.GOOD, "seconds": [1.0] * (samples.MOST_SAMPLES + 1)},
            {**self.GOOD, "more": 1},
            {key: value for key, value in self.GOOD.items() if key != "wrong"},
            json.dumps(self.GOOD).replace("0.001", "NaN"),
            json.dumps(self.GOOD).replace("0.001", "Infinity"),
            json.dumps(self.GOOD).replace("0.001", "1e999"),
            json.dumps(self.GOOD).replace("0.001", "9" * 5000),
            json.dumps(self.GOOD)[:-1] + ', "wrong": 0}',
            json.dumps(self.GOOD)[:-1],
            "{" + "[" * 100_000,
            '{"cell": ' + "[" * 100_000,
            "{" + " " * samples.LONGEST_LINE,
        ]
        for row in hostile:
            with self.subTest(row=str(row)[:80]), self.assertRaises(samples.Malformed) as caught:
                self.read(row)
            self.assertNotIn("\x1b", str(caught.exception))
        with self.assertRaisesRegex(samples.Malformed, "stands twice"):
            self.read(self.GOOD, self.GOOD)


class JudgeTest(unittest.TestCase):
    def test_the_peer_is_chosen_on_even_rounds_and_judged_on_odd_ones(self) -> None:
        lucky = rounds(*(1.0, 8.0) * 6)  # the best of the even rounds
        steady = rounds(*(2.0, 2.0) * 6)
        found = judge.judge(CELL, rounds(*(4.0, 4.0) * 6), {"steady": steady, "lucky": lucky})
        self.assertEqual((found.peer, found.rounds, found.verdict), ("lucky", 6, judge.FASTER))
        for value in (found.ratio, found.low, found.high):
            self.assertAlmostEqual(value, 0.5)
        self.assertEqual((found.ours_seconds, found.peer_seconds), (4.0, 8.0))

    def test_a_slow_round_hits_both_and_cancels(self) -> None:
        noise = [1.0, 9.0, 2.0, 1.0, 5.0, 3.0, 7.0, 1.0, 1.0, 2.0, 4.0, 6.0]
        found = judge.judge(CELL, rounds(*(3 * n for n in noise)), {"peer": rounds(*noise)})
        self.assertAlmostEqual(found.low, 3.0)
        self.assertAlmostEqual(found.high, 3.0)
        self.assertEqual(found.verdict, judge.SLOWER)

    def test_an_interval_that_holds_one_decides_nothing(self) -> None:
        found = judge.judge(CELL, rounds(*[2.0, 2.0, 2.0, 0.5] * 6), {"peer": rounds(*[1.0] * 24)})
        self.assertLess(found.low, 1)
        self.assertGreater(found.high, 1)
        self.assertEqual(found.verdict, judge.UNDECIDED)

    def test_five_odd_rounds_have_no_interval(self) -> None:
        found = judge.judge(CELL, rounds(*[2.0] * 11), {"peer": rounds(*[1.0] * 11)})
        self.assertEqual((found.rounds, found.low, found.high), (5, 0.0, math.inf))
        self.assertEqual(found.verdict, judge.UNDECIDED)
        self.assertFalse(found.bounded)
        self.assertEqual(judge.counts([found], 1).verdicts[judge.NOT_JUDGED], 1)

    def test_a_peer_of_few_rounds_is_not_the_best(self) -> None:
        self.assertEqual(judge.best_peer({"rare": {0: 0.1}, "often": rounds(*[1.0] * 12)}), "often")
        self.assertIsNone(judge.best_peer({"odd only": {1: 0.1}}))
        self.assertIsNone(judge.judge(CELL, rounds(1.0, 1.0), {"even only": {0: 1.0, 2: 1.0}}))

    def test_losses_come_first_and_are_counted(self) -> None:
        def one(cell: str, ratio: float, low: float, high: float) -> judge.Judgement:
            return judge.Judgement(cell, "p", ratio, 1.0, ratio, low, high, 12)

        found = [one("a", 0.5, 0.4, 0.6), one("b", 1.2, 1.1, 1.3), one("c", 1.0, 0.9, 1.1), one("d", 3.0, 2.0, 4.0)]
        self.assertEqual([j.cell for j in judge.losses_first(found)], ["d", "b", "c", "a"])
        counts = judge.counts(found, 10)  # of the other six ours was wrong, say
        self.assertEqual(list(counts.verdicts.values()), [1, 0, 1, 2, 6])
        self.assertAlmostEqual(counts.share_not_above(), 0.2)
        self.assertAlmostEqual(counts.share_shown(), 0.1)
        self.assertEqual(one("e", 1.0, 0.97, 1.05).verdict, judge.WITHIN)
        self.assertEqual(one("e", 1.02, 1.01, 1.03).verdict, judge.SLOWER)
        self.assertAlmostEqual(judge.counts([one("e", 1.0, 0.9, 1.01)], 2).share_shown(), 0.5)

    def test_the_median_has_an_interval_from_six_values_on(self) -> None:
        self.assertIsNone(judge.median_interval([]))
        self.assertIsNone(judge.median_interval([1.0] * 5))
        self.assertEqual(judge.median_interval([6.0, 1.0, 2.0, 3.0, 4.0, 5.0]), (1.0, 6.0))
        # Conover, Practical Nonparametric Statistics: the third of twelve misses the median in 1.9 % on each side.
        self.assertEqual(judge.median_interval(map(float, range(1, 13))), (3.0, 10.0))


class RecordTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.file = Path(scratch.name) / "record"

    def test_what_was_written_is_read(self) -> None:
        self.assertEqual(record.begin(self.file, PLAN), [])
        made = [Launch(0, "cores", "ours", None, {CELL: samples.Result((1e-3,), 2)}), Launch(0, "cores", "gloo", "why")]
        for launch in made:
            record.append(self.file, launch)
        self.assertEqual(record.read(self.file), (PLAN, made))
        self.assertEqual(record.begin(self.file, PLAN), made)

    def test_a_line_cut_short_is_measured_again(self) -> None:
        record.begin(self.file, PLAN)
        with self.file.open("a") as opened:
            opened.write('{"round": 0, "ki')
        self.assertEqual(record.begin(self.file, PLAN), [])
        launch = Launch(0, "cores", "ours", "why")
        record.append(self.file, launch)
        self.assertEqual(record.read(self.file), (PLAN, [launch]))

    def test_another_plan_is_refused(self) -> None:
        record.begin(self.file, PLAN)
        with self.assertRaisesRegex(HvdbError, "other libraries, seed; name another file"):
            record.begin(self.file, Plan(**{**vars(PLAN), "seed": 8, "libraries": {"ours": "2"}}))

    def test_hostile_records(self) -> None:
        good = json.loads(json.dumps({"format": record.FORMAT, **vars(PLAN)}))
        launch = {"round": 0, "kind": "cores", "library": "ours", "failure": None, "results": {}}
        plans = [{**good, "rounds": 1001}, {**good, "pool_bytes": 1 << 40}]
        plans += [{**good, "cells": ["x"]}, {**good, "rounds": 1e9}, {**good, "classes": {}}, {**good, "format": "2"}]
        plans += [{**good, "libraries": {"ours": 1}}, {**good, "machine": "x" * 1000}, {"format": record.FORMAT}]
        after = [{**launch, "round": 24}, {**launch, "library": "other"}, {**launch, "results": {"x": {}}}, [1]]
        after += [{**launch, "kind": ["cores"]}, {**launch, "failure": 1}, {**launch, "more": 1}]
        after += [{**launch, "results": {CELL: {"seconds": [0], "wrong": 0}}}, {**launch, "results": [CELL]}]
        for rows, line in [*(([p], 1) for p in plans), *(([good, row], 2) for row in after)]:
            self.file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            with self.subTest(rows=str(rows[-1])[:80]), self.assertRaisesRegex(HvdbError, f"line {line} is not of"):
                record.read(self.file)
        self.file.write_text("".join(json.dumps(row) + "\n" for row in (good, launch, launch)))
        with self.assertRaisesRegex(HvdbError, "line 3 .* stands twice"):
            record.read(self.file)
        for content, why in ((b"\xff\n", "line 1 is not of"), (b"\xff", "holds no plan"), (b"", "holds no plan")):
            self.file.write_bytes(content)
            with self.assertRaisesRegex(HvdbError, why):
                record.read(self.file)

    def test_the_longest_launch_fits_into_a_line(self) -> None:
        asked = [f"reduce_scatter/fp32/{cells.MOST_BYTES - 4 * i}/out/99999" for i in range(samples.MOST_CELLS)]
        result = samples.Result((1e-9 / 3,) * samples.MOST_SAMPLES, 1 << 62)
        plan = Plan(**{**vars(PLAN), "cells": asked})
        launch = Launch(0, "cores", "ours", "x" * record.LONGEST_TEXT, dict.fromkeys(asked, result))
        record.begin(self.file, plan)
        record.append(self.file, launch)
        self.assertEqual(record.read(self.file), (plan, [launch]))
        longest = len(json.dumps({"x" * cells.LONGEST_CELL: vars(result)}))
        self.assertLess(longest * samples.MOST_CELLS + 1000, samples.LONGEST_LINE)

    def test_there_is_one_writer(self) -> None:
        with (
            record.locked(self.file),
            self.assertRaisesRegex(HvdbError, "another run writes it"),
            record.locked(self.file),
        ):
            pass
        with record.locked(self.file), self.file.open("a") as other, self.assertRaises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with record.locked(self.file):
            record.begin(self.file, PLAN)

    def test_libraries_that_yield_are_measured_where_ranks_share_cores(self) -> None:
        plan = Plan(
            **{
                **vars(PLAN),
                "classes": {"cores": 2, "oversubscribed": 4},
                "libraries": {"oneccl": "", "oneccl_yield": ""},
            }
        )
        self.assertEqual(len(record.turns(plan)), 24 * 3)
        self.assertNotIn(("cores", "oneccl_yield"), record.block_of(plan))

    def test_turns_are_drawn_from_the_seed(self) -> None:
        turns = record.turns(PLAN)
        self.assertEqual(turns, record.turns(PLAN))
        self.assertEqual(len({(t.round, t.kind, t.library) for t in turns}), 24 * 3)
        orders = {tuple(t.library for t in turns if t.round == number) for number in range(24)}
        self.assertGreater(len(orders), 3)
        self.assertNotEqual(turns, record.turns(Plan(**{**vars(PLAN), "seed": 8})))


class PageTest(unittest.TestCase):
    def test_a_library_with_a_wrong_result_is_not_compared(self) -> None:
        slow, fast = rounds(*[2.0] * 24), rounds(*[1.0] * 24)
        given = launches("ours", slow) + launches("mpich", slow) + launches("gloo", fast, wrong=1)
        (found,) = page.judgements(PLAN, given, "cores", "ours")
        self.assertEqual((found.peer, found.ratio), ("mpich", 1.0))
        self.assertIn(f"WRONG: gloo, cores, {CELL}: 24 elements", page.text(PLAN, given))
        self.assertEqual(command.exit_code(given), 0)
        self.assertEqual(command.exit_code(launches("ours", fast, wrong=1)), 1)
        self.assertEqual(command.exit_code([Launch(0, "cores", "ours", "ended")]), 1)

    def test_the_summary_counts_verdicts(self) -> None:
        given = launches("ours", rounds(*[2.0] * 24)) + launches("mpich", rounds(*[1.0] * 24))
        text = page.text(PLAN, given)
        self.assertIn(
            "faster 0, not slower within 5 % 0, undecided 0, slower 1, not judged 0, of 1 planned cells", text
        )
        self.assertIn("2.00 [2.00, 2.00]", text)
        self.assertIn("Of all planned cells 0 % have an interval that does not lie above 1", text)

    def test_a_cell_where_ours_was_wrong_stays_in_the_denominator(self) -> None:
        plan = Plan(**{**vars(PLAN), "cells": [CELL, "all_reduce/fp32/8/in/100"]})
        fast, slow = rounds(*[1.0] * 24), rounds(*[2.0] * 24)
        given = [*launches("ours", fast), *launches("mpich", slow)]
        for one in given:
            one.results["all_reduce/fp32/8/in/100"] = samples.Result((1.0,), int(one.library == "ours"))
        text = page.text(plan, given)
        self.assertIn(
            "faster 1, not slower within 5 % 0, undecided 0, slower 0, not judged 1, of 2 planned cells", text
        )
        self.assertIn("50 % have an interval that does not lie above 1", text)
        self.assertIn("50 % are shown to be not slower", text)
        self.assertIn("not judged: all_reduce/fp32/8/in/100: ours was wrong", text)

    def test_bands_and_gradients(self) -> None:
        sizes = {8: 0.5, 4096: 2.0, 262_144: 3.0, cells.GRADIENTS["vgg16"]: 0.25}
        texts = {cells.cell("all_reduce", "fp32", size, "in"): ratio for size, ratio in sizes.items()}
        plan = Plan(**{**vars(PLAN), "cells": list(texts)})
        given = []
        for i in range(24):
            for name in ("ours", "mpich"):
                found = {c: samples.Result((r if name == "ours" else 1.0,), 0) for c, r in texts.items()}
                given.append(Launch(i, "cores", name, None, found))
        text = page.text(plan, given)
        for name, *figures in (
            ("up to 4 KiB", "2", "1.00", "0.50", "2.00", "1", "0", "0", "1"),
            ("up to 256 KiB", "1", "3.00", "3.00", "3.00", "0", "0", "0", "1"),
            ("above", "1", "0.25", "0.25", "0.25", "1", "0", "0", "0"),
        ):
            self.assertRegex(text, rf"(?m)^{name} +{' +'.join(figures)}$")
        self.assertIn(
            "vgg16's gradients as one flat call: ours / mpich = 0.25 [0.25, 0.25], 250.0 ms beside 1000.0", text
        )

    def test_json_has_every_library_as_a_curve(self) -> None:
        given = launches("ours", rounds(*[1.0] * 12)) + launches("mpich", rounds(*[2.0] * 12))
        given += launches("gloo", rounds(3.0, 3.0))
        made = json.loads(json.dumps(page.document(PLAN, given), allow_nan=False))
        self.assertEqual([(s["library"], s["seconds"], s["rounds"]) for s in made["series"]], [
            ("ours", 1.0, 12), ("mpich", 2.0, 12), ("gloo", 3.0, 2)])  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "peers.json"
            file.write_text(json.dumps(made))
            curves = {one.name: one.points for one in coll_results.read([file]).series}
            self.assertEqual(list(curves), ["ours, cores", "mpich, cores", "gloo, cores"])
            self.assertEqual(curves["mpich, cores"], [coll_results.Point(1024, 2e4, 2e4, 2e4)])
            self.assertEqual(curves["gloo, cores"], [coll_results.Point(1024, 3e4)])
            for spoil in ({"low": 4.0, "high": 5.0}, {"low": None}, {"seconds": 0}, {"library": 1}, {"cell": "x"}):
                hostile = {**made, "series": [{**made["series"][0], **spoil}]}
                file.write_text(json.dumps(hostile))
                with self.subTest(spoil=spoil), self.assertRaises(HvdbError):
                    coll_results.read([file])

    def test_json_holds_no_infinity(self) -> None:
        few = rounds(1.0, 1.0)
        made = page.document(PLAN, launches("ours", few) + launches("gloo", few))
        (row,) = json.loads(json.dumps(made, allow_nan=False))["cells"]
        self.assertEqual((row["verdict"], row["low"], row["high"]), (None, None, None))


class CommandTest(unittest.TestCase):
    def test_a_comparison_that_was_stopped_goes_on(self) -> None:
        calls: list[tuple[str, str]] = []

        def launch(library: str, kind: str, *_: object) -> tuple[dict[str, samples.Result], None]:
            if len(calls) == 30:
                raise KeyboardInterrupt
            calls.append((library, kind))
            return {CELL: samples.Result((1.0,), 0)}, None

        used = {name: name for name in PLAN.libraries}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(libraries, "launch", launch):
            file = Path(folder) / "record"
            with self.assertRaises(KeyboardInterrupt):
                command.measure(PLAN, used, file)
            first, calls = calls, []
            with mock.patch.object(libraries, "launch", lambda *a: ({CELL: samples.Result((1.0,), 0)}, None)):
                done = command.measure(PLAN, used, file)
        self.assertEqual((len(first), len(done)), (30, 72))
        self.assertEqual([one.library for one in done], [turn.library for turn in record.turns(PLAN)])

    def test_what_makes_no_sense_is_a_line(self) -> None:
        for words, why in (
            (["--rounds", "0"], "this cannot be measured: rounds is no whole number from 1 to 1000"),
            (["--samples", "9999"], "this cannot be measured: samples is no whole number"),
            (["--seed", "-1"], "this cannot be measured: seed is no whole number"),
            (["--libraries", "x"], "no library 'x': ours, "),
            (["--cells", "y"], "'y' is neither a set of cells"),
        ):
            given = command.parser().parse_args(["run", "--out", "file", *words])
            with (
                self.subTest(words=words),
                mock.patch.object(libraries, "build"),
                mock.patch.object(libraries, "version", lambda library: library.title),
                contextlib.redirect_stdout(io.StringIO()),
                self.assertRaises(HvdbError) as caught,
            ):
                command.planned(given)
            self.assertTrue(str(caught.exception).startswith(why), caught.exception)
            self.assertNotIn("\n", str(caught.exception))

    def test_buffers_that_do_not_fit(self) -> None:
        with self.assertRaisesRegex(
            HvdbError, "the buffers need .* MiB, more than half of the .* MiB that are available"
        ):
            command.require_memory(Plan(**{**vars(PLAN), "pool_bytes": 1 << 45}))

    def test_the_judgements_must_be_writable_before_hours_of_measuring(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for file in (Path(folder) / "missing" / "peers.json", Path(folder)):
                words = ["run", "--out", str(Path(folder) / "record"), "--json", str(file)]
                with mock.patch.object(command, "planned") as planned, self.assertRaises(OSError) as caught:
                    command.run(command.parser().parse_args(words))
                self.assertEqual(caught.exception.filename, str(file))
                planned.assert_not_called()

    def test_no_round_begins_that_would_end_late(self) -> None:
        clock = command.Rounds(100.0)
        self.assertTrue(clock.may_begin(0, 200.0))  # there is nothing to judge by yet
        self.assertTrue(clock.may_begin(0, 230.0))
        clock = command.Rounds(100.0)
        self.assertTrue(clock.may_begin(0, 0.0))
        self.assertTrue(clock.may_begin(1, 40.0))  # 40 s + 1.1 * 40 s
        self.assertTrue(clock.may_begin(1, 99.0))  # a round is completed
        self.assertFalse(clock.may_begin(2, 70.0))
        self.assertTrue(command.Rounds(None).may_begin(7, 1e9))

    def test_minutes_end_a_run_after_whole_rounds(self) -> None:
        now = [0.0]

        def launch(*_: object) -> tuple[dict[str, samples.Result], None]:
            now[0] += 10.0
            return {CELL: samples.Result((1.0,), 0)}, None

        used = {name: name for name in PLAN.libraries}
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(libraries, "launch", launch),
            mock.patch.object(command.time, "monotonic", lambda: now[0]),
        ):
            made = command.measure(PLAN, used, Path(folder) / "record", 100.0)
            self.assertEqual(len(made), 9)
            self.assertEqual(len(command.measure(PLAN, used, Path(folder) / "record", 190.0)), 18)


class MachineTest(unittest.TestCase):
    def test_two_threads_of_a_core_are_one_core(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for processor, package, core in ((0, 0, 0), (1, 0, 1), (2, 1, 0), (4, 0, 0), (5, 0, 1), (10, 1, 0)):
                topology = Path(folder) / f"cpu{processor}" / "topology"
                topology.mkdir(parents=True)
                (topology / "physical_package_id").write_text(f"{package}\n")
                (topology / "core_id").write_text(f"{core}\n")
            self.assertEqual(machine.one_per_core({0, 1, 2, 4, 5, 10}, Path(folder)), [0, 1, 2])
            self.assertEqual(machine.one_per_core({4, 5, 10, 1}, Path(folder)), [1, 4, 10])
            self.assertEqual(machine.one_per_core({7, 8}, Path(folder)), [7, 8])  # the system does not say

    def test_the_page_cache_is_available(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "meminfo"
            file.write_text("MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:   90 kB\n")
            self.assertEqual(machine.available_bytes(file), 90 << 10)
            self.assertGreater(machine.available_bytes(Path(folder) / "missing"), 0)


class LibraryTest(unittest.TestCase):
    def test_another_program_is_another_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            library = libraries.Library("a title", "1.2", [], {}, program)
            program.write_bytes(b"one")
            first = libraries.version(library)
            program.write_bytes(b"two")
            self.assertRegex(first, "^1.2; program [0-9a-f]{12}$")
            self.assertNotEqual(first, libraries.version(library))
            program.unlink()
            with self.assertRaisesRegex(HvdbError, "No such file"):
                libraries.version(library)

    def test_why_a_launch_failed_is_kept(self) -> None:
        said = "rank 1: the library reports an error"
        launcher = "-----\nmpirun noticed that\n   Exit code:    2\n-----\n"
        for printed, words in (
            (f"a warning\n{said}\nrank 0: another rank failed\n{launcher}", said),
            (f"rank 0: another rank failed\n{launcher}", "rank 0: another rank failed"),
            (f'{launcher}{{"cell": 1}}\n', "Exit code: 2"),
            ("x" * 1000, "x" * libraries.LONGEST_WORDS),
            ("", ""),
        ):
            self.assertEqual(libraries.last_words(printed), words)
        program = Path("/bin/sh")
        library = libraries.Library("", "", ["/bin/sh", "-c", f"echo '{said}'; exit 3"], {libraries.CORES: []}, program)
        self.assertEqual(
            libraries.launch(library, libraries.CORES, 2, [], [], 20.0), ({}, f"ended with exit code 3: {said}")
        )


ALL_OPERATIONS = [
    *(f"{operation}/fp32/4004/out/3" for operation in cells.OPERATIONS[:4]),  # uneven shares of 2 ranks
    *(f"{operation}/int64/8000/out/2" for operation in cells.OPERATIONS[:4]),
    "all_reduce/fp64/4000/in/2",
    "all_gather/int32/4004/in/2",
    "broadcast/fp32/4004/in/2",
    "barrier/fp32/0/in/5",
]


@unittest.skipUnless(shutil.which("mpirun") and shutil.which("mpicxx"), "needs an MPI with its compiler wrapper")
class ProgramTest(unittest.TestCase):
    """The measuring programs of the system's MPI and of the engine: results are exact, and wrong ones are found."""

    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = Path(scratch.name)
        with mock.patch.object(libraries, "PROGRAMS", cls.folder):
            there, _ = libraries.found(ENGINE)
        cls.libraries = {name: there[name] for name in ("system", *libraries.OURS)}
        libraries.build(there["system"])

    def launch(self, name: str, *words: str, asked: list[str]) -> tuple[dict[str, samples.Result], str | None]:
        options = ["--samples", "2", "--cell-seconds", "5", "--pool-bytes", "100000", "--seed", "3", *words]
        return libraries.launch(self.libraries[name], libraries.OVERSUBSCRIBED, 2, options, asked, 100.0)

    def require_exact(self, name: str) -> None:
        results, failure = self.launch(name, asked=ALL_OPERATIONS)
        self.assertIsNone(failure, name)
        self.assertEqual(set(results), set(ALL_OPERATIONS), name)
        for cell, result in results.items():
            self.assertEqual((result.wrong, len(result.seconds)), (0, 2), f"{name}: {cell}")
        results, failure = self.launch(name, "--corrupt", asked=ALL_OPERATIONS)
        self.assertRegex(failure or "", "^ended with exit code 1", name)
        for cell in ALL_OPERATIONS:
            self.assertEqual(results[cell].wrong, 0 if cell.startswith("barrier") else 1, f"{name}: {cell}")

    def test_every_operation_is_exact_and_one_changed_value_is_found(self) -> None:
        self.require_exact("system")

    @unittest.skipUnless(ENGINE.exists(), f"needs {ENGINE}: scripts/build release --target engine_collectives")
    def test_every_operation_of_ours_is_exact_and_one_changed_value_is_found(self) -> None:
        for name in libraries.OURS:
            with self.subTest(name):
                self.require_exact(name)

    def test_a_cell_that_makes_no_sense_is_refused(self) -> None:
        for cell in ("all_reduce/fp32/3/in/1", "broadcast/fp32/4/out/1", "all_reduce/fp32/4/in/0", "x"):
            results, failure = self.launch("system", asked=[cell])
            self.assertEqual(results, {}, cell)
            self.assertIn(f": {cell}: " if "/" in cell else ": x: not OPERATION", failure or "", cell)

    def test_both_programs_read_every_set(self) -> None:
        """The parser of the program accepts what cells.parse() accepts; it complains of the missing option alone."""
        program = str(self.libraries["system"].program)
        every = [cell for texts in cells.SETS.values() for cell in texts]
        largest, above = (f"all_reduce/fp32/{cells.MOST_BYTES + more}/in/1" for more in (0, 4))
        self.assertIsNotNone(cells.parse(largest))
        self.assertIsNone(cells.parse(above))
        for asked, why in (
            ([*every, largest], "needs --meeting, --samples and at least one cell"),
            ([above], f"{above}: "),
        ):
            done = subprocess.run([program, *asked], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"rank 0: {why}", done.stderr)


class Call(ctypes.Structure):
    """bench/peers/collectives.h, Call, as far as RulesTest reads it."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("in_place", ctypes.c_bool),
        ("out", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
    )


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
PERFORM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Call))


class Rules(ctypes.Structure):
    """bench/peers/collectives.h, Library."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("self", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("perform", PERFORM),
    )


@unittest.skipUnless(shutil.which("g++"), "needs g++")
class RulesTest(unittest.TestCase):
    """The measuring code with a library of one rank that is written here."""

    POOL = 8 << 20

    def resident_share(self, address: int, length: int) -> float:
        """The share of the pages that are in memory: those of which the first use is a page fault are not."""
        state = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), state), 0)
        return sum(byte & 1 for byte in state) / len(state)

    def test_all_buffers_are_in_memory_before_the_first_sample(self) -> None:
        shares: list[float] = []

        def perform(_: object, call: ctypes._Pointer) -> int:
            shares.extend(self.resident_share(at, self.POOL) for at in (call.contents.input, call.contents.out))
            return 1  # unsupported: ends the cell

        with tempfile.TemporaryDirectory() as folder:
            rules, meeting = Path(folder) / "rules.so", Path(folder) / "meeting"
            sources = [str(libraries.SOURCES / name) for name in libraries.RULES]
            words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{libraries.ROOT}", *sources, "-o", str(rules)]
            subprocess.run(words, check=True, timeout=300)
            measure = ctypes.CDLL(str(rules)).hvd_measure_collectives
            mapped: list[mmap.mmap] = []

            def allocate(_: object, size: int) -> int:
                mapped.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
                return ctypes.addressof(ctypes.c_char.from_buffer(mapped[-1]))

            for own in (ALLOCATE(0), ALLOCATE(allocate)):
                meeting.write_bytes(b"")
                words = ["x", "--meeting", str(meeting), "--samples", "1", "--pool-bytes", str(self.POOL)]
                words += ["--cell-seconds", "0", "all_reduce/fp32/1024/out/1"]
                library = Rules(0, 1, None, own, PERFORM(perform))
                given = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
                self.assertEqual(measure(ctypes.byref(library), len(words), given), 0)
        self.assertEqual(shares, [1.0] * 4)


INSTALLED = {
    name: library
    for name, library in libraries.found(ENGINE)[0].items()
    if name not in libraries.OURS and not name.startswith("system")
}
LACKING = {  # operations of libraries that do not take uneven shares
    "oneccl": {"reduce_scatter/fp32/4004/out/3"},
    "gloo": {"reduce_scatter/fp32/4004/out/3", "all_gather/fp32/4004/out/3", "all_gather/int32/4004/in/2"},
}


@unittest.skipUnless(INSTALLED, "needs scripts/install_deps --peers")
class InstalledPeersTest(unittest.TestCase):
    def test_every_peer_is_exact_and_one_changed_value_is_found(self) -> None:
        options = ["--samples", "2", "--cell-seconds", "5", "--pool-bytes", "100000", "--seed", "3", "--corrupt"]
        for name, library in INSTALLED.items():
            with self.subTest(name):
                libraries.build(library)
                one_core = len(machine.cores()) < 2 or name in libraries.YIELDING
                kind = libraries.OVERSUBSCRIBED if one_core else libraries.CORES
                results, failure = libraries.launch(library, kind, 2, options, ALL_OPERATIONS, 200.0)
                self.assertRegex(failure or "", "^ended with exit code 1")
                lacking = {cell for cell, result in results.items() if not result.seconds}
                self.assertEqual(lacking, LACKING.get(name.removesuffix("_yield"), set()))
                for cell in set(ALL_OPERATIONS) - lacking:
                    self.assertEqual(results[cell].wrong, 0 if cell.startswith("barrier") else 1, cell)


class InstallationTest(unittest.TestCase):
    def test_a_peer_that_cannot_be_installed_leaves_the_others(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkout, programs = Path(folder) / "checkout", Path(folder) / "bin"
            shutil.copytree(REPOSITORY / "scripts", checkout / "scripts")
            programs.mkdir()
            (programs / "dpkg-query").write_text("#!/bin/sh\necho install ok installed\n", encoding="utf-8")
            (programs / "dpkg-query").chmod(0o755)
            lines = (checkout / "scripts" / "install_deps").read_text(encoding="utf-8")
            table = lines.partition("peer_table='")[2].partition("'")[0].splitlines()
            self.assertEqual(len(table), 5)
            for name, _, _, _, wheels in (line.split("|") for line in table):
                if name != "mpich":
                    peer = checkout / "build" / "peers" / name
                    peer.mkdir(parents=True)
                    (peer / "wheels.txt").write_text(f"{wheels}\n", encoding="utf-8")
            done = subprocess.run(
                ["/bin/bash", "scripts/install_deps", "--peers"],
                cwd=checkout,
                env={
                    **os.environ,
                    "PATH": f"{programs}:{os.environ['PATH']}",
                    "PIP_NO_INDEX": "1",
                    "PIP_FIND_LINKS": "",
                },
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("could not be installed: MPICH 5.0;", done.stderr)
            self.assertIn("oneCCL 2021.15 is there: build/peers/oneccl", done.stdout)
            self.assertFalse((checkout / "build" / "peers" / "mpich").exists())


if __name__ == "__main__":
    unittest.main()
