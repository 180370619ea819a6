"""The parts of a visit, in the order of their value. Each leaves its texts in the folder and returns one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import checks, comparing, training
from .comparing import AUTOTUNE, COMPILE, FULL, QUICK, Kind
from .schedule import Estimate
from .visit import Sizes, Visit

_Make = Callable[[str, str], Callable[[Visit], str]]  # of a type and a network: what its part runs


@dataclass(frozen=True)
class Part:
    """`run` returns the reason column of a good part. Errors: PartFailed, CannotRun."""

    estimate: Estimate
    about: str
    run: Callable[[Visit], str]


def _compared(kind: Kind, dtype: str, models: tuple[str, ...]) -> list[Part]:
    parts = []
    for model in models:
        instead = FULL.part(dtype, model) if kind is QUICK else ""
        estimate = Estimate(kind.part(dtype, model), kind.seconds, kind.limit, instead)
        parts.append(Part(estimate, f"{model} in {dtype} {kind.about}", comparing.comparison(kind, dtype, model)))
    return parts


def _trained(dtype: str, models: tuple[str, ...]) -> list[Part]:
    return [
        Part(
            Estimate(f"train-{dtype}-{model}", 40, 150),
            f"{model} in {dtype} by hvd_bench, into the store",
            training.training(dtype, model),
        )
        for model in models
    ]


def _ways(kind: training.Ways, models: tuple[str, ...]) -> list[Part]:
    return [
        Part(
            Estimate(f"{kind.name}-{model}", kind.seconds, kind.limit),
            f"{model}, {kind.about}",
            training.ways(kind, model),
        )
        for model in models
    ]


def _steps(name: str, seconds: float, about: str, make: _Make, sizes: Sizes) -> list[Part]:
    return [
        Part(
            Estimate(f"{name}-{dtype}-{model}", seconds, 4 * seconds),
            f"{model} in {dtype}, {about}",
            make(dtype, model),
        )
        for dtype in sizes.dtypes[:2]
        for model in sizes.models
    ]


# Up to 12 on an H200 with 16 processors; of initcheck a guess.
_SANITIZER_SECONDS = {"memcheck": 10, "racecheck": 20, "initcheck": 20, "synccheck": 10}


def parts_for(sizes: Sizes) -> list[Part]:
    """All parts, in the order of their value; of parts of like value, first those that take seconds, or a slow GPU
    would leave them no time."""
    models, first, later = sizes.models, sizes.dtypes[:2], sizes.dtypes[2:]
    parts = [Part(Estimate("tests", 150, 400), "the tests of label gpu; torch.compile beside", checks.gpu_tests)]
    parts += [
        Part(Estimate("devices", 1, 60), "device properties, as tests/cudnn/devices has them", checks.devices),
        Part(Estimate("doctor", 2, 60), "hvd_bench doctor", checks.doctor),
    ]
    parts += _ways(training.LAUNCH, models)
    parts += [
        Part(Estimate(f"replay-{model}", 8, 90), f"replay profile of {model}", training.replay(model))
        for model in models
    ]
    parts += [part for dtype in first for part in _compared(QUICK, dtype, models)]
    parts += _steps("profile", 20, "every operation's time", training.profile, sizes)
    parts += [
        Part(Estimate(tool, seconds, 150), f"{tool} over the kernels' tests", checks.sanitizer(tool))
        for tool, seconds in _SANITIZER_SECONDS.items()
    ]
    parts += [part for dtype in first for part in _compared(FULL, dtype, models)]
    parts += [part for dtype in first for part in _trained(dtype, models)]
    parts += _steps("choices", 120, "fused in several ways", training.choices, sizes)
    parts += [part for dtype in first for part in _compared(COMPILE, dtype, models)]
    for dtype in later:
        parts += [*_compared(FULL, dtype, models), *_trained(dtype, models), *_compared(COMPILE, dtype, models)]
    parts += _ways(training.SCHEDULE, models)
    return parts + [part for dtype in sizes.dtypes for part in _compared(AUTOTUNE, dtype, models)]
