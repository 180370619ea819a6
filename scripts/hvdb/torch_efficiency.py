"""Measures the efficiency of a DistributedDataParallel training, as `hvd_bench --efficiency` does for its own.

    # in a script under torchrun
    from hvdb.torch_efficiency import measure

    print(measure(model, batches, loss, optimizer, "mine.db", unit="sequences", units=8))

Three phases take turns in rounds: rank 0 alone while the others sleep, all ranks without reduction, and all ranks with
it. Each rank keeps the times of its steps; `hvd_bench analyse` computes and stores. Imports PyTorch (2.1 or newer) only
when measure() is called. Its part for GPUs and NCCL has never been run on a GPU.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdb.base import data, edge, printable
from hvdb.base.errors import HvdbError
from hvdb.ddp.ranks import Ranks, line, listed
from hvdb.ddp.samples import samples_text
from hvdb.ddp.session import Session, Told, follow
from hvdb.ddp.steps import Feed, State, Steps
from hvdb.pytorch.clock import DeviceClock, HostClock
from hvdb.pytorch.device import device_name
from hvdb.pytorch.training import TYPES, Loss, is_compiled
from hvdb.pytorch.units import units_of, whole
from hvdb.read import replay_profile

_calls = itertools.count()  # measure() is called by all ranks equally often, so that it numbers their calls alike


def _import_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise HvdbError(f"PyTorch 2.1 or newer is needed to measure a training: {error}") from error
    return torch


def _require_training(torch: Any, model: Any, optimizer: Any, loss: Any) -> None:
    """Errors: HvdbError, one line, for what cannot be measured."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise HvdbError(
            "there is no process group: start the script with torchrun, and call init_process_group() first"
        )
    if distributed.get_world_size() < 2:
        raise HvdbError(
            "the process group has one rank; the efficiency of several is measured: torchrun --nproc-per-node 2"
        )
    modules = {base.__module__ for one in (model, optimizer) for base in type(one).__mro__}
    if any(
        name.startswith(("torch.distributed.fsdp", "torch.distributed._composable", "deepspeed")) for name in modules
    ):
        raise HvdbError(
            "the model is sharded, and no phase can leave its reductions out: record one rank's plain model with "
            "hvdb.torch_profile, and replay it with --schedule sharded"
        )
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise HvdbError(f"model must be a DistributedDataParallel, not {type(model).__name__}")
    if getattr(model, "static_graph", False):
        raise HvdbError("static_graph: PyTorch then expects every step to reduce; make the model without it to measure")
    devices = sorted({str(p.device) for p in model.module.parameters() if p.requires_grad})
    if not devices:
        raise HvdbError("the model has no parameter that requires a gradient")
    if len(devices) > 1:
        raise HvdbError(
            f"gradients on several devices ({', '.join(devices)}), whose steps no clock of one device times"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise HvdbError(f"optimizer must be a torch.optim.Optimizer that was made, not {type(optimizer).__name__}")
    if not callable(loss):
        raise HvdbError("loss must be a function of (model, batch) that returns the loss")


def _comm_hook(model: Any) -> str:
    """Returns the name of the model's communication hook, "" if it has none."""
    told = getattr(model, "_get_ddp_logging_data", dict)()
    return printable.terminal(str(told.get("comm_hook") or ""))[:100]


def _notes(steps: Steps) -> list[str]:
    model, notes = steps.model, []
    if getattr(model, "find_unused_parameters", False):
        notes.append("find_unused_parameters: the search for them counts as compute slowed by overlap")
    if hook := _comm_hook(model):
        notes.append(f"the communication hook {hook} is registered: its work counts as the reduction's")
    if any(map(is_compiled, model.modules())):
        notes.append("a compiled graph hides autocast: give compute_type= if it uses it")
    if steps.feed.restarts:
        notes.append(f"the loader was begun again {steps.feed.restarts} times, which is not in the times")
    if steps.feed.queue:
        notes.append(
            f"the first {1 + steps.feed.queue} steps of a visit are not counted: the loader's queue feeds them"
        )
    if steps.estimated:
        notes.append("exposed communication: backward with reduction less that without, because hooks did not tell")
    elif steps.device.type == "cuda":
        notes.append("exposed communication: by CUDA events; this was never run on a GPU")
    else:
        notes.append("exposed communication: from the last gradient to the end of backward")
    return notes


def _facts(steps: Steps, notes: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Returns fact -> (True if it can change the result, value)."""
    torch, model, device = steps.torch, steps.model, steps.device
    bucket = getattr(model, "bucket_bytes_cap", None)
    facts = {
        "torch.version": (True, str(torch.__version__)),
        ("gpu.name" if device.type == "cuda" else "cpu.model"): (True, device_name(torch, device)),
        "torch.ddp.bucket_bytes": (True, str(bucket) if bucket else ""),
        "torch.ddp.gradient_as_bucket_view": (True, str(getattr(model, "gradient_as_bucket_view", "")).lower()),
        "torch.ddp.find_unused_parameters": (True, str(getattr(model, "find_unused_parameters", "")).lower()),
        "torch.ddp.comm_hook": (True, _comm_hook(model) or "no"),
        "torch.deterministic": (True, str(torch.are_deterministic_algorithms_enabled()).lower()),
    }
    for number, note in enumerate(notes, 1):
        facts[f"torch.note_{number}"] = (False, note)
    return {key: value for key, value in facts.items() if value[1]}


def _utc() -> str:
    moment = datetime.datetime.now(datetime.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def _analysed(text: str, db: Path, program: Path) -> str:
    """Stores the samples and returns the table. Errors: HvdbError, which names the file that keeps the samples."""
    with tempfile.NamedTemporaryFile("w", prefix="hvd-samples-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(text)
    words = [str(program), "analyse", file.name, f"--db={db}"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise HvdbError(
            f"{program} analyse ended with exit code {done.returncode}, and said: {said}; {file.name} keeps "
            "the samples"
        )
    Path(file.name).unlink()
    return done.stdout


def measure(
    model: Any,
    batches: Any,
    loss: Loss,
    optimizer: Any,
    db: str | Path,
    *,
    unit: str = "samples",
    units: int | None = None,
    name: str = "",
    accumulate: int = 1,
    compute_type: str | None = None,
    seconds: float = 120,
    deadline: float = 60,
) -> str:
    """Measures the training of all ranks and adds it to the store `db`. Returns the table on rank 0, "" on the others.

    All ranks call it alike. model: a DistributedDataParallel. batches: a loader, which is begun again at its end.
    loss(model, batch): runs the forward pass of the model that it is given, which is the DistributedDataParallel or,
    where nothing is reduced, the module in it, and returns a scalar tensor. unit, units: what a step of one rank works
    on and how many of them (default: the first length of its first batch, times `accumulate`). name: of the network
    (default: its class). compute_type: "fp32", "tf32", "bf16", "fp16" or "fp64" (default: that of autocast, else of the
    parameters). seconds: cap on the measurement. deadline: seconds after which a rank that does not answer is lost;
    where one hangs, a reduction ends by the timeout of the process group.
    Weights, buffers, gradients, modes, optimizer and PyTorch's random generators are afterwards as they were; meanwhile
    there is a second copy of weights, gradients and optimizer.
    Errors: HvdbError (hvdb.base.errors), one line, on every rank; whatever loss(), backward or the optimizer raise.
    Then the rounds that are whole are stored as an incomplete session.
    """
    torch = _import_torch()
    _require_training(torch, model, optimizer, loss)
    _require_words(unit, units, compute_type, accumulate, seconds, deadline)
    distributed = torch.distributed
    ranks = Ranks(
        store=distributed.distributed_c10d._get_default_store(),
        rank=distributed.get_rank(),
        size=distributed.get_world_size(),
        deadline=float(deadline),
        prefix=f"hvdb/{next(_calls)}",
    )
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    device = parameters[0].device
    clock = DeviceClock(torch.cuda, device) if device.type == "cuda" else HostClock()
    feed = Feed(batches)
    steps = Steps(torch, model, feed, loss, optimizer, accumulate, clock, device)
    state = State(torch, model, optimizer)
    try:
        with steps.hooked():
            with _telling(ranks):
                program = _program(Path(db)) if ranks.rank == 0 else None
                ranks.say(
                    "hello",
                    units=int(units or _units(model, feed) * accumulate),
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    local_rank=int(os.environ.get("LOCAL_RANK", "0")),
                )
                hellos = ranks.all("hello", range(ranks.size), "at the start") if program else []
                same = _equal_units(hellos) if program else 0
            if program is None:
                follow(ranks, steps, state)
                return ""
            session = Session(ranks, steps, state, seconds, hellos)
            header = {
                "model": replay_profile.model_name(name or type(model.module).__name__),
                "unit": unit,
                "units_per_rank": same,
                "device": "torch",
                "schedule": "ddp",
                "comm": distributed.get_backend(),
                "compute_type": compute_type,
                "allreduce_type": TYPES.get(str(parameters[0].dtype).removeprefix("torch."), "fp32"),
                "threads": torch.get_num_threads(),
                "parameters": sum(parameter.numel() for parameter in parameters),
                "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
                "warmup_steps": 2 * (1 + feed.queue + 2),
                "started_utc": _utc(),
            }
            return _lead(session, Path(db), header, program)
    finally:
        state.everything()


@contextlib.contextmanager
def _telling(ranks: Ranks) -> Iterator[None]:
    """Tells the other ranks if this one cannot begin, so that none waits for it."""
    try:
        yield
    except Exception as error:
        if ranks.rank == 0:
            ranks.order(end=line(error))
        else:
            ranks.say("hello", fault=line(error))
        raise


def _program(db: Path) -> Path:
    """Returns hvd_bench, which will write `db`. Checked before minutes of steps.

    Errors: HvdbError if there is none, if it is too old, or if there is no folder for `db`.
    """
    if not db.parent.is_dir():
        raise HvdbError(f"{db}: there is no folder {db.parent}")
    program = data.find_program()
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise HvdbError(f"HVD_BENCH: no program at {program}: run scripts/build, or name another")
    if subprocess.run([str(program), "analyse", "--help"], capture_output=True, check=False).returncode != 0:
        raise HvdbError(f"{program} has no command analyse: it is older than this hvdb; set HVD_BENCH to a newer one")
    return program


def _require_words(unit: Any, units: Any, compute_type: Any, accumulate: Any, *seconds: Any) -> None:
    """Errors: HvdbError for a value that hvd_bench analyse would refuse after minutes."""
    if not (isinstance(unit, str) and re.fullmatch("[a-z]{1,20}", unit)):
        raise HvdbError(f"unit {unit!r:.40}: must be one word of small letters, such as 'sequences'")
    if compute_type not in (None, *TYPES.values(), "tf32"):
        raise HvdbError(f"compute_type {compute_type!r:.40}: must be one of fp32, tf32, bf16, fp16, fp64")
    whole(1 if units is None else units, "units", replay_profile.MAX_UNITS)
    whole(accumulate, "accumulate", replay_profile.MAX_UNITS)
    for number in seconds:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1e9:
            raise HvdbError(f"seconds and deadline must be numbers above 0, not {number!r:.40}")


def _units(model: Any, feed: Feed) -> int:
    sequence_first = any(getattr(module, "batch_first", None) is False for module in model.modules())
    return units_of(feed.next()[0], sequence_first)


def _equal_units(hellos: Sequence[dict[str, Any]]) -> int:
    counts = [one["units"] for one in hellos]
    if unlike := [rank for rank, count in enumerate(counts) if count != counts[0]]:
        raise HvdbError(
            f"{listed(unlike)} works on {counts[unlike[0]]} units a step, and rank 0 on {counts[0]}; give all ranks "
            "equal batches"
        )
    return counts[0]


def _told(*_: object) -> None:
    raise Told


def _lead(session: Session, db: Path, header: dict[str, Any], program: Path) -> str:
    """Rank 0: measures, stores and returns the table. Errors: HvdbError after whole rounds were stored."""
    fault: BaseException | None = None
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _told)
    try:
        session.run()
    except (Exception, Told, KeyboardInterrupt) as error:
        fault = error
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    why = "" if fault is None else session.ended() if isinstance(fault, Told) else line(fault)
    with contextlib.suppress(Exception):  # the store may be gone with the rank that served it
        session.ranks.order(end=why)
    header |= {"finished_utc": _utc(), "status": "incomplete" if fault else "complete", "status_reason": why}
    kept = f"; {len(session.rounds)} rounds are stored in {db}" if session.rounds else "; no round was whole"
    table = ""
    if session.rounds:
        steps = session.steps
        header["compute_type"] = header["compute_type"] or steps.computes
        facts = _facts(steps, notes := _notes(steps))
        hosts = [(one["local_rank"], one["host"]) for one in session.hellos]
        text = samples_text(header, facts, hosts, session.rounds, estimated=steps.estimated)
        table = _analysed(text, db, program) + "".join(f"note: {note}\n" for note in notes)
    if fault is None:
        return table
    edge.tell("hvdb.torch_efficiency", f"{why}{kept}", sys.stderr)
    if isinstance(fault, Told):
        raise KeyboardInterrupt from fault
    if isinstance(fault, HvdbError):
        raise HvdbError(f"{fault}{kept}") from fault
    raise fault
