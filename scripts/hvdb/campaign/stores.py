"""What the stores of a campaign hold: which cells are done, and how long launches took. Read-only.

A cell is held when some session carries its hash (provenance 'label.cell') and every run of that session is complete.
`hvd_bench stored cell FILE...` says the same inside a job; tests/slurm compares the two.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from hvdb import progress, untrusted
from hvdb.campaign.errors import CampaignError
from hvdb.campaign.timing import Pilot, PilotKey

Result = TypeVar("Result")

MAGIC = b"SQLite format 3\x00"
KEY = "label.cell"
# Processor time that the questions to one store may take; a large one takes a hundredth of it.
QUERY_SECONDS = 60.0

SESSIONS = """
SELECT fact.value
FROM run JOIN provenance AS fact ON fact.run_uuid = run.uuid AND fact.key = ?
GROUP BY run.session_uuid, fact.value
HAVING sum(run.status <> 'complete') = 0
"""

LAUNCHES = """
SELECT model, batch_size, compute_type, max(allocation_size) > 1, min(started_utc), max(finished_utc)
FROM run WHERE origin = 'measured'
GROUP BY session_uuid
HAVING sum(status <> 'complete') = 0
"""


class Unreadable(Exception):
    """Why a file is not a store that can be read."""


def _version(path: Path) -> int:
    """The schema version in the file's header. Errors: Unreadable unless it is one that we know; OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise Unreadable("not a file")  # a pipe would be waited for
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        raise Unreadable("empty: its job ended before it wrote anything")
    if len(header) < 100 or not header.startswith(MAGIC):
        raise Unreadable("not an SQLite file, or only the beginning of one")
    # Layout: https://www.sqlite.org/fileformat.html, "The Database Header".
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if application != untrusted.APPLICATION_ID:
        raise Unreadable("a database of another program")
    if why := untrusted.unknown_version(version):
        raise Unreadable(why)
    if header[18:20] != b"\x01\x01":  # to read a write-ahead log makes files beside it
        raise Unreadable("damaged: not in the journal mode that hvd_bench writes")
    return version


def _query(path: Path, query: Callable[[sqlite3.Connection], Result]) -> Result:
    """`query` on the store `path`, which is never written to.

    A job that was killed in the middle of a write leaves a journal, which SQLite rolls back before it reads, and a
    living job writes its `.partial` without locks: with a journal beside it, a private copy is read.
    """
    try:
        version = _version(path)
        journal = untrusted.journal_of(path)
        if why := untrusted.journal_fault(journal):
            raise Unreadable(f"its journal {why}")
        with tempfile.TemporaryDirectory(prefix="hvd-campaign-") as scratch:
            opened, mode = path, "ro"
            if journal.exists() and journal.stat().st_size > 0:
                opened, mode = Path(scratch) / path.name, "rw"
                # The file first: the journal, copied later, then covers every page that was being changed.
                shutil.copyfile(path, opened)
                copied = untrusted.journal_of(opened)
                shutil.copyfile(journal, copied)
                if why := untrusted.journal_fault(copied):
                    raise Unreadable(f"its journal {why}")
            connection = sqlite3.connect(f"{opened.resolve().as_uri()}?mode={mode}", uri=True, timeout=5.0)
            try:
                untrusted.harden(connection)
                with untrusted.deadline(connection, QUERY_SECONDS):
                    if why := untrusted.table_fault(connection, version):
                        raise Unreadable(why)
                    return query(connection)
            finally:
                connection.close()
    except untrusted.DAMAGE as error:
        raise Unreadable(f"damaged, or being written: {untrusted.in_words(error)}") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None


def of_campaign(folder: Path) -> list[Path]:
    """The stores in `folder`, and what killed jobs left beside them."""
    return sorted(path for pattern in ("*.db", "*.partial") for path in folder.glob(pattern))


def held(paths: Sequence[Path], step: progress.Step = progress.silent) -> tuple[set[str], list[str]]:
    """The hashes of all cells that `paths` hold, and a line per file that cannot be read (its cells do not count).

    step: called with (files done, files in all) after each file.
    """
    cells: set[str] = set()
    notes = []
    for done, path in enumerate(paths, 1):
        try:
            rows = _query(path, lambda store: store.execute(SESSIONS, (KEY,)).fetchall())
            cells |= {row[0] for row in rows if isinstance(row[0], str)}
        except Unreadable as fault:
            if path.exists():  # else its job has just renamed it
                notes.append(f"{path}: {fault}; its cells count as lacking")
        step(done, len(paths))
    return cells, notes


def _seconds(first: object, last: object) -> float:
    """Errors: Unreadable where these are no two points in time, the second not before the first."""
    try:
        seconds = _between(str(first), str(last))
    except (ValueError, TypeError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise Unreadable("damaged: a session has no start and end in UTC")
    return seconds


def _between(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def pilot(paths: Iterable[Path]) -> Pilot:
    """How long the launches in `paths` took, the longest for each kind. Errors: CampaignError."""
    found: dict[PilotKey, float] = {}
    for path in paths:
        try:
            rows = _query(path, lambda store: store.execute(LAUNCHES).fetchall())
            launches = [(PilotKey(*row[:3], bool(row[3])), _seconds(*row[4:])) for row in rows]
        except Unreadable as fault:
            raise CampaignError(f"--pilot {path}: {fault}; give a store of runs that ended well") from None
        for key, seconds in launches:
            found[key] = max(found.get(key, 0.0), seconds)
    if not found:
        raise CampaignError("--pilot: the stores hold no complete launch; submit the smallest job first")
    return Pilot(found)
