"""State that the parts share: where files are, how much time is left, and where results go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import commands
from .host import Gpu
from .place import Place


class PartFailed(Exception):
    """The part found a fault on this host."""


class CannotRun(Exception):
    """The part needs something that this host does not have."""


class CutShort(Exception):
    """The part ran, but the call left less time than the part needs."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the work. The sizes for a CPU are small, because they only test gpu_check itself."""

    device: str
    models: tuple[str, ...]
    dtypes: tuple[str, ...]  # types to compare, the most valuable first
    main_dtype: str  # type for parts that use only one type
    batch: int
    resnet50_batches: tuple[int, ...]  # batch sizes to compare with MLPerf
    choices: tuple[tuple[str, str], ...]  # (type, network) whose CHOICES are compared
    autotuned: tuple[tuple[str, str], ...]  # compared with max-autotune: the first in call 2, the rest in call 3
    training: tuple[str, ...]  # options of hvd_bench
    replay: tuple[str, ...]
    comparison: tuple[str, ...]  # options at the end of compare_gpu.py's command line
    tunes: bool  # True: hvd_bench and train_step_bench find and share the fastest engines


MODELS = ("resnet101", "vgg16", "inception3")
ON_THE_GPU = Sizes(
    device="cuda",
    models=MODELS,
    dtypes=("fp16", "bf16", "tf32"),
    main_dtype="fp16",
    batch=256,
    resnet50_batches=(256, 400),
    choices=(("bf16", "vgg16"),),
    autotuned=(("bf16", "resnet101"), ("bf16", "vgg16")),
    training=("--max-time", "10"),
    replay=("--batch-size", "64", "--num-warmup-batches", "10", "--num-iters", "30", "--max-time", "30", "--no-db"),
    comparison=(),
    tunes=True,
)
TINY = ("--image-size", "32", "--threads", "1", "--num-warmup-batches", "1", "--num-iters", "2")
ON_THE_CPU = Sizes(
    device="cpu",
    models=("resnet50",),
    dtypes=("fp32",),
    main_dtype="fp32",
    batch=2,
    resnet50_batches=(),
    choices=(("fp32", "resnet50"),),
    autotuned=(),
    training=TINY,
    replay=(*TINY, "--batch-size", "2", "--no-db"),
    comparison=(
        *("--image", "32", "--batches", "2", "--ours-batches", "2", "--turns", "6", "--warm-up", "1"),
        *("--turn-seconds", "0.01", "--search-seconds", "0.01"),
    ),
    tunes=False,
)


@dataclass
class Visit:
    """One call of gpu_check. Used by one thread; while a part runs, any thread may call run()."""

    place: Place
    out: Path
    sizes: Sizes
    gpu: Gpu | None
    torch: tuple[str, str] | str  # Python and version, or why there is none
    folders: list[str]  # the folders with NVIDIA's libraries
    sanitizer: str | None
    say: Callable[[str], None]
    nccl: Path | None = None  # folder or wheel with NCCL 2.30, as given by the user
    part: str = ""
    part_ends: float = 0.0  # end of the part's time on the monotonic clock
    shortened: bool = False  # True if the part has less than its own time limit
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folders:
            path = [*self.folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            self.environment["LD_LIBRARY_PATH"] = ":".join(path)
        if os.geteuid() == 0:
            self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    @property
    def store(self) -> Path:
        """The store for the runs of hvd_bench."""
        return self.out / "gpu_check.db"

    @property
    def winners(self) -> Path:
        """The folder in which all programs keep the fastest engines of cuDNN."""
        return self.out / "winners"

    def program(self, name: str) -> str:
        """Returns the path of a program. Errors: CannotRun if it was not built."""
        path = self.place.program(name)
        if path is None:
            raise CannotRun(f"{name} is not in this build")
        return path

    def python(self) -> str:
        """Returns a Python with PyTorch. Errors: CannotRun."""
        if isinstance(self.torch, str):
            raise CannotRun(self.torch)
        return self.torch[0]

    def left(self) -> float:
        """Returns the seconds left for the part. Errors: PartFailed if no time is left."""
        left = self.part_ends - time.monotonic()
        if left <= 0:
            raise PartFailed("the time was over")
        return left

    def run(
        self,
        name: str,
        command: list[str],
        *,
        seconds: float = float("inf"),
        environment: dict[str, str] | None = None,
        ours: bool = True,
    ) -> commands.Done:
        """Runs `command` within the part's time. Output goes to `name`.txt. ours: True for our programs, which need
        LD_LIBRARY_PATH to find NVIDIA's libraries. Errors: PartFailed if the part's time is over."""
        left = self.left()
        self.say(f"{self.part}: {name}")
        variables = {**(self.environment if ours else {}), **(environment or {})}
        log = self.out / f"{name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        return commands.run(command, log, min(seconds, left), variables, self.place.root)

    def note(self, text: str) -> None:
        """Adds one line to notes.txt about something that happened beside the measurements."""
        with (self.out / "notes.txt").open("a", encoding="utf-8") as notes:
            notes.write(text + "\n")
