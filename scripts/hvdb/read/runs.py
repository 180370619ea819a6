"""Reads the runs of one or more stores as plain data. The fields match the tables of results/schema.sql."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hvdb.base import progress
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.interval import Interval
from hvdb.base.sqlite import sqlite3
from hvdb.read import store, values

IMAGES = "images"
TORCH = "torch"  # the device of a training by PyTorch, whose samples `hvd_bench analyse` stored
OPERATIONS = "operations"  # what a row of `hvd_bench coll` counts (coll_runs.py)
UNKNOWN = "unknown"  # the recording of a replay whose hvd_bench did not store it (programs before 2026-11-29)
Item, Key = TypeVar("Item"), TypeVar("Key")


@dataclass(frozen=True)
class Fact:
    """One row of provenance. in_fingerprint: True if a change of the fact can change the result."""

    value: str
    in_fingerprint: bool


@dataclass(frozen=True)
class Operation:
    """One operation of a profiled step. seconds, flops and bytes are means per step and rank."""

    seq: int
    node: str
    kind: str
    implementation: str
    library: bool
    seconds: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class Component:
    """One part of a run's step time. fraction: the part's fraction of the step."""

    fraction: Interval
    seconds: float

    @property
    def unresolved(self) -> bool:
        """True if the interval contains 0. The run then does not show whether the part exists.

        A part that was 0 in every round is resolved: the run shows that the part does not exist.
        """
        return self.fraction.known and self.fraction.holds(0) and self.fraction.width > 0


@dataclass
class Samples:
    """Samples of one kind, float64, in seconds per step (a loss has no unit).

    highest, lowest: for each sample, the maximum and minimum over the ranks added so far. Both are cut to the number of
    samples of the rank with the fewest samples, because the ranks of a killed job may have different numbers.
    """

    highest: np.ndarray
    lowest: np.ndarray
    ranks: int = 1

    def add_rank(self, values: np.ndarray) -> None:
        shortest = min(len(values), len(self.highest))
        self.highest = np.maximum(self.highest[:shortest], values[:shortest])
        self.lowest = np.minimum(self.lowest[:shortest], values[:shortest])
        self.ranks += 1


@dataclass
class Run:
    """One row of table run, with the rows of other tables that belong to the run.

    columns: column of table run -> its value (units as in the schema).
    samples: kind -> its samples over ranks. Memory does not grow with the number of ranks.
    replicates: figure ("step_seconds", "efficiency") -> its bootstrap replicates, float64, in the figure's unit.
    """

    columns: dict[str, Any]
    session: dict[str, Any]
    source: Path
    provenance: dict[str, Fact] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)
    replicates: dict[str, np.ndarray] = field(default_factory=dict)
    decomposition: dict[str, Component] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        # Makes run.model return run.columns["model"]. Python calls this only if there is no attribute of that name.
        columns = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(name)

    @property
    def short_id(self) -> str:
        """The first eight characters of the UUID, which the footers of plots show."""
        return self.columns["uuid"][:8]

    @property
    def unit(self) -> str:
        """What `batch_size` and `images_per_second` count: images, or the unit of a replayed profile."""
        return self.fact("work.unit") or IMAGES

    @property
    def on_gpus(self) -> bool:
        """True if the gradients, which may be a replay's, lay in GPU memory. The same as on_gpus() in C++."""
        return self.columns["device"] == "cuda" or (self.columns["device"] == "replay" and bool(self.fact("gpu.name")))

    @property
    def replay(self) -> str:
        """Which recording the run replayed: the hash of the profile, UNKNOWN, or "" for a run that computed."""
        return self.fact("replay.profile") or (UNKNOWN if self.columns["device"] == "replay" else "")

    def fact(self, key: str) -> str:
        """Returns the value of the fact `key` in provenance, or "" if the run has no such fact."""
        fact = self.provenance.get(key)
        return fact.value if fact else ""

    def number(self, key: str) -> float | None:
        """Returns the first word of the fact `key` in provenance if it is a number above zero, else None."""
        try:
            value = float(self.fact(key).partition(" ")[0])
        except ValueError:
            return None
        return value if 0 < value < math.inf else None

    def step_seconds_series(self) -> np.ndarray:
        """Returns the step time of each sample in seconds, the maximum over ranks. Empty if there are no samples."""
        return self.highest("step_seconds")

    def highest(self, kind: str) -> np.ndarray:
        """Returns the maximum over ranks of each sample of `kind`. Empty if there are no such samples."""
        return self.samples[kind].highest if kind in self.samples else np.empty(0)

    def lowest(self, kind: str) -> np.ndarray:
        """Returns the minimum over ranks of each sample of `kind`. Empty if there are no such samples."""
        return self.samples[kind].lowest if kind in self.samples else np.empty(0)

    def replicates_of(self, figure: str) -> np.ndarray:
        """Returns the bootstrap replicates of a figure. Empty if the run has none."""
        return self.replicates.get(figure, np.empty(0))


def _read_runs(connection: sqlite3.Connection, source: Path) -> Iterator[Run]:
    sessions = {row["uuid"]: dict(row) for row in connection.execute("SELECT * FROM session")}
    for row in connection.execute("SELECT * FROM run ORDER BY started_utc, uuid"):
        yield _read_run(connection, row, sessions, source)


def _read_run(connection: sqlite3.Connection, row: sqlite3.Row, sessions: dict[str, dict], source: Path) -> Run:
    uuid = row["uuid"]
    run = Run(columns=dict(row), session=sessions[row["session_uuid"]], source=source)
    for fact in connection.execute("SELECT * FROM provenance WHERE run_uuid = ? ORDER BY key", (uuid,)):
        run.provenance[fact["key"]] = Fact(fact["value"], bool(fact["in_fingerprint"]))
    run.ranks = [dict(r) for r in connection.execute("SELECT * FROM rank WHERE run_uuid = ? ORDER BY rank", (uuid,))]
    for sample in connection.execute("SELECT * FROM sample WHERE run_uuid = ? ORDER BY kind, rank", (uuid,)):
        kind, numbers = sample["kind"], np.frombuffer(sample["data"], dtype="<f8")
        if kind.endswith(values.REPLICATES_OF):
            run.replicates[kind.removesuffix(values.REPLICATES_OF)] = numbers
        elif known := run.samples.get(kind):
            known.add_rank(numbers)
        else:
            run.samples[kind] = Samples(numbers, numbers)
    for part in connection.execute("SELECT * FROM decomposition WHERE run_uuid = ?", (uuid,)):
        fraction = Interval(part["fraction"], part["low"], part["high"])
        run.decomposition[part["component"]] = Component(fraction, part["seconds"])
    columns = "seq, node, kind, implementation, library, seconds, flops, bytes"
    for row in connection.execute(f"SELECT {columns} FROM operation WHERE run_uuid = ? ORDER BY seq", (uuid,)):
        run.operations.append(Operation(*row[:4], bool(row["library"]), *row[5:]))
    return run


def _size(path: Path) -> int:
    """Returns the size of the file in bytes, or 0 after an error. The error is reported when the file is opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def load(paths: Iterable[Path | str], step: progress.Step = progress.silent) -> list[Run]:
    """Returns all runs of the stores, oldest first. A run that is in several stores is returned once.

    step: called with (bytes done, total bytes) after each run.
    Errors: StoreError for a file that is not a complete store of our schema; NotComparable if two runs with one UUID
    have different contents.
    """
    by_uuid: dict[str, Run] = {}
    files = list(map(Path, paths))
    sizes = [_size(path) for path in files]
    for number, path in enumerate(files):
        with store.open_readonly(path) as connection:
            (count,) = connection.execute("SELECT count(*) FROM run").fetchone()
            for read, run in enumerate(_read_runs(connection, path), 1):
                known = by_uuid.setdefault(run.uuid, run)
                if known is not run and known.columns != run.columns:
                    raise NotComparable(
                        f"run {run.uuid} has different contents in {known.source} and in {path}; use one of them"
                    )
                step(sum(sizes[:number]) + sizes[number] * read / count, sum(sizes))
    return _oldest_first(by_uuid.values())


def _oldest_first(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.started_utc, run.uuid))


class GrowingStore:
    """Reads a store to which other programs add runs. Each run is checked and read once. For one thread.

    A run whose status is 'running' may still change, so it is read again by the next load().
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._final: dict[str, Run] = {}

    def load(self) -> list[Run]:
        """Returns all runs that are in the store now, oldest first. Empty if there is no file. Errors: StoreError."""
        if not self.path.exists():
            return []
        with store.open_readonly(self.path, known=self._final) as connection:
            stored = [row["uuid"] for row in connection.execute("SELECT uuid FROM main.run")]
            known = (self._final[uuid] for uuid in stored if uuid in self._final)
            runs = _oldest_first([*known, *_read_runs(connection, self.path)])
        self._final = {run.uuid: run for run in runs if run.status != "running"}
        return runs


def samples_of_ranks(wanted: Iterable[tuple[Run, str]]) -> Iterator[tuple[Run, dict[int, np.ndarray]]]:
    """Yields, for each (run, kind of samples), the run and a dict: rank -> its samples as stored, (count,), float64.

    Unlike load(), this function keeps the samples of each rank apart, and has the samples of only one run in memory at
    a time. It opens every store once, so it yields the runs store by store. Units: as in Samples.
    Errors: StoreError, also for a store that changed after load().
    """
    for source, members in grouped(wanted, lambda pair: pair[0].source).items():
        with store.open_readonly(source) as connection:
            for run, kind in members:
                rows = connection.execute(
                    "SELECT rank, data FROM sample WHERE run_uuid = ? AND kind = ? ORDER BY rank", (run.uuid, kind)
                )
                yield run, {row["rank"]: np.frombuffer(row["data"], dtype="<f8") for row in rows}


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Groups `items` by key(item). The groups, and the items within each group, keep the order of `items`."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_session(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Returns UUID of a session -> those of `runs` that belong to the session."""
    return grouped(runs, lambda run: run.session_uuid)


def find(runs: list[Run], prefix: str) -> Run:
    """Returns the run whose UUID starts with `prefix`. Errors: HvdbError if there is no such run, or more than one."""
    matches = [run for run in runs if run.uuid.startswith(prefix.lower())]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise HvdbError(f"no run starts with '{prefix}'; the stores hold: {', '.join(r.short_id for r in runs) or '-'}")
    raise HvdbError(f"'{prefix}' is the start of {len(matches)} runs: {', '.join(r.uuid for r in matches)}")
