"""Records the training step of a PyTorch model as a replay profile, which `hvd_bench --replay` plays on any cluster.

    from hvdb.torch_profile import record

    print(record(model, batch, lambda model, batch: model(*batch), "mine.replay", unit="sequences", units=8))

A profile holds, for each gradient, its size and when it is ready, and the times of forward, backward and update. This
module imports PyTorch (2.1 or newer) only when record() is called. Its part for GPUs has never been run on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdb.base import whole_file
from hvdb.base.errors import HvdbError
from hvdb.pytorch.clock import DeviceClock, HostClock
from hvdb.pytorch.device import device_name
from hvdb.pytorch.saved import listed
from hvdb.pytorch.training import BACKWARD, FORWARD, UPDATE, UPDATED, Training
from hvdb.pytorch.units import units_of, whole
from hvdb.read import replay_profile

if TYPE_CHECKING:
    import torch

_FIRST_LINE = b"hvd-replay "


@dataclass(frozen=True)
class Recording:
    """What record() wrote. Times in seconds, medians over the recorded steps; all but `update` from a step's start."""

    file: Path
    model: str
    gradients: int
    elements: int
    forward: float
    backward_end: float
    update: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        times = f"forward {self.forward:.4g} s, backward {self.backward_end - self.forward:.4g} s"
        size = f"{self.model}, {self.gradients} gradients of {self.elements} elements"
        lines = [f"{self.file}: {size}; {times}, update {self.update:.4g} s", *(f"note: {note}" for note in self.notes)]
        return "\n".join(lines)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise HvdbError(f"PyTorch 2.1 or newer is needed to record a model: {error}") from error
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise HvdbError(f"PyTorch 2.1 or newer is needed to record a model, and this is {torch.__version__}")
    return torch


def _target(path: str | Path) -> Path:
    """Returns the file. Errors: HvdbError if it cannot be a new replay. Checked before minutes of steps."""
    try:
        file = Path(path)
        if not file.parent.is_dir():
            raise HvdbError(f"{file}: there is no folder {file.parent}")
        if file.exists() and not whole_file.read_at_most(file, len(_FIRST_LINE)).startswith(_FIRST_LINE):
            raise HvdbError(f"{file}: is not a replay; it was left untouched, give another name")
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(file)).parent):
            return file
    except (OSError, TypeError, ValueError) as error:
        raise HvdbError(f"{path!s:.80}: cannot be written: {error}") from error


def _record_steps(
    training: Training, clock: HostClock, warmup: int, steps: int
) -> list[dict[int, tuple[float, float]]]:
    """Returns the marks of each recorded step. Errors: HvdbError if the steps have no or unlike gradients."""
    names = [name for name, _ in training.named]
    found: list[dict[int, tuple[float, float]]] = []
    training.require_gradients()  # else they take no hook
    with contextlib.ExitStack() as hooks:
        for i, (_, parameter) in enumerate(training.named):
            hook = lambda _, i=i: clock.mark(i)  # noqa: E731
            hooks.callback(parameter.register_post_accumulate_grad_hook(hook).remove)
        for _ in range(warmup + steps):
            training.run(clock)
            marks = clock.seconds()
            if max(marks) < 0:
                raise HvdbError("backward gave no parameter of the model a gradient, or all hooks were removed")
            if lost := [name for i, (name, p) in enumerate(training.named) if p.grad is not None and i not in marks]:
                raise HvdbError(f"{listed(lost)} got a gradient, but the hook that tells when was removed")
            if found and (unlike := found[0].keys() ^ marks.keys()):
                raise HvdbError(
                    f"{listed([names[i] for i in sorted(unlike)])} has a gradient in some steps only; fix what forward "
                    "runs while you record: set the drop rate to 0, call eval() on what drops layers at random, or add "
                    "0 * the sum of these parameters to the loss"
                )
            found.append(marks)
    return found[warmup:]


def _as_step(order: Sequence[int], marks: Mapping[int, tuple[float, float]]) -> replay_profile.Step:
    update = marks[UPDATED][1] - marks[UPDATE][1] if UPDATED in marks else 0.0
    return replay_profile.Step(
        submit=[marks[i][0] for i in order],
        ready=[marks[i][1] for i in order],
        forward=marks[FORWARD][1],
        backward_end=marks[BACKWARD][1],
        update=update,
    )


def record(
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], torch.Tensor],
    path: str | Path,
    *,
    unit: str = "samples",
    units: int | None = None,
    name: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    accumulate: int = 1,
    compute_type: str | None = None,
    steps: int = 20,
    warmup: int = 3,
) -> Recording:
    """Runs `warmup` and `steps` steps of `model` on this process's device and writes the replay profile `path`.

    loss(model, batch) runs the forward pass and returns a scalar tensor. unit, units: what a step works on and how many
    of them, in all its passes (default: the first length of all tensors in `batch`, times `accumulate`). name: of the
    network (default: that of the file). optimizer: its step() is timed, and changes the weights. accumulate: passes of
    forward and backward in a step; a gradient is ready in the last one. compute_type: "fp32", "tf32", "bf16", "fp16" or
    "fp64" (default: that of autocast, else of the parameters).
    The model is afterwards as it was, also where loss() or hooks change it: weights (but with an optimizer), gradients,
    requires_grad, buffers, modes, and PyTorch's random generators. For this, buffers and, without an optimizer, all
    parameters are copied on their device. What the code keeps elsewhere stays changed, such as an average outside of
    the model or the state of an optimizer of its own.
    Errors: HvdbError (hvdb.base.errors), one line, for what cannot be recorded or written; whatever loss() or backward
    raise. Then no file is written, and the model has no hook left.
    """
    torch = _import_torch()
    file = _target(path)
    most = replay_profile.MAX_STEPS
    steps, warmup = whole(steps, "steps", most), whole(warmup, "warmup", most)
    accumulate = whole(accumulate, "accumulate", most)
    if name is not None and not isinstance(name, str):
        raise HvdbError(f"name {name!r:.40}: must be a text")
    units = None if units is None else whole(units, "units", replay_profile.MAX_UNITS)
    training = Training(torch, model, batch, loss, optimizer, accumulate)
    if units is None:
        units = units_of(batch, training.sequence_first) * accumulate
    on_gpu, where = training.device.type == "cuda", device_name(torch, training.device)
    header = replay_profile.Header(
        model=replay_profile.model_name(name or file.stem),
        unit=unit,
        units_per_step=units,
        device=f"PyTorch {torch.__version__} with {torch.get_num_threads()} thread(s) on {where}",
        compute_type=compute_type or "fp32",
        source_run=f"none (recorded from PyTorch {torch.__version__})",
    )
    replay_profile.check_header(header)
    with training.restored() as changed:
        found_type = training.look()
        header = dataclasses.replace(header, compute_type=compute_type or found_type)
        sizes = [(parameter_name, parameter.numel()) for parameter_name, parameter in training.named]
        trial = replay_profile.Step([1 / 3] * len(sizes), [1 / 3] * len(sizes), 1 / 3, 1 / 3, 1 / 3)
        replay_profile.text(header, sizes, [trial])  # refuses what no reader takes before the steps are run
        clock = DeviceClock(torch.cuda, training.device) if on_gpu else HostClock()
        found = _record_steps(training, clock, warmup - (optimizer is None), steps)  # look() made a step without update
    order = sorted((i for i in found[-1] if i >= 0), key=lambda i: found[-1][i])
    recorded = [_as_step(order, marks) for marks in found]
    notes = training.notes({sizes[i][0] for i in order}, changed)
    if (spread := replay_profile.spread([step.backward_end for step in recorded])) > replay_profile.NOISY:
        notes.append(
            f"a tenth of the steps took {100 * spread:.0f} % longer than others; record where nothing else runs"
        )
    made = replay_profile.text(header, [sizes[i] for i in order], recorded)
    try:
        whole_file.write_text(file, made)
    except OSError as error:
        raise HvdbError(f"{file}: cannot be written: {error.strerror}") from error
    return Recording(
        file=file,
        model=header.model,
        gradients=len(order),
        elements=sum(sizes[i][1] for i in order),
        forward=statistics.median(step.forward for step in recorded),
        backward_end=statistics.median(step.backward_end for step in recorded),
        update=statistics.median(step.update for step in recorded),
        notes=tuple(notes),
    )
