"""The comparison with another system: the protocol, the search for the best batch, the interval over turns."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from synthetic_store import REPOSITORY

OURS = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("train_step_bench")
NO_GRAPH = "torch graph ended with exit code 2: gpu_torch: there are no CUDA graphs on a CPU"
PEERS = REPOSITORY / "scripts" / "peers"
sys.path.insert(0, str(PEERS))
import serving  # noqa: E402


class RatioIntervalTest(unittest.TestCase):
    def test_a_slow_turn_hits_both_and_cancels(self) -> None:
        ours = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 2.0]
        low, high = serving.ratio_interval(ours, [1.5 * seconds for seconds in ours], turns=7)
        self.assertAlmostEqual(low, 1.5)
        self.assertAlmostEqual(high, 1.5)

    def test_steps_of_one_turn_stay_together(self) -> None:
        # Three steps a turn, all alike within it: 18 numbers that are six draws.
        ours = [seconds for seconds in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5) for _ in range(3)]
        few = serving.ratio_interval(ours, [2.0] * 18, turns=6)
        many = serving.ratio_interval(ours, [2.0] * 18, turns=18)
        self.assertGreater(few[1] - few[0], 1.3 * (many[1] - many[0]))

    def test_few_turns_have_no_interval(self) -> None:
        self.assertEqual(serving.ratio_interval([1.0] * 5, [2.0] * 5, turns=5), (None, None))


class FakeTrainer:
    """Trains nothing: steps take 1 ms, and a batch above 128 has no memory."""

    def __init__(self) -> None:
        self.images = 32
        self.description = "fake"

    def steps(self, count: int) -> list[float]:
        return [0.001] * count

    def loss(self) -> float:
        return 0.1 + 0.2

    def batch(self, images: int) -> str | None:
        if images > 128:
            return "out of\nmemory"
        self.images = images
        return None


class ProtocolTest(unittest.TestCase):
    def test_the_answers(self) -> None:
        out = io.StringIO()
        serving.answer(FakeTrainer(), ["2\n", "loss\n", "batch 64\n", "batch 256\n"], out)
        self.assertEqual(
            out.getvalue().splitlines(),
            ["ready fake", "0.001000 0.001000", "0.30000000000000004", "ready fake", "no out of memory"],
        )

    def test_a_question_that_is_none(self) -> None:
        with self.assertRaisesRegex(ValueError, "not a question"):
            serving.answer(FakeTrainer(), ["two steps please\n"], io.StringIO())

    def test_both_ends_together(self) -> None:
        with serving.Server("shell", ["sh", "-c", "echo ready x y; while read n; do echo 0.5; done"]) as server:
            self.assertEqual(server.description, "x y")
            self.assertEqual(server.steps(3), [0.5])
            self.assertEqual(server.loss(), 0.5)

    def test_the_last_words_of_a_process_are_in_the_error(self) -> None:
        with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("ab") as log:
            log.write(b"of somebody before\n")
            log.flush()
            with self.assertRaisesRegex(serving.PeerError, "^gone ended with exit code 8: no memory$") as failed:
                serving.Server("gone", ["sh", "-c", "echo why >&2; echo no memory >&2; echo >&2; exit 8"], log=log)
            self.assertEqual(failed.exception.code, 8)
            with self.assertRaisesRegex(serving.PeerError, "^mute ended with exit code 3$"):
                serving.Server("mute", ["sh", "-c", "exit 3"], log=log)

    def test_a_process_that_ends_or_is_late(self) -> None:
        with self.assertRaisesRegex(serving.PeerError, "gone ended with exit code 3"):
            serving.Server("gone", ["sh", "-c", "exit 3"])
        with self.assertRaisesRegex(serving.PeerError, "late gave no answer in 0 s"):
            serving.Server("late", ["sleep", "60"], start_seconds=0.2)
        leaves = serving.Server("leaves", ["sh", "-c", "echo ready; read n; exit 4"])
        with leaves, self.assertRaisesRegex(serving.PeerError, "leaves ended with exit code 4"):
            leaves.steps(1)


@unittest.skipUnless(OURS.exists(), f"needs {OURS}")
class OursTest(unittest.TestCase):
    COMMAND = (str(OURS), "--model", "resnet50", "--image", "32", "--batch", "2", "--serve")

    def test_the_protocol(self) -> None:
        with serving.Server("ours", list(self.COMMAND)) as server:
            self.assertRegex(server.description, r"onednn .* fp32 batch 2$")
            first = server.loss()
            self.assertEqual(len(server.steps(3)), 3)
            self.assertLess(server.loss(), first)
            self.assertIsNone(server.batch(4))
            self.assertRegex(server.description, r"batch 4$")
            self.assertGreater(server.steps(1)[0], 0)

    def test_a_question_that_is_none(self) -> None:
        for question in ("two", "0", "-1", "batch", "batch x"):
            done = subprocess.run(
                self.COMMAND, input=f"{question}\n", capture_output=True, text=True, check=False, timeout=60
            )
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(f"'{question}' is not a question", done.stderr)


@unittest.skipUnless(
    subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True, check=False).returncode == 0,
    "needs PyTorch (scripts/install_deps --peers)",
)
class OnTheCpuTest(unittest.TestCase):
    def test_the_whole_comparison_against_itself(self) -> None:
        """PyTorch plays both sides, at a size for a CPU."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            ours = folder / "ours"
            ours.write_text(
                "#!/bin/sh\n"
                f'exec /usr/bin/python3 "{PEERS}/gpu_torch.py" $(echo "$@" | sed s/--serve//) --warm-up 1\n'
            )
            ours.chmod(0o755)
            command = [sys.executable, str(PEERS / "compare_gpu.py"), "--bench", str(ours)]
            command += ["--python", "/usr/bin/python3", "--device", "cpu", "--models", "resnet50", "--dtypes", "fp32"]
            command += ["--variants", "eager", "graph", "--image", "32", "--batches", "2", "4"]
            command += ["--turns", "6", "--turn-seconds", "0.01", "--search-seconds", "0.01", "--warm-up", "1"]
            done = subprocess.run(
                [*command, "--json", str(folder / "x.json"), "--log", str(folder / "log")],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            log = (folder / "log").read_text()
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr + log)  # 3: no graphs on a CPU
            self.assertIn("there are no CUDA graphs on a CPU", log)
            (row,) = json.loads((folder / "x.json").read_text())
            self.assertEqual(row["troubles"], [])
            self.assertEqual(row["missing_variants"], [NO_GRAPH])
            self.assertEqual(row["best"]["peer"]["name"], "torch eager")
            for side in ("ours", "peer"):
                self.assertLess(row["best"][side]["last_loss"], row["best"][side]["first_loss"])
                self.assertEqual(len(row["best"][side]["seconds_per_step"]), 6)
            self.assertLess(row["best"]["ratio"]["low"], row["best"]["ratio"]["high"])


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch in this Python (scripts/install_deps --peers)")
class CompileTest(unittest.TestCase):
    """Why torch.compile cannot work is a reason and no traceback."""

    def setUp(self) -> None:
        import gpu_torch

        self.program = gpu_torch

    def missing(self, *, compile_there: bool, triton: bool, compiler: bool) -> str:
        torch = SimpleNamespace(__version__="2.9", **({"compile": None} if compile_there else {}))
        with (
            mock.patch.object(self.program, "torch", torch),
            mock.patch.object(importlib.util, "find_spec", return_value=object() if triton else None),
            mock.patch.object(self.program.shutil, "which", return_value="/usr/bin/cc" if compiler else None),
            mock.patch.dict(os.environ),
        ):
            os.environ.pop("CC", None)
            return self.program.missing_for_compile("cuda")

    def test_what_shows_beforehand(self) -> None:
        self.assertIn("2.9 does not have it", self.missing(compile_there=False, triton=True, compiler=True))
        self.assertIn("no Triton", self.missing(compile_there=True, triton=False, compiler=True))
        self.assertIn("no C compiler", self.missing(compile_there=True, triton=True, compiler=False))
        self.assertEqual(self.missing(compile_there=True, triton=True, compiler=True), "")

    def test_what_shows_while_compiling(self) -> None:
        trainer = mock.Mock()
        trainer.batch.side_effect = KeyError("Python.h:\nno such file")
        with self.assertRaisesRegex(ValueError, r"^torch.compile: KeyError: .*Python.h:.*no such file"):
            self.program.build(trainer, SimpleNamespace(variant="autotune", batch=8))
        with self.assertRaises(KeyError):  # of another variant it is a defect
            self.program.build(trainer, SimpleNamespace(variant="eager", batch=8))


if __name__ == "__main__":
    unittest.main()
