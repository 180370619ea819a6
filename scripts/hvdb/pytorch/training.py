"""Runs the steps of a PyTorch model that is recorded, and finds out in the first one what cannot be recorded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from hvdb.base.errors import HvdbError
from hvdb.pytorch.clock import HostClock
from hvdb.pytorch.saved import Saved, listed, plain
from hvdb.pytorch.watch import Watch

FORWARD, BACKWARD, UPDATE, UPDATED = -1, -2, -3, -4  # marks of a step; a gradient's mark is its index
TYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16", "float16": "fp16"}
# Classes of the first modules reduce or shard gradients themselves, except those of the second.
_DISTRIBUTED = ("torch.nn.parallel.", "torch.distributed.", "deepspeed.", "horovod.")
_OF_ONE_RANK = ("torch.distributed.algorithms._checkpoint.", "deepspeed.ops.")
Loss = Callable[[Any, Any], Any]  # (model, batch) -> scalar tensor


def is_compiled(module: Any) -> bool:
    """Returns whether torch.compile() made the module, or compiles its calls."""
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


def require_finite(loss: Any) -> None:
    """Errors: HvdbError for a loss that is infinite or no number. Waits for a GPU."""
    if not math.isfinite(float(loss.detach())):
        raise HvdbError(f"the loss is {float(loss.detach())}, so the step is none of a training")


def require_scalar(torch: Any, value: Any) -> None:
    """Errors: HvdbError if backward cannot begin at what loss() returned."""
    if not isinstance(value, torch.Tensor):
        raise HvdbError(f"loss() must return a scalar tensor, not {type(value).__name__}")
    if value.numel() != 1 or not value.is_floating_point():
        raise HvdbError(f"loss() must return a scalar, not {value.dtype} of shape {tuple(value.shape)}")
    if not value.requires_grad:
        raise HvdbError("the loss depends on no parameter that requires a gradient (or gradients are disabled)")


def _is_scripted(torch: Any, module: Any) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


@contextlib.contextmanager
def computed_type(torch: Any, model: Any, device: str) -> Iterator[Callable[[], str]]:
    """Yields a function that returns the type in which the forward pass inside the `with` computed: that of autocast,
    else of most parameters."""
    modules = [one for one in model.modules() if not _is_scripted(torch, one)]  # these take no hook
    if any(map(is_compiled, modules)):  # a hook inside a compiled module would be compiled
        modules = [] if getattr(model, "_compiled_call_impl", None) else [model]
    seen: set[str] = set()

    def see(*_: object) -> None:
        seen.add(_autocast(torch, device))

    def found() -> str:
        kind = next(iter(sorted(seen - {""})), "") or _type_of_most(model)
        return TYPES.get(kind, kind)

    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(see).remove)
        yield found


def _type_of_most(model: Any) -> str:
    """Returns the type of most elements of the parameters."""
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        sizes[kind] = sizes.get(kind, 0) + parameter.numel()
    # Parameters of other types only store what is computed in one of these, such as a base of 4 bits.
    return max(sizes.keys() & TYPES.keys() or sizes, key=lambda kind: sizes[kind])


class Training:
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
        # A tied parameter occurs once.
        every = [(plain(name), parameter) for name, parameter in model.named_parameters()]
        groups = optimizer.param_groups if optimizer is not None else ()
        self._cleared = [*(p for _, p in every), *(p for group in groups for p in group["params"])]
        reducing = [type(one).__name__ for one in [*model.modules(), optimizer] if self._reduces(one)]
        if reducing or any(hasattr(parameter, "device_mesh") for _, parameter in every):
            what = listed(reducing) or "DTensor"
            raise HvdbError(f"model or optimizer are distributed ({what}); give the plain ones of one rank")
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
            raise HvdbError("the model has lazy parameters without a shape; run its forward pass once before")
        if wrong := [name for name, p in every if p.requires_grad and p.is_complex()]:
            raise HvdbError(f"the gradient of {listed(wrong)} is complex, which replays do not know")
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
        self.watch = Watch(torch, self.named)
        self._evaluates = False

    @staticmethod
    def _reduces(module: Any) -> bool:
        homes = [f"{base.__module__}." for base in type(module).__mro__]
        return any(home.startswith(_DISTRIBUTED) and not home.startswith(_OF_ONE_RANK) for home in homes)

    @property
    def sequence_first(self) -> bool:
        """Returns whether the model has a recurrent layer or an attention that expects time before the batch."""
        return any(getattr(module, "batch_first", None) is False for module in self._model.modules())

    @contextlib.contextmanager
    def restored(self) -> Iterator[list[str]]:
        """At the end puts back the model, its gradients, PyTorch's random generators and, without optimizer, weights.

        Yields a list that then gets the names of the parameters which the user's code had changed.
        """
        devices = sorted({p.device.index for p in self._cleared if p.device.type == "cuda"})
        saved = Saved(self._torch, self._model, self._cleared, weights=self._optimizer is None)
        changed: list[str] = []
        try:
            with self._torch.random.fork_rng(devices=devices), self.watch.watching():
                yield changed
        except BaseException:
            with contextlib.suppress(HvdbError):  # the first error is the one to tell
                saved.restore()
            raise
        changed += saved.restore()

    def clear(self) -> None:
        for parameter in self._cleared:
            parameter.grad = None

    def forward(self) -> Any:
        """Returns the loss. Errors: HvdbError if backward cannot begin at it."""
        value = self._loss(self._model, self._batch)
        require_scalar(self._torch, value)
        return value

    def run(self, clock: HostClock) -> None:
        """Runs one step and marks its moments. Errors: HvdbError for a bad loss; what the user's code raises."""
        self.clear()
        clock.begin()
        for _ in range(self._accumulate):
            value = self.forward()
            clock.mark(FORWARD)
            (value if self._accumulate == 1 else value / self._accumulate).backward()
        clock.mark(BACKWARD)
        if self._optimizer is not None:
            self.watch.updating = True
            clock.mark(UPDATE)
            self._optimizer.step()
            clock.mark(UPDATED)
            self.watch.updating = False
        require_finite(value)  # at the end, because it waits for a GPU

    def look(self) -> str:
        """Runs one step without update. Returns the type in which it computes. Errors: HvdbError if a gradient cannot
        be recorded; what the user's code raises."""
        with computed_type(self._torch, self._model, self.device.type) as found:
            self.clear()
            value = self.forward()
            if early := [name for name, p in self.named if p.grad is not None]:
                raise HvdbError(
                    f"loss() itself runs backward ({listed(early)} has a gradient); return the loss instead"
                )
            value.backward()
            require_finite(value)
        self._evaluates = not self._model.training
        self._check_gradients()
        return found()

    def _check_gradients(self) -> None:
        """Errors: HvdbError if the first pass gave gradients that cannot be recorded."""
        known = {id(parameter) for _, parameter in self.named}
        grown = [(name, p) for name, p in self._model.named_parameters() if p.grad is not None and p.numel() > 0]
        if late := [plain(name) for name, p in grown if id(p) not in known]:
            raise HvdbError(
                f"{listed(late)} got a gradient, but required none or was not there before; do before record() what "
                "loss() does to it"
            )
        sparse = [name for name, p in self.named if p.grad is not None and p.grad.layout != self._torch.strided]
        if sparse:
            raise HvdbError(f"the gradient of {listed(sparse)} is sparse, which replays do not know; make it dense")

    def require_gradients(self) -> None:
        """Lets the parameters require gradients again, as at first, in case that the first step left some without."""
        for _, parameter in self.named:
            parameter.requires_grad_()

    def notes(self, used: set[str], changed: list[str]) -> list[str]:
        """Returns what a user should know of a recording in which the parameters `used` had gradients.

        changed: what restored() yielded.
        """
        made = list(self.watch.notes())
        if changed:
            made.append(
                f"{len(changed)} parameters were changed in forward or backward and put back: {listed(changed)}"
            )
        if unused := [name for name, _ in self.named if name not in used]:
            made.append(f"{len(unused)} parameters got no gradient and are left out: {listed(unused)}")
        if self.frozen:
            made.append(f"{len(self.frozen)} frozen parameters are left out: {listed(self.frozen)}")
        if other := sorted({str(p.dtype).removeprefix("torch.") for _, p in self.named} - {"float32"}):
            made.append(
                f"gradients are {', '.join(other)}: a replay counts elements, which hvd_bench reduces as fp32 or "
                "as --allreduce-dtype says"
            )
        if self._evaluates:
            made.append("the model is in evaluation mode, and was recorded like that")
        if any(map(is_compiled, self._model.modules())):
            made.append(
                "a compiled graph hands over its gradients together at its end; give compute_type= if it uses autocast"
            )
        if _is_scripted(self._torch, self._model):
            made.append("a scripted model hides the type in which it computes; give compute_type= if it uses autocast")
        if self.device.type == "cuda":
            made.append(
                "recorded on a GPU, where this recorder was never tried; the type of TF32 is compute_type='tf32'"
            )
        return made
