"""The parts that run hvd_bench as a user does: training into one store, replay profiles, and other ways to train."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .commands import Done
from .comparing import QUICK_BATCH
from .visit import CannotRun, PartFailed, Visit

MLPERF = "MLPerf Training v4.0, per GPU of 8 x H200: 7950 img/s"
OUT_OF_MEMORY = 8  # the exit code of train_step_bench


@dataclass(frozen=True)
class Ways:
    """Several runs of each network in the main type, one after another. The runs of a network are one part."""

    name: str
    about: str
    runs: dict[str, tuple[str, ...]]  # name -> options of hvd_bench
    shared: tuple[str, ...] = ()  # options of all runs


_STEPS = ("--num-warmup-batches", "10", "--num-iters", "100", "--max-time", "20")
LAUNCH = Ways(
    "launch",
    "batch 32: graphs launched ahead, waited for, or none",
    {"graph": (), "waited": ("--no-launch-ahead",), "enqueued": ("--no-cuda-graph",)},
    ("--batch-size", "32", *_STEPS),
)


def _hvd_bench(visit: Visit, model: str, dtype: str, *options: str) -> list[str]:
    """Returns a command line of hvd_bench for a network and type on the visit's device."""
    return [visit.program("hvd_bench"), "--model", model, "--device", visit.sizes.device, "--dtype", dtype, *options]


def _stored(visit: Visit) -> list[str]:
    return ["--db", str(visit.store), "--label", "by=gpu_check", "--label", f"part={visit.part}"]


def speed(done: Done, said: str = r"total images/sec: ([0-9.]+)") -> str:
    """Returns the speed in the output as text, "1234 img/s". Errors: PartFailed with the last line if there is none."""
    speed = re.search(said, done.output)
    if done.code != 0 or speed is None:
        raise PartFailed(done.last_line())
    return f"{float(speed[1]):.0f} img/s"


def training(dtype: str, model: str, batch: int | None = None) -> Callable[[Visit], str]:
    """Returns a part that trains as a user does, at `batch` or the visit's batch size, and stores the bound."""

    def run(visit: Visit) -> str:
        images = str(batch or visit.sizes.batch)
        command = _hvd_bench(visit, model, dtype, "--batch-size", images, *visit.sizes.training, *_stored(visit))
        if visit.sizes.tunes:
            command += ["--tune", "--tuning-folder", str(visit.winners)]
        return f"{speed(visit.run(visit.part or f'train-{dtype}-{model}', command))}, batch {images}"

    return run


def resnet50(batch: int) -> Callable[[Visit], str]:
    """Like training(), for the network of MLPerf's result. MLPerf's run used 8 H200, data loading and all-reduce."""

    def run(visit: Visit) -> str:
        return f"{training(visit.sizes.main_dtype, 'resnet50', batch)(visit)}; {MLPERF}"

    return run


def replay(model: str) -> Callable[[Visit], str]:
    """Returns a part that records when each gradient becomes ready, for --replay and predictions."""

    def run(visit: Visit) -> str:
        dtype = visit.sizes.main_dtype
        file = visit.out / "replay" / f"{model}-{dtype}.txt"
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(".new")
        new.unlink(missing_ok=True)
        command = _hvd_bench(visit, model, dtype, *visit.sizes.replay, "--record-replay", str(new))
        done = visit.run(f"replay-{model}", command)
        if done.code != 0 or not new.exists():
            raise PartFailed(done.last_line())
        new.replace(file)
        return file.name

    return run


# Ways in which the first convolution reads the images, in the order of the runs. The ways alternate, because an earlier
# measurement was misleading: VGG-16 was faster with "columns", but its loss had collapsed.
CHOICES = ("columns", "padded", "padded", "columns")
SWEEP = (64, 128, 384, 512)  # batch sizes besides 256, which all other parts use


def _step_bench(visit: Visit, name: str, dtype: str, model: str, batch: int, *options: str) -> Done:
    """Runs train_step_bench. Errors: CannotRun without a GPU."""
    if visit.sizes.device != "cuda":
        raise CannotRun("for the GPU alone")
    command = [visit.program("train_step_bench"), "--device", "cuda", "--model", model, "--dtype", dtype]
    command += ["--batch", str(batch), "--winners", str(visit.winners), *options]
    return visit.run(name, command)


def _step_speed(done: Done) -> str:
    """Returns the speed as text, like speed()."""
    return speed(done, r": ([0-9.]+) img/s \(median")


def profile(dtype: str, model: str) -> Callable[[Visit], str]:
    """Returns a part that times every operation, in steps without a CUDA graph."""

    def run(visit: Visit) -> str:
        rows = ("--profile", "--profile-rows", "1000", "--steps", "8")
        name = visit.part or f"profile-{dtype}-{model}"
        return _step_speed(_step_bench(visit, name, dtype, model, QUICK_BATCH, *rows))

    return run


def choices(dtype: str, model: str) -> Callable[[Visit], str]:
    """Returns a part that times a step with each of CHOICES in turn. Only whole steps show whether a choice pays."""

    def run(visit: Visit) -> str:
        said = []
        for number, images in enumerate(CHOICES):
            log = f"{visit.part or f'choices-{dtype}-{model}'}-{number}-{images}"
            done = _step_bench(visit, log, dtype, model, QUICK_BATCH, "--steps", "60", "--images", images)
            said.append(f"{images} {_step_speed(done)}")
        return ", ".join(said)

    return run


def sweep(dtype: str, model: str) -> Callable[[Visit], str]:
    """Returns a part that runs our program alone at each batch size of SWEEP, until memory is exhausted."""

    def run(visit: Visit) -> str:
        said = []
        for batch in SWEEP:
            log = f"{visit.part or f'sweep-{dtype}-{model}'}-{batch}"
            done = _step_bench(visit, log, dtype, model, batch, "--steps", "40")
            if done.code == OUT_OF_MEMORY:
                said.append(f"batch {batch} no memory")
                break
            said.append(f"batch {batch} {_step_speed(done)}")
        return ", ".join(said)

    return run


def ways(kind: Ways, model: str) -> Callable[[Visit], str]:
    """Returns a part that makes each run of `kind` and reports their speeds."""

    def run(visit: Visit) -> str:
        if visit.sizes.device != "cuda":
            raise CannotRun("for the GPU alone")
        said = []
        for name, options in kind.runs.items():
            command = _hvd_bench(visit, model, visit.sizes.main_dtype, *kind.shared, *options, *_stored(visit))
            done = visit.run(f"{kind.name}-{model}-{name}", [*command, "--label", f"way={name}"])
            note = re.search(r"host's clock \(([+-][0-9.]+ %) .*launching it \(([0-9.]+ ms), ", done.output)
            launching = f" ({note[1]} from end to end, launched in {note[2]})" if note else ""
            said.append(f"{name} {speed(done)}{launching}")
        return ", ".join(said)

    return run
