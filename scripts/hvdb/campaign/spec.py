"""The user's spec as plain data. A spec says what to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record
from hvdb.base.data import SPECS, step
from hvdb.base.errors import CampaignError
from hvdb.base.record import SEVERAL, From, Malformed, Range, Text, Words
from hvdb.campaign import bench_options
from hvdb.campaign.bench_options import ALLREDUCE_DTYPES, DTYPES, MODELS, SCHEDULES, Scalar
from hvdb.campaign.cell import digest

DEFAULT_RANKS = tuple(2**power for power in range(10))  # 1, 2, 4 ... 512
Name = Annotated[
    str,
    Text(40, r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", "a name of at most 40 lower-case letters, digits and inner hyphens"),
]
# the names that hvdb.torch_profile gives
ReplayName = Annotated[str, Text(64, r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a name of at most 64 letters, digits and _.-")]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Batch = Annotated[int, Range(1, 65536)]
GlobalBatch = Annotated[int, Range(1, 2**31 - 1)]


def _models(given: Sequence[str]) -> tuple[str, ...]:
    models = tuple(MODELS.get(name, name) for name in given)
    if len(set(models)) < len(models):
        raise Malformed("holds one model under two names")
    return models


@dataclass(frozen=True)
class Weak:
    """Weak scaling. batch_size: model -> images per rank and step. A spec may give one number for all models."""

    batch_size: Batch | dict[str, Batch]


@dataclass(frozen=True)
class Strong:
    """Strong scaling. global_batch: model -> images per step of all ranks together, which the ranks share equally.

    max_batch_per_rank: the largest batch that fits into a rank's memory; 0: no limit. Larger batches are left out.
    """

    global_batch: GlobalBatch | dict[str, GlobalBatch]
    max_batch_per_rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One campaign. The fields match the spec's TOML file, which docs/campaigns.md describes."""

    name: Name
    models: Annotated[tuple[str, ...], From(Annotated[tuple[ReplayName, ...], SEVERAL], _models)]
    ranks: Annotated[tuple[Annotated[int, Range(1, 1 << 20)], ...], SEVERAL] = DEFAULT_RANKS
    ranks_given: bool  # True: a rank count that does not fit the site is an error; False: the plan leaves it out
    dtypes: Annotated[tuple[Annotated[str, Words(DTYPES)], ...], SEVERAL] = ("fp32",)
    allreduce_dtypes: Annotated[tuple[Annotated[str, Words(ALLREDUCE_DTYPES)], ...], SEVERAL] = ("fp32",)
    schedules: Annotated[tuple[Annotated[str, Words(SCHEDULES)], ...], SEVERAL] = ("static",)
    repetitions: Annotated[int, Range(1, 1000)] = 1
    seeds: Annotated[tuple[Seed, ...], SEVERAL] = (1,)
    order_seed: Seed = 1
    efficiency: bool = True
    ranks_per_node: int = 0  # 0: the site's default
    allow_ragged: bool = False
    first_job_gates: bool = True
    weak: Weak | None = None
    strong: Strong | None = None
    # options of hvd_bench; a flag's value is empty
    options: Annotated[tuple[tuple[str, str], ...], From(dict[str, Scalar], bench_options.read)] = ()

    @property
    def hash(self) -> str:
        """16 hexadecimal digits, a digest of all fields. Comments and layout of the TOML file do not change it."""
        return digest(dataclasses.asdict(self))

    def max_time_seconds(self) -> float:
        """Returns the longest time, in seconds, that one launch may measure."""
        return float(dict(self.options).get("max-time", bench_options.DEFAULT_MAX_TIME_SECONDS))


def replays(study: Spec) -> dict[str, Path]:
    """Returns model -> the recorded step that its cells replay; empty if the cells compute."""
    file = dict(study.options).get("replay")
    return {model: step(file.replace("{model}", model)) for model in study.models} if file else {}


def _for_each(models: Sequence[str], given: int | dict[str, int], place: str) -> dict[str, int]:
    """Returns model -> number. given: one number for all models, or this dictionary. Errors: Malformed."""
    if isinstance(given, int):
        return dict.fromkeys(models, given)
    for model in models:
        if model not in given:
            raise Malformed(f"{model} is missing; it takes a whole number", place)
    for key in given:
        if key not in models:
            raise Malformed(f"there is no such key; known here: {', '.join(models)}", f"{place}.{key}")
    return given


def from_data(data: dict[str, Any], source: str) -> Spec:
    """Returns the spec of the TOML document `data`. Errors: CampaignError, whose text names `source` and the key."""
    with record.faults_of(source, CampaignError):
        spec = record.read(Spec, data, ranks_given="ranks" in data)
        weak, strong, models = spec.weak, spec.strong, spec.models
        if not (weak or strong):
            raise Malformed(
                "neither [weak] nor [strong] is here; give at least one, say [weak] batch_size = 64", "weak"
            )
        for model in models if "replay" not in dict(spec.options) else ():
            if model not in MODELS:
                raise record.refused(model, f"one of {', '.join(MODELS)}", MODELS).inside("models")
        if weak:
            weak = Weak(_for_each(models, weak.batch_size, "weak.batch_size"))
        if strong:
            global_batch = _for_each(models, strong.global_batch, "strong.global_batch")
            strong = dataclasses.replace(strong, global_batch=global_batch)
        return dataclasses.replace(spec, ranks=tuple(sorted(spec.ranks)), weak=weak, strong=strong)


def known() -> list[str]:
    """Returns the names of the specs that are part of this project."""
    return sorted(path.stem for path in SPECS.glob("*.toml"))


def file(name: Path) -> Path:
    """Returns the file of this project's spec `name`. If there is no such spec, returns `name` itself."""
    return SPECS / f"{name}.toml" if str(name) in known() else name


def read(path: Path) -> Spec:
    """Returns the spec in the file `path`. Errors: HvdbError."""
    return from_data(record.document(path), str(path))
