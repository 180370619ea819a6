"""Makes stores with known values for the tests of scripts/hvdb, using results/schema.sql."""

from __future__ import annotations

import sqlite3
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "scripts"), str(REPOSITORY / "tests" / "testbed")]

from hvdb.read import schema, store, values  # noqa: E402  (the path must be set first)


def new_uuid(rng: np.random.Generator) -> str:
    """Returns a version 4 UUID from a seeded generator, so that tests repeat exactly."""
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


@dataclass
class SessionSpec:
    """A session as hvd_bench --efficiency writes it, with phases solo, none and full. Times are in seconds per step."""

    model: str = "resnet101"
    ranks: int = 2
    batch_size: int = 8
    steps: int = 40
    solo: float = 1.0
    none: float = 1.02
    full: float = 1.25
    noise: float = 0.01
    phases: tuple[str, ...] = ("solo", "none", "full")
    origin: str = "measured"
    traced: int = 0
    status: str = "complete"
    fingerprint: str = "00000000000000aa"
    started: str = "2026-01-02T03:04:05.000Z"
    columns: dict = field(default_factory=dict)
    provenance: dict = field(
        default_factory=lambda: {"cpu.model": ("Test CPU", 1), "git.commit": ("abc", 1), "host.name": ("n1", 0)}
    )
    operations: list = field(default_factory=list)
    reduce_seconds: float = 0.1
    ranks_per_host: int = 1 << 20
    slow_rank: int | None = None  # the rank whose compute takes 10 % longer
    # Relative standard deviation of the bootstrap replicates. None: the store has no replicates, as if an older
    # hvd_bench had written it.
    replicates: float | None = None


@dataclass
class CollSpec:
    """A launch of all-reduces as hvd_bench coll --db writes it, with a cell for each size and each of `sides`."""

    ranks: int = 2
    sizes: tuple[int, ...] = (1024, 65536)
    sides: tuple[str, ...] = ("",)
    seconds: float = 1e-5  # time of the smallest size
    samples: int = 20
    started: str = "2026-01-02T03:04:05.000Z"
    columns: dict = field(default_factory=dict)  # values for columns of coll_session
    cell: dict = field(default_factory=dict)  # values for columns of coll_cell


def operation(seq: int, **columns: object) -> dict:
    """Returns a row of the table `operation`: the convolution of layer `seq`. `columns` replaces default values."""
    usual = {"seq": seq, "node": f"layer{seq}.conv", "kind": "conv", "implementation": "jit", "library": 1}
    return {**usual, "seconds": 0.001 * (seq + 1), "flops": 1e9, "bytes": 1e6, **columns}


def insert(connection: sqlite3.Connection, table: str, **row: object) -> None:
    """Inserts one row. The keywords are column names."""
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _add_samples(connection: sqlite3.Connection, run: str, rank: int, kinds: dict[str, np.ndarray]) -> None:
    for kind, numbers in kinds.items():
        data = np.asarray(numbers, dtype="<f8")
        insert(connection, "sample", run_uuid=run, rank=rank, kind=kind, count=len(data), data=data.tobytes())


def add_session(connection: sqlite3.Connection, spec: SessionSpec, rng: np.random.Generator) -> dict[str, str]:
    """Adds one session whose median step times are near those of `spec`. Returns {phase: UUID of the run}."""
    session = new_uuid(rng)
    command = f"mpirun -n {spec.ranks} hvd_bench --model {spec.model} --efficiency --db results.db"
    insert(connection, "session", uuid=session, started_utc=spec.started, command_line=command)
    made = {}
    for phase in spec.phases:
        run = new_uuid(rng)
        made[phase] = run
        world = 1 if phase == "solo" else spec.ranks
        base = {"solo": spec.solo, "none": spec.none, "full": spec.full}[phase]
        by_rank = base * (1 + spec.noise * np.abs(rng.standard_normal((world, spec.steps))))
        step = by_rank.max(axis=0)
        median = float(np.median(step)) if spec.steps else None
        row = {"uuid": run, "session_uuid": session, "origin": spec.origin, "phase": phase, "status": spec.status}
        row |= {"started_utc": spec.started, "model": spec.model, "batch_size": spec.batch_size, "image_size": 224}
        row |= {"device": "cpu", "compute_type": "fp32", "allreduce_type": "fp32", "threads": 1, "seed": 1}
        row |= {
            "schedule": "static" if phase == "full" else "none",
            "comm": "solo" if phase == "solo" else "mpi",
            "data_plane": "shm" if phase == "full" else "none",
            "world_size": world,
            "allocation_size": spec.ranks,
            "nodes": -(-world // spec.ranks_per_host),
            "traced": spec.traced,
            "warmup_steps": 2,
            "measured_steps": spec.steps,
            "stop_reason": "iteration cap",
            "step_seconds": median,
            "step_seconds_low": 0.99 * median if median else None,
            "step_seconds_high": 1.01 * median if median else None,
            "images_per_second": world * spec.batch_size / median if median else None,
            "checks": "gradients ok, checksums equal",
            "fingerprint": spec.fingerprint + phase,
        }
        insert(connection, "run", **{**row, **spec.columns})
        for key, (value, weighty) in spec.provenance.items():
            insert(connection, "provenance", run_uuid=run, key=key, value=value, in_fingerprint=weighty)
        for rank in range(world):
            place = {"host": f"n{1 + rank // spec.ranks_per_host}", "local_rank": rank % spec.ranks_per_host}
            memory = {"planned_bytes": 10**9, "baseline_bytes": 10**8, "peak_bytes": int(1.15 * 10**9)}
            insert(connection, "rank", run_uuid=run, rank=rank, gradient_checksum=f"{17:016x}", **place, **memory)
            slower = 1.1 if rank == spec.slow_rank else 1.0
            kinds = {"step_seconds": by_rank[rank], "compute_seconds": 0.9 * slower * by_rank[rank]}
            if phase == "full":
                kinds["reduce_seconds"] = np.full(spec.steps, spec.reduce_seconds * (1 + rank))
            _add_samples(connection, run, rank, kinds)
        figures = {"step_seconds": median} if median else {}
        if phase == "full" and set(spec.phases) >= {"solo", "none"}:
            _add_decomposition(connection, run, spec)
            figures["efficiency"] = spec.solo / spec.full
        if spec.replicates is not None:
            for name, value in figures.items():
                drawn = value * np.exp(spec.replicates * rng.standard_normal(200))
                _add_samples(connection, run, 0, {name + values.REPLICATES_OF: drawn})
        for work in spec.operations if phase == "full" else []:
            insert(connection, "operation", run_uuid=run, **work)
    return made


def _add_decomposition(connection: sqlite3.Connection, run: str, spec: SessionSpec) -> None:
    lost = {
        "efficiency": spec.solo,
        "interference": spec.none - spec.solo,
        "stragglers": 0.02 * spec.full,
        "control_plane": 0.004 * spec.full,
        "update": 0.01 * spec.full,
    }
    lost["residual"] = 0.005 * spec.full
    lost["exposed_communication"] = spec.full - sum(lost.values())
    for component, seconds in lost.items():
        fraction = seconds / spec.full
        interval = {"low": fraction - 0.006, "high": fraction + 0.006}
        row = {"component": component, "fraction": fraction, "seconds": seconds, **interval}
        insert(connection, "decomposition", run_uuid=run, **row)


def add_coll(connection: sqlite3.Connection, spec: CollSpec, rng: np.random.Generator) -> dict[str, str]:
    """Adds one launch. A cell's median time is spec.seconds, scaled with the size. Returns {"coll": UUID}."""
    session = new_uuid(rng)
    schema.make_tables(connection, schema.COLL.version)
    command = f"hvd_bench coll --ranks {spec.ranks} --db results.db"
    insert(connection, "session", uuid=session, started_utc=spec.started, command_line=command)
    row = {"uuid": session, "status": "complete", "started_utc": spec.started, "finished_utc": spec.started}
    row |= {"device": "cpu", "comm": "mpi", "ranks": spec.ranks, "nodes": 1, "fingerprint": "00000000000000cc"}
    row |= {"oversubscribed": 0, "blocking": 0, "warm": 0, "target_interval": 0.02, "clock_seconds": 0.0}
    row |= {"buffer_bytes": 1 << 26, "cache_bytes": 1 << 25}
    insert(connection, "coll_session", **{**row, **spec.columns})
    for key, value, weighty in (("cpu.model", "Test CPU", 1), ("world.hosts", f"n1 x {spec.ranks}", 0)):
        insert(connection, "coll_provenance", session_uuid=session, key=key, value=value, in_fingerprint=weighty)
    for seq, (size, side) in enumerate((size, side) for size in spec.sizes for side in spec.sides):
        seconds = spec.seconds * size / min(spec.sizes)
        taken = seconds * (1 + 0.01 * np.linspace(-1, 1, spec.samples))
        cell = {"operation": "all_reduce", "type": "float", "reduction": "sum", "bytes": size, "count": size // 4}
        cell |= {"root": -1, "in_place": 1, "ragged": 0, "side": side, "algorithm": "auto", "data_plane": "shm"}
        cell |= {"registered": 1, "samples": spec.samples, "operations_per_sample": 64}
        cell |= {"seconds": seconds, "seconds_low": 0.99 * seconds, "seconds_high": 1.01 * seconds}
        cell |= {"transfer_seconds": 0.9 * seconds, "skew_seconds": 1e-7}
        cell |= {"last_rank": spec.ranks - 1, "last_rank_share": 0.75, "algorithm_bytes_per_second": size / seconds}
        cell |= {"bus_bytes_per_second": 2 * (spec.ranks - 1) / spec.ranks * size / seconds}
        cell |= {"bound": 0.5, "wrong": 0, "settled": 1, "stop_reason": "interval narrow enough"}
        insert(connection, "coll_cell", session_uuid=session, seq=seq, **{**cell, **spec.cell})
        last = np.full(spec.samples, spec.ranks - 1)
        kinds = {"seconds": taken, "transfer_seconds": 0.9 * taken, "skew_seconds": taken, "last_rank": last}
        for kind, numbers in {**kinds, "round": np.arange(spec.samples)}.items():
            data = np.asarray(numbers, dtype="<f8")
            row = {"seq": seq, "kind": kind, "count": len(data), "data": data.tobytes()}
            insert(connection, "coll_sample", session_uuid=session, **row)
    return {"coll": session}


def make(path: Path, *specs: SessionSpec | CollSpec, seed: int = 1) -> list[dict[str, str]]:
    """Makes a store at `path` with one session per spec. Returns what add_session() or add_coll() returns for each."""
    rng = np.random.default_rng(seed)
    connection = store.create(path)
    with connection:
        made = [
            add_coll(connection, spec, rng) if isinstance(spec, CollSpec) else add_session(connection, spec, rng)
            for spec in specs
        ]
    connection.close()
    return made
