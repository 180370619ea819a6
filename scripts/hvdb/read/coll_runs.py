"""Gives the rows that `hvd_bench coll --db` stored as runs, so that they are judged as trainings are.

A row is one collective, type, size and place on one side of a comparison. As a run its model is the row's name, its
batch one operation, and its step time the median over samples of the slowest rank's time of one operation. Each row is
a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvdb.read import coll_samples
from hvdb.read.coll_samples import CollSession
from hvdb.read.runs import OPERATIONS, Fact, Run

WRONG = "with wrong elements"  # the status of a row whose check failed
# The columns of a run that a row does not have.
_NONE: dict[str, Any] = {
    "origin": "measured",
    "phase": "full",
    "batch_size": 1,
    "image_size": 0,
    "auxiliary_head": 0,
    "schedule": "",
    "threads": 0,
    "seed": 0,
    "traced": 0,
    "warmup_steps": 0,
    "confidence": 0.95,
    "parameters": None,
    "gradient_bytes": None,
    "plan_hash": None,
    "final_loss": None,
    "checks": "",
}


def load(paths: Iterable[Path]) -> list[Run]:
    """Returns all rows that have a time, oldest first. Errors: StoreError."""
    return [
        _run(session, cell.columns)
        for session in coll_samples.load(paths)
        for cell in session.cells
        if cell.columns["seconds"] is not None
    ]


def row_name(cell: dict[str, Any]) -> str:
    """Returns the name of a row of coll_cell, such as "all_reduce float 1024 in place"."""
    reduction = [] if cell["reduction"] in ("sum", "none") else [cell["reduction"]]
    marks = [
        *(["in place"] if cell["in_place"] else []),
        *(["ragged"] if cell["ragged"] else []),
        *([] if cell["registered"] else ["plain memory"]),
    ]
    side = [cell["side"]] if cell["side"] else []  # of --compare; another algorithm alone is what a gate compares
    return " ".join([cell["operation"], cell["type"], *reduction, str(cell["bytes"]), *marks, *side])


def _run(session: CollSession, cell: dict[str, Any]) -> Run:
    whole = session.columns
    uuid = f"{whole['uuid']}-{cell['seq']}"
    columns = _NONE | {
        "uuid": uuid,
        "session_uuid": uuid,
        "status": WRONG if cell["wrong"] else whole["status"],
        "status_reason": whole["status_reason"],
        "started_utc": whole["started_utc"],
        "finished_utc": whole["finished_utc"],
        "model": row_name(cell),
        "device": whole["device"],
        "compute_type": cell["type"],
        "allreduce_type": cell["type"],
        "comm": whole["comm"],
        "data_plane": cell["data_plane"],
        "world_size": whole["ranks"],
        "allocation_size": whole["ranks"],
        "nodes": whole["nodes"],
        "batches_per_iter": cell["operations_per_sample"],
        "measured_steps": cell["samples"] * cell["operations_per_sample"],
        "stop_reason": cell["stop_reason"],
        "step_seconds": cell["seconds"],
        "step_seconds_low": cell["seconds_low"],
        "step_seconds_high": cell["seconds_high"],
        "images_per_second": 1 / cell["seconds"],
        "fingerprint": f"{whole['fingerprint']}-{cell['algorithm']}",  # a launch with --compare has several algorithms
    }
    facts = {"work.unit": Fact(OPERATIONS, True), "comm.algorithm": Fact(cell["algorithm"], True)}
    return Run(columns, {}, session.source, session.provenance | facts)
