"""Tests the comparison of collectives with other libraries: cells, hostile samples and records, and judgement."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

from harness import FolderTest

from hvdb import coll_results, strict_json
from hvdb.errors import HvdbError
from maintain.collpeers import __main__ as command
from maintain.collpeers import cells, judge, libraries, machine, page, record, samples
from maintain.collpeers.record import Launch, Plan

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
            "all_reduce/fp32/1023/in/1",  # 1023 bytes are not a whole number of elements
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
            *({**self.GOOD, "cell": cell} for cell in ("all_reduce/fp32/2048/in/1", ["a"], "\x1b[2J")),
            *({**self.GOOD, "ranks": ranks} for ranks in (3, True)),
            *({**self.GOOD, "wrong": wrong} for wrong in (-1, 0.5, 1 << 63)),
            *({**self.GOOD, "seconds": seconds} for seconds in ("1", [0], [-1.0], [True], [None], [[1.0]])),
            {**self.GOOD, "seconds": [1.0] * (samples.MOST_SAMPLES + 1)},
            {**self.GOOD, "more": 1},
            {key: value for key, value in self.GOOD.items() if key != "wrong"},
            *(json.dumps(self.GOOD).replace("0.001", odd) for odd in ("NaN", "Infinity", "1e999", "9" * 5000)),
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
        with self.assertRaisesRegex(samples.Malformed, "occurs twice"):
            self.read(self.GOOD, self.GOOD)


class JudgeTest(unittest.TestCase):
    def test_the_peer_is_chosen_on_even_rounds_and_judged_on_odd_ones(self) -> None:
        lucky = rounds(*(1.0, 8.0) * 6)  # fastest of all in the even rounds, slow in the odd rounds
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
        counts = judge.counts(found, 10)  # 10 cells, of which six have no judgement, for example because ours was wrong
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
        # The third lowest of twelve values is above the median in 1.9 % of cases (Conover, Practical Nonparametric
        # Statistics).
        self.assertEqual(judge.median_interval(map(float, range(1, 13))), (3.0, 10.0))


class RecordTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "record"

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

    def test_how_long_a_launch_may_take(self) -> None:
        self.assertEqual(record.limit_seconds(PLAN), 60 + 2 * (1 + 5) * 1)
        limited = Plan(**{**vars(PLAN), "launch_seconds": 7})
        self.assertEqual(record.limit_seconds(limited), 7)
        record.begin(self.file, limited)
        self.assertEqual(record.read(self.file), (limited, []))
        row = {"format": record.FORMAT, **vars(PLAN)}
        del row["launch_seconds"]  # records from before this limit existed do not have the value
        self.assertEqual(record.plan_of(row), PLAN)

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
        with self.assertRaisesRegex(HvdbError, "line 3 .* occurs twice"):
            record.read(self.file)
        for content, why in ((b"\xff\n", "line 1 is not of"), (b"\xff", "holds no plan"), (b"", "holds no plan")):
            self.file.write_bytes(content)
            with self.assertRaisesRegex(HvdbError, why):
                record.read(self.file)

    def test_the_longest_launch_fits_into_a_line(self) -> None:
        asked = [f"reduce_scatter/fp32/{cells.MOST_BYTES - 4 * i}/out/99999" for i in range(samples.MOST_CELLS)]
        result = samples.Result((1e-9 / 3,) * samples.MOST_SAMPLES, 1 << 62)
        plan = Plan(**{**vars(PLAN), "cells": asked})
        launch = Launch(0, "cores", "ours", "x" * strict_json.LONGEST_TEXT, dict.fromkeys(asked, result))
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
        classes, both = {"cores": 2, "oversubscribed": 4}, {"oneccl": "", "oneccl_yield": ""}
        plan = Plan(**{**vars(PLAN), "classes": classes, "libraries": both})
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
        self.assertIn("not judged: ours was wrong: all_reduce/fp32/8/in/100", text)

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
            (["--rounds", "0"], "this cannot be measured: rounds is not a whole number from 1 to 1000"),
            (["--samples", "9999"], "this cannot be measured: samples is not a whole number"),
            (["--seed", "-1"], "this cannot be measured: seed is not a whole number"),
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

    def test_broad_loses_its_largest_cell_where_memory_is_short(self) -> None:
        for free, words, there in (
            (64 << 30, ["broad"], True),
            (2 << 30, ["broad"], False),
            (2 << 30, ["broad", cells.BROADEST], True),  # a named cell stays, and require_memory() refuses the plan
        ):
            given = command.parser().parse_args(["run", "--out", "file", "--cells", *words])
            with (
                self.subTest(words=words, free=free),
                mock.patch.object(machine, "available_bytes", lambda free=free: free),
                contextlib.redirect_stdout(io.StringIO()) as said,
            ):
                self.assertEqual(cells.BROADEST in command.chosen_cells(given, 4), there)
                self.assertEqual("left out: all_reduce/fp32/536870912/in/1" in said.getvalue(), not there)

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
        self.assertTrue(clock.may_begin(0, 200.0))  # no round has been timed yet
        self.assertTrue(clock.may_begin(0, 230.0))
        clock = command.Rounds(100.0)
        self.assertTrue(clock.may_begin(0, 0.0))
        self.assertTrue(clock.may_begin(1, 40.0))  # expected to end at 40 s + 1.1 * 40 s
        self.assertTrue(clock.may_begin(1, 99.0))  # round 0 must be completed, however late
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
