"""Reads from a campaign's stores which cells are done and how long launches took. Writes nothing.

A cell is done if a session has the cell's hash (provenance 'label.cell') and every run of this session is complete and
neither traced nor profiled, because no table of a campaign takes traced or profiled runs. A run that replayed another
recording ('replay.profile') than the campaign planned ('label.replay') is not done either.
Job scripts ask `hvd_bench stored cell FILE...`, which applies the same rule. tests/slurm compares both implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from hvdb.base import progress
from hvdb.base.errors import CampaignError, StoreError
from hvdb.base.sqlite import sqlite3
from hvdb.campaign.plan import Pilot, PilotKey
from hvdb.read import store, untrusted

Result = TypeVar("Result")

KEY = "label.cell"
# Limit on the processor time of the queries to one store. The queries to a large store need a hundredth of this time.
QUERY_SECONDS = 60.0

SESSIONS = """
SELECT fact.value
FROM run JOIN provenance AS fact ON fact.run_uuid = run.uuid AND fact.key = ?
GROUP BY run.session_uuid, fact.value
HAVING sum(run.status <> 'complete' OR run.traced <> 0 OR EXISTS (
  SELECT 1 FROM provenance AS planned JOIN provenance AS played ON played.run_uuid = planned.run_uuid
  WHERE planned.run_uuid = run.uuid AND planned.key = 'label.replay' AND played.key = 'replay.profile'
    AND planned.value <> played.value)) = 0
"""

LAUNCHES = """
SELECT model, batch_size, compute_type, max(allocation_size) > 1, min(started_utc), max(finished_utc)
FROM run WHERE origin = 'measured'
GROUP BY session_uuid
HAVING sum(status <> 'complete' OR traced <> 0) = 0
"""


def _query(path: Path, query: Callable[[sqlite3.Connection], Result]) -> Result:
    """Runs `query` on the store `path`. Checks the store's header and tables, not its values. Errors: StoreError."""
    with store.open_readonly(path, thorough=False) as connection, untrusted.deadline(connection, QUERY_SECONDS):
        return query(connection)


def of_campaign(folder: Path) -> list[Path]:
    """Returns the stores in `folder`, and the stores that killed jobs left there unfinished."""
    return sorted(path for pattern in ("*.db", "*.partial") for path in folder.glob(pattern))


def held(paths: Sequence[Path], step: progress.Step = progress.silent) -> tuple[set[str], list[str]]:
    """Returns the hashes of all done cells in `paths`, and a line for each unreadable file.

    Cells in an unreadable file do not count as done. step: called with (files done, number of files) after each file.
    """
    cells: set[str] = set()
    notes = []
    for done, path in enumerate(paths, 1):
        try:
            rows = _query(path, lambda opened: opened.execute(SESSIONS, (KEY,)).fetchall())
            cells |= {row[0] for row in rows if isinstance(row[0], str)}
        except StoreError as fault:
            if path.exists():  # a missing file is no fault: the job that wrote the file has just renamed it
                notes.append(f"{fault}; its cells count as lacking")
        step(done, len(paths))
    return cells, notes


def _seconds(path: Path, first: object, last: object) -> float:
    """Returns the seconds between two times; below 0 if the clock was set back. Errors: StoreError if not times."""
    try:
        return (datetime.fromisoformat(str(last)) - datetime.fromisoformat(str(first))).total_seconds()
    except (ValueError, TypeError, OverflowError):
        raise StoreError(f"{path}: damaged: a session has no start and end in UTC") from None


def pilot(paths: Iterable[Path]) -> Pilot:
    """Returns the longest time that each kind of launch took in the stores `paths`. Errors: CampaignError."""
    found: dict[PilotKey, float] = {}
    notes = []
    for path in paths:
        try:
            rows = _query(path, lambda opened: opened.execute(LAUNCHES).fetchall())
            launches = [(PilotKey(*row[:3], bool(row[3])), _seconds(path, *row[4:])) for row in rows]
        except StoreError as fault:
            raise CampaignError(f"--pilot {fault}; give a store of runs that ended well") from None
        for key, seconds in launches:
            if seconds < 0:
                notes.append(f"{path}: a launch ended before it began: its host's clock was set back; not counted")
                continue
            found[key] = max(found.get(key, 0.0), seconds)
    if not found:
        why = "; ".join(["--pilot: the stores hold no complete launch", *notes[:1]])
        raise CampaignError(f"{why}; submit the smallest job first")
    return Pilot(found, tuple(notes))
