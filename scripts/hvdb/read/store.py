"""Opens a store file read-only, after checking that the file is a complete store with a known schema.

Uses only the standard library, because hvdb.campaign imports this module on login nodes without packages. Only the
check of the values needs numpy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import locks, sqlite
from hvdb.base.errors import StoreError
from hvdb.base.sqlite import sqlite3
from hvdb.read import schema, untrusted
from hvdb.read.schema import APPLICATION_ID
from hvdb.read.untrusted import DAMAGE, journal_of

SQLITE_MAGIC = b"SQLite format 3\x00"
# Bytes of the longest path that SQLite opens on Unix. Source: MAX_PATHNAME in SQLite's os_unix.c.
MAX_PATH = 512
# Seconds that a reader waits while another program writes to the file.
WAIT_SECONDS = 10.0
# A store's check may take CHECK_SECONDS + size / CHECK_BYTES_PER_SECOND of processor time. Measured rate of the check:
# 100 MB/s and more.
CHECK_SECONDS, CHECK_BYTES_PER_SECOND = 60.0, 5e6


class InUse(StoreError):
    """Another program, probably a running job, is using the file."""


@dataclass(frozen=True)
class Header:
    """The facts in the first 100 bytes of a store. bytes: the size that the file should have; 0 if it is not stored.

    plain: True if the store has a rollback journal and text in UTF-8, as all stores of hvd_bench have. SQLite may
    create files beside a store that is not plain when it reads the store. wal: True if the journal mode is WAL.
    """

    application_id: int
    version: int
    bytes: int
    plain: bool
    wal: bool


def is_partial(path: Path) -> bool:
    """Returns True for `<store>.<session uuid>.partial`, the working file of a job that has not published its runs."""
    return path.suffix == ".partial"


def is_database(path: Path) -> bool:
    """Returns True for a file that begins like an SQLite file. Errors: OSError if the file exists but is unreadable."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def read_header(path: Path) -> Header:
    """Returns the header of an SQLite file. Never call this while SQLite has the file open in this process.

    This function closes the file, and closing a file drops all POSIX locks of the process on the file.

    Errors: StoreError if the file does not exist, is empty, is unreadable, or is not an SQLite file.
    Source: https://www.sqlite.org/fileformat.html, "The Database Header".
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{path}: not a file")  # reading a pipe would wait for a writer
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file") from error
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
    sized = number(24) == number(92)  # unequal if an old SQLite wrote the file; the page count may then be wrong
    plain = head[18:20] == b"\x01\x01" and number(56) in (0, 1)
    return Header(number(68), number(60), page * number(28) if sized else 0, plain, wal=2 in head[18:20])


def require_short(path: Path) -> None:
    """Errors: StoreError if `path` is longer than SQLite can open."""
    length, limit = len(os.fsencode(os.path.abspath(path))), MAX_PATH - len("-journal")  # noqa: PTH100 (keeps links)
    if length > limit:
        raise StoreError(f"{path}: this path has {length} bytes, and SQLite opens at most {limit}; use a shorter one")


def require_ours(path: Path) -> None:
    """Checks the header and the size of a store, and nothing else, so that checking a thousand files takes little time.

    Errors: StoreError if `path` is not a store with a known schema, or is shorter than its header says.
    """
    header = require_safe_to_open(path)
    require_short(path)
    journal = journal_of(path).exists()  # asked before the size is read, in case a transaction ends in between
    seen = state(path)
    if seen is None:
        raise StoreError(f"{path}: no such file")  # the file was renamed a moment ago
    size = seen[1]
    if size < header.bytes and not journal:
        raise StoreError(
            f"{path}: half-written or damaged: {size} of {header.bytes} bytes; "
            "wait until it is copied whole, or leave it out"
        )


def require_safe_to_open(path: Path) -> Header:
    """Checks and returns the header of a store that may be in use. Unlike require_ours(), ignores the file's size."""
    header = read_header(path)
    _require_known(header.application_id, header.version, path)
    if header.wal:
        raise StoreError(
            f"{path}: another program has set its journal mode to WAL; close that program, then run: sqlite3 "
            f"{shlex.quote(str(path))} 'PRAGMA journal_mode = DELETE'"
        )
    if not header.plain:
        raise StoreError(f"{path}: damaged: not in the journal mode or text encoding that hvd_bench writes")
    _require_own_journal(path)
    return header


def _require_known(application_id: int, version: int, path: Path) -> None:
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path}: a database of another program (application_id {application_id:#x})")
    if why := schema.unknown_version(version):
        raise StoreError(f"{path}: {why}")


def _require_own_journal(path: Path) -> None:
    journal = journal_of(path)
    try:
        why = untrusted.journal_fault(journal)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    if why:
        raise StoreError(f"{journal}: {why}; remove it")


def check(
    connection: sqlite3.Connection,
    path: Path,
    database: str = "main",
    *,
    thorough: bool = True,
    known: Collection[str] = (),
) -> None:
    """Raises StoreError if a database is not a complete store with a known schema and possible values (values.py).

    database: the name in `connection` of the file `path`. All readers and the merge call this function, so all of them
    refuse the same files. thorough=False: checks only the tables, which takes milliseconds for a store of any size and
    does not need numpy. known: runs that were checked before, so that the time grows with the number of new runs. With
    them the caller may read only new runs: sessions of collectives are not checked, and integrity_check is skipped,
    which is harmless, because every value of a new run is checked and SQLite itself reports pages that it cannot read.
    The caller's queries, which name tables without a database, then see temporary copies of the new runs' checked rows.
    """
    seen = state(path)  # None if the job that wrote the file has just renamed it
    seconds = CHECK_SECONDS + (seen[1] if seen else 0) / CHECK_BYTES_PER_SECOND
    try:
        with untrusted.deadline(connection, seconds):
            (application,) = connection.execute(f"PRAGMA {database}.application_id").fetchone()
            version = schema.version_of(connection, database)
            _require_known(application, version, path)
            if why := untrusted.table_fault(connection, version, database):
                raise StoreError(f"{path}: {why}")
            if not thorough:
                return
            from hvdb.read import values  # imported here, because it needs numpy

            if not known:
                faults = [row[0] for row in connection.execute(f"PRAGMA {database}.integrity_check(3)")]
                if faults != ["ok"]:
                    raise StoreError(f"{path}: damaged: {'; '.join(faults)}; leave it out or restore a copy")
            try:
                why = values.fault(connection, database, known)
            except sqlite3.OperationalError as error:
                if _is_of_temporary_file(error):
                    raise _no_temporary_file(path, error) from error
                raise
            if why:
                raise StoreError(f"{path}: damaged: {why}; leave it out or restore a copy")
    except DAMAGE as error:
        raise fault(path, error) from error


def fault(path: Path, error: Exception) -> StoreError:
    """Turns an error of SQLite about `path` into a StoreError that says what to do. error: one of DAMAGE."""
    text = untrusted.in_words(error)
    if needs_rollback(error):
        return changed(path)  # there was no journal when the file was opened, so another program is writing to the file
    if "locked" in text or "busy" in text:
        return InUse(f"{path}: in use ({text}): its job still writes; try again when it has ended")
    if "disk is full" in text:
        return _no_temporary_file(path, error)
    if "unable to open" in text:  # SQLite uses this text also for a damaged schema
        if not os.access(path, os.R_OK):
            return StoreError(f"{path}: cannot be opened: {text}; check its permissions")
        text = "SQLite cannot open it"
    return StoreError(f"{path}: damaged: {text}; leave it out or restore a copy")


def _is_of_temporary_file(error: sqlite3.OperationalError) -> bool:
    """Returns True if values.fault() could not make or write a temporary file. It writes no other files.

    The error of a quota, or of a limit on the size of files, differs from that of a full disk.
    """
    name = getattr(error, "sqlite_errorname", None)  # None in versions of Python before 3.11
    reading = name in ("SQLITE_IOERR_READ", "SQLITE_IOERR_CORRUPTFS")  # probably of the store
    return "unable to open" in str(error) or ("disk I/O error" in str(error) and not reading)


def _no_temporary_file(path: Path, error: Exception) -> StoreError:
    why = f"no space for a temporary file ({untrusted.in_words(error)}); free some, or set SQLITE_TMPDIR"
    return StoreError(f"{path}: cannot be checked: {why}")


def changed(path: Path) -> InUse:
    """Returns the error for a file that changed during reading."""
    return InUse(f"{path}: changed while it was read; try again when its job has ended")


def state(path: Path) -> tuple[int, int, int] | None:
    """Returns (inode, size, modification time) of the file, or None if there is no file. A write changes the result."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def uri(path: Path, mode: str) -> str:
    """Returns the URI with which SQLite opens the store `path`. mode: "ro" or "rw".

    On a file system without locks, SQLite opens the file without locking it. The caller then makes sure that nobody
    writes to the file, or that it did not change. Never call this while SQLite has the file open (see locks.fault).
    """
    why = locks.fault(path)
    if why:
        locks.tell_once(path, why)
    return f"{path.resolve().as_uri()}?mode={mode}&vfs={'unix-none' if why else 'unix'}"


def needs_rollback(error: Exception) -> bool:
    """Returns True if SQLite raised `error` because of a hot journal, which a read-only connection cannot roll back."""
    name = getattr(error, "sqlite_errorname", None)  # None before Python 3.11; only the primary code in pysqlite3
    if name in (None, "SQLITE_READONLY"):
        return "readonly database" in str(error)
    return name == "SQLITE_READONLY_ROLLBACK"


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Yields the file in which SQLite reads the store `path`: the store itself, or a private copy.

    A store is read in place: SQLite's locks keep writers out, and without locks a store is only ever replaced. But a
    running job writes its `.partial` file without locks, and a hot journal must be rolled back, which is a write.
    Errors: those of require_ours() and of _copy_at_rest().
    """
    require_ours(path)
    if not (is_partial(path) or _has_hot_journal(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hvdb-") as folder:
        copy = Path(folder) / "copy.db"
        _copy_at_rest(path, copy)
        yield copy


def _has_hot_journal(path: Path) -> bool:
    """Returns True if a killed program has left a journal. Without locks, takes the journal of a live program for one.

    SQLite uses locks to distinguish the two. Errors: StoreError.
    """
    if not journal_of(path).exists():
        return False
    try:
        with closing(sqlite.connect(uri(path, "ro"), uri=True, timeout=WAIT_SECONDS)) as connection:
            untrusted.harden(connection)
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except DAMAGE as error:
        if needs_rollback(error):
            return True
        raise fault(path, error) from error
    return False


def _copy_at_rest(path: Path, copy: Path) -> None:
    """Copies a store that nobody writes to meanwhile, and rolls its journal back in the copy.

    Errors: InUse if the store or its journal changed during copying; StoreError.
    """
    try:
        before = _versions(path)
        shutil.copyfile(path, copy)
        if before[1]:
            shutil.copyfile(journal_of(path), journal_of(copy))
        after = _versions(path)
    except FileNotFoundError as gone:
        raise changed(path) from gone
    except OSError as failed:
        raise StoreError(
            f"{path}: cannot be copied to be read: {failed.strerror}; let TMPDIR name a folder with space for a copy"
        ) from failed
    if before != after:
        raise changed(path)
    _require_own_journal(copy)
    try:
        # Nobody else opens the copy, so it needs no locks.
        with closing(sqlite.connect(f"{copy.as_uri()}?mode=rw&vfs=unix-none", uri=True)) as connection:
            untrusted.harden(connection)
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except DAMAGE as error:
        raise fault(path, error) from error


def _versions(path: Path) -> tuple[tuple[object, ...], tuple[object, ...] | None]:
    """Returns what a write changes: state() and the number of transactions of a store, and state() of its journal.

    A transaction writes to the store only while its journal exists, and a commit writes the first page, which has the
    number, before the others. So this function looks at the store before the journal. Errors: OSError.
    Source: https://www.sqlite.org/fileformat.html, "File change counter".
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        count = os.pread(file.fileno(), 4, 24)
    return (status.st_ino, status.st_size, status.st_mtime_ns, count), state(journal_of(path))


@contextmanager
def _one_state(connection: sqlite3.Connection, name: str, file: Path, path: Path) -> Iterator[None]:
    """Runs the `with` in a transaction that sees one state of the database `name`, the file `file`. Commits at the end.

    path: the name of the store in messages. Errors: StoreError; those of _unwritten().
    """
    connection.execute("BEGIN")
    try:
        try:
            connection.execute(f"SELECT count(*) FROM {name}.sqlite_schema").fetchone()  # takes the lock
        except DAMAGE as error:
            raise fault(path, error) from error
        with _unwritten(file, path):
            yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def _unwritten(file: Path, path: Path) -> Iterator[None]:
    """Raises InUse at the end of the `with` if somebody wrote to `file` in spite of, or for lack of, locks.

    InUse takes the place of any other error, because a half-finished write looks like damage. If the file was replaced
    by another one, SQLite goes on to read the old file, to which nobody writes.
    """
    before = state(file)
    try:
        yield
    finally:
        after = state(file)
        if before is None or after is None or (before[0] == after[0] and before != after):
            raise changed(path)


@contextmanager
def open_readonly(
    path: Path | str, *, thorough: bool = True, known: Collection[str] = ()
) -> Iterator[sqlite3.Connection]:
    """Yields a connection to the checked store `path` that cannot write. Never changes the file.

    thorough, known: see check().

    Errors: StoreError; InUse if another program locks the file for longer than WAIT_SECONDS, or has written to the file
    in spite of the locks before the `with` ends. What was read is then no good.
    """
    path = Path(path)
    try:
        with (
            _readable(path) as file,
            closing(sqlite.connect(uri(file, "ro"), uri=True, timeout=WAIT_SECONDS)) as connection,
        ):
            untrusted.harden(connection)
            connection.row_factory = sqlite3.Row
            connection.isolation_level = None
            with _one_state(connection, "main", file, path):
                check(connection, path, thorough=thorough, known=known)
                connection.execute("PRAGMA query_only = ON")
                yield connection
    except DAMAGE as error:
        raise fault(path, error) from error


@contextmanager
def attached(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[None]:
    """Attaches the store `path` read-only as `name`, checks the store, and detaches it at the end of the `with`.

    The connection must be in autocommit mode, opened with uri=True, and outside a transaction. The `with` is one
    transaction, so that the check and the later reads see the same state of the store. It is committed at the end, and
    rolled back after an error. Errors: those of open_readonly(); sqlite3.Error of the caller's statements.
    """
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * WAIT_SECONDS)}")
    _detach(connection, path, name)  # needed if an earlier attempt to detach failed
    with _readable(path) as file:
        try:
            try:
                connection.execute(f"ATTACH ? AS {name}", (uri(file, "ro"),))
            except DAMAGE as error:
                raise fault(path, error) from error
            with _one_state(connection, name, file, path):
                check(connection, path, name)
                yield
        finally:
            _detach(connection, path, name)


def _detach(connection: sqlite3.Connection, path: Path, name: str) -> None:
    """Detaches `name` if it is attached. Raises InUse (since SQLite 3.46) if another program is writing to the file."""
    # The column `file` would be decoded, too, and a path need not be UTF-8.
    if name not in (row[0] for row in connection.execute("SELECT name FROM pragma_database_list")):
        return
    try:
        connection.execute(f"DETACH {name}")
    except sqlite3.OperationalError as error:
        raise fault(path, error) from error


def create(path: Path, page_bytes: int = 4096) -> sqlite3.Connection:
    """Creates an empty store at `path`, which must not exist. The caller closes the returned connection.

    The connection takes no locks on the file, so no other program may open it before the connection is closed.
    The store has schema version 1. schema.make_tables() can raise the version.
    """
    connection = sqlite.connect(f"{path.resolve().as_uri()}?vfs=unix-none", uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    schema.make_tables(connection, 1)
    return connection
