"""Keeps a PyTorch model as it is, and puts it back after steps in which the user's code may have changed it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdb.base import printable
from hvdb.base.errors import HvdbError
from hvdb.read import replay_profile

# Levels that torch.compile() and wrappers of checkpointed parts add to names.
_WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_checkpoint_wrapped_module)\.")

_OTHER = "a parameter that only the optimizer has"


def plain(name: str) -> str:
    """Returns the name that a parameter or buffer has without wrappers."""
    return _WRAPPERS.sub("", name)


def listed(names: Sequence[str]) -> str:
    """Returns the first three names, cleaned of characters that a terminal should not get."""
    return ", ".join([*map(replay_profile.clean, names[:3]), *(["..."] if len(names) > 3 else [])])


@dataclass(frozen=True)
class _Tensor:
    """A parameter or buffer as it was. memory: what it views, also when it views something else later; cells: each
    element of the memory once; copy: of the cells, None if its values may change; size: of the memory in bytes, 0 if
    unknown."""

    name: str
    tensor: Any
    flag: bool  # requires_grad
    memory: Any = None
    cells: Any = None
    copy: Any = None
    size: int = 0


def _cells(tensor: Any, name: str) -> Any:
    """Returns a view of `tensor` without the elements that it has several times because it was expanded.

    Errors: HvdbError if elements of the view still share memory.
    """
    for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(i, 0, 1)
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if extent < tensor.numel():
        raise HvdbError(f"elements of {listed([name])} overlap, so it could not be put back; give the model a clone")
    return tensor


def _keep(name: str, tensor: Any, copies: bool) -> _Tensor:
    """Errors: HvdbError if the tensor could not be put back."""
    flag = tensor.requires_grad
    if not copies or tensor.is_meta:
        return _Tensor(name, tensor, flag)
    try:
        if str(tensor.layout) != "torch.strided" or tensor.is_nested:  # these have several memories
            return _Tensor(name, tensor, flag, tensor, tensor, tensor.detach().clone())
        memory = tensor.data  # has a shape of its own, and changes of it do not count as changes of the tensor
        cells = _cells(memory, name)
        return _Tensor(name, tensor, flag, memory, cells, cells.clone(), memory.untyped_storage().nbytes())
    except HvdbError:
        raise
    except Exception as error:  # tensors of other libraries raise what they like
        why = printable.terminal(error)[:200]
        raise HvdbError(f"{listed([name])} cannot be copied (with optimizer=, only buffers are): {why}") from error


def _place(tensor: Any) -> tuple[Any, ...]:
    """Returns what differs if a tensor has got another memory or shape."""
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    except Exception:  # a sparse or nested tensor has no single address
        return tensor.layout, tensor.dtype, tensor.device


def _equal(torch: Any, one: Any, other: Any) -> bool:
    try:
        return bool(torch.equal(one, other))
    except Exception:  # PyTorch compares no sparse or nested tensors, and raises several types
        return False


def _restore_table(module: Any, table: Any, entries: dict[str, Any]) -> None:
    """Gives a module's parameters, buffers or modules back. table: of the module; entries: what it held."""
    now = dict(table.items())
    if list(now) == list(entries) and all(now[name] is entries[name] for name in now):
        return
    if not isinstance(table, dict):  # that of a scripted module, whose names never change
        for name in (name for name in entries if now[name] is not entries[name]):
            table[name] = entries[name]
        return
    table.clear()
    table.update(entries)
    for name in entries.keys() - now.keys():  # a plain attribute may have taken the name
        vars(module).pop(name, None)


def _restore_tensor(torch: Any, kept: _Tensor) -> bool:
    """Returns whether values had changed. Memory with its old values is not written, so that a graph from before the
    steps, which may need them, can still run backward."""
    if kept.tensor.requires_grad != kept.flag:
        if not kept.tensor.is_leaf:  # a buffer that became a result of the forward pass
            kept.tensor.detach_()
        kept.tensor.requires_grad_(kept.flag)
    if kept.copy is None:
        return False
    if kept.size and kept.memory.untyped_storage().nbytes() < kept.size:  # it was freed: reading it would crash
        kept.memory.untyped_storage().resize_(kept.size)
    swapped = False
    if _place(kept.tensor) != _place(kept.memory):
        swapped = not _equal(torch, kept.tensor, kept.memory)
        kept.tensor.data = kept.memory
    if changed := not _equal(torch, kept.cells, kept.copy):
        kept.cells.copy_(kept.copy)
    return swapped or changed


class Saved:
    """A model as it is now. Holds a copy of its buffers and, with `weights`, of `parameters` on their device.

    parameters: all whose gradients are put back; some may belong to an optimizer only.
    Errors: HvdbError if a tensor could not be put back later.
    """

    def __init__(self, torch: Any, model: Any, parameters: Sequence[Any], *, weights: bool) -> None:
        self._torch = torch
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        self._modes = [(module, module.training) for module in model.modules()]
        self._tables = [
            (module, table, dict(table.items()))
            for module in model.modules()
            for table in (module._parameters, module._buffers, module._modules)
        ]
        named = {id(parameter): plain(name) for name, parameter in model.named_parameters()}
        every = {id(parameter): parameter for parameter in (*model.parameters(), *parameters)}
        self._weights = [_keep(named.get(key, _OTHER), parameter, weights) for key, parameter in every.items()]
        self._buffers = [_keep(plain(name), buffer, True) for name, buffer in model.named_buffers()]

    def restore(self) -> list[str]:
        """Puts everything back. Returns the names of the parameters whose values had changed.

        Errors: HvdbError, after all the rest was put back, if a tensor cannot be.
        """
        for module, mode in self._modes:
            if module.training != mode:
                module.training = mode
        for entry in self._tables:
            _restore_table(*entry)
        changed, failed = set(), {}
        with self._torch.no_grad():
            for kept in (*self._weights, *self._buffers):
                try:
                    if _restore_tensor(self._torch, kept):
                        changed.add(kept.name)
                except Exception as error:
                    failed[kept.name] = error
        for parameter, gradient in self._gradients:  # of the type and shape that the parameter has again
            parameter.grad = gradient
        if failed:
            why = printable.terminal(next(iter(failed.values())))[:200]
            raise HvdbError(f"{listed(list(failed))} was changed in the steps and cannot be put back: {why}")
        return [kept.name for kept in self._weights if kept.name in changed]
