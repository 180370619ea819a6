"""Tests hvdb.read.replay_profile: medians, factors, names, limits, and both readers of its text."""

from __future__ import annotations

import dataclasses
import os
import unittest
from collections.abc import Sequence
from pathlib import Path

from harness import FolderTest, execute

from hvdb.base.errors import HvdbError
from hvdb.read import replay_profile
from hvdb.read.replay_profile import Header, Step

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
HEADER = Header("gpt2", "sequences", 8, "a processor", "bf16", "none (a test)")
SIZES = [("head", 100), ("body", 7)]
HOSTILE = ["a b", "a\tb", "<b>&amp;", "\x1b[31m", "a\nend 9", "", "ü", "|`$", "x" * 300, "x" * 301, "a_b"]


def step(*ready: float, end: float = 2.0, forward: float = 0.5, update: float = 0.25) -> Step:
    return Step(submit=ready, ready=ready, forward=forward, backward_end=end, update=update)


class TextTest(unittest.TestCase):
    def test_medians_and_factors_of_the_steps(self) -> None:
        steps = [step(1.5, 1.75), step(1.0, 1.5, end=4.0, forward=0.75, update=0.5), step(1.25, 3.0, end=1.0)]
        self.assertEqual(
            replay_profile.text(HEADER, SIZES, steps).splitlines(),
            [
                "hvd-replay 2",
                "model gpt2",
                "unit sequences",
                "units_per_step 8",
                "device a processor",
                "compute_type bf16",
                "source_run none (a test)",
                "forward_seconds 0.5",
                "backward_end_seconds 2.0",
                "update_seconds 0.25",
                "factors 1.0 2.0 0.5",
                "gradient 100 1.25 1.25 head",
                "gradient 7 1.75 1.75 body",
                "end 2",
            ],
        )

    def test_gradients_stand_in_the_order_in_which_they_are_ready(self) -> None:
        sizes = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
        steps = [step(1.5, 1.0, 1.25, 1.0)]
        lines = replay_profile.text(HEADER, sizes, steps).splitlines()
        self.assertEqual([line.split()[-1] for line in lines if line.startswith("gradient")], ["b", "d", "c", "a"])

    def test_submit_and_ready_of_a_gpu(self) -> None:
        steps = [Step([0.125], [1.5], 0.5, 2.0, 0.0), Step([0.25], [1.75], 0.5, 2.0, 0.0)]
        self.assertIn("\ngradient 7 0.1875 1.625 body\n", replay_profile.text(HEADER, SIZES[1:], steps))

    def test_factors_are_within_the_limits_of_the_readers(self) -> None:
        self.assertEqual(replay_profile.factors([1.0, 1.0, 1e9, 1e-9, 1.2345678]), [1.0, 1.0, 1e3, 1e-3, 1.234568])
        steps = [step(1.0, 1.0)] * (replay_profile.MAX_STEPS + 1)
        line = replay_profile.text(HEADER, SIZES, steps).partition("\nfactors ")[2].partition("\n")[0]
        self.assertEqual(len(line.split()), replay_profile.MAX_STEPS)

    def test_spread(self) -> None:
        self.assertEqual(replay_profile.spread([1.0] * 9), 0)
        self.assertEqual(replay_profile.spread([2.0] * 20), 0)
        self.assertEqual(replay_profile.spread([1.0] * 10 + [3.0] * 10), 2)

    def test_names_are_clean_and_unique(self) -> None:
        names = replay_profile.unique_names(HOSTILE)
        self.assertEqual(len(set(names)), len(HOSTILE))
        for name in names:
            self.assertRegex(name, r"\A[A-Za-z0-9_.:/+-]{1,124}\Z")
        self.assertEqual(names[0], "a_b")
        self.assertEqual(replay_profile.unique_names(["a:2", "a", "a"]), ["a:2", "a", "a:3"])

    def test_names_of_networks_that_differ_stay_different(self) -> None:
        plain = ["gpt2", "Llama-3.2_1B", "a" * 64]
        self.assertEqual(list(map(replay_profile.model_name, plain)), plain)
        others = {"模型一": "network", "模型二": "network", "Größe": "Gr_e", "Gröse": "Gr_se", "my net": "my_net"}
        others |= {"my/net": "my_net", "../x y": "x_y", "g\npt": "g_pt", "\udcff": "network"}
        others |= {"a" * 99: "a" * 55, "a" * 98: "a" * 55}
        names = {given: replay_profile.model_name(given) for given in others}
        self.assertEqual(len(set(names.values())), len(others), names)
        for given, name in names.items():
            self.assertRegex(name, rf"\A{others[given]}-[0-9a-f]{{8}}\Z")
            self.assertLessEqual(len(name), replay_profile.MAX_MODEL_LETTERS)

    def test_what_no_reader_takes_is_refused_in_one_line(self) -> None:
        def made(
            sizes: Sequence[tuple[str, int]] = SIZES, steps: Sequence[Step] = (step(1.0, 1.0),), **header: object
        ) -> str:
            return replay_profile.text(dataclasses.replace(HEADER, **header), sizes, steps)

        many = 200_000
        for act, pattern in (
            (lambda: made(unit="Tokens"), "unit 'Tokens': must be 1 to 20 small letters"),
            (lambda: made(unit="a\nb"), "must be 1 to 20 small letters"),
            (lambda: made(unit="tokens\n"), "must be 1 to 20 small letters"),
            (lambda: made(units_per_step=0), "units 0: must be a whole number from 1"),
            (lambda: made(units_per_step=1.5), "units 1.5: must be a whole number"),
            (lambda: made(units_per_step=True), "must be a whole number"),
            (lambda: made(compute_type="float32"), "compute_type 'float32' is not one of fp32, tf32"),
            (lambda: made(sizes=[], steps=[step()]), "no gradients or no steps"),
            (lambda: made(steps=[]), "no gradients or no steps"),
            (lambda: made(sizes=[("a", 1 << 40), ("b", 1)]), "and a replay has at most 1099511627776"),
            (lambda: made(steps=[step(0.0, 0.0, end=0.0)]), "no step of a day"),
            (lambda: made(steps=[step(0.0, 0.0, end=1e5)]), "no step of a day"),
            (
                lambda: made(sizes=[("a", 1)] * many, steps=[step(*[1.0] * many)]),
                "200000 gradients make a replay of .* MiB",
            ),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(HvdbError, pattern) as caught:
                act()
            self.assertNotIn("\n", str(caught.exception))


class ReadersTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "a.replay"
        header = dataclasses.replace(HEADER, device="\x1b[31m x\ny", model="my net", source_run="none \n" + "x" * 999)
        sizes = [(name, i + 1) for i, name in enumerate(HOSTILE)]
        times = [1e-5 * (i + 1) for i in range(len(HOSTILE))]
        steps = [step(*times, end=1e-3 * (1 + i / 10), forward=1e-6, update=1e-7) for i in range(30)]
        self.file.write_text(replay_profile.text(header, sizes, steps), encoding="utf-8")

    def test_hvdb_reads_it(self) -> None:
        read = replay_profile.read(self.file)
        self.assertEqual((read.model, read.unit, read.units_per_step), ("my_net-b973a0eb", "sequences", 8))
        self.assertEqual((read.compute_type, read.gradients, read.elements), ("bf16", 11, 66))
        self.assertTrue(read.source_run.startswith("none "))
        self.assertAlmostEqual(read.backward_end, 2.45e-3)

    @unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
    def test_hvd_bench_replays_it(self) -> None:
        words = ("--replay", self.file, "--num-warmup-batches", "1", "--num-iters", "2", "--no-db")
        self.assertIn("my_net", execute(PROGRAM, *words, code=0).stdout)
