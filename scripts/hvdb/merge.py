"""Merges stores into one. Idempotent: merging what is already there changes nothing, not even the file.

Inputs are opened read-only and checked whole. The output is written in one transaction (a new one under another
name first, renamed into place), so that a fault leaves it as it was.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdb import store
from hvdb.errors import NotComparable, StoreError

# A working file that changed this recently probably belongs to a job that still runs: it saves every few seconds.
ALIVE_SECONDS = 120.0
# One fixed text, so that merging the same leftover twice, or a copy of it, gives the same run.
LEFTOVER_REASON = "the job ended without closing its store"


@dataclass
class Rows:
    """The rows of one run, by table, in a fixed order; with where they came from."""

    tables: dict[str, list[dict[str, Any]]]
    source: Path

    def digest(self) -> str:
        """SHA-256 over all rows: equal digests mean equal contents."""
        state = hashlib.sha256()
        for table, rows in self.tables.items():
            for row in rows:
                state.update(repr((table, sorted(row.items()))).encode())
        return state.hexdigest()


@dataclass
class Content:
    """What a store holds: sessions and runs by UUID."""

    sessions: dict[str, Rows] = field(default_factory=dict)
    runs: dict[str, Rows] = field(default_factory=dict)

    def add(self, other: Content) -> None:
        """Takes over what is new. Errors: NotComparable where one UUID has two contents."""
        for mine, theirs, what in ((self.sessions, other.sessions, "session"), (self.runs, other.runs, "run")):
            for uuid, rows in theirs.items():
                known = mine.setdefault(uuid, rows)
                if known.digest() != rows.digest():
                    raise NotComparable(
                        f"{what} {uuid} stands in {known.source} and in {rows.source} with two contents; "
                        "one of them was changed after it was measured. Nothing was merged: leave one out"
                    )


@dataclass(frozen=True)
class Outcome:
    """What a merge did: counts of runs, and lines to print."""

    added: int
    present: int
    incomplete: int
    notes: list[str]


def read(path: Path) -> Content:
    """All rows of one store. A run that is still 'running' becomes 'incomplete': its job is gone.

    Errors: StoreError if the file is no whole store of our schema.
    """
    content = Content()
    with store.open_readonly(path) as connection:
        for row in connection.execute("SELECT * FROM session"):
            content.sessions[row["uuid"]] = Rows({"session": [dict(row)]}, path)
        for row in connection.execute("SELECT * FROM run"):
            run = dict(row)
            if run["status"] == "running":
                run["status"], run["status_reason"] = "incomplete", LEFTOVER_REASON
            tables = {"run": [run]}
            for table, order in store.CHILD_TABLES.items():
                found = connection.execute(f"SELECT * FROM {table} WHERE run_uuid = ? ORDER BY {order}", (run["uuid"],))
                tables[table] = [dict(child) for child in found]
            content.runs[run["uuid"]] = Rows(tables, path)
    return content


def with_leftovers(inputs: Sequence[Path], now: float | None = None) -> tuple[list[Path], list[str]]:
    """`inputs` and the `.partial` files that killed jobs left beside them; and a note per leftover.

    A leftover that changed within the last two minutes is left alone unless it is among `inputs` by name.
    """
    now = time.time() if now is None else now
    found = list(dict.fromkeys(inputs))
    notes = []
    for path in inputs:
        if store.is_partial(path):
            continue
        for leftover in sorted(path.parent.glob(f"{path.name}.*.partial")):
            if leftover in found:
                continue
            if now - leftover.stat().st_mtime < ALIVE_SECONDS:
                notes.append(f"{leftover}: changed just now, its job may still run: left out (name it to take it)")
            else:
                found.append(leftover)
                notes.append(f"{leftover}: taken along")
    return found, notes


def merge(output: Path, inputs: Iterable[Path]) -> Outcome:
    """Adds all runs of `inputs` to `output`, which is made if it is not there.

    Errors: StoreError (unreadable, damaged, unknown schema, not writable, locked), NotComparable (one UUID with
    two contents). After an error the output is unchanged.
    """
    inputs, notes = with_leftovers(list(inputs))
    for path in inputs:
        if path.resolve() == output.resolve():
            raise StoreError(f"{path}: is the output as well; name only the stores to add")
    merged = read(output) if output.exists() else Content()
    before = set(merged.runs)
    sessions_before = set(merged.sessions)
    seen: set[str] = set()
    for path in inputs:
        content = read(path)
        merged.add(content)
        seen |= set(content.runs)
    new_runs = [merged.runs[uuid] for uuid in merged.runs if uuid not in before]
    new_sessions = [merged.sessions[uuid] for uuid in merged.sessions if uuid not in sessions_before]
    if new_runs or new_sessions or not output.exists():
        _write(output, new_sessions, new_runs)
    incomplete = sum(rows.tables["run"][0]["status"] == "incomplete" for rows in new_runs)
    return Outcome(len(new_runs), len(seen & before), incomplete, notes)


def _write(output: Path, sessions: list[Rows], runs: list[Rows]) -> None:
    fresh = not output.exists()
    target = output.with_name(f"{output.name}.{os.getpid()}.merging") if fresh else output
    connection = None
    try:
        connection = store.create(target) if fresh else sqlite3.connect(target, timeout=10.0)
        connection.execute("PRAGMA foreign_keys = ON")
        with connection:
            sessions.sort(key=lambda rows: _age(rows, "session"))
            for rows in sessions + sorted(runs, key=lambda rows: _age(rows, "run")):
                _insert(connection, rows)
        connection.close()
        if fresh:
            target.replace(output)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        if fresh:
            target.unlink(missing_ok=True)
        raise StoreError(
            f"{output}: cannot be written: {error}; check that the folder is writable, has space, and that no "
            "other program holds the file"
        ) from error


def _age(rows: Rows, table: str) -> tuple[str, str]:
    return rows.tables[table][0]["started_utc"], rows.tables[table][0]["uuid"]


def _insert(connection: sqlite3.Connection, rows: Rows) -> None:
    for table, members in rows.tables.items():
        for row in members:
            names = ", ".join(row)
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
