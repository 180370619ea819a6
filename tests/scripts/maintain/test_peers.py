"""Tests scripts/maintain/peers: arguments, checked answers, turns, lost peers, ratios with intervals, tables."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import math
import mmap
import os
import shutil
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

from harness import SCRIPTS, FolderTest, SharedFolderTest, executable, execute
from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError
from hvdb.read import coll_results
from maintain.peerbench import collectives, libraries, torch_peers

PEERS = SCRIPTS / "maintain" / "peers"
BIN = Path(os.environ.get("HVD_BENCH", "hvd_bench")).parent
ENGINE, STEP = BIN / "engine_collectives", BIN / "train_step_bench"
RECORDED = REPOSITORY / "results" / "recorded"
CELL = "all_reduce/fp32/1024/in/100"
PLAN = {"format": collectives.FORMAT, "machine": "a machine", "classes": {"cores": 2}, "cells": [CELL], "rounds": 24}
PLAN |= {"libraries": {"ours": "1", "mpich": "5", "gloo": "2"}, "samples": 3, "cell_seconds": 1, "pool_bytes": 0}
PLAN |= {"seed": 7, "missing": {"oneccl": "not installed"}}


def launches(library: str, *seconds: float, wrong: int = 0) -> list[dict]:
    """Returns a launch per round, with one sample of CELL."""
    fixed = {"kind": "cores", "library": library, "failure": None}
    results = [{CELL: {"seconds": [time], "wrong": wrong}} for time in seconds]
    return [{"round": number, **fixed, "results": result} for number, result in enumerate(results)]


def rounds(*seconds: float) -> dict[int, float]:
    return dict(enumerate(seconds))


class CommandTest(FolderTest):
    def test_what_makes_no_sense_is_one_line(self) -> None:
        (self.folder / "bad.json").write_text('[{"model": "vgg16"}]\n')
        (self.folder / "other.jsonl").write_text(json.dumps({**PLAN, "format": "hvd coll_peers 0"}) + "\n")
        lacking = [PLAN, {**launches("ours", 1.0)[0], "results": {CELL: {"seconds": ["1"], "wrong": 0}}}]
        (self.folder / "lacking.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lacking))
        sides = [dataclasses.asdict(side(name, 0.0)) for name in ("ours", "torch graph")]
        (self.folder / "zero.json").write_text(json.dumps([{"model": "vgg16", "dtype": "fp16", "sides": sides}]))
        for words, why in (
            (["collectives", "--rounds", "0"], "--rounds and --samples must be at least 1"),
            (["collectives", "--libraries", "x"], "argument --libraries: invalid choice: 'x'"),
            (["collectives", "--cells", "all_to_all/fp32/4/out/0"], "'all_to_all/fp32/4/out/0' is neither a set of"),
            (["collectives", "--cells", "broadcast/fp32/4/out/1"], "'broadcast/fp32/4/out/1' is neither a set of"),
            (["collectives", "--cells", "all_reduce/fp32/0/in/1"], "'all_reduce/fp32/0/in/1' is neither a set of"),
            (["collectives", "--report", self.folder / "bad.json"], "was not written by 'peers collectives'"),
            (["collectives", "--report", self.folder / "other.jsonl"], "its format is not 'hvd coll_peers 1'"),
            (["collectives", "--report", self.folder / "lacking.jsonl"], "was not written by 'peers collectives'"),
            (["torch-gpu", "--report", self.folder / "zero.json"], "was not written by 'peers torch-gpu'"),
            (["torch-gpu", "--report", self.folder / "bad.json"], "was not written by 'peers torch-gpu'"),
            (["torch-gpu", "--report", self.folder / "none.json"], "No such file"),
            (["torch-gpu", "--bench", "x", "--batches", "0"], "--batches and --turns must be at least 1"),
            (["torch"], "one of the arguments --bench --report is required"),
            (["other"], "peers torch-gpu ...     training steps on a GPU"),
        ):
            done = execute(PEERS, *words, code=2)
            self.assertIn(why, done.stderr.strip().splitlines()[-1], words)
            self.assertNotIn("Traceback", done.stderr)


class JudgeTest(unittest.TestCase):
    def test_the_peer_is_chosen_on_even_rounds_and_judged_on_odd_ones(self) -> None:
        lucky, steady = rounds(*(1.0, 8.0) * 6), rounds(*(2.0, 2.0) * 6)
        judgement = collectives.judge(rounds(*(4.0, 4.0) * 6), {"steady": steady, "lucky": lucky})
        self.assertEqual(
            (judgement["peer"], judgement["rounds"], judgement["verdict"]), ("lucky", 6, collectives.FASTER)
        )
        for key in ("ratio", "low", "high"):
            self.assertAlmostEqual(judgement[key], 0.5)

    def test_a_slow_round_hits_both_and_cancels(self) -> None:
        noise = [1.0, 9.0, 2.0, 1.0, 5.0, 3.0, 7.0, 1.0, 1.0, 2.0, 4.0, 6.0]
        judgement = collectives.judge(rounds(*(3 * n for n in noise)), {"peer": rounds(*noise)})
        self.assertEqual(judgement["verdict"], collectives.SLOWER)
        self.assertAlmostEqual(judgement["low"], 3.0)

    def test_an_interval_that_holds_one_decides_nothing_and_few_rounds_have_none(self) -> None:
        wide = collectives.judge(rounds(*[2.0, 2.0, 2.0, 0.5] * 6), {"peer": rounds(*[1.0] * 24)})
        self.assertEqual(wide["verdict"], collectives.UNDECIDED)
        close = collectives.judge(rounds(*[1.0, 0.99, 1.0, 1.04] * 6), {"peer": rounds(*[1.0] * 24)})
        self.assertEqual(close["verdict"], collectives.WITHIN)
        few = collectives.judge(rounds(*[2.0] * 11), {"peer": rounds(*[1.0] * 11)})
        self.assertEqual((few["rounds"], few["low"], few["verdict"]), (5, None, None))

    def test_a_peer_of_few_rounds_is_not_the_best(self) -> None:
        self.assertEqual(collectives.best_peer({"rare": {0: 0.1}, "often": rounds(*[1.0] * 12)}), "often")
        self.assertIsNone(collectives.judge(rounds(1.0, 1.0), {"even only": {0: 1.0, 2: 1.0}}))


class TableTest(FolderTest):
    def text(self, *given: list[dict]) -> str:
        made = [launch for some in given for launch in some]
        return "\n".join(collectives.lines(collectives.document(PLAN, made), made))

    def test_ratio_verdict_and_missing_library_are_in_the_table(self) -> None:
        text = self.text(launches("ours", *[2.0] * 24), launches("mpich", *[1.0] * 24))
        self.assertIn("cores (2 ranks), ours: faster 0, not slower within 5 % 0, undecided 0, slower 1, not j", text)
        self.assertRegex(text, r"all_reduce 1,024 B x 100 +20000 +10000  mpich +2\.00 \[2\.00, 2\.00\] +12  slower")
        self.assertIn("oneccl: left out: not installed", text)

    def test_a_wrong_or_failed_launch_is_named_and_not_compared(self) -> None:
        lost = [{**launch, "failure": "ended with exit code 2: why", "results": {}} for launch in launches("gloo", 1.0)]
        given = [launches("ours", *[2.0] * 24), launches("mpich", *[1.0] * 24, wrong=3), launches("gloo", *[2.0] * 24)]
        text = self.text(*given, lost)
        self.assertRegex(text, r"gloo +1\.00 \[1\.00, 1\.00\]")
        self.assertIn(f"WRONG: mpich, cores, {CELL}: 72 elements; not compared", text)
        self.assertIn("failed: gloo, cores, round 0: ended with exit code 2: why", text)
        self.assertIn("not judged 1, of 1", self.text(launches("ours", *[1.0] * 24, wrong=1), given[2]))

    def test_json_has_every_library_as_a_curve(self) -> None:
        given = launches("ours", *[1.0] * 12) + launches("mpich", *[2.0] * 12) + launches("gloo", 3.0, 3.0)
        file = self.folder / "peers.json"
        file.write_text(json.dumps(collectives.document(PLAN, given), allow_nan=False))
        curves = {series.name: series.points[0] for series in coll_results.read([file]).series}
        self.assertEqual(list(curves), ["hvd_bench, registered memory", "MPICH", "Gloo of PyTorch"])
        self.assertAlmostEqual(curves["MPICH"].low, 2e4)
        self.assertIsNone(curves["Gloo of PyTorch"].low)

    def test_the_recorded_run_gives_its_table_again(self) -> None:
        folder = RECORDED / "2026-11-24-collectives"
        done = execute(PEERS, "collectives", "--report", folder / "cores.jsonl", code=0)
        self.assertIn(
            "ours: faster 14, not slower within 5 % 1, undecided 15, slower 0, not judged 0, of 30", done.stdout
        )
        self.assertIn("0.27 [0.13, 0.41]", done.stdout)


class TurnsOfLaunchesTest(FolderTest):
    def measured(self, clock: object, minutes: float = 1e5) -> list[dict]:
        used = {name: mock.Mock(placing={"cores": []}) for name in PLAN["libraries"]}
        with mock.patch.object(libraries, "launch", lambda *_: clock() or ({}, None)):
            return collectives.measure(PLAN, used, self.folder / "out", minutes)

    def test_each_round_has_every_library_in_an_order_drawn_from_the_seed(self) -> None:
        made = self.measured(lambda: None)
        order = [(launch["round"], launch["kind"], launch["library"]) for launch in made]
        self.assertEqual(order, collectives.turns(PLAN))
        self.assertEqual([number for number, _, _ in order], sorted([*range(24)] * 3))
        self.assertGreater(len({tuple(order[i + j][2] for j in range(3)) for i in range(0, 72, 3)}), 3)
        self.assertNotEqual(collectives.turns({**PLAN, "seed": 8}), collectives.turns(PLAN))
        lines = [json.loads(line) for line in (self.folder / "out").read_text().splitlines()]
        self.assertEqual(lines, made)

    def test_minutes_end_a_run_after_whole_rounds(self) -> None:
        now = [0.0]
        with mock.patch.object(collectives.time, "monotonic", lambda: now[0]):
            made = self.measured(lambda: now.__setitem__(0, now[0] + 10.0), minutes=100 / 60)
        self.assertEqual(len(made), 9)


class LibraryTest(FolderTest):
    def test_why_a_launch_failed_is_kept(self) -> None:
        said = "rank 1: the library reports an error"
        for printed, words in (
            (f"{said}\nrank 0: another rank failed\n-----\nExit code: 2\n-----\n", said),
            ('{"cell": 1}\nkilled\n2026 |CCL_WARN| a value changed\n', "killed"),
            ("", ""),
        ):
            self.assertEqual(libraries.last_words(printed), words)
        for script, why in (
            (f"echo '{said}'; exit 3", f"ended with exit code 3: {said}"),
            ("echo ended; exec sleep 60", "took longer than 1 s and was ended"),
        ):
            launcher = executable(self.folder / "launcher", f"#!/bin/sh\n{script}\n")
            library = libraries.Library("", str(launcher), {}, Path("x"), [])
            self.assertEqual(libraries.launch(library, [], 2, [], 1.0), ({}, why))
        absent = libraries.Library("", "/none", {}, Path("x"), [])
        self.assertEqual(libraries.launch(absent, [], 2, [], 1.0)[1], "cannot be started: No such file or directory")

    def test_what_is_not_installed_or_does_not_compile_is_left_out(self) -> None:
        options = collectives.parser().parse_args(["--libraries", "system", "mpich", "--cells", "quick"])
        fails = mock.patch.object(libraries, "build", side_effect=HvdbError("system does not compile: why"))
        with mock.patch.object(libraries, "PEERS", self.folder), fails:
            plan, _ = collectives.planned(options)
        self.assertEqual((plan["libraries"], list(plan["missing"])), ({}, ["system", "mpich"]))
        self.assertIn("install_deps --peers", plan["missing"]["mpich"])

    def test_buffers_that_take_more_than_half_of_the_memory_are_refused(self) -> None:
        cells = [CELL, "broadcast/fp32/4096/in/1", "all_gather/fp32/409600/out/10000"]
        self.assertEqual(collectives.pool_bytes(cells[:2]), 2 * collectives.CACHE_BYTES)
        self.assertEqual(collectives.pool_bytes(cells), 2 * 409_600 * 10_000)
        self.assertGreater(collectives.available_bytes(), 1 << 20)
        options = collectives.parser().parse_args(["--cells", *cells, "--classes", "oversubscribed"])
        need = 2 * libraries.cores() * collectives.pool_bytes(cells)
        with (
            mock.patch.object(collectives, "available_bytes", lambda: 2 * need - 1),
            self.assertRaisesRegex(HvdbError, f"the buffers need {need >> 20} of .* MiB, more than half"),
        ):
            collectives.planned(options)


ALL_OPERATIONS = [f"{name}/fp32/4004/{'in' if name in collectives.IN_PLACE else 'out'}/3"
                  for name in collectives.OPERATIONS[:-1]] + ["barrier/fp32/0/in/5"]  # fmt: skip


INSTALLED = ["system", *(libraries.OURS if ENGINE.exists() else ())]
INSTALLED += [name for name in libraries.NAMES if (libraries.PEERS / name.replace("gloo", "torch")).exists()]


@unittest.skipUnless(shutil.which("mpirun") and shutil.which("mpicxx"), "needs an MPI with its compiler wrapper")
class ProgramTest(SharedFolderTest):
    """Every measuring program must give exact results, and must find one changed element."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with mock.patch.object(libraries, "PROGRAMS", cls.folder):
            cls.there = {name: libraries.find(name, ENGINE) for name in INSTALLED}

    def launch(self, name: str, check: str, *cells: str) -> tuple[dict[str, dict], str | None]:
        placing = self.there[name].placing[libraries.OVERSUBSCRIBED]
        return libraries.launch(self.there[name], placing, 2, ["2", "5", "100000", check, *cells], 100.0)

    def test_every_answer_is_exact_and_one_changed_value_is_found(self) -> None:
        for name, library in self.there.items():
            with self.subTest(name):
                libraries.build(library)
                results, failure = self.launch(name, "exact", *ALL_OPERATIONS)
                self.assertEqual((failure, set(results)), (None, set(ALL_OPERATIONS)))
                for cell, result in results.items():
                    self.assertEqual((result["wrong"], len(result["seconds"])), (0, 2), cell)
                results, failure = self.launch(name, "corrupt", *ALL_OPERATIONS)
                self.assertRegex(failure or "", "^ended with exit code 1")
                for cell, result in results.items():
                    self.assertEqual(result["wrong"], int(not cell.startswith("barrier")), cell)

    def test_a_cell_that_makes_no_sense_is_refused(self) -> None:
        libraries.build(self.there["system"])
        for cell in ("all_reduce/fp32/3/in/1", "all_reduce/fp8/4", ""):
            results, failure = self.launch("system", "exact", cell)
            self.assertEqual(results, {}, cell)
            self.assertIn(f": {cell}: ", failure or "", cell)


@unittest.skipUnless(shutil.which("g++"), "needs g++")
class RulesTest(FolderTest):
    def test_all_buffers_are_in_memory_before_the_first_sample(self) -> None:
        """Runs the measuring code on one rank. The first use of a page outside memory is a page fault."""
        pool, shares, page = 8 << 20, [], self.folder / "page"
        libc = ctypes.CDLL(None)

        class Call(ctypes.Structure):
            _fields_ = (("operation", ctypes.c_int32), ("out", ctypes.c_void_p), ("input", ctypes.c_void_p))

        def perform(_: object, call: ctypes._Pointer) -> bool:
            for address in (call.contents.input, call.contents.out):
                state = (ctypes.c_ubyte * (pool // mmap.PAGESIZE))()
                start = ctypes.c_void_p(address // mmap.PAGESIZE * mmap.PAGESIZE)
                self.assertEqual(libc.mincore(start, ctypes.c_size_t(pool), state), 0)
                shares.append(sum(byte & 1 for byte in state) / len(state))
            return False  # an error ends the measurement

        rules = libraries.Library(
            "", "", {}, self.folder / "rules.so", [], ["g++", "-shared", "-fPIC"], "collectives.cpp"
        )
        libraries.build(rules)
        page.touch()
        words = [b"x", bytes(page), b"1", b"0", str(pool).encode(), b"exact", b"all_gather/fp32/1024/out/1"]
        given = (ctypes.c_char_p * len(words))(*words)
        callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.POINTER(Call))(perform)

        class Library(ctypes.Structure):
            _fields_ = (("rank", ctypes.c_int32), ("size", ctypes.c_int32), ("self", ctypes.c_void_p))
            _fields_ += (("allocate", ctypes.c_void_p), ("perform", type(callback)))

        library = Library(0, 1, None, None, callback)
        measure = ctypes.CDLL(str(rules.program)).measure_collectives
        self.assertEqual(measure(ctypes.byref(library), len(words), given), 2)
        self.assertEqual(shares, [1.0, 1.0])


def side(name: str, *seconds: float, batch: int = 256, last_loss: float | None = 6.0) -> torch_peers.Side:
    return torch_peers.Side(name, "synthetic", batch, 7.0, last_loss, list(seconds))


def row(ours: float, peer: float, spread: float = 0.001, name: str = "graph", **more: object) -> torch_peers.Row:
    """Returns eight turns of both sides with these seconds per step. Our times vary by up to 3 x `spread`."""
    wave = [1 + spread * k for k in (-3, 1, -1, 3, 2, -2, 0, 0)]
    sides = [side("ours", *(ours * w for w in wave)), side(f"torch {name}", *[peer] * 8)]
    return torch_peers.Row("vgg16", "fp16", 0, sides, **more)


class RowTest(unittest.TestCase):
    def test_a_slow_turn_hits_both_and_cancels(self) -> None:
        ours = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 2.0]
        ratio = side("ours", *ours, batch=2).ratio(side("x", *(0.75 * s for s in ours), batch=1))
        for value in (ratio.value, ratio.low, ratio.high):
            self.assertAlmostEqual(value, 1.5)
        few = side("ours", *ours[:5]).ratio(side("x", *(2 * s for s in ours[:5])))
        self.assertEqual(few.text(1.0), "2.0")

    def test_a_loss_must_be_finite_and_not_collapse(self) -> None:
        collapsed = ["x: the loss collapsed from 7 to 0.0069: its steps are no longer comparable"]
        for loss, why in ((0.0071, []), (8.1, []), (0.0069, collapsed), (None, ["x: the last loss is not finite"])):
            made = torch_peers.Row("vgg16", "fp16", 0, [side("x", 1.0, last_loss=loss)])
            self.assertEqual(made.faults(), why)

    def test_both_networks_must_have_the_same_number_of_parameters(self) -> None:
        for parameters, why in ((25, []), (26, ["the networks differ: 25 and 26 parameters"])):
            made = row(1.0, 1.0)
            made.sides[0].description, made.sides[1].description = "25 onednn 2.6", f"{parameters} torch 2.15"
            self.assertEqual(made.faults(), why)


class ReportTest(FolderTest):
    def test_the_interval_and_the_fastest_peer_decide(self) -> None:
        for ours, spread, expected in ((1, 0.001, "reached"), (1.15, 0.001, "not reached"), (1.03, 0.05, "undecided")):
            self.assertIn(f"fp16  {expected:<13}1.", torch_peers.verdict_lines([row(ours, 1.2, spread)], 1.15)[1])
        rows = [row(1.0, 1.3), row(1.0, 1.1, name="compile"), row(1.0, 0.9, troubles=["ours: the loss is nan"])]
        more = [torch_peers.Row("vgg16", "fp32", threads) for threads in (1, 2)]
        lines = torch_peers.verdict_lines([*rows, *more], 1.15)
        self.assertRegex(lines[1], r"^vgg16 +fp16 +not reached  1\.10 x \[1\.10, 1\.10\] beside torch compile \(of gr")
        self.assertEqual(lines[2:], ["vgg16      fp32  1  not measured", "vgg16      fp32  2  not measured"])
        self.assertIn("not measured ours: the loss is nan", torch_peers.verdict_lines(rows[2:], 1.15)[1])

    def test_the_report_is_made_of_the_samples(self) -> None:
        """256 images in 1.28 s are 200 img/s."""
        file = self.folder / "synthetic.json"
        lost = row(1.0, 1.0)
        lost.sides[0].last_loss = None
        file.write_text(json.dumps([dataclasses.asdict(one) for one in (row(1.28, 1.536), lost)]))
        done = execute(PEERS, "torch-gpu", "--report", file, code=1)
        shown = r"vgg16 +fp16 +- +200\.00 +256 +166\.67 +256  1\.20 \[1\.20, 1\.20\] +torch graph"
        self.assertRegex(done.stdout, shown)
        self.assertIn("ours: the last loss is not finite", done.stdout)

    def test_recorded_visits_are_read_and_judged(self) -> None:
        visit = RECORDED / "2026-11-22-h200-second"
        (collapsed,) = torch_peers.read_rows(visit / "quick-fp16-vgg16.json")
        self.assertIn("ours: the loss collapsed from 6.79 to 9.31e-10", collapsed.faults()[0])
        (good,) = torch_peers.read_rows(visit / "quick-fp16-resnet101.json")
        self.assertEqual((good.faults(), f"{good.sides[0].ratio(good.sides[1]).value:.2f}"), ([], "1.22"))
        (lacking,) = torch_peers.read_rows(RECORDED / "2026-11-22-h200" / "quick-fp16-inception3.json")
        self.assertEqual((lacking.sides, len(lacking.missing), len(lacking.troubles)), ([], 1, 1))


# Both sides of a comparison: `told` maps a variant of torch, or ours, to its seconds per step, or to why it ends.
FAKE = """#!{python} -B
import json, pathlib, sys, time
words, folder = sys.argv[1:], pathlib.Path(__file__).parent
told = json.loads((folder / "told.json").read_text())
told_to_torch = {} if "--serve" in words else json.loads(words[-1])
variant = f"torch {told_to_torch['variant']}" if told_to_torch else "ours"
mine = told[variant]
with (folder / "asked").open("a") as log:
    batch = told_to_torch["batches"] if told_to_torch else words[words.index("--batch") + 1]
    print(variant, "start", batch, file=log)
if mine == "late":
    time.sleep(600)
if isinstance(mine, str):
    sys.exit(mine)
print("ready synthetic", flush=True)
done = 0
for line in sys.stdin:
    with (folder / "asked").open("a") as log:
        print(variant, line.strip(), file=log)
    if line == "loss\\n":
        print(told.get("loss", 6.9) if done else 7.0, flush=True)
    else:
        log = pathlib.Path(told.get("clocks", "/none"))  # a turn lasts until the log has begun
        while log.exists() and not log.stat().st_size:
            time.sleep(0.01)
        done += 1
        print(mine * (1 + 0.01 * (done % 3)), flush=True)
"""


class ComparisonTest(FolderTest):
    def compare(self, told: dict[str, object], *options: str, code: int = 0) -> tuple[list[dict], str, list[str]]:
        fake, file = self.folder / "fake", self.folder / "synthetic.json"
        fake.write_text(FAKE.replace("{python}", sys.executable))
        fake.chmod(0o755)
        (self.folder / "asked").write_text("")
        (self.folder / "told.json").write_text(json.dumps(told))
        words = ["--bench", fake, "--python", fake, "--json", file, "--models", "vgg16", "--turns", "6", *options]
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = execute(PEERS, "torch-gpu", *words, "--turn-seconds", "0.5", code=code, env=environment)
        return json.loads(file.read_text()), done.stdout, (self.folder / "asked").read_text().splitlines()

    def test_the_fastest_variant_is_the_peer_and_turns_are_interleaved(self) -> None:
        told = {"torch eager": 2.0, "torch graph": 1.0, "ours": 0.8}
        rows, text, asked = self.compare(told, "--batches", "64")
        self.assertEqual([row["sides"][1]["name"] for row in rows], ["torch eager", "torch graph"])
        self.assertRegex(text, r"vgg16      fp16  reached      1\.2\d x \[.*\] beside torch graph \(of eager, graph\)")
        order = [line.split()[0] for line in asked if line.endswith(" 1")]
        self.assertEqual(order[-12:], ["ours", "torch", "torch", "ours"] * 3)
        self.assertTrue({"ours start 64", "torch graph start 64"} <= set(asked), asked)
        executable(self.folder / "nvidia-smi", "#!/bin/sh\necho 1755 MHz\nexec sleep 60\n")
        clocks = self.folder / "clocks"
        slow = {**told, "torch graph": 3.0, "clocks": str(clocks)}
        (row,), _, _ = self.compare(slow, "--clocks", str(clocks), "--variants", "graph")
        self.assertEqual((len(row["sides"][1]["begins"]), clocks.read_text()), (6, "1755 MHz\n"))

    def test_a_variant_that_is_lost_is_a_line(self) -> None:
        told = {"torch compile": "no C compiler", "torch graph": 1.0, "torch eager": 1.0, "ours": 0.8}
        variants = ("--variants", "compile", "graph", "eager", "--first-variant-only")
        (lost, row), text, _ = self.compare(told, *variants, code=3)
        self.assertEqual(lost["missing"], ["torch compile ended with exit code 1: no C compiler"])
        self.assertEqual((row["missing"], row["sides"][1]["name"]), ([], "torch graph"))
        self.assertIn("left out: torch compile ended with exit code 1: no C compiler", text)
        (lost,), text, _ = self.compare(told, "--variants", "compile", code=3)
        self.assertEqual((lost["sides"], lost["troubles"]), ([], []))
        self.assertIn("vgg16      fp16  not measured", text)
        (lost, _), _, _ = self.compare({**told, "torch compile": "late"}, *variants, "--compile-seconds", "0.3", code=3)
        self.assertEqual(lost["missing"], ["torch compile gave no answer in 0 s"])
        (lost,), _, _ = self.compare(told, "--variants", "graph", "--seconds", "0", code=3)
        self.assertEqual(lost["missing"], ["torch graph gave no answer in 0 s"])

    def test_ours_lost_or_a_loss_that_collapsed_is_a_failure(self) -> None:
        told = {"torch graph": 1.0, "ours": "no GPU can be used"}
        (row,), _, _ = self.compare(told, "--variants", "graph", code=1)
        self.assertEqual(row["troubles"], ["ours ended with exit code 1: no GPU can be used"])
        _, text, _ = self.compare({**told, "ours": 0.8, "loss": 0.001}, "--variants", "graph", code=1)
        self.assertIn("not measured ours: the loss collapsed from 7 to 0.001", text)

    @unittest.skipUnless(STEP.exists(), f"needs {STEP}")
    def test_our_program_understands_the_protocol(self) -> None:
        words = [str(STEP), "--model", "resnet50", "--image", "32", "--batch", "2", "--serve"]
        with torch_peers.Server("ours", torch_peers.Row("resnet50", "fp32", 1), words, 600.0) as server:
            self.assertTrue(math.isfinite(server.loss()))
            self.assertGreater(server.steps(2), 0)
            self.assertTrue(server.description.startswith(f"{RESNET50} "), server.description)
        done = execute(*words, input="two\n", code=2)
        self.assertIn("'two' is not a question", done.stderr)


RESNET50 = 25_557_032  # parameters; source: torchvision's metadata of the model
TRAINING = {"model": "resnet50", "image": 8, "batches": 16, "dtype": "fp32", "device": "cpu", "variant": "eager"}
TRAINING |= {"layout": "", "compile_cache": None, "benchmark_limit": 0}
TORCHVISION = importlib.util.find_spec("torch") and importlib.util.find_spec("torchvision")


@unittest.skipUnless(TORCHVISION, "needs PyTorch and torchvision in this Python (scripts/install_deps --peers)")
class TrainerTest(FolderTest):
    """The peer must train as models/random.cpp, bench/train/trainer.cpp and bench/micro/training_bench.h define."""

    def trainer(self) -> object:
        from torch import nn

        from maintain.peerbench import torch_trainer

        small = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1000))
        with mock.patch.object(torch_trainer, "make_network", lambda *_: small):
            return torch_trainer.Trainer(types.SimpleNamespace(**TRAINING))

    def seen(self, trainer: object) -> list[tuple[int, ...]]:
        """Trains four steps. Returns the labels with which each step computed its loss."""
        from torch.nn import functional

        seen, compute = [], functional.cross_entropy
        watched = lambda scores, labels: seen.append(tuple(labels.tolist())) or compute(scores, labels)  # noqa: E731
        with mock.patch.object(functional, "cross_entropy", watched):
            trainer.steps(4)
        return seen

    def test_labels_are_new_in_every_step_and_the_same_in_a_second_run(self) -> None:
        fresh = self.seen(self.trainer())
        self.assertEqual((len(set(fresh)), fresh), (4, self.seen(self.trainer())))
        self.assertTrue(all(0 <= label < 1000 for labels in fresh for label in labels))

    def test_a_captured_step_reads_labels_that_are_uploaded_before_it(self) -> None:
        """Uses a fake graph. Its replay reads the values that are then at the address from which the capture read."""
        import torch

        trainer = self.trainer()
        replays = []

        class Graph:
            def replay(self) -> None:
                replays.append((trainer._labels.data_ptr(), *trainer._labels.tolist()))

        @contextlib.contextmanager
        def capture(_: object) -> object:
            before = trainer._labels.tolist()
            yield
            self.assertEqual(trainer._labels.tolist(), before, "nothing is uploaded inside the graph")

        fakes = {"Stream": mock.Mock(), "current_stream": mock.Mock(), "CUDAGraph": Graph, "graph": capture}
        with mock.patch.multiple(torch.cuda, stream=lambda _: contextlib.nullcontext(), **fakes):
            trainer._capture()
            trainer.steps(3)
        self.assertEqual((len(replays), len(set(replays)), len({place for place, *_ in replays})), (4, 4, 1))

    def test_weights_begin_and_are_updated_as_ours(self) -> None:
        import torch

        from maintain.peerbench import torch_trainer

        (group,) = self.trainer()._optimiser.param_groups
        self.assertEqual((group["lr"], group["momentum"], group["weight_decay"]), (1e-3, 0.9, 1e-4))
        torch.manual_seed(1)
        for model in ("vgg16", "resnet50"):
            for name, module in torch_trainer.make_network(model, 32).named_modules():
                if isinstance(module, torch.nn.Conv2d):  # He, arXiv:1502.01852, equation 10
                    expected = math.sqrt(2 / (module.in_channels * module.kernel_size[0] * module.kernel_size[1]))
                elif isinstance(module, torch.nn.Linear):  # Glorot and Bengio: uniform with this deviation
                    glorot = math.sqrt(2 / (module.in_features + module.out_features))
                    expected = 0.01 if model == "vgg16" else glorot
                else:
                    continue
                weight = module.weight.detach()
                # The test allows six standard errors of a deviation that is estimated from numel() values.
                tolerance = 6 * expected / math.sqrt(2 * weight.numel())
                self.assertAlmostEqual(float(weight.std()), expected, delta=tolerance, msg=f"{model} {name}")
                self.assertAlmostEqual(float(weight.mean()), 0, delta=6 * expected / math.sqrt(weight.numel()))

    def start(self, path: str = "") -> torch_peers.Server:
        program = [f"PYTHONPATH={path}", sys.executable, "-B", str(torch_peers.TRAINER)]
        options = json.dumps({**TRAINING, "image": 32, "batches": 2})
        return torch_peers.Server("torch", torch_peers.Row("resnet50", "fp32", 1), [*program, options], 600.0)

    def test_the_protocol(self) -> None:
        with self.start() as server:
            self.assertTrue(math.isfinite(server.loss()))
            self.assertGreater(server.steps(2), 0)
        self.assertRegex(server.description, rf"^{RESNET50} torch \d.* eager fp32 batch 2 ")
        self.assertEqual(server.returncode, 0)

    def test_a_python_without_torchvision_is_one_line(self) -> None:
        (self.folder / "torchvision.py").write_text("import a_module_of_torchvision\n")
        with self.assertRaisesRegex(HvdbError, "1: a_module_of_torchvision is missing: pip install a_module_of_torchv"):
            self.start(str(self.folder))
