"""Tests that hvdb.torch_profile leaves a model as it was, accepts what it can, and asks where it would guess."""

from __future__ import annotations

import contextlib
import unittest
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch_test import TorchTest, gradients, nn, squares, torch, value

from hvdb.base.errors import HvdbError
from hvdb.pytorch.units import units_of
from hvdb.read import replay_profile


def stepping(model: Any) -> list[Any]:
    """Gives each parameter an optimizer that steps in backward. Returns the handles of the hooks."""

    def step(parameter: Any, optimizer: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    optimizers = [(parameter, torch.optim.SGD([parameter], lr=0.1)) for parameter in model.parameters()]
    return [p.register_post_accumulate_grad_hook(lambda p, o=o: step(p, o)) for p, o in optimizers]


def nested(rows: list[Any]) -> list[Any]:
    """Returns a nested tensor of each layout that this PyTorch has."""
    ways = [{"layout": torch.jagged}] if hasattr(torch, "jagged") else []  # PyTorch 2.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [torch.nested.nested_tensor(rows, **way) for way in ({}, *ways)]


class AsItWasTest(TorchTest):
    @contextlib.contextmanager
    def unchanged(self, model: Any) -> Iterator[None]:
        """Checks that everything of the model is the same afterwards: objects, memory, values, flags, modes, hooks."""

        def state() -> list[Any]:
            tensors = [*model.named_parameters(), *model.named_buffers()]
            places = [
                (name, id(t), t.untyped_storage()._cdata, t.shape, t.stride(), t.requires_grad, t.grad_fn)
                for name, t in tensors
            ]
            modes = [(name, id(module), module.training, *vars(module)) for name, module in model.named_modules()]
            return [places, modes, self.hooks(model)]

        before, values = state(), [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        yield
        self.assertEqual(state(), before)
        for tensor, copy in zip((*model.parameters(), *model.buffers()), values, strict=True):
            self.assertTrue(torch.equal(tensor, copy))

    def test_weights_that_the_user_s_code_changes(self) -> None:
        def decay(model: Any, batch: Any) -> Any:
            with torch.no_grad():
                model[0].weight.mul_(0.9)
            return squares(model, batch)

        def hidden(model: Any, batch: Any) -> Any:
            self.net[0].weight.data.clamp_(-0.1, 0.1)  # changes no version
            return squares(model, batch)

        def swap(model: Any, batch: Any) -> Any:
            model[0].weight.data = model[0].weight.detach() * 0.9
            return squares(model, batch)

        for model, loss in ((self.net, decay), (torch.compile(self.net, backend="eager"), hidden), (self.net, swap)):
            with self.subTest(loss.__name__), self.unchanged(self.net):
                made = self.record(model, loss)
                self.assertIn(
                    "note: 1 parameters were changed in forward or backward and put back: 0.weight", str(made)
                )
        self.assertNotIn("were changed", str(self.record(self.net)))

    def test_memory_that_only_moves_is_no_change(self) -> None:
        def move(model: Any, batch: Any) -> Any:
            model[0].weight.data = model[0].weight.detach().clone()
            return squares(model, batch)

        with self.unchanged(self.net):
            self.assertNotIn("were changed", str(self.record(self.net, move)))

    def test_another_type(self) -> None:
        squares(self.net, self.batch).backward()
        gradient = self.net[0].weight.grad
        with self.unchanged(self.net):
            self.record(self.net, lambda model, batch: squares(model.double(), batch.double()))
        self.assertIs(self.net[0].weight.grad, gradient)

    def test_an_average_of_the_weights_inside_the_model(self) -> None:
        self.net.average = nn.Linear(4, 8).requires_grad_(False)

        def loss(model: Any, batch: Any) -> Any:
            with torch.no_grad():
                model.average.weight.lerp_(model[0].weight, 0.1)
            return squares(model[:3], batch)

        with self.unchanged(self.net):
            self.record(self.net, loss)

    def test_an_embedding_with_a_largest_norm(self) -> None:
        model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 2))
        with self.unchanged(model):
            self.record(model, batch=torch.randint(9, (6, 3)))

    def test_an_optimizer_in_backward(self) -> None:
        handles = stepping(self.net)
        with self.unchanged(self.net):
            made = self.record(self.net)
        self.assertIn(
            "note: SGD stepped in forward or backward, where its time counts; its own state is not", str(made)
        )
        self.assertIn("4 parameters have hooks of their own", str(made))
        self.assertEqual(made.update, 0)
        for handle in handles:
            handle.remove()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.assertNotIn("note: ", str(self.record(self.net, optimizer=optimizer)))

    def test_modes_and_flags(self) -> None:
        self.net.append(nn.Dropout(0.1))
        self.net[0].bias.requires_grad_(False)

        def loss(model: Any, batch: Any) -> Any:
            model.train(not model.training)
            model[2].bias.requires_grad_(True)
            y = squares(model, batch)
            model[2].bias.requires_grad_(False)
            return y

        with self.unchanged(self.net):
            self.record(self.net, loss)

    def test_buffers(self) -> None:
        def replace(model: Any, batch: Any) -> Any:
            model.cache = torch.ones(7)
            return model[0](batch).sum() + model.wide.sum()

        def grow(model: Any, batch: Any) -> Any:
            model.cache.resize_(1000).fill_(2)
            model.wide.fill_(5)
            return model[0](batch).sum()

        def shrink(model: Any, batch: Any) -> Any:
            model.cache.untyped_storage().resize_(0)
            return model[0](batch).sum()

        def add(model: Any, batch: Any) -> Any:
            model.register_buffer(f"more{len(list(model.buffers()))}", torch.ones(1))
            del model.cache
            model.cache = 3
            with contextlib.suppress(AttributeError):
                del model.wide
            return model[0](batch).sum()

        def layer(model: Any, batch: Any) -> Any:
            model[1] = nn.Tanh()
            model.extra = nn.Tanh()
            return squares(model[:3], batch)

        for loss in (replace, grow, shrink, add, layer):
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            model.register_buffer("cache", torch.arange(3.0))
            model.register_buffer("wide", torch.ones(1, 3).expand(4, 3))
            model.register_buffer("none", None)
            with self.subTest(loss.__name__), self.unchanged(model):
                self.record(model, loss, steps=2)

    def test_buffers_of_other_layouts(self) -> None:
        def loss(model: Any, batch: Any) -> Any:
            for buffer in model.buffers():
                buffer.mul_(2)
            return squares(model, batch)

        for rows in nested([torch.ones(2), torch.ones(3)]):
            model = nn.Sequential(nn.Linear(4, 2))
            model.register_buffer("rows", rows)
            model.register_buffer("graph", torch.eye(3).to_sparse())
            self.record(model, loss)
            self.assertTrue(all(torch.equal(row, torch.ones(len(row))) for row in model.rows.unbind()))
            self.assertTrue(torch.equal(model.graph.to_dense(), torch.eye(3)))

    def test_a_buffer_that_backward_flows_through(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3))
        model.register_buffer("state", torch.zeros(6, 3))

        def loss(model: Any, batch: Any) -> Any:
            model.state = model.state.detach()
            model.state += model[0](batch)
            return model.state.sum()

        with self.unchanged(model):
            self.record(model, loss)

    def test_an_error_in_a_step(self) -> None:
        calls = []

        def loss(model: Any, batch: Any) -> Any:
            calls.append(model[0].weight.data.mul_(0.5))
            if len(calls) == 3:
                raise RuntimeError("no more")
            return squares(model.eval(), batch)

        with self.unchanged(self.net), self.assertRaisesRegex(RuntimeError, "no more"):
            self.record(self.net, loss)

    def test_a_graph_of_before_can_still_run_backward(self) -> None:
        waiting = squares(self.net, self.batch)
        self.record(self.net)
        waiting.backward()
        self.assertIsNotNone(self.net[0].weight.grad)

    def test_with_an_optimizer_the_weights_change(self) -> None:
        before = self.net[0].weight.detach().clone()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.net.register_buffer("count", torch.zeros(()))

        def loss(model: Any, batch: Any) -> Any:
            model.count += 1
            return squares(model.eval(), batch)

        made = self.record(self.net, loss, optimizer=optimizer)
        self.assertFalse(torch.equal(before, self.net[0].weight))
        self.assertTrue(self.net.training and self.net[0].training)
        self.assertEqual(self.net.count, 0)
        self.assertIn("evaluation mode", str(made))

    def test_what_cannot_be_put_back_is_refused_before_a_step(self) -> None:
        def loss(*_: Any) -> Any:
            self.fail("a step was run")

        self.net.register_buffer("windows", torch.arange(5.0).as_strided((3, 3), (1, 1)))
        self.refused("elements of windows overlap", self.net, loss)
        self.net.windows = torch.ones(1)
        with mock.patch.object(torch.Tensor, "clone", side_effect=RuntimeError("no\nmemory")):
            self.refused(r"0.weight cannot be copied \(with optimizer=, .*\): no\\nmemory", self.net, loss)

    def test_parameters_that_come_with_the_first_pass(self) -> None:
        calls = []

        def thaw(model: Any, batch: Any) -> Any:
            calls.append(model.requires_grad_())
            return squares(model, batch)

        def replace(model: Any, batch: Any) -> Any:
            calls.append(1)
            model[2].weight = nn.Parameter(torch.ones(2, 8))
            return squares(model, batch)

        self.net[0].requires_grad_(False)
        with self.unchanged(self.net):
            self.refused("0.weight, 0.bias got a gradient, but required none or was not there before", self.net, thaw)
        with self.unchanged(self.net):
            self.refused("2.weight got a gradient, but required none or was not there before", self.net, replace)
        self.assertEqual(len(calls), 2, "one pass each")


class AcceptedTest(TorchTest):
    def test_scripted_parts(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(self.net[0], torch.jit.script(nn.BatchNorm1d(8)), self.net[2])
            whole = torch.jit.script(model)
        mean = model[1].running_mean.clone()
        self.assertIn("a scripted model hides the type in which it computes", str(self.record(whole)))
        self.assertEqual(len(gradients(self.file)), 6)
        self.assertTrue(torch.equal(mean, model[1].running_mean))
        self.assertEqual(self.hooks(model[0]) + self.hooks(model[2]), 0)
        self.record(model)
        self.assertEqual(len(gradients(self.file)), 6)

    def test_wrappers_of_checkpointed_parts(self) -> None:
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

        first, last = (
            wrappers.checkpoint_wrapper(self.net[i], checkpoint_impl=wrappers.CheckpointImpl.NO_REENTRANT)
            for i in (0, 2)
        )
        self.record(nn.Sequential(first, self.net[1], last))
        self.assertEqual({name for name, *_ in gradients(self.file)}, {"0.weight", "0.bias", "2.weight", "2.bias"})

    def test_optimizers_of_deepspeed(self) -> None:
        for module, works in (("deepspeed.ops.adam.fused_adam", True), ("deepspeed.runtime.zero.stage_1_and_2", False)):
            made = type("FusedAdam", (torch.optim.SGD,), {"__module__": module})(self.net.parameters(), lr=0.1)
            if works:
                self.assertGreater(self.record(self.net, optimizer=made).update, 0)
            else:
                self.refused("are distributed \\(FusedAdam\\)", self.net, optimizer=made)

    def test_a_base_of_four_bits(self) -> None:
        self.net.later = nn.Parameter(torch.zeros(3, device="meta"), requires_grad=False)
        self.net.base = nn.Parameter(torch.zeros(4096, dtype=torch.uint8), requires_grad=False)
        self.net.scale = nn.Parameter(torch.zeros(99, dtype=torch.float8_e4m3fn), requires_grad=False)
        loss = lambda model, x: squares(model[:3], x)  # noqa: E731
        made = self.record(self.net.to(torch.bfloat16), loss, batch=self.batch.bfloat16())
        self.assertNotIn("were changed", str(made))
        self.assertEqual(value(self.file, "compute_type"), "bf16")
        self.assertEqual(len(gradients(self.file)), 4)


class RandomDepthTest(TorchTest):
    def test_the_refusal_names_a_way_out(self) -> None:
        calls = []

        def loss(model: Any, batch: Any) -> Any:
            calls.append(1)
            return squares(model, batch) if len(calls) % 2 else model[0](batch).sum()

        self.refused(
            "2.weight, 2.bias has a gradient in some steps only; fix what forward runs .* drop rate to 0",
            self.net,
            loss,
        )


class OwnReductionTest(TorchTest):
    def setUp(self) -> None:
        super().setUp()
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            self.skipTest("needs Gloo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.reduce = dist.all_reduce

    def test_in_hooks_of_parameters(self) -> None:
        self.net[0].weight.register_post_accumulate_grad_hook(lambda p: self.reduce(p.grad))
        self.net[2].weight.register_hook(self.reduce)
        made = str(self.record(self.net))
        self.assertIn("note: 2 parameters have hooks of their own, whose time counts as backward: 0.weight, 2", made)
        self.assertIn(
            "collectives of torch.distributed ran in the steps, and their time counts as forward or backward",
            made,
        )

    def test_where_no_hook_can_be_seen(self) -> None:
        node = self.net[0].weight.expand_as(self.net[0].weight).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: self.reduce(torch.ones(3)) and None)
        self.assertIn("collectives of torch.distributed ran", str(self.record(self.net)))
        self.assertNotIn("hooks of their own", str(self.record(self.net)))

    def test_none(self) -> None:
        self.assertNotIn("note", str(self.record(self.net)))


class UnitsTest(unittest.TestCase):
    def test_the_length_that_all_tensors_have(self) -> None:
        for batch, length in (
            (tensor(4, 3), 4),
            ((tensor(5), tensor(5)), 5),
            ([tensor(), {"x": tensor(7)}], 7),
            ({"mask": None, "x": tensor(8, 2), "y": tensor(8, dtype="torch.int64")}, 8),
            ([tensor(6, dtype="torch.int64"), tensor(6, 3, 8, 8)], 6),
            ({"input_ids": tensor(2, 9), "position_ids": tensor(2, 9)}, 2),
        ):
            self.assertEqual(units_of(batch, False), length)
        self.assertEqual(units_of((tensor(4, 3, 8, 8), tensor(4)), True), 4)

    def test_batches_that_do_not_tell_it(self) -> None:
        packed = type("PackedSequence", (tuple,), {"batch_sizes": None})
        endless: list[Any] = []
        endless += [endless, endless, tensor()]
        for batch, why in (
            (None, "no tensor with a length"),
            ("text", "no tensor with a length"),
            (tensor(), "no tensor with a length"),
            (tensor(0, 2), "no tensor with a length"),
            (endless, "no tensor with a length"),
            ((tensor(5), tensor(6)), "the first lengths of its tensors are 5, 6"),
            ([tensor(3, 8, 9), tensor(3, 9, 8)], "a list of tensors of three dimensions may be one of images"),
            (([tensor(3, 8, 9)], [{"boxes": tensor(3, 4)}]), "may be one of images"),
            ((tensor(12, dtype="torch.int64"), tensor(4, 3, 8, 8)), "are 4, 12"),
            ((packed([tensor(5, 4), tensor(5)]), tensor(5)), "it is packed"),
            ({"input_ids": tensor(1, 9), "position_ids": tensor(1, 9)}, "it is packed"),
            ({"input_ids": tensor(1, 9), "cu_seqlens": tensor(4)}, "it is packed"),
            ((tensor(9, dtype="torch.int64"), tensor(9, dtype="torch.int32")), "tokens of several sequences"),
        ):
            with self.subTest(why), self.assertRaisesRegex(HvdbError, f"{why}.*: say units=..., unit=...$") as caught:
                units_of(batch, False)
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(HvdbError, "a layer of the model has batch_first=False"):
            units_of(tensor(9, 4, 16), True)


class UnitsOfTensorsTest(TorchTest):
    def test_sequence_first(self) -> None:
        loss = lambda model, batch: model(batch)[0].square().mean()  # noqa: E731
        self.refused("batch_first=False.*say units=", nn.LSTM(4, 2), loss, batch=torch.randn(9, 6, 4))
        self.record(nn.LSTM(4, 2), loss, batch=torch.randn(9, 6, 4), units=6, unit="sequences")
        self.record(nn.LSTM(4, 2, batch_first=True), loss, batch=torch.randn(9, 6, 4))
        self.assertEqual(replay_profile.read(self.file).units_per_step, 9)

    def test_packed(self) -> None:
        packed = nn.utils.rnn.pack_sequence([torch.randn(5, 4)])
        loss = lambda model, batch: model(batch)[0].data.square().mean()  # noqa: E731
        self.refused("it is packed", nn.LSTM(4, 2, batch_first=True), loss, batch=packed)

    def test_nested(self) -> None:
        rows = [torch.randn(2, 4), torch.randn(3, 4), torch.randn(4, 4)]
        loss = lambda model, batch: sum(squares(model, row) for row in batch.unbind())  # noqa: E731
        for batch in nested(rows):
            self.record(self.net, loss, batch=batch)
            self.assertEqual(replay_profile.read(self.file).units_per_step, 3)


def tensor(*shape: int, dtype: str = "torch.float32") -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype)
