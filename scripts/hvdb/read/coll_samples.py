"""Reads the samples of collectives from stores of `hvd_bench coll --db`. Opening a store checks their values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.read import schema, store
from hvdb.read.runs import Fact

SHORTEST = 1e-9  # seconds; a time that no clock can tell is stored as 0
MIN_CLOCKS = 5  # a time from one host's clock to another's must be so many times their error


@dataclass(frozen=True)
class SampledCell:
    """A row of coll_cell with its samples, float64, in seconds, shape (samples,).

    They are the times from the arrival of the last rank to the end of the last one, because ranks that begin at unlike
    times measure their wait, too: an exchange of two ranks takes one latency, but the rank that came one latency early
    takes two. Where the clocks of a session's hosts do not tell these times, they are those of the slowest rank.
    """

    columns: dict[str, Any]
    samples: np.ndarray


@dataclass
class CollSession:
    """A row of coll_session, with the rows of other tables that belong to it. from_last_arrival: what its samples are,
    see SampledCell. source: the store."""

    columns: dict[str, Any]
    source: Path
    provenance: dict[str, Fact] = field(default_factory=dict)
    from_last_arrival: bool = True
    cells: list[SampledCell] = field(default_factory=list)


def load(paths: Iterable[Path]) -> list[CollSession]:
    """Returns the sessions of all stores, oldest first. One that is in several stores is returned once. Stores without
    results of collectives are passed over. Errors: StoreError."""
    found: dict[str, CollSession] = {}
    for path in paths:
        with store.open_readonly(path) as connection:
            if schema.COLL not in schema.records(connection):
                continue
            for row in connection.execute("SELECT * FROM coll_session"):
                uuid = row["uuid"]
                if uuid in found:
                    continue
                session = found[uuid] = CollSession(dict(row), path)
                for fact in connection.execute("SELECT * FROM coll_provenance WHERE session_uuid = ?", (uuid,)):
                    session.provenance[fact["key"]] = Fact(fact["value"], bool(fact["in_fingerprint"]))
                blobs = connection.execute(
                    "SELECT seq, kind, data FROM coll_sample WHERE session_uuid = ? "
                    "AND kind IN ('seconds', 'transfer_seconds')",
                    (uuid,),
                )
                samples = {(blob["seq"], blob["kind"]): np.frombuffer(blob["data"], dtype="<f8") for blob in blobs}
                cells = [
                    dict(cell)
                    for cell in connection.execute(
                        "SELECT * FROM coll_cell WHERE session_uuid = ? ORDER BY seq", (uuid,)
                    )
                ]
                session.from_last_arrival = all(
                    (transfer := samples.get((cell["seq"], "transfer_seconds"), np.empty(0))).size
                    and transfer.min() > 0
                    and np.median(transfer) >= MIN_CLOCKS * row["clock_seconds"] / cell["operations_per_sample"]
                    for cell in cells
                )
                kind = "transfer_seconds" if session.from_last_arrival else "seconds"
                for cell in cells:
                    taken = np.maximum(samples.get((cell["seq"], kind), np.empty(0)), SHORTEST)
                    session.cells.append(SampledCell(cell, taken))
    return sorted(found.values(), key=lambda session: (session.columns["started_utc"], session.columns["uuid"]))
