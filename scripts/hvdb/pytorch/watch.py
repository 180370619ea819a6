"""Sees what the user's code does in a step besides forward and backward, because its time counts there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hvdb.pytorch.saved import listed


def _collectives(torch: Any) -> int:
    """Returns how many collectives this process began. 0 where PyTorch, whose own counters these are, does not say."""
    with contextlib.suppress(Exception):  # no interface of PyTorch's that is promised to stay
        return sum(group._get_sequence_number_for_group() for group in torch.distributed.distributed_c10d._world.pg_map)
    return 0


class Watch:
    """What the user's code does in the steps: hooks of parameters, steps of optimizers, collectives.

    named: names and parameters, before the recorder adds hooks. updating: whether the optimizer that was given steps.
    """

    def __init__(self, torch: Any, named: Sequence[tuple[str, Any]]) -> None:
        self._torch = torch
        self._hooked = [name for name, p in named if p._post_accumulate_grad_hooks or p._backward_hooks]
        self._stepped: dict[str, None] = {}
        self._collectives = 0
        self.updating = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches until the end of the context."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        before = _collectives(self._torch)
        handle = register_optimizer_step_pre_hook(self._see)
        try:
            yield
        finally:
            handle.remove()
            self._collectives = _collectives(self._torch) - before

    def _see(self, optimizer: Any, *_: Any) -> None:
        if not self.updating:
            self._stepped[type(optimizer).__name__] = None

    def notes(self) -> Iterator[str]:
        """Yields what a user should know of the steps that were watched."""
        if self._hooked:
            what = f"{len(self._hooked)} parameters have hooks of their own"
            yield f"{what}, whose time counts as backward: {listed(self._hooked)}"
        if self._stepped:
            names = listed(list(self._stepped))
            yield f"{names} stepped in forward or backward, where its time counts; its own state is not put back"
        if self._collectives:
            yield "collectives of torch.distributed ran in the steps, and their time counts as forward or backward"
