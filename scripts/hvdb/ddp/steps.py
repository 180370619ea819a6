"""Runs the steps of one rank of a DistributedDataParallel training, and keeps their times."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hvdb.base.errors import HvdbError
from hvdb.pytorch.clock import HostClock
from hvdb.pytorch.saved import Saved
from hvdb.pytorch.training import Loss, computed_type, require_finite, require_scalar

SOLO, NONE, FULL = "solo", "none", "full"
SERIES = ("step_seconds", "input_seconds", "compute_seconds", "exposed_seconds", "update_seconds", "loss")
MAX_QUEUE = 50  # steps at the start of a visit that are not measured, because a loader's queue feeds them
_FORWARD, _READY, _BACKWARD, _UPDATED = range(4)  # marks of a step


@dataclass
class Feed:
    """Takes batches from what may be iterated again. restarts: how often. Times of a restart are nobody's input."""

    batches: Any
    restarts: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        try:
            self._iterator = iter(self.batches)
        except TypeError as error:
            raise HvdbError(
                f"batches must be a loader that can be iterated, not {type(self.batches).__name__}"
            ) from error

    @property
    def queue(self) -> int:
        """How many batches may wait in the queue of the loader's workers."""
        workers = getattr(self.batches, "num_workers", 0) or 0
        return min(MAX_QUEUE, workers * (getattr(self.batches, "prefetch_factor", None) or 0))

    def next(self) -> tuple[Any, float]:
        """Returns a batch and the seconds that it took. Errors: HvdbError if the loader is at its end for good."""
        begun = time.perf_counter()
        try:
            batch = next(self._iterator)
            self.taken += 1
            return batch, time.perf_counter() - begun
        except StopIteration:
            pass
        if self.batches is self._iterator or not self.taken:
            raise HvdbError(
                f"the loader ended after {self.taken} batches; give one that can be begun again, such as a DataLoader, "
                "or an endless one"
            )
        self._iterator, self.restarts, self.taken = iter(self.batches), self.restarts + 1, 0
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise HvdbError("the loader gave batches once, and none when it was begun again") from None
        self.taken = 1
        return batch, 0.0


@dataclass
class Steps:
    """Runs steps of one rank and keeps their times. accumulate: passes of forward and backward in a step.

    device: of the gradients. computes: the type in which the first step computed, "" before.
    estimated: True if some step did not tell when its last gradient was ready, so that exposed communication can only
    be the step with reduction less the step without.
    """

    torch: Any
    model: Any
    feed: Feed
    loss: Loss
    optimizer: Any
    accumulate: int
    clock: HostClock
    device: Any
    estimated: bool = False
    computes: str = ""
    _phase: str = FULL
    _wrapped: bool = False  # the forward pass ran the DistributedDataParallel

    def one(self, phase: str) -> dict[str, float]:
        """Runs one step. Returns series -> value. Errors: HvdbError; whatever the user's code raises."""
        self._phase = phase
        taken = [self.feed.next() for _ in range(self.accumulate)]
        waited = sum(seconds for _, seconds in taken)
        network = self.model if phase == FULL else self.model.module
        self.clock.begin()
        for number, (batch, _) in enumerate(taken, 1):
            reduces = phase == FULL and number == self.accumulate
            with contextlib.nullcontext() if reduces or phase != FULL else self.model.no_sync():
                value = self._forward(network, batch)
                self.clock.mark(_FORWARD)
                (value if self.accumulate == 1 else value / self.accumulate).backward()
        self.clock.mark(_BACKWARD)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.clock.mark(_UPDATED)
        marks = {key: done for key, (_, done) in self.clock.seconds().items()}
        require_finite(value)
        self.estimated |= _READY not in marks
        ready = min(marks.get(_READY, marks[_BACKWARD]), marks[_BACKWARD])
        times = (waited + marks[_UPDATED], waited, ready, marks[_BACKWARD] - ready, marks[_UPDATED] - marks[_BACKWARD])
        return dict(zip(SERIES, (*times, float(value.detach())), strict=True))

    def _forward(self, network: Any, batch: Any) -> Any:
        self._wrapped = False
        if self.computes:
            value = self.loss(network, batch)
        else:
            with computed_type(self.torch, self.model, self.device.type) as found:
                value = self.loss(network, batch)
                self.computes = found()
        if self._phase == FULL and not self._wrapped:
            raise HvdbError("loss() did not run the model that it is given, so that nothing is reduced")
        require_scalar(self.torch, value)
        return value

    def _require_phase(self, *_: object) -> None:
        self._wrapped = True
        if self._phase != FULL:
            raise HvdbError(
                "loss() ran the DistributedDataParallel where nothing may be reduced: run the model that it is given"
            )

    def visit(self, phase: str, discard: int, steps: int) -> dict[str, list[float]]:
        """Runs `discard` steps that do not count and then `steps` that do. Returns series -> values."""
        for _ in range(discard):
            self.one(phase)
        made = [self.one(phase) for _ in range(steps)]
        return {name: [step[name] for step in made] for name in SERIES}

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Marks when gradients are ready inside the `with`."""
        hook = lambda _: self.clock.mark(_READY)  # noqa: E731
        handles = [
            parameter.register_post_accumulate_grad_hook(hook)
            for parameter in self.model.module.parameters()
            if parameter.requires_grad
        ]
        handles.append(self.model.register_forward_pre_hook(self._require_phase))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class State:
    """A training as it was at the construction: model, gradients, optimizer and PyTorch's random generators."""

    def __init__(self, torch: Any, model: Any, optimizer: Any) -> None:
        self._torch, self._optimizer = torch, optimizer
        own = {id(parameter) for parameter in model.parameters()}
        others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
        self._parameters = [*model.parameters(), *others]
        self._model = Saved(torch, model, self._parameters, weights=True)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # They may view the buckets, which every step writes.
        self._gradients = [(gradient, gradient.detach().clone()) for gradient in gradients]
        self._of_optimizer = copy.deepcopy(optimizer.state_dict())
        self._random = torch.get_rng_state()
        self._of_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def weights(self) -> None:
        """Gives the model its weights and buffers back, so that ranks that trained apart agree again, and no gradients:
        backward would add to those from before."""
        self._model.restore()
        for parameter in self._parameters:
            parameter.grad = None

    def everything(self) -> None:
        """Gives everything back. Errors: HvdbError, after all the rest was given back, if a tensor cannot be."""
        try:
            self._model.restore()
        finally:
            with self._torch.no_grad():
                for gradient, values in self._gradients:
                    gradient.copy_(values)
            self._optimizer.load_state_dict(self._of_optimizer)
            self._torch.set_rng_state(self._random)
            if self._of_devices is not None:
                self._torch.cuda.set_rng_state_all(self._of_devices)
