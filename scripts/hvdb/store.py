"""Opens a store file read-only, after checking that it is one, that it is whole and that we know its schema."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdb.errors import StoreError

APPLICATION_ID = 0x68766462  # 'hvdb'
SCHEMA_VERSION = 1
SCHEMA_FILE = Path(__file__).resolve().parents[2] / "results" / "schema.sql"
SQLITE_MAGIC = b"SQLite format 3\x00"
# Tables that belong to one run, with the columns that order their rows.
CHILD_TABLES = {
    "provenance": "key",
    "rank": "rank",
    "sample": "rank, kind",
    "decomposition": "component",
    "operation": "seq",
}


def is_partial(path: Path) -> bool:
    """True for `<store>.<session uuid>.partial`, the working file of a job that has not published its runs."""
    return path.suffix == ".partial"


def _require_store_file(path: Path) -> None:
    if not path.exists():
        raise StoreError(f"{path}: no such file")
    if not path.is_file():
        raise StoreError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if not head:
        raise StoreError(f"{path}: empty file; the job ended before it wrote anything, so leave it out")
    if head != SQLITE_MAGIC:
        raise StoreError(f"{path}: not an SQLite file")


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError unless `connection` holds a whole store of a schema that we know.

    Checks application_id, user_version, integrity, foreign keys, in this order.
    """
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise StoreError(f"{path}: a database of another program (application_id {application:#x})")
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version}, this program knows {SCHEMA_VERSION}; "
                "read it with the scripts of the version that wrote it"
            )
        faults = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if faults != ["ok"]:
            raise StoreError(f"{path}: damaged: {'; '.join(faults)}; leave it out or restore a copy")
        orphan = connection.execute("PRAGMA foreign_key_check").fetchone()
        if orphan is not None:
            raise StoreError(f"{path}: damaged: a row of table '{orphan[0]}' belongs to no run")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: damaged: {error}; leave it out or restore a copy") from error


@contextmanager
def open_readonly(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Yields a checked connection that cannot write. The file itself is never touched.

    A job killed in the middle of a write leaves `<file>-journal`. SQLite must roll that back before it can
    read, which is a write: then, and only then, a private copy of both files is opened instead.
    Errors: StoreError.
    """
    path = Path(path)
    _require_store_file(path)
    journal = path.with_name(path.name + "-journal")
    with tempfile.TemporaryDirectory(prefix="hvdb-") as scratch:
        opened = path
        mode = "ro"
        if journal.exists() and journal.stat().st_size > 0:
            opened = Path(scratch) / path.name
            shutil.copyfile(path, opened)
            shutil.copyfile(journal, opened.with_name(opened.name + "-journal"))
            mode = "rw"
        connection = sqlite3.connect(f"{opened.resolve().as_uri()}?mode={mode}", uri=True, timeout=10.0)
        try:
            connection.row_factory = sqlite3.Row
            check(connection, path)
            connection.execute("PRAGMA query_only = ON")
            yield connection
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path}: {error}") from error
        finally:
            connection.close()


def create(path: Path) -> sqlite3.Connection:
    """A new, empty store at `path`, which must not exist. The caller closes the connection."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    connection.executescript(SCHEMA_FILE.read_text(encoding="utf-8"))
    return connection
