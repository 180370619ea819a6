"""The parts of a visit of three calls, in order. Each part stores its output in the folder and returns one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import checks, comparing, nccl, training
from .comparing import AUTOTUNE, QUICK, Kind
from .schedule import CLOSING_SECONDS, Estimate, duration
from .visit import Sizes, Visit

CALLS = (1, 2, 3)
CALL_MINUTES = 9.0  # time of a call, on a host that allows ten minutes

_Cell = tuple[str, str]  # a type and a network


@dataclass(frozen=True)
class Part:
    """`run` returns the text for the reason column of a good part. Errors: PartFailed, CannotRun."""

    estimate: Estimate
    about: str
    run: Callable[[Visit], str]
    call: int = 1  # the call of the visit to which the part belongs


def _compared(kind: Kind, cells: Sequence[_Cell], call: int) -> list[Part]:
    return [
        Part(
            Estimate(kind.part(dtype, model), kind.seconds, kind.limit),
            f"{model} in {dtype} {kind.about}",
            comparing.comparison(kind, dtype, model),
            call,
        )
        for dtype, model in cells
    ]


def _each(
    name: str,
    estimate: tuple[float, float],
    about: str,
    make: Callable[[str, str], Callable[[Visit], str]],
    cells: Sequence[_Cell],
    call: int = 1,
) -> list[Part]:
    """Makes one part for each cell with `make`. estimate: (expected seconds, time limit in seconds)."""
    return [
        Part(Estimate(f"{name}-{dtype}-{model}", *estimate), f"{model} in {dtype}, {about}", make(dtype, model), call)
        for dtype, model in cells
    ]


# These values have a margin over the times on an H200 with 16 processors: memcheck 2.8 s, racecheck 11.4 s, synccheck
# 2.4 s. The value for initcheck is a guess.
_SANITIZER_SECONDS = {"memcheck": 5, "racecheck": 15, "initcheck": 20, "synccheck": 5}


def _first_call(sizes: Sizes, cells: Sequence[_Cell]) -> list[Part]:
    """Returns the parts without PyTorch: first our program alone, then the tests. During the tests torch.compile fills
    its cache for later calls."""
    parts = [
        Part(Estimate("devices", 1, 60), "device properties, as tests/cudnn/devices has them", checks.devices),
        Part(Estimate("doctor", 2, 60), "hvd_bench doctor", checks.doctor),
    ]
    launch = training.LAUNCH
    parts += [
        Part(Estimate(f"launch-{model}", 15, 180), f"{model}, {launch.about}", training.ways(launch, model))
        for model in sizes.models
    ]
    parts += [
        Part(
            Estimate(f"resnet50-{sizes.main_dtype}-{batch}", 25, 150),
            f"ResNet-50 in {sizes.main_dtype} at batch {batch}, to be held against MLPerf",
            training.resnet50(batch),
        )
        for batch in sizes.resnet50_batches
    ]
    parts += _each("train", (10, 120), "by hvd_bench, into the store", training.training, cells)
    parts += _each("profile", (4, 60), "every operation's time", training.profile, cells)
    parts += [
        Part(Estimate(f"replay-{model}", 5, 90), f"replay profile of {model}", training.replay(model))
        for model in sizes.models
    ]
    parts += _each("choices", (20, 90), "images as columns and padded, in turn", training.choices, sizes.choices)
    parts += [
        Part(
            Estimate("nccl", 100, 270),
            "two ranks on one GPU, then one stopped: NCCL 2.30 or newer",
            nccl.two_ranks_on_one_gpu,
        ),
        Part(Estimate("tests", 150, 400), "the tests of label gpu; torch.compile beside", checks.gpu_tests),
    ]
    return parts + [
        Part(Estimate(tool, seconds, 150), f"{tool} over the kernels' tests", checks.sanitizer(tool))
        for tool, seconds in _SANITIZER_SECONDS.items()
    ]


def parts_for(sizes: Sizes) -> list[Part]:
    """Returns all parts, call by call. Within a call, the most valuable part comes first."""
    cells = [(dtype, model) for dtype in sizes.dtypes[:2] for model in sizes.models]
    later = [(dtype, model) for dtype in sizes.dtypes[2:] for model in sizes.models]
    parts = _first_call(sizes, cells)
    parts += _compared(AUTOTUNE, sizes.autotuned[:1], 2)
    parts += _compared(QUICK, [cell for cell in cells if cell not in sizes.autotuned[:1]], 2)
    swept = [(sizes.main_dtype, model) for model in sizes.models]
    parts += _each("sweep", (35, 180), "ours alone at other batches", training.sweep, swept, 3)
    parts += _each("train", (15, 120), "by hvd_bench, into the store", training.training, later, 3)
    parts += _compared(AUTOTUNE, sizes.autotuned[1:], 3)
    return parts + _compared(QUICK, [*later[:1], *sizes.autotuned[:1]], 3)


def parts_of_call(parts: Sequence[Part], call: int) -> list[Part]:
    """Returns the parts of `call`, then the parts of earlier calls, which run only if there is time left."""
    return [part for part in parts if part.call == call] + [part for part in parts if part.call < call]


def visit_text(parts: Sequence[Part]) -> str:
    """Describes the whole visit: each call's command, its parts and their estimates."""
    lines = []
    width = max(len(part.estimate.part) for part in parts)
    for call in CALLS:
        own = [part for part in parts if part.call == call]
        total = duration(sum(part.estimate.seconds for part in own) + CLOSING_SECONDS)
        lines.append(
            f"scripts/maintain/gpu_check results --call {call}: {len(own)} parts, about {total}"
            f" of {CALL_MINUTES:.0f}:00"
        )
        lines += [f"  {p.estimate.part:<{width}}  {p.estimate.seconds:>3.0f} s  {p.about}" for p in own]
    return "\n".join([*lines, "all times are estimates: docs/gpu_check.md says which were measured"])
