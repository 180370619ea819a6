"""Records the training step of a PyTorch model as a replay profile, which `hvd_bench --replay` plays on any cluster.

    from hvdb.torch_profile import record

    print(record(model, batch, lambda model, batch: model(*batch), "mine.replay", unit="sequences", units=8))

A profile holds, for each gradient, its size and when it is ready, and the times of forward, backward and update. This
module imports PyTorch (2.1 or newer) only when record() is called. Its part for GPUs has never been run on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdb.base import whole_file
from hvdb.base.errors import HvdbError
from hvdb.read import replay_profile

if TYPE_CHECKING:
    import torch

_FORWARD, _BACKWARD, _UPDATE, _UPDATED = -1, -2, -3, -4  # marks of a step; a gradient's mark is its index
_FIRST_LINE = b"hvd-replay "
_TYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
# Classes of these modules reduce or shard gradients themselves.
_DISTRIBUTED = ("torch.nn.parallel.", "torch.distributed.", "deepspeed.", "horovod.")
Loss = Callable[[Any, Any], Any]  # (model, batch) -> scalar tensor


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


class HostClock:
    """Marks moments of a step by the host's clock. The last mark of a key counts."""

    def __init__(self) -> None:
        self._marks: dict[int, float] = {}
        self._start = 0.0

    def begin(self) -> None:
        self._marks = {}
        self._start = time.perf_counter()

    def mark(self, key: int) -> None:
        self._marks[key] = time.perf_counter()

    def seconds(self) -> dict[int, tuple[float, float]]:
        """Returns, in seconds since begin(), when each key was marked and when the work before the mark was done."""
        return {key: (at - self._start, at - self._start) for key, at in self._marks.items()}


class DeviceClock(HostClock):
    """Also marks moments of a GPU, by events on the current stream. cuda: torch.cuda. seconds() waits for the GPU."""

    _START = -100

    def __init__(self, cuda: Any, device: Any) -> None:
        super().__init__()
        self._cuda, self._device = cuda, device
        self._events: dict[int, Any] = {}  # used again in each step

    def begin(self) -> None:
        self._cuda.synchronize(self._device)
        super().begin()
        self._record(self._START)

    def mark(self, key: int) -> None:
        super().mark(key)
        self._record(key)

    def seconds(self) -> dict[int, tuple[float, float]]:
        self._cuda.synchronize(self._device)
        start = self._events[self._START]
        marks = super().seconds()
        return {key: (at, start.elapsed_time(self._events[key]) / 1e3) for key, (at, _) in marks.items()}

    def _record(self, key: int) -> None:
        if key not in self._events:
            self._events[key] = self._cuda.Event(enable_timing=True)
        self._events[key].record(self._cuda.current_stream(self._device))


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


def _whole(number: object, name: str, most: int) -> int:
    """Errors: HvdbError if `number` is no whole number from 1 to `most`."""
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        value = 0
    if not 1 <= value <= most or isinstance(number, bool):
        raise HvdbError(f"{name} {number!r:.40}: must be a whole number from 1 to {most}")
    return value


def first_length(batch: Any, depth: int = 20) -> int | None:
    """Returns the length of the first dimension of the first tensor in a batch, or None if there is none. depth: of
    nested lists, tuples and mappings that are looked into."""
    if getattr(batch, "shape", None):
        return int(batch.shape[0])
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    found = (first_length(value, depth - 1) for value in values) if depth else ()
    return next((length for length in found if length is not None), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*map(replay_profile.clean, names[:3]), *(["..."] if len(names) > 3 else [])])


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _is_compiled(module: Any) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _autocast(torch: Any, device: str) -> str:
    """Returns the type of autocast that is on, "" if it is off."""
    if hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.4
        on, kind = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    elif device == "cpu":
        on, kind = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    else:
        on, kind = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return str(kind).removeprefix("torch.") if on else ""


def _require_finite(loss: Any) -> None:
    if not math.isfinite(float(loss.detach())):
        raise HvdbError(f"the loss is {float(loss.detach())}, so the step is none of a training")


class _Training:
    """A model with all that one of its steps needs. Finds out in the first step what cannot be recorded."""

    def __init__(self, torch: Any, model: Any, batch: Any, loss: Loss, optimizer: Any, accumulate: int) -> None:
        if not isinstance(model, torch.nn.Module):
            raise HvdbError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
        self._torch, self._model, self._batch, self._loss = torch, model, batch, loss
        self._optimizer, self._accumulate = optimizer, accumulate
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise HvdbError(f"optimizer must be a torch.optim.Optimizer that was made, not {optimizer!r:.60}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise HvdbError("LBFGS runs forward and backward in its step(), which cannot be recorded as one step")
        # A tied parameter occurs once. torch.compile() adds a level to names.
        every = [(name.replace("_orig_mod.", ""), parameter) for name, parameter in model.named_parameters()]
        groups = optimizer.param_groups if optimizer is not None else ()
        self._cleared = [*(p for _, p in every), *(p for group in groups for p in group["params"])]
        reducing = [type(one).__name__ for one in [*model.modules(), optimizer] if self._reduces(one)]
        if reducing or any(hasattr(parameter, "device_mesh") for _, parameter in every):
            what = _listed(reducing) or "DTensor"
            raise HvdbError(f"model or optimizer are distributed ({what}); give the plain ones of one rank")
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
            raise HvdbError("the model has lazy parameters without a shape; run its forward pass once before")
        if wrong := [name for name, p in every if p.requires_grad and p.is_complex()]:
            raise HvdbError(f"the gradient of {_listed(wrong)} is complex, which replays do not know")
        self.frozen = [name for name, parameter in every if not parameter.requires_grad]
        self.named = [(name, p) for name, p in every if p.requires_grad and p.numel() > 0]
        if not self.named:
            raise HvdbError("the model has no parameter that requires a gradient")
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        if optimizer is not None and not owned & {id(parameter) for _, parameter in self.named}:
            raise HvdbError("the optimizer has no parameter of this model")
        devices = {parameter.device for _, parameter in self.named}
        if len(devices) > 1:
            where = ", ".join(sorted(map(str, devices)))
            raise HvdbError(f"gradients on several devices ({where}); record one rank's part")
        self.device = devices.pop()
        if self.device.type not in ("cpu", "cuda"):
            raise HvdbError(f"gradients on {self.device.type}, and only those on cpu and cuda can be recorded")

    @staticmethod
    def _reduces(module: Any) -> bool:
        return any(f"{base.__module__}.".startswith(_DISTRIBUTED) for base in type(module).__mro__)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Gives parameters their gradients, buffers their values and random generators their states back at the end."""
        gradients = [(parameter, parameter.grad) for parameter in self._cleared]
        buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in self._model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        devices = sorted({p.device.index for p in self._cleared if p.device.type == "cuda"})
        try:
            with self._torch.random.fork_rng(devices=devices):
                yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with self._torch.no_grad():
                for module, name, buffer, value in buffers:
                    buffer.copy_(value)
                    module._buffers[name] = buffer

    def clear(self) -> None:
        for parameter in self._cleared:
            parameter.grad = None

    def forward(self) -> Any:
        """Returns the loss. Errors: HvdbError if backward cannot begin at it."""
        value = self._loss(self._model, self._batch)
        if not isinstance(value, self._torch.Tensor):
            raise HvdbError(f"loss() must return a scalar tensor, not {type(value).__name__}")
        if value.numel() != 1 or not value.is_floating_point():
            raise HvdbError(f"loss() must return a scalar, not {value.dtype} of shape {tuple(value.shape)}")
        if not value.requires_grad:
            raise HvdbError("the loss depends on no parameter that requires a gradient (or gradients are disabled)")
        return value

    def run(self, clock: HostClock) -> None:
        """Runs one step and marks its moments. Errors: HvdbError for a bad loss; what the user's code raises."""
        self.clear()
        clock.begin()
        for _ in range(self._accumulate):
            value = self.forward()
            clock.mark(_FORWARD)
            (value if self._accumulate == 1 else value / self._accumulate).backward()
        clock.mark(_BACKWARD)
        if self._optimizer is not None:
            clock.mark(_UPDATE)
            self._optimizer.step()
            clock.mark(_UPDATED)
        _require_finite(value)  # at the end, because it waits for a GPU

    def look(self) -> str:
        """Runs one step without update. Returns the type in which it computes. Errors: HvdbError if a gradient cannot
        be recorded; what the user's code raises."""
        modules = list(self._model.modules())
        if any(map(_is_compiled, modules)):  # a hook inside a compiled module would be compiled
            modules = [] if getattr(self._model, "_compiled_call_impl", None) else [self._model]
        seen: set[str] = set()

        def see(*_: object) -> None:
            seen.add(_autocast(self._torch, self.device.type))

        handles = [module.register_forward_pre_hook(see) for module in modules]
        try:
            self.clear()
            value = self.forward()
            if early := [name for name, p in self.named if p.grad is not None]:
                raise HvdbError(
                    f"loss() itself runs backward ({_listed(early)} has a gradient); return the loss instead"
                )
            value.backward()
            _require_finite(value)
        finally:
            for handle in handles:
                handle.remove()
        sparse = [name for name, p in self.named if p.grad is not None and p.grad.layout != self._torch.strided]
        if sparse:
            raise HvdbError(f"the gradient of {_listed(sparse)} is sparse, which replays do not know; make it dense")
        if lower := sorted(seen - {""}):
            return lower[0]
        sizes: dict[str, int] = {}
        for parameter in self._model.parameters():
            kind = str(parameter.dtype).removeprefix("torch.")
            sizes[kind] = sizes.get(kind, 0) + parameter.numel()
        return max(sizes, key=lambda kind: sizes[kind])

    def notes(self, used: set[str]) -> list[str]:
        """Returns what a user should know of a recording in which the parameters `used` had gradients."""
        made = []
        if unused := [name for name, _ in self.named if name not in used]:
            made.append(f"{len(unused)} parameters got no gradient and are left out: {_listed(unused)}")
        if self.frozen:
            made.append(f"{len(self.frozen)} frozen parameters are left out: {_listed(self.frozen)}")
        if other := sorted({str(p.dtype).removeprefix("torch.") for _, p in self.named} - {"float32"}):
            made.append(
                f"gradients are {', '.join(other)}: a replay counts elements, which hvd_bench reduces as fp32 or "
                "as --allreduce-dtype says"
            )
        if not self._model.training:
            made.append("the model is in evaluation mode, and was recorded like that")
        if any(map(_is_compiled, self._model.modules())):
            made.append(
                "a compiled graph hands over its gradients together at its end; give compute_type= if it uses autocast"
            )
        if self.device.type == "cuda":
            made.append(
                "recorded on a GPU, where this recorder was never tried; the type of TF32 is compute_type='tf32'"
            )
        return made


def _record_steps(
    training: _Training, clock: HostClock, warmup: int, steps: int
) -> list[dict[int, tuple[float, float]]]:
    """Returns the marks of each recorded step. Errors: HvdbError if the steps have no or unlike gradients."""
    names = [name for name, _ in training.named]
    handles: list[Any] = []
    found: list[dict[int, tuple[float, float]]] = []
    try:
        for i, (_, parameter) in enumerate(training.named):
            hook = lambda _, i=i: clock.mark(i)  # noqa: E731
            handles.append(parameter.register_post_accumulate_grad_hook(hook))
        for _ in range(warmup + steps):
            training.run(clock)
            marks = clock.seconds()
            if max(marks) < 0:
                raise HvdbError("backward gave no parameter of the model a gradient, or all hooks were removed")
            if lost := [name for i, (name, p) in enumerate(training.named) if p.grad is not None and i not in marks]:
                raise HvdbError(f"{_listed(lost)} got a gradient, but the hook that tells when was removed")
            if found and (unlike := found[0].keys() ^ marks.keys()):
                raise HvdbError(f"{_listed([names[i] for i in sorted(unlike)])} has a gradient in some steps only")
            found.append(marks)
    finally:
        for handle in handles:
            handle.remove()
    return found[warmup:]


def _as_step(order: Sequence[int], marks: Mapping[int, tuple[float, float]]) -> replay_profile.Step:
    update = marks[_UPDATED][1] - marks[_UPDATE][1] if _UPDATED in marks else 0.0
    return replay_profile.Step(
        submit=[marks[i][0] for i in order],
        ready=[marks[i][1] for i in order],
        forward=marks[_FORWARD][1],
        backward_end=marks[_BACKWARD][1],
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
    of them, in all its passes (default: the first length in `batch`, times `accumulate`). name: of the network
    (default: that of the file). optimizer: its step() is timed, and changes the weights. accumulate: passes of forward
    and backward in a step; a gradient is ready in the last one. compute_type: "fp32", "tf32", "bf16", "fp16" or "fp64"
    (default: that of autocast, else of the parameters).
    Without an optimizer the model is afterwards as it was: weights, gradients, buffers, mode, and PyTorch's random
    generators.
    Errors: HvdbError (hvdb.base.errors), one line, for what cannot be recorded or written; whatever loss() or backward
    raise. Then no file is written, and the model has no hook left.
    """
    torch = _import_torch()
    file = _target(path)
    most = replay_profile.MAX_STEPS
    steps, warmup = _whole(steps, "steps", most), _whole(warmup, "warmup", most)
    accumulate = _whole(accumulate, "accumulate", most)
    if name is not None and not isinstance(name, str):
        raise HvdbError(f"name {name!r:.40}: must be a text")
    units = None if units is None else _whole(units, "units", replay_profile.MAX_UNITS)
    length = first_length(batch) if units is None else None
    if units is None and not length:
        raise HvdbError("the batch has no tensor whose length could be the number of units: give units=")
    training = _Training(torch, model, batch, loss, optimizer, accumulate)
    on_gpu = training.device.type == "cuda"
    where = torch.cuda.get_device_name(training.device) if on_gpu else _processor()
    header = replay_profile.Header(
        model=replay_profile.model_name(name or file.stem),
        unit=unit,
        units_per_step=(length or 0) * accumulate if units is None else units,
        device=f"PyTorch {torch.__version__} with {torch.get_num_threads()} thread(s) on {where}",
        compute_type=compute_type or "fp32",
        source_run=f"none (recorded from PyTorch {torch.__version__})",
    )
    replay_profile.check_header(header)
    with training.restored():
        found_type = training.look()
        header = dataclasses.replace(header, compute_type=compute_type or _TYPES.get(found_type, found_type))
        sizes = [(parameter_name, parameter.numel()) for parameter_name, parameter in training.named]
        trial = replay_profile.Step([1 / 3] * len(sizes), [1 / 3] * len(sizes), 1 / 3, 1 / 3, 1 / 3)
        replay_profile.text(header, sizes, [trial])  # refuses what no reader takes before the steps are run
        clock = DeviceClock(torch.cuda, training.device) if on_gpu else HostClock()
        found = _record_steps(training, clock, warmup - (optimizer is None), steps)  # look() made a step without update
    order = sorted((i for i in found[-1] if i >= 0), key=lambda i: found[-1][i])
    recorded = [_as_step(order, marks) for marks in found]
    notes = training.notes({sizes[i][0] for i in order})
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
