"""The user's spec as plain data. A spec says what to measure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.base.data import SPECS
from hvdb.campaign import bench_options
from hvdb.campaign.canonical import digest
from hvdb.campaign.fields import Table, load

DEFAULT_RANKS = tuple(2**power for power in range(10))  # 1, 2, 4 ... 512
NAME = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
REPLAY_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"  # the names that hvdb.torch_profile gives


@dataclass(frozen=True)
class Weak:
    """Weak scaling. batch_size: model -> images per rank and step."""

    batch_size: dict[str, int]


@dataclass(frozen=True)
class Strong:
    """Strong scaling. global_batch: model -> images per step of all ranks together, which the ranks share equally.

    max_batch_per_rank: the largest batch that fits into a rank's memory; 0: no limit. Larger batches are left out.
    """

    global_batch: dict[str, int]
    max_batch_per_rank: int


@dataclass(frozen=True)
class Spec:
    """One campaign. The fields match the spec's TOML file, which docs/campaigns.md describes."""

    name: str
    models: tuple[str, ...]
    ranks: tuple[int, ...]
    ranks_given: bool  # True: a rank count that does not fit the site is an error; False: the plan leaves it out
    dtypes: tuple[str, ...]
    allreduce_dtypes: tuple[str, ...]
    schedules: tuple[str, ...]
    repetitions: int
    seeds: tuple[int, ...]
    order_seed: int
    efficiency: bool
    ranks_per_node: int  # 0: the site's default
    allow_ragged: bool
    first_job_gates: bool
    weak: Weak | None
    strong: Strong | None
    options: tuple[tuple[str, str], ...]  # options of hvd_bench; a flag's value is empty

    @property
    def hash(self) -> str:
        """16 hexadecimal digits, a digest of all fields. Comments and layout of the TOML file do not change it."""
        return digest(dataclasses.asdict(self))

    def max_time_seconds(self) -> float:
        """Returns the longest time, in seconds, that one launch may measure."""
        return float(dict(self.options).get("max-time", bench_options.DEFAULT_MAX_TIME_SECONDS))


def _models(table: Table, replayed: bool) -> tuple[str, ...]:
    """Returns the networks. Replays may have any name."""
    if replayed:
        given = table.texts("models", pattern=REPLAY_NAME, means="a name of at most 64 letters, digits and _.-")
    else:
        given = table.texts("models", words=tuple(bench_options.MODELS))
    models = tuple(bench_options.MODELS.get(name, name) for name in given)
    if len(set(models)) < len(models):
        raise table.fail("models", "holds one model under two names")
    return models


def _strong(table: Table, models: tuple[str, ...]) -> Strong:
    strong = Strong(
        global_batch=table.per_model("global_batch", models), max_batch_per_rank=table.integer("max_batch_per_rank", 0)
    )
    table.close()
    return strong


def _weak(table: Table, models: tuple[str, ...]) -> Weak:
    weak = Weak(table.per_model("batch_size", models, high=65536))
    table.close()
    return weak


def from_data(data: dict[str, Any], source: str) -> Spec:
    """Returns the spec of the TOML document `data`. Errors: CampaignError, whose text names `source` and the key."""
    table = Table(data, source)
    weak, strong, options = table.table("weak"), table.table("strong"), table.table("options")
    models = _models(table, replayed=options.has("replay"))
    if not (table.has("weak") or table.has("strong")):
        raise table.fail("weak", "neither [weak] nor [strong] is here; give at least one, say [weak] batch_size = 64")
    spec = Spec(
        name=table.text(
            "name", pattern=NAME, means="a name of at most 40 lower-case letters, digits and inner hyphens"
        ),
        models=models,
        ranks=tuple(sorted(table.integers("ranks", list(DEFAULT_RANKS), low=1, high=1 << 20))),
        ranks_given=table.has("ranks"),
        dtypes=table.texts("dtypes", ["fp32"], words=bench_options.DTYPES),
        allreduce_dtypes=table.texts("allreduce_dtypes", ["fp32"], words=bench_options.ALLREDUCE_DTYPES),
        schedules=table.texts("schedules", ["static"], words=bench_options.SCHEDULES),
        repetitions=table.integer("repetitions", 1, low=1, high=1000),
        seeds=table.integers("seeds", [1], high=2**63 - 1),
        order_seed=table.integer("order_seed", 1, high=2**63 - 1),
        efficiency=table.flag("efficiency", True),
        ranks_per_node=table.integer("ranks_per_node", 0),
        allow_ragged=table.flag("allow_ragged", False),
        first_job_gates=table.flag("first_job_gates", True),
        weak=_weak(weak, models) if table.has("weak") else None,
        strong=_strong(strong, models) if table.has("strong") else None,
        options=bench_options.read(options),
    )
    table.close()
    return spec


def known() -> list[str]:
    """Returns the names of the specs that are part of this project."""
    return sorted(path.stem for path in SPECS.glob("*.toml"))


def file(name: Path) -> Path:
    """Returns the file of this project's spec `name`. If there is no such spec, returns `name` itself."""
    return SPECS / f"{name}.toml" if str(name) in known() else name


def read(path: Path) -> Spec:
    """Returns the spec in the file `path`. Errors: CampaignError."""
    return from_data(load(path), str(path))
