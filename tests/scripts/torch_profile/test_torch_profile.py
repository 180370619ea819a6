"""Tests hvdb.torch_profile. Most tests need PyTorch 2.1 or newer and are skipped without it."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch_test import TorchTest, gradients, nn, squares, torch, value

from harness import SCRIPTS, FolderTest, execute
from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError
from hvdb.pytorch.clock import DeviceClock
from hvdb.read import replay_profile
from hvdb.torch_profile import record

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))


class WithoutTorchTest(FolderTest):
    def test_absent_or_old(self) -> None:
        for torch_module, pattern in (
            (None, "PyTorch 2.1 or newer is needed to record a model: "),
            (SimpleNamespace(Tensor=object, __version__="2.0.1"), "is needed to record a model, and this is 2.0.1"),
        ):
            with mock.patch.dict(sys.modules, {"torch": torch_module}), self.assertRaisesRegex(HvdbError, pattern):
                record(None, None, lambda model, batch: None, self.folder / "a.replay")

    def test_a_gpu_s_clock(self) -> None:
        """The GPU is an imitation, whose work takes no time but 3 ms that the test adds."""
        now = [0.0]

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: str) -> None:
                assert stream == "stream of cuda:1"
                self.at = now[0]

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        waited = []
        cuda = SimpleNamespace(Event=Event, synchronize=waited.append, current_stream="stream of {}".format)
        clock = DeviceClock(cuda, "cuda:1")
        for shift in (0.0, 100.0):
            now[0] = shift
            clock.begin()
            clock.mark(0)
            now[0] += 3
            clock.mark(1)
            marks = clock.seconds()
            self.assertEqual([marks[0][1], marks[1][1]], [0.0, 0.003])
            self.assertTrue(0 < marks[0][0] <= marks[1][0], "times of the host")
        self.assertEqual(waited, ["cuda:1"] * 4)


def example(name: str = "gpt") -> Any:
    """Returns the module docs/examples/torch/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"docs/examples/torch/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NetworksTest(TorchTest):
    def test_a_tied_embedding_is_one_gradient(self) -> None:
        gpt = example()
        model = gpt.Gpt(layers=2, width=32, heads=2, tokens=64)
        tokens = torch.randint(64, (4, 9))
        made = self.record(model, gpt.next_token_loss, batch=tokens, unit="sequences")
        found = gradients(self.file)
        self.assertEqual(sum(name == "tokens.weight" for name, _, _ in found), 1)
        self.assertNotIn("head.weight", [name for name, _, _ in found])
        self.assertEqual(found[-1][0], "tokens.weight", "the embedding is used first, so its gradient is ready last")
        self.assertEqual((made.gradients, made.elements), (28, sum(p.numel() for p in model.parameters())))
        self.assertEqual([time for *_, time in found], sorted(time for *_, time in found))
        read = replay_profile.read(self.file)
        self.assertEqual(
            (read.model, read.unit, read.units_per_step, read.compute_type), ("net", "sequences", 4, "fp32")
        )
        self.assertEqual((read.elements, read.gradients), (made.elements, made.gradients))
        forward = float(value(self.file, "forward_seconds"))
        self.assertTrue(all(forward < time < read.backward_end for *_, time in found))
        self.assertEqual(len(value(self.file, "factors").split()), 3)

    def test_the_llama(self) -> None:
        llama = example("llama")
        with torch.device("meta"):
            self.assertEqual(sum(p.numel() for p in llama.Llama().parameters()), 134_515_008)  # SmolLM-135M
        made = self.record(llama.Llama(2, 192, 3, 64), llama.next_token_loss, batch=torch.randint(64, (4, 9)))
        self.assertEqual((made.gradients, gradients(self.file)[-1][0]), (20, "tokens.weight"))
        turned = llama.rotated(torch.ones(1, 1, 9, 8))[0, 0]
        scores = turned @ turned.T
        torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])  # they depend on the distance only

    def test_adapters_beside_frozen_layers(self) -> None:
        gpt = example()
        model = gpt.with_adapters(gpt.Gpt(layers=2, width=32, heads=2, tokens=64), 4)
        made = self.record(model, gpt.next_token_loss, batch=torch.randint(64, (4, 9)))
        self.assertEqual([size for _, size, _ in gradients(self.file)], [4 * 96, 4 * 32] * 2)
        self.assertIn("frozen parameters are left out: tokens.weight, places.weight, ", str(made))

    @unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
    @unittest.skipUnless(importlib.util.find_spec("torchvision"), "needs torchvision")
    def test_resnet_50_has_the_gradients_of_our_own(self) -> None:
        """Our order is that of PyTorch, but for weight and bias of the last layer. Ours have the size that oneDNN's
        layout needs, which may be larger: on AVX-512 the last layer has room for 1024 classes."""
        sys.path.insert(0, str(SCRIPTS))
        from maintain.peerbench import torch_trainer

        model = torch_trainer.make_network("resnet50", 32)
        labels = torch.randint(1000, (2,))
        loss = lambda model, images: nn.functional.cross_entropy(model(images), labels)  # noqa: E731
        self.record(model, loss, batch=torch.randn(2, 3, 32, 32), unit="images", steps=1)
        own = self.folder / "own.replay"
        words = "--model resnet50 --batch-size 1 --image-size 32 --num-warmup-batches 0 --num-iters 1 --no-db".split()
        execute(PROGRAM, *words, "--record-replay", own, code=0)
        sizes, ours = ([size for _, size, _ in gradients(file)] for file in (self.file, own))
        self.assertEqual(len(sizes), 161)
        for size, own_size in zip([sizes[1], sizes[0], *sizes[2:]], ours, strict=True):
            self.assertTrue(size <= own_size < 3 * size, (size, own_size))

    @unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
    def test_hvd_bench_replays_it(self) -> None:
        self.record(self.net)
        words = ("--replay", self.file, "--num-warmup-batches", "1", "--num-iters", "2", "--no-db")
        self.assertIn("replaying  net", execute(PROGRAM, *words, code=0).stdout)


class TimesTest(TorchTest):
    def test_gradients_are_ready_when_their_part_of_backward_is_over(self) -> None:
        """Backward of each layer sleeps for a known time, less than which cannot have passed."""

        class Sleep(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, x: Any, seconds: float) -> Any:
                context.seconds = seconds
                return x.clone()

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                time.sleep(context.seconds)
                return gradient, None

        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        pauses = (0.01, 0.02, 0.03)

        def loss(model: Any, x: Any) -> Any:
            time.sleep(0.02)
            for layer, seconds in zip(model, pauses, strict=True):
                x = Sleep.apply(layer(x), seconds)
            return x.sum()

        made = self.record(layers, loss)
        at = {name: time for name, _, time in gradients(self.file)}
        self.assertEqual([name[0] for name in at], ["2", "2", "1", "1", "0", "0"])
        self.assertGreaterEqual(made.forward, 0.02)
        slack = 1e-6  # the file holds nanoseconds
        self.assertGreaterEqual(at["2.weight"] - made.forward, 0.03 - slack)
        self.assertGreaterEqual(at["1.weight"] - at["2.weight"], 0.02 - slack)
        self.assertGreaterEqual(at["0.weight"] - made.forward, 0.06 - slack)


class WaysToTrainTest(TorchTest):
    def test_unused_and_frozen_parameters(self) -> None:
        self.net.extra = nn.Linear(3, 3)
        forward = nn.Sequential(self.net[0], self.net[1], self.net[2])
        self.net[0].bias.requires_grad_(False)
        made = self.record(self.net, lambda model, batch: squares(forward, batch))
        self.assertEqual({name for name, *_ in gradients(self.file)}, {"0.weight", "2.weight", "2.bias"})
        self.assertIn("note: 2 parameters got no gradient and are left out: extra.weight, extra.bias", str(made))
        self.assertIn("note: 1 frozen parameters are left out: 0.bias", str(made))

    def test_accumulation_counts_the_last_pass(self) -> None:
        made = self.record(self.net, accumulate=3)
        self.assertTrue(all(made.forward < time < made.backward_end for *_, time in gradients(self.file)))
        self.assertEqual((made.gradients, replay_profile.read(self.file).units_per_step), (4, 18))

    def test_checkpointed_parts(self) -> None:
        from torch.utils.checkpoint import checkpoint

        batch = self.batch.requires_grad_()
        for reentrant in (False, True):
            self.record(
                self.net, lambda model, x, r=reentrant: checkpoint(model, x, use_reentrant=r).sum(), batch=batch
            )
            self.assertEqual(len(gradients(self.file)), 4)

    def test_types(self) -> None:
        def lower(model: Any, batch: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return squares(model, batch)

        self.record(self.net, lower)
        self.assertEqual(value(self.file, "compute_type"), "bf16")
        with torch.autocast("cpu", torch.bfloat16):
            self.record(self.net)
        self.assertEqual(value(self.file, "compute_type"), "bf16")
        self.record(self.net)
        self.assertEqual(value(self.file, "compute_type"), "fp32")
        self.record(self.net, compute_type="tf32")
        self.assertEqual(value(self.file, "compute_type"), "tf32")
        made = self.record(self.net.to(torch.bfloat16), batch=self.batch.to(torch.bfloat16))
        self.assertEqual(value(self.file, "compute_type"), "bf16")
        self.assertEqual(made.elements, sum(p.numel() for p in self.net.parameters()), "elements, not bytes")
        self.assertIn(
            "note: gradients are bfloat16: a replay counts elements, which hvd_bench reduces as fp32", str(made)
        )

    def test_compiled_models(self) -> None:
        made = self.record(torch.compile(self.net, backend="aot_eager"))
        self.assertEqual({name for name, *_ in gradients(self.file)}, {"0.weight", "0.bias", "2.weight", "2.bias"})
        self.assertIn("note: a compiled graph hands over its gradients together at its end", str(made))

    def test_the_time_of_the_optimizer(self) -> None:
        before = self.net[0].weight.detach().clone()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        made = self.record(self.net, optimizer=optimizer)
        self.assertGreater(made.update, 0)
        self.assertFalse(torch.equal(before, self.net[0].weight), "a step of the optimizer changes the weights")
        self.assertEqual(self.record(self.net).update, 0)

    def test_an_optimizer_inside_backward(self) -> None:
        def update(parameter: Any) -> None:
            parameter.grad = None

        handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in self.net.parameters()]
        self.assertEqual(self.record(self.net).gradients, 4)
        for handle in handles:
            handle.remove()

    def test_batches_of_any_kind(self) -> None:
        loss = lambda model, batch: squares(model, batch["x"])  # noqa: E731
        self.record(self.net, loss, batch={"x": self.batch, "y": "text"})
        self.assertEqual(replay_profile.read(self.file).units_per_step, 6)
        self.record(self.net, lambda model, make: squares(model, make()), batch=lambda: self.batch, units=2)
        self.assertEqual(replay_profile.read(self.file).units_per_step, 2)

    def test_names(self) -> None:
        model = nn.ModuleDict({"a b": nn.Linear(4, 2), "a_b": nn.Linear(4, 2), "<i>\n": nn.Linear(4, 2)})
        loss = lambda model, batch: sum(part(batch).sum() for part in model.values())  # noqa: E731
        self.record(model, loss, name="my <net>")
        names = {name for name, *_ in gradients(self.file)}
        self.assertEqual(names, {"a_b.weight", "a_b.bias", "a_b.weight:2", "a_b.bias:2", "_i_.weight", "_i_.bias"})
        self.assertRegex(replay_profile.read(self.file).model, "^my_net_-[0-9a-f]{8}$")


class AfterwardsTest(TorchTest):
    def test_the_model_is_as_it_was(self) -> None:
        model = nn.Sequential(self.net, nn.BatchNorm1d(2), nn.Dropout(0.5))
        model[1].eval()
        squares(model, self.batch).backward()
        model[0][0].weight.grad = None
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        grads = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
        buffers, random = list(model.buffers()), torch.get_rng_state()
        model[1].train()
        self.record(model)
        self.assertTrue(torch.equal(random, torch.get_rng_state()))
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, state[name]), name)
        for parameter, (grad, values) in zip(model.parameters(), grads, strict=True):
            self.assertIs(parameter.grad, grad)
            self.assertTrue(grad is None or torch.equal(grad, values))
        self.assertTrue(all(a is b for a, b in zip(model.buffers(), buffers, strict=True)))
        self.assertTrue(model.training and model[1].training)
        self.assertEqual(self.hooks(model), 0)
        self.assertIn("evaluation mode", str(self.record(model.eval())))

    def test_a_backward_that_raises(self) -> None:
        self.file.write_text("hvd-replay 2\nof yesterday\n")
        calls = []

        def fails(_: Any) -> None:
            calls.append(1)
            if len(calls) > 2:
                raise RuntimeError("no more")

        def loss(model: Any, batch: Any) -> Any:
            y = model(batch)
            y.register_hook(fails)
            return y.sum()

        with self.assertRaisesRegex(RuntimeError, "no more"):
            self.record(self.net, loss)
        self.assertEqual(self.file.read_text(), "hvd-replay 2\nof yesterday\n")
        self.assertEqual(list(self.folder.iterdir()), [self.file])
        self.assertEqual(self.hooks(self.net), 0)
        self.assertTrue(all(parameter.grad is None for parameter in self.net.parameters()))


class RefusedTest(TorchTest):
    def test_losses(self) -> None:
        for pattern, loss in (
            ("must return a scalar, not torch.float32 of shape \\(6, 2\\)", lambda model, batch: model(batch)),
            ("must return a scalar, not torch.int64", lambda model, batch: model(batch).argmax()),
            ("must return a scalar tensor, not tuple", lambda model, batch: (squares(model, batch),)),
            ("must return a scalar tensor, not float", lambda model, batch: squares(model, batch).item()),
            ("the loss is nan", lambda model, batch: squares(model, batch) * float("nan")),
            ("the loss is inf", lambda model, batch: squares(model, batch) * float("inf")),
            ("depends on no parameter that requires a gradient", lambda model, batch: squares(model, batch).detach()),
            ("loss\\(\\) itself runs backward", lambda model, batch: self.backward_of(squares(model, batch))),
        ):
            with self.subTest(pattern):
                self.refused(pattern, self.net, loss)
        with torch.no_grad():
            self.refused("or gradients are disabled", self.net)

    @staticmethod
    def backward_of(loss: Any) -> Any:
        loss.backward(retain_graph=True)
        return loss

    def test_models(self) -> None:
        self.refused("must be a torch.nn.Module, not function", squares)
        self.refused("no parameter that requires a gradient", nn.ReLU())
        self.refused("lazy parameters", nn.LazyLinear(2))
        self.refused("are distributed \\(DataParallel\\)", nn.DataParallel(self.net))
        self.refused(
            "gradients on several devices \\(cpu, meta\\)", nn.ModuleList([self.net, nn.Linear(1, 1, device="meta")])
        )
        self.refused("gradients on meta, and only those on cpu and cuda", nn.Linear(1, 1, device="meta"))
        self.refused("is complex", nn.Linear(4, 2, dtype=torch.complex64))
        other = nn.Parameter(torch.ones(2))
        self.refused("gave no parameter of the model a gradient", self.net, lambda model, batch: other.sum())
        sparse = nn.EmbeddingBag(9, 4, sparse=True)
        self.refused("the gradient of weight is sparse", sparse, batch=torch.randint(9, (6, 2)))
        self.net.requires_grad_(False)
        self.refused("no parameter that requires a gradient", self.net)

    def test_gradients_that_change(self) -> None:
        calls = []

        def sometimes(model: Any, batch: Any) -> Any:
            calls.append(1)
            hidden = model[0](batch)
            return model[2](hidden).sum() if len(calls) % 4 else hidden.sum()

        self.refused("2.weight, 2.bias has a gradient in some steps only", self.net, sometimes)

        def unhooked(model: Any, batch: Any) -> Any:
            if hooks := model[2].bias._post_accumulate_grad_hooks:
                hooks.clear()
            return squares(model, batch)

        self.refused("2.bias got a gradient, but the hook that tells when was removed", self.net, unhooked)

    def test_arguments(self) -> None:
        self.refused("unit 'Tokens'", self.net, unit="Tokens")
        self.refused("units 0: must be", self.net, units=0)
        self.refused("say units=", self.net, batch=None)
        self.refused("is not one of fp32", self.net, compute_type="int8")
        for name in ("steps", "warmup", "accumulate", "units"):
            for wrong in (0, -1, 1.5, "3", True):
                self.refused(f"{name} .*: must be a whole number from 1 to ", self.net, **{name: wrong})
        self.refused("steps 4097: must be", self.net, steps=4097)
        self.refused("unit 3: must be", self.net, unit=3)
        self.refused("name 3: must be a text", self.net, name=3)
        self.refused("say units=", self.net, batch=torch.ones(0, 4))
        endless: list[Any] = []
        endless.append(endless)
        self.refused("say units=", self.net, batch=endless)

    def test_optimizers(self) -> None:
        self.refused("must be a torch.optim.Optimizer that was made", self.net, optimizer=torch.optim.SGD)
        lbfgs = torch.optim.LBFGS(self.net.parameters())
        self.refused("LBFGS runs forward and backward", self.net, optimizer=lbfgs)
        reducing = type("DistributedOptimizer", (torch.optim.SGD,), {"__module__": "horovod.torch"})
        wrapped = reducing(self.net.parameters(), lr=0.1)
        self.refused("are distributed \\(DistributedOptimizer\\)", self.net, optimizer=wrapped)
        other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        self.refused("the optimizer has no parameter of this model", self.net, optimizer=other)

    def test_more_gradients_than_a_replay_takes(self) -> None:
        model = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(200_000)])
        self.refused("200000 gradients make a replay of", model, lambda model, batch: torch.cat(list(model)).sum())

    def test_files(self) -> None:
        other = self.folder / "notes.txt"
        other.write_text("mine")
        for path, pattern in (
            (other, "is not a replay; it was left untouched"),
            (self.folder / "none" / "a.replay", "there is no folder"),
            (self.folder, "not a file"),
            (self.folder / ("a" * 300), "cannot be written"),
            (f"{self.folder}/a\0b", "cannot be written"),
            (3, "cannot be written"),
        ):
            with self.assertRaisesRegex(HvdbError, pattern):
                record(self.net, self.batch, squares, path)
        self.assertEqual(other.read_text(), "mine")
        self.record(self.net)
        self.record(self.net)  # a replay may be replaced
