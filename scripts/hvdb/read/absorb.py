"""Copies runs, and sessions of collectives, from one attached store into another attached store, in SQL.

The functions report which rows are new, already in the target store or in conflict with its rows. merge.py opens the
files, commits and rolls back. Rows never pass through Python, so that memory does not grow with the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hvdb.base.errors import NotComparable
from hvdb.base.sqlite import sqlite3
from hvdb.read import schema
from hvdb.read.schema import RUN, Record

# The text is the same in every merge, so that merging a leftover store twice, or a copy of it, gives the same run.
LEFTOVER_REASON = "the job ended without closing its store"
# Columns of a run whose values change between the first save and the last save of the run. All other columns say what
# was measured.
PROGRESS_COLUMNS = frozenset(
    {
        "status",
        "status_reason",
        "finished_utc",
        "data_plane",
        "warmup_steps",
        "measured_steps",
        "stop_reason",
        "step_seconds",
        "step_seconds_low",
        "step_seconds_high",
        "images_per_second",
        "images_per_second_low",
        "images_per_second_high",
        "flops_per_image",
        "plan_hash",
        "buckets",
        "final_loss",
        "checks",
        "fingerprint",
    }
)


@dataclass
class Taken:
    """The UUIDs of the records and sessions that absorb() has handled in one store.

    added: table -> UUIDs of new records. present: table -> UUIDs of records that were already stored.
    superseded: runs whose unfinished state was replaced by a later state. sessions: sessions that were copied.
    """

    added: dict[str, list[str]] = field(default_factory=lambda: {record.table: [] for record in schema.RECORDS})
    present: dict[str, list[str]] = field(default_factory=lambda: {record.table: [] for record in schema.RECORDS})
    superseded: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def copied(self) -> list[str]:
        """Returns the runs and sessions that were copied."""
        return [*(uuid for uuids in self.added.values() for uuid in uuids), *self.superseded, *self.sessions]


@dataclass(frozen=True)
class Place:
    """An attached store. file_of: UUID of a record in the store -> the file that the record came from, for messages."""

    database: str
    file_of: Callable[[str], str]


def _stage(connection: sqlite3.Connection, incoming: str, record: Record) -> None:
    """Makes the table temp.staged: the rows of `incoming` as they will be stored. Replaces the previous temp.staged.

    A run that is still 'running' becomes 'incomplete', because its job has ended.
    """
    shown = {column: column for column in schema.columns()[record.table]}
    shown["status"] = "CASE status WHEN 'running' THEN 'incomplete' ELSE status END"
    shown["status_reason"] = f"CASE status WHEN 'running' THEN '{LEFTOVER_REASON}' ELSE status_reason END"
    listed = ", ".join(f"{sql} AS {column}" for column, sql in shown.items())
    connection.execute("DROP TABLE IF EXISTS temp.staged")
    connection.execute(f"CREATE TEMP TABLE staged AS SELECT {listed} FROM {incoming}.{record.table}")


def _require_same_sessions(connection: sqlite3.Connection, incoming: Place, known: Place) -> None:
    differs = " OR ".join(f"mine.{column} IS NOT theirs.{column}" for column in schema.columns()["session"])
    row = connection.execute(
        f"SELECT uuid FROM {known.database}.session mine JOIN {incoming.database}.session theirs USING (uuid)"
        f" WHERE {differs}"
    ).fetchone()
    if row is not None:
        raise _conflict("session", row[0], incoming, known)


def _conflict(what: str, uuid: str, incoming: Place, known: Place) -> NotComparable:
    return NotComparable(
        f"{what} {uuid} has different contents in {known.file_of(uuid)} and in {incoming.file_of(uuid)}; one of "
        "them was changed after it was measured. Nothing was merged: leave one out"
    )


def _equal(connection: sqlite3.Connection, incoming: str, known: str, record: Record, uuid: str) -> bool:
    """Returns True if all rows of the record `uuid` are equal in both databases. Compares whole blobs, in SQL."""
    compared = " AND ".join(f"mine.{column} IS theirs.{column}" for column in schema.columns()[record.table])
    query = (
        f"SELECT {compared} FROM {known}.{record.table} mine, temp.staged theirs"
        " WHERE mine.uuid = ?1 AND theirs.uuid = ?1"
    )
    if not connection.execute(query, (uuid,)).fetchone()[0]:
        return False
    for table, key in record.children.items():
        match = " AND ".join(f"mine.{column} IS theirs.{column}" for column in schema.columns()[table])
        keys = " AND ".join(f"mine.{column} = theirs.{column}" for column in (record.key, *key.split(", ")))
        mine, theirs, both = connection.execute(
            f"SELECT (SELECT count(*) FROM {known}.{table} WHERE {record.key} = ?1),"
            f" (SELECT count(*) FROM {incoming}.{table} WHERE {record.key} = ?1),"
            f" (SELECT count(*) FROM {incoming}.{table} theirs CROSS JOIN {known}.{table} mine ON {keys}"
            f"  WHERE theirs.{record.key} = ?1 AND {match})",
            (uuid,),
        ).fetchone()
        if not mine == theirs == both:
            return False
    return True


def _judge(connection: sqlite3.Connection, incoming: Place, known: Place, record: Record, uuid: str) -> str:
    """Returns 'present' or 'superseded' for a record that both stores have. Errors: NotComparable if they conflict.

    A run can be stored twice, once unfinished (in a leftover store) and once in a later state. These two states do not
    conflict. The finished state is kept. If both states are unfinished, the state with more steps is kept.
    A stored session of collectives never changes.
    """
    if _equal(connection, incoming.database, known.database, record, uuid):
        return "present"
    if record is not RUN:
        raise _conflict(record.noun, uuid, incoming, known)
    same = " AND ".join(f"mine.{c} IS theirs.{c}" for c in schema.columns()["run"] if c not in PROGRESS_COLUMNS)
    unfinished = "{0}.status = 'incomplete' AND {0}.status_reason = ?2"
    one_run, mine_open, theirs_open, more_steps = connection.execute(
        f"SELECT {same}, {unfinished.format('mine')}, {unfinished.format('theirs')},"
        " theirs.measured_steps + theirs.warmup_steps - mine.measured_steps - mine.warmup_steps"
        f" FROM {known.database}.run mine, temp.staged theirs WHERE mine.uuid = ?1 AND theirs.uuid = ?1",
        (uuid, LEFTOVER_REASON),
    ).fetchone()
    if one_run and theirs_open and (not mine_open or more_steps < 0):
        return "present"
    if one_run and mine_open and (not theirs_open or more_steps > 0):
        return "superseded"
    raise _conflict("run", uuid, incoming, known)


def absorb(connection: sqlite3.Connection, incoming: Place, present: Sequence[Place]) -> Taken:
    """Copies into 'main' the records of `incoming` that none of `present` has.

    present: first 'main', then stores whose records are only compared and not copied into 'main'. The caller opens a
    transaction, and rolls it back after an error. Errors: NotComparable; sqlite3.Error.
    """
    for known in present:
        _require_same_sessions(connection, incoming, known)
    taken = Taken(sessions=_copy_sessions(connection, incoming.database, present))
    for record in schema.records(connection, incoming.database):
        _stage(connection, incoming.database, record)
        for (uuid,) in connection.execute("SELECT uuid FROM temp.staged ORDER BY started_utc, uuid").fetchall():
            verdict = _find(connection, incoming, present, record, uuid)
            if verdict == "superseded":
                taken.superseded.append(uuid)
            else:
                (taken.present if verdict == "present" else taken.added)[record.table].append(uuid)
            if verdict != "present":
                schema.make_tables(connection, record.version)
                _copy(connection, incoming.database, record, uuid)
    return taken


def _find(connection: sqlite3.Connection, incoming: Place, present: Sequence[Place], record: Record, uuid: str) -> str:
    """Returns 'added' if the record is new, otherwise the result of _judge(). Deletes a superseded run from 'main'."""
    for known in present:
        if record not in schema.records(connection, known.database):
            continue
        if connection.execute(f"SELECT 1 FROM {known.database}.{record.table} WHERE uuid = ?", (uuid,)).fetchone():
            verdict = _judge(connection, incoming, known, record, uuid)
            if verdict == "superseded" and known.database == "main":
                _delete(connection, record, uuid)
            return verdict  # a record in 'main' was compared with the other stores when it was copied into 'main'
    return "added"


def _delete(connection: sqlite3.Connection, record: Record, uuid: str) -> None:
    for table in record.children:
        connection.execute(f"DELETE FROM main.{table} WHERE {record.key} = ?", (uuid,))
    connection.execute(f"DELETE FROM main.{record.table} WHERE uuid = ?", (uuid,))


def _copy_sessions(connection: sqlite3.Connection, incoming: str, present: Sequence[Place]) -> list[str]:
    there = " AND ".join(f"uuid NOT IN (SELECT uuid FROM {known.database}.session)" for known in present)
    new = [row[0] for row in connection.execute(f"SELECT uuid FROM {incoming}.session WHERE {there}")]
    for uuid in new:
        connection.execute(_copying("session", f"{incoming}.session", "uuid"), (uuid,))
    return new


def _copy(connection: sqlite3.Connection, incoming: str, record: Record, uuid: str) -> None:
    connection.execute(_copying(record.table, "temp.staged", "uuid"), (uuid,))
    for table in record.children:
        connection.execute(_copying(table, f"{incoming}.{table}", record.key), (uuid,))


def _copying(table: str, source: str, key: str) -> str:
    names = ", ".join(schema.columns()[table])
    return f"INSERT INTO main.{table} ({names}) SELECT {names} FROM {source} WHERE {key} = ?"
