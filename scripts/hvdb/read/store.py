"""Opens a store file read-only, after checking that the file is a complete store with a known schema.

Uses only the standard library, because hvdb.campaign imports this module on login nodes without packages. Only the
check of the values needs numpy.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import locks, sqlite
from hvdb.base.errors import StoreError
from hvdb.base.sqlite import sqlite3
from hvdb.read import untrusted
from hvdb.read.untrusted import APPLICATION_ID, DAMAGE, journal_of

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
    create files beside a store that is not plain when it reads the store.
    """

    application_id: int
    version: int
    bytes: int
    plain: bool


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
    return Header(number(68), number(60), page * number(28) if sized else 0, plain)


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
    if not header.plain:
        raise StoreError(f"{path}: damaged: not in the journal mode or text encoding that hvd_bench writes")
    _require_own_journal(path)
    return header


def _require_known(application_id: int, version: int, path: Path) -> None:
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path}: a database of another program (application_id {application_id:#x})")
    if why := untrusted.unknown_version(version):
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
    Names of tables without a database then mean copies of the rows that were checked, without those of known runs.
    """
    seen = state(path)  # None if the job that wrote the file has just renamed it
    seconds = CHECK_SECONDS + (seen[1] if seen else 0) / CHECK_BYTES_PER_SECOND
    try:
        with untrusted.deadline(connection, seconds):
            (application,) = connection.execute(f"PRAGMA {database}.application_id").fetchone()
            version = untrusted.version_of(connection, database)
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


class _Watch:
    """Finds out if somebody writes to a store in spite of, or for lack of, locks.

    The watch holds the file open. If a program replaces the file by another one, SQLite goes on to read the old file,
    and the watch goes on to look at the old file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        self._begun = self._seen()

    def _seen(self) -> tuple[object, ...]:
        """Returns what a write changes: the size, the time, and the number of transactions in the header.

        SQLite writes pages in ascending order, and the header is in the first page.
        """
        try:
            status = os.fstat(self._file.fileno())
            count = os.pread(
                self._file.fileno(), 4, 24
            )  # https://www.sqlite.org/fileformat.html, "File change counter"
        except OSError as error:  # on NFS, another host has removed the file
            raise changed(self._path) from error
        return status.st_ino, status.st_size, status.st_mtime_ns, count

    def begin(self, connection: sqlite3.Connection, name: str) -> None:
        """Begins a transaction of SQLite, which has opened the file as `name`, while nobody is writing to the file."""
        for _ in range(20):
            self._begun = self._seen()
            connection.execute("BEGIN")
            try:
                connection.execute(f"SELECT count(*) FROM {name}.sqlite_schema").fetchone()  # takes the lock
            except DAMAGE as error:
                raise fault(self._path, error) from error
            named = state(self._path)  # None if the job has just renamed the file
            if named and named[0] != self._begun[0]:
                raise changed(self._path)  # the file was replaced, perhaps before SQLite opened it
            if self._seen() == self._begun:
                return
            connection.execute("ROLLBACK")
        raise changed(self._path)

    def require_unchanged(self) -> None:
        """Raises InUse if somebody has written to the file since begin(), or has given it another name.

        A job gives its working file another name when it has written its last results.
        """
        if self._seen() != self._begun or state(self._path) is None:
            raise changed(self._path)

    def close(self) -> None:
        """Call after SQLite has closed the file, because this drops all POSIX locks of the process on the file."""
        self._file.close()


def needs_rollback(error: Exception) -> bool:
    """Returns True if SQLite raised `error` because of a hot journal, which a read-only connection cannot roll back."""
    name = getattr(error, "sqlite_errorname", None)  # None before Python 3.11; only the primary code in pysqlite3
    if name in (None, "SQLITE_READONLY"):
        return "readonly database" in str(error)
    return name == "SQLITE_READONLY_ROLLBACK"


@contextmanager
def _readable(path: Path, open_it: Callable[[str], None]) -> Iterator[None]:
    """Calls open_it(URI) to open `path` read-only. Never changes the file `path`.

    A job that was killed while writing leaves a hot journal. SQLite must roll a hot journal back before it can read the
    store, and that is a write. Only in this case, open_it() gets a private copy of the store and its journal.
    SQLite uses locks to distinguish a hot journal from the journal of a program that is writing. But a running job
    takes no locks on its working file, because cluster file systems may have no locks. So the copy is used only if
    neither the store nor the journal changed during copying.
    """
    with ExitStack() as stack:
        try:
            open_it(uri(path, "ro"))
        except sqlite3.OperationalError as error:
            if not needs_rollback(error):
                raise fault(path, error) from error
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvdb-"))) / path.name
            before = state(path), state(journal_of(path))
            try:
                shutil.copyfile(path, copy)
                shutil.copyfile(journal_of(path), journal_of(copy))
            except FileNotFoundError as gone:
                raise changed(path) from gone
            except OSError as failed:
                raise StoreError(f"{path}: cannot be copied to be read: {failed.strerror}") from failed
            if (state(path), state(journal_of(path))) != before:
                raise changed(path) from error
            _require_own_journal(copy)
            try:
                open_it(f"{copy.as_uri()}?mode=rw&vfs=unix-none")  # nobody else opens the copy
            except DAMAGE as second:
                raise fault(path, second) from second
        except DAMAGE as error:
            raise fault(path, error) from error
        yield


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
    require_ours(path)
    connection = None

    def connect(uri: str) -> None:
        nonlocal connection
        if connection is not None:
            connection.close()
        connection = sqlite.connect(uri, uri=True, timeout=WAIT_SECONDS)
        untrusted.harden(connection)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # takes the lock; fails on a hot journal

    watch = _Watch(path)
    try:
        with _blamed_on_writers(watch), _readable(path, connect):
            connection.row_factory = sqlite3.Row
            # One transaction, so that the check and the later reads see the same state of the store.
            connection.isolation_level = None
            watch.begin(connection, "main")
            check(connection, path, thorough=thorough, known=known)
            connection.execute("PRAGMA query_only = ON")
            yield connection
            watch.require_unchanged()
    except DAMAGE as error:
        raise fault(path, error) from error
    finally:
        if connection is not None:
            connection.close()
        watch.close()


@contextmanager
def _blamed_on_writers(watch: _Watch) -> Iterator[None]:
    """Raises InUse in place of an error if the file was written meanwhile: a half-finished write looks like damage."""
    try:
        yield
    except (StoreError, *DAMAGE):
        watch.require_unchanged()
        raise


@contextmanager
def attached(
    connection: sqlite3.Connection, path: Path, name: str, wait_seconds: float = WAIT_SECONDS
) -> Iterator[Callable[[], None]]:
    """Attaches the store `path` read-only as `name`, checks the store, and detaches it at the end of the `with`.

    The connection must be in autocommit mode, opened with uri=True, and outside a transaction. Inside the `with` the
    connection is in a transaction, so that the check and the later reads see the same state of the store. The caller
    commits or rolls back. Yields a function that raises InUse if another program has written to the file in spite of
    the locks. Call this function before using the data that was read.
    Errors: those of open_readonly().
    """
    require_ours(path)
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * wait_seconds)}")
    _detach(connection, path, name)  # needed if an earlier attempt to detach failed
    watch = _Watch(path)
    try:
        with _readable(path, lambda uri: connection.execute(f"ATTACH ? AS {name}", (uri,))):
            try:
                watch.begin(connection, name)
                with _blamed_on_writers(watch):
                    check(connection, path, name)
                yield watch.require_unchanged
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                _detach(connection, path, name)
    finally:
        watch.close()


def _detach(connection: sqlite3.Connection, path: Path, name: str) -> None:
    """Detaches `name` if it is attached. Raises InUse (since SQLite 3.46) if another program is writing to the file."""
    if name not in (row[1] for row in connection.execute("PRAGMA database_list")):
        return
    try:
        connection.execute(f"DETACH {name}")
    except sqlite3.OperationalError as error:
        raise fault(path, error) from error


def create(path: Path, page_bytes: int = 4096) -> sqlite3.Connection:
    """Creates an empty store at `path`, which must not exist. The caller closes the returned connection.

    The connection takes no locks on the file, so no other program may open it before the connection is closed.
    The store has schema version 1. untrusted.make_tables() can raise the version.
    """
    connection = sqlite.connect(f"{path.resolve().as_uri()}?vfs=unix-none", uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    untrusted.make_tables(connection, 1)
    return connection
