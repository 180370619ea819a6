"""The parts that run hvd_bench as a user does: training into one store, replay profiles, and other ways to train."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .commands import Done
from .comparing import QUICK_BATCH, batches_found
from .files import UNFINISHED
from .visit import CannotRun, PartFailed, Visit


@dataclass(frozen=True)
class Ways:
    """Several runs of each network in the main type, one after the other, which make one part."""

    name: str
    about: str
    seconds: float
    limit: float
    runs: dict[str, tuple[str, ...]]  # name: options of hvd_bench
    shared: tuple[str, ...] = ()  # options of all


_STEPS = ("--num-warmup-batches", "10", "--num-iters", "100", "--max-time", "20")
LAUNCH = Ways(
    "launch",
    "batch 32: graphs launched ahead, waited for, or none",
    15,
    180,
    {"graph": (), "waited": ("--no-launch-ahead",), "enqueued": ("--no-cuda-graph",)},
    ("--batch-size", "32", *_STEPS),
)
SCHEDULE = Ways(
    "schedule",
    "as it is, and as --tune-schedule finds it",
    120,
    480,
    {"plain": (), "tuned": ("--tune-schedule",)},
    _STEPS,
)


def _hvd_bench(visit: Visit, model: str, dtype: str, *options: str) -> list[str]:
    """A command line: the network, where and in what type."""
    return [visit.program("hvd_bench"), "--model", model, "--device", visit.sizes.device, "--dtype", dtype, *options]


def _stored(visit: Visit) -> list[str]:
    return ["--db", str(visit.store), "--label", "by=gpu_check", "--label", f"part={visit.part}"]


def _speed(done: Done, said: str = r"total images/sec: ([0-9.]+)") -> str:
    """ "1234 img/s". Errors: PartFailed with the last line where it says none."""
    speed = re.search(said, done.output)
    if done.code != 0 or speed is None:
        raise PartFailed(done.last_line())
    return f"{float(speed[1]):.0f} img/s"


def training(dtype: str, model: str) -> Callable[[Visit], str]:
    """As a user trains, at the best batch that a comparison found; the bound is stored with the run."""

    def run(visit: Visit) -> str:
        found = batches_found(visit, dtype, model)
        batch = str(found[0] if found else visit.sizes.batch)
        command = _hvd_bench(visit, model, dtype, "--batch-size", batch, *visit.sizes.training, *_stored(visit))
        if visit.sizes.tunes:
            command += ["--tune", "--tuning-folder", str(visit.winners)]
        return f"{_speed(visit.run(visit.part or f'train-{dtype}-{model}', command))}, batch {batch}"

    return run


def replay(model: str) -> Callable[[Visit], str]:
    """When each gradient became ready, for --replay and predictions."""

    def run(visit: Visit) -> str:
        dtype = visit.sizes.main_dtype
        file = visit.out / "replay" / f"{model}-{dtype}.txt"
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(UNFINISHED)
        new.unlink(missing_ok=True)
        command = _hvd_bench(visit, model, dtype, *visit.sizes.replay, "--record-replay", str(new))
        done = visit.run(f"replay-{model}", command)
        if done.code != 0 or not new.exists():
            raise PartFailed(done.last_line())
        new.replace(file)
        return file.name

    return run


# What the plan of a step may be made of, as options of train_step_bench.
CHOICES: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "level 1": ("--fusion", "1"),
    "level 2": ("--fusion", "2"),
    "images padded": ("--images", "padded"),
    "norms of cuDNN": ("--own-norms", "none"),
    "prologues": ("--prologues", "all"),
}


def _steps(visit: Visit, name: str, dtype: str, model: str, *options: str) -> str:
    """Runs train_step_bench; as _speed()."""
    if visit.sizes.device != "cuda":
        raise CannotRun("for the GPU alone")
    command = [visit.program("train_step_bench"), "--device", "cuda", "--model", model, "--dtype", dtype]
    command += ["--batch", str(QUICK_BATCH), "--winners", str(visit.winners), *options]
    return _speed(visit.run(name, command), r": ([0-9.]+) img/s \(median")


def profile(dtype: str, model: str) -> Callable[[Visit], str]:
    """Every operation's time, in steps that are enqueued."""

    def run(visit: Visit) -> str:
        rows = ("--profile", "--profile-rows", "1000", "--steps", "8")
        return _steps(visit, visit.part or f"profile-{dtype}-{model}", dtype, model, *rows)

    return run


def choices(dtype: str, model: str) -> Callable[[Visit], str]:
    """A step planned in several ways, one after the other: whole steps decide what a profile suggests."""

    def run(visit: Visit) -> str:
        said = []
        for name, options in CHOICES.items():
            log = f"{visit.part or f'choices-{dtype}-{model}'}-{name.replace(' ', '-')}"
            said.append(f"{name} {_steps(visit, log, dtype, model, '--steps', '60', *options)}")
        return ", ".join(said)

    return run


def ways(kind: Ways, model: str) -> Callable[[Visit], str]:
    """Each of its runs, and their speeds."""

    def run(visit: Visit) -> str:
        if visit.sizes.device != "cuda":
            raise CannotRun("for the GPU alone")
        said = []
        for name, options in kind.runs.items():
            command = _hvd_bench(visit, model, visit.sizes.main_dtype, *kind.shared, *options, *_stored(visit))
            done = visit.run(f"{kind.name}-{model}-{name}", [*command, "--label", f"way={name}"])
            note = re.search(r"host's clock \(([+-][0-9.]+ %) .*launching it \(([0-9.]+ ms), ", done.output)
            launching = f" ({note[1]} from end to end, launched in {note[2]})" if note else ""
            said.append(f"{name} {_speed(done)}{launching}")
        return ", ".join(said)

    return run
