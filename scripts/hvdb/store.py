"""Opens a store file read-only, after checking that it is one, that it is whole and that we know its schema."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
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
TABLES = ("session", "run", *CHILD_TABLES)
# How long a reader waits for a program that is just writing the file.
WAIT_SECONDS = 10.0


class InUse(StoreError):
    """Another program holds the file: a job that still runs."""


@dataclass(frozen=True)
class Header:
    """What the first 100 bytes of a store say. `bytes`: the size that the file should have, 0 if it does not say."""

    application_id: int
    version: int
    bytes: int


def is_partial(path: Path) -> bool:
    """True for `<store>.<session uuid>.partial`, the working file of a job that has not published its runs."""
    return path.suffix == ".partial"


def is_database(path: Path) -> bool:
    """True for a file that begins as an SQLite file does. Errors: OSError if it is there and cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def read_header(path: Path) -> Header:
    """The header of an SQLite file. Never call it while this process has the file open: closing a file drops the
    POSIX locks that SQLite holds on it.

    Errors: StoreError if there is no such file, or it is empty, unreadable or not an SQLite file.
    Source: https://www.sqlite.org/fileformat.html, "The Database Header".
    """
    if not path.exists():
        raise StoreError(f"{path}: no such file")
    if not path.is_file():
        raise StoreError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if not head:
        raise StoreError(f"{path}: empty file; the job ended before it wrote anything, so leave it out")
    if head[: len(SQLITE_MAGIC)] != SQLITE_MAGIC:
        raise StoreError(f"{path}: not an SQLite file")
    if len(head) < 100:
        raise StoreError(f"{path}: damaged: {len(head)} bytes only; leave it out or restore a copy")

    def number(offset: int, size: int = 4) -> int:
        return int.from_bytes(head[offset : offset + size], "big")

    page = 65536 if number(16, 2) == 1 else number(16, 2)
    sized = number(24) == number(92)  # else an old library wrote it, and the page count is not to be trusted
    return Header(number(68), number(60), page * number(28) if sized else 0)


def require_ours(path: Path) -> None:
    """Reads the header only, so that a thousand files are looked through in no time.

    Errors: StoreError unless `path` is a store of a schema that we know, and as long as it says.
    """
    header = read_header(path)
    _require_known(header.application_id, header.version, path)
    seen = state(path)
    if seen is None:
        raise StoreError(f"{path}: no such file")  # renamed just now
    size = seen[1]
    if size < header.bytes and not _journal(path).exists():
        raise StoreError(
            f"{path}: half-written or damaged: {size} of {header.bytes} bytes; "
            "wait until it is copied whole, or leave it out"
        )


def _require_known(application_id: int, version: int, path: Path) -> None:
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path}: a database of another program (application_id {application_id:#x})")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: schema version {version}, this program knows {SCHEMA_VERSION}; "
            "read it with the scripts of the version that wrote it"
        )


@cache
def columns() -> dict[str, tuple[str, ...]]:
    """Table -> its columns, as results/schema.sql has them."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(SCHEMA_FILE.read_text(encoding="utf-8"))
        return {table: _columns(connection, "main", table) for table in TABLES}
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection, database: str, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in connection.execute(f"PRAGMA {database}.table_info({table})"))


def check(connection: sqlite3.Connection, path: Path, database: str = "main") -> None:
    """Raises StoreError unless `database` of `connection`, which is `path`, holds a whole store of our schema.

    Checks application_id, user_version, tables, integrity (CHECK constraints too), foreign keys, in this order.
    """
    try:
        (application,) = connection.execute(f"PRAGMA {database}.application_id").fetchone()
        (version,) = connection.execute(f"PRAGMA {database}.user_version").fetchone()
        _require_known(application, version, path)
        _check_tables(connection, path, database)
        faults = [row[0] for row in connection.execute(f"PRAGMA {database}.integrity_check(3)")]
        if faults != ["ok"]:
            raise StoreError(f"{path}: damaged: {'; '.join(faults)}; leave it out or restore a copy")
        orphan = connection.execute(f"PRAGMA {database}.foreign_key_check").fetchone()
        if orphan is not None:
            raise StoreError(f"{path}: damaged: a row of table '{orphan[0]}' belongs to no run")
    except sqlite3.DatabaseError as error:
        raise fault(path, error) from error


def _check_tables(connection: sqlite3.Connection, path: Path, database: str) -> None:
    known = columns()
    found = connection.execute(f"SELECT name, type FROM {database}.sqlite_schema WHERE type <> 'index'")
    kinds = {name: kind for name, kind in found if not name.startswith("sqlite_")}
    for name, kind in kinds.items():
        if name not in known or kind != "table":
            raise StoreError(f"{path}: holds a {kind} '{name}', which schema version {SCHEMA_VERSION} has not")
    for table, expected in known.items():
        if table not in kinds:
            raise StoreError(f"{path}: damaged: its table '{table}' is missing")
        if _columns(connection, database, table) != expected:
            raise StoreError(f"{path}: its table '{table}' has not the columns of schema version {SCHEMA_VERSION}")


def fault(path: Path, error: sqlite3.Error) -> StoreError:
    """What SQLite says of `path`, as an error of ours with the way out."""
    text = str(error)
    if _needs_rollback(error):
        return changed(path)  # opened without a journal, and now there is one: somebody began to write
    if "locked" in text or "busy" in text:
        return InUse(f"{path}: in use ({text}): its job still writes; try again when it has ended")
    if "unable to open" in text:
        return StoreError(f"{path}: cannot be opened: {text}; check its permissions")
    return StoreError(f"{path}: damaged: {text}; leave it out or restore a copy")


def changed(path: Path) -> InUse:
    """The error for a file that somebody wrote to while it was read."""
    return InUse(f"{path}: changed while it was read; try again when its job has ended")


def state(path: Path) -> tuple[int, int, int] | None:
    """What differs as soon as anybody writes to the file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def _needs_rollback(error: sqlite3.Error) -> bool:
    # SQLITE_READONLY_ROLLBACK: a hot journal, which a read-only connection cannot roll back.
    name = getattr(error, "sqlite_errorname", None)  # from Python 3.11 on
    return name == "SQLITE_READONLY_ROLLBACK" if name else "readonly database" in str(error)


@contextmanager
def _readable(path: Path, open_it: Callable[[str], None]) -> Iterator[None]:
    """Calls open_it(URI) for `path`, read-only; the file itself is never touched.

    A job killed in the middle of a write leaves a hot journal. SQLite must roll that back before it can read, which
    is a write: then, and only then, a private copy of both files is opened instead. SQLite itself tells a hot
    journal from that of a program that is just writing: by the locks. A job that still runs takes none on its own
    working file (cluster file systems may have none), so a copy counts only if nothing changed while it was made.
    """
    with ExitStack() as stack:
        try:
            open_it(f"{path.resolve().as_uri()}?mode=ro")
        except sqlite3.OperationalError as error:
            if not _needs_rollback(error):
                raise fault(path, error) from error
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvdb-"))) / path.name
            before = state(path), state(_journal(path))
            try:
                shutil.copyfile(path, copy)
                shutil.copyfile(_journal(path), _journal(copy))
            except FileNotFoundError as gone:
                raise changed(path) from gone
            if (state(path), state(_journal(path))) != before:
                raise changed(path) from error
            try:
                open_it(f"{copy.as_uri()}?mode=rw")
            except sqlite3.DatabaseError as second:
                raise fault(path, second) from second
        except sqlite3.DatabaseError as error:
            raise fault(path, error) from error
        yield


@contextmanager
def open_readonly(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Yields a checked connection that cannot write. The file itself is never touched.

    Errors: StoreError; InUse if another program holds the file for longer than WAIT_SECONDS.
    """
    path = Path(path)
    require_ours(path)
    connection = None

    def connect(uri: str) -> None:
        nonlocal connection
        if connection is not None:
            connection.close()
        connection = sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # takes the lock, meets a hot journal

    try:
        with _readable(path, connect):
            connection.row_factory = sqlite3.Row
            # one snapshot for the check and for what is read after it
            connection.isolation_level = None
            connection.execute("BEGIN")
            check(connection, path)
            connection.execute("PRAGMA query_only = ON")
            yield connection
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}") from error
    finally:
        if connection is not None:
            connection.close()


@contextmanager
def attached(
    connection: sqlite3.Connection, path: Path, name: str, wait_seconds: float = WAIT_SECONDS
) -> Iterator[Callable[[], None]]:
    """Attaches the store `path` read-only as `name` and checks it; detaches it at the end.

    The connection must be in autocommit mode, opened with uri=True, and outside a transaction. Inside the `with` it is
    in a transaction, so that the check and the reading see one state; the caller commits or rolls back. Yields a
    function that raises InUse if the file has been written to since, in spite of that: before what was read counts.
    Errors: as open_readonly().
    """
    require_ours(path)
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * wait_seconds)}")
    with _readable(path, lambda uri: connection.execute(f"ATTACH ? AS {name}", (uri,))):
        try:
            begun = _begin(connection, path, name)

            def require_unchanged() -> None:
                if state(path) != begun:
                    raise changed(path)

            try:
                check(connection, path, name)
            except StoreError:
                require_unchanged()  # half of a write looks like damage
                raise
            yield require_unchanged
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute(f"DETACH {name}")


def _begin(connection: sqlite3.Connection, path: Path, name: str) -> tuple[int, int, int] | None:
    """Begins to read, at a moment when nobody writes; returns the file's state at that moment."""
    for _ in range(20):
        before = state(path)
        connection.execute("BEGIN")
        try:
            connection.execute(f"SELECT count(*) FROM {name}.sqlite_schema").fetchone()  # takes the lock
        except sqlite3.DatabaseError as error:
            raise fault(path, error) from error
        if state(path) == before:
            return before
        connection.execute("ROLLBACK")
    raise changed(path)


def create(path: Path, page_bytes: int = 4096) -> sqlite3.Connection:
    """A new, empty store at `path`, which must not exist. The caller closes the connection."""
    connection = sqlite3.connect(path, uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.executescript(SCHEMA_FILE.read_text(encoding="utf-8"))
    return connection
