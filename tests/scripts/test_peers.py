"""Tests the comparison with another system: protocol, search for the best batch, and interval over turns."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from limits import HANG

from harness import SCRIPTS, execute

OURS = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("train_step_bench")
NO_GRAPH = "torch graph ended with exit code 2: gpu_torch: there are no CUDA graphs on a CPU"
PEERS = SCRIPTS / "maintain" / "peers"
sys.path.insert(0, str(PEERS))
import compare_torch  # noqa: E402
import serving  # noqa: E402


class RatioIntervalTest(unittest.TestCase):
    def test_a_slow_turn_hits_both_and_cancels(self) -> None:
        ours = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 2.0]
        low, high = serving.ratio_interval(ours, [1.5 * seconds for seconds in ours], turns=7)
        self.assertAlmostEqual(low, 1.5)
        self.assertAlmostEqual(high, 1.5)

    def test_steps_of_one_turn_stay_together(self) -> None:
        # Each turn has three equal steps, so the 18 step times count as only six independent values.
        ours = [seconds for seconds in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5) for _ in range(3)]
        few = serving.ratio_interval(ours, [2.0] * 18, turns=6)
        many = serving.ratio_interval(ours, [2.0] * 18, turns=18)
        self.assertGreater(few[1] - few[0], 1.3 * (many[1] - many[0]))

    def test_few_turns_have_no_interval(self) -> None:
        self.assertEqual(serving.ratio_interval([1.0] * 5, [2.0] * 5, turns=5), (None, None))


class ChoiceOfThePeerTest(unittest.TestCase):
    @staticmethod
    def process(*seconds: float) -> list[str]:
        """Returns the command of a server that answers with these seconds and then ends with exit code 3."""
        return ["sh", "-c", "echo ready x; " + "".join(f"read n && echo {s}; " for s in seconds) + "exit 3"]

    def test_the_fastest_form_by_its_median(self) -> None:
        forms = {"lucky once": self.process(0.1, 9, 9), "steady": self.process(1, 1, 1)}
        choice = compare_torch.choose(forms, threads=1, turns=3, steps=1)
        self.assertEqual(choice.name, "steady")
        self.assertEqual(choice.seconds, {"lucky once": [0.1, 9.0, 9.0], "steady": [1.0, 1.0, 1.0]})
        self.assertEqual(choice.missing, {})

    def test_a_form_that_fails_is_left_out_with_its_reason(self) -> None:
        forms = {"no start": ["false"], "fast, then ends": self.process(0.1), "slow": self.process(1, 1, 1)}
        choice = compare_torch.choose(forms, threads=1, turns=3, steps=1)
        self.assertEqual((choice.name, choice.seconds), ("slow", {"slow": [1.0, 1.0, 1.0]}))
        self.assertIn("exit code 1", choice.missing["no start"])
        self.assertIn("exit code 3", choice.missing["fast, then ends"])

    def test_no_form_is_left(self) -> None:
        with self.assertRaisesRegex(serving.PeerError, "no form of PyTorch trains: a ended with exit code 1"):
            compare_torch.choose({"a": ["false"]}, threads=1, turns=3, steps=1)
        with self.assertRaisesRegex(serving.PeerError, "a cannot be started: .*No such file"):
            compare_torch.choose({"a": ["/none"]}, threads=1, turns=3, steps=1)

    def test_what_failed_takes_nothing_with_it(self) -> None:
        """If the second comparison fails, the first must be kept and the third must run."""
        row = compare_torch.Row("m", "fp32", 1, 1.0, 1.0, "torch", 1.0, None, None, {}, {}, {"b": "why"}, {})
        answers = [row, serving.PeerError("broken"), row]
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(compare_torch, "compare", side_effect=answers):
            file = Path(folder) / "rows.json"
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = compare_torch.main(["--bench", "x", "--threads", "1", "--json", str(file)])
            self.assertEqual((code, len(json.loads(file.read_text()))), (1, 2))
        self.assertIn("vgg16 fp32, threads 1: broken", err.getvalue())
        self.assertIn("left out: b: why", err.getvalue())


class FakeTrainer:
    """Trains nothing. A step takes 1 ms, and a batch above 128 does not fit into memory."""

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
            self.assertEqual(len(server.steps(3)), 3)
            self.assertTrue(math.isfinite(server.loss()))
            self.assertIsNone(server.batch(4))
            self.assertRegex(server.description, r"batch 4$")
            self.assertGreater(server.steps(1)[0], 0)

    def test_a_question_that_is_none(self) -> None:
        for question in ("two", "0", "-1", "batch", "batch x"):
            done = execute(*self.COMMAND, input=f"{question}\n")
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(f"'{question}' is not a question", done.stderr)


@unittest.skipUnless(
    subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True, check=False).returncode == 0,
    "needs PyTorch (scripts/install_deps --peers)",
)
class OnTheCpuTest(unittest.TestCase):
    def test_the_whole_comparison_against_itself(self) -> None:
        """PyTorch trains on both sides, with a network small enough for a CPU."""
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
            done = execute(*command, "--json", folder / "x.json", "--log", folder / "log", timeout=HANG)
            log = (folder / "log").read_text()
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr + log)  # 3: the CPU has no graphs
            self.assertIn("there are no CUDA graphs on a CPU", log)
            (row,) = json.loads((folder / "x.json").read_text())
            self.assertEqual(row["troubles"], [])
            self.assertEqual(row["missing_variants"], [NO_GRAPH])
            self.assertEqual(row["best"]["peer"]["name"], "torch eager")
            for side in ("ours", "peer"):
                self.assertGreater(row["best"][side]["last_loss"], 1)  # untrained: ln(1000) = 6.9
                self.assertEqual(len(row["best"][side]["seconds_per_step"]), 6)
            self.assertLess(row["best"]["ratio"]["low"], row["best"]["ratio"]["high"])


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch in this Python (scripts/install_deps --peers)")
class TrainerTest(unittest.TestCase):
    """The peers must train as models/init.cpp, bench/train/batches.cpp and bench/micro/training_bench.h define."""

    BATCH = 16

    def gpu_trainer(self, labels: str, variant: str = "eager") -> object:
        import gpu_torch

        command = ["gpu_torch", "--model", "resnet50", "--image", "8", "--batch", str(self.BATCH), "--dtype", "fp32"]
        command += ["--device", "cpu", "--variant", variant, "--warm-up", "1", "--labels", labels]
        with mock.patch.object(sys, "argv", command), mock.patch.object(gpu_torch, "checked_network", self.network):
            trainer = gpu_torch.GpuTrainer(options := gpu_torch.parse_arguments())
            trainer.batch(options.batch)
        return trainer

    def network(self, *_: object) -> object:
        """Returns a small network, which need not learn anything."""
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 1000))

    def cpu_trainer(self, labels: str) -> object:
        import torch_train

        command = ["torch_train", "--model", "resnet50", "--image", "8", "--batch", str(self.BATCH)]
        command += ["--labels", labels]
        with mock.patch.object(sys, "argv", command), mock.patch.object(torch_train, "checked_network", self.network):
            return torch_train.CpuTrainer(torch_train.parse_arguments())

    def seen(self, trainer: object, steps: int = 4) -> list[tuple[int, ...]]:
        """Trains. Returns the labels with which each step computed its loss."""
        seen, compute = [], trainer._loss_function

        def loss_function(scores: object, labels: object) -> object:
            seen.append(tuple(labels.tolist()))
            return compute(scores, labels)

        trainer._loss_function = loss_function
        trainer.steps(steps)
        return seen

    def test_labels_are_new_in_every_step(self) -> None:
        for make in (self.gpu_trainer, self.cpu_trainer):
            fresh = self.seen(make("fresh"))
            self.assertEqual(len(set(fresh)), 4, "all differ")
            self.assertGreater(max(max(labels) for labels in fresh), 500)
            self.assertTrue(all(0 <= label < 1000 for labels in fresh for label in labels))
            self.assertEqual(fresh, self.seen(make("fresh")), "and a second run has the same")

    def test_labels_that_cycle_are_those_of_the_one_batch(self) -> None:
        for make in (self.gpu_trainer, self.cpu_trainer):
            self.assertEqual(len(set(self.seen(make("cycled")))), 1)

    def test_a_captured_step_reads_labels_that_are_uploaded_before_it(self) -> None:
        """Uses a fake graph. Its replay reads the values that are then at the address from which the capture read."""
        import torch

        trainer = self.gpu_trainer("fresh")
        replays, places = [], set()

        class Graph:
            def replay(self) -> None:
                places.add(trainer._labels.tensor.data_ptr())
                replays.append(tuple(trainer._labels.tensor.tolist()))

        drawn = mock.Mock(wraps=trainer._labels.draw)
        trainer._labels.draw = drawn
        in_capture = []

        @contextlib.contextmanager
        def capture(graph: object) -> object:
            before = drawn.call_count
            yield
            in_capture.append(drawn.call_count - before)

        stream = mock.Mock()
        with (
            mock.patch.object(torch.cuda, "Stream", return_value=stream),
            mock.patch.object(torch.cuda, "current_stream", return_value=stream),
            mock.patch.object(torch.cuda, "stream", side_effect=lambda _: contextlib.nullcontext()),
            mock.patch.object(torch.cuda, "CUDAGraph", Graph),
            mock.patch.object(torch.cuda, "graph", capture),
        ):
            trainer._capture(whole=True)
            trainer.steps(3)
        self.assertEqual(in_capture, [0], "nothing is uploaded inside the graph")
        self.assertEqual((len(replays), len(set(replays)), len(places)), (4, 4, 1))

    def test_weights_begin_as_ours_do(self) -> None:
        import networks
        import torch

        torch.manual_seed(1)
        for model, image in (("vgg16", 32), ("resnet50", 32)):
            for name, module in networks.checked_network(model, image).named_modules():
                if isinstance(module, torch.nn.Conv2d):
                    fan_in = module.in_channels * module.kernel_size[0] * module.kernel_size[1]
                    expected = math.sqrt(2 / fan_in)  # He, arXiv:1502.01852, equation 10
                elif isinstance(module, torch.nn.Linear) and model == "vgg16":
                    expected = 0.01
                elif isinstance(module, torch.nn.Linear):  # Glorot and Bengio: uniform with this deviation
                    expected = math.sqrt(2 / (module.in_features + module.out_features))
                    limit = math.sqrt(6 / (module.in_features + module.out_features))
                    self.assertLessEqual(float(module.weight.detach().abs().max()), limit)
                else:
                    continue
                weight = module.weight.detach()
                # The test allows six standard errors of a deviation that is estimated from numel() values.
                tolerance = 6 * expected / math.sqrt(2 * weight.numel())
                self.assertAlmostEqual(float(weight.std()), expected, delta=tolerance, msg=f"{model} {name}")
                self.assertAlmostEqual(float(weight.mean()), 0, delta=6 * expected / math.sqrt(weight.numel()))
                if module.bias is not None:
                    self.assertEqual(float(module.bias.detach().abs().max()), 0)

    def test_the_update_is_ours(self) -> None:
        for trainer in (self.gpu_trainer("fresh"), self.cpu_trainer("fresh")):
            (group,) = trainer._optimiser.param_groups
            self.assertEqual((group["lr"], group["momentum"], group["weight_decay"]), (1e-3, 0.9, 1e-4))


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch in this Python (scripts/install_deps --peers)")
class CompileTest(unittest.TestCase):
    """If torch.compile cannot work, the report must have a reason and no traceback."""

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
        with self.assertRaises(KeyError):  # an error of a variant other than compile is a defect, so it is raised
            self.program.build(trainer, SimpleNamespace(variant="eager", batch=8))
