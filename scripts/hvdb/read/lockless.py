"""Adds rows to a store on a file system without locks, where SQLite cannot keep other programs out.

A writer creates `<store>.replacing`, a file of this fixed name, with O_EXCL, which keeps other writers out. It changes
a copy of the store in this file, and renames the file to the store. So a reader needs no lock: it always opens a
complete store, which nobody changes. A killed writer leaves the store as it was, and its file keeps writers out until a
person removes it. bench/store/lockless.cpp does the same, with the same name.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import locks, whole_file
from hvdb.base.errors import StoreError
from hvdb.read import store

SUFFIX = ".replacing"
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class WriteLock:
    """The file `<store>.replacing`, which this process has created. descriptor: open for writing."""

    file: Path
    descriptor: int

    def owns(self, name: Path) -> bool:
        """Returns True if `name` is a name of this process's file."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), name.lstat())
        except OSError:
            return False

    def require_held(self, name: Path | None = None) -> None:
        """Errors: StoreError if `name` (default: `file`) is no name of this process's file. Call before writing to it.

        Somebody has then removed the file, and another writer may have taken its name.
        """
        if not self.owns(name or self.file):
            raise self.removed()

    def removed(self) -> StoreError:
        """Returns the error for a file that somebody has removed."""
        return StoreError(
            f"{self.file}: somebody removed it while this program used it, so the store stays as it was; try again"
        )


@contextmanager
def writers_kept_out(path: Path, neighbour: Path) -> Iterator[WriteLock | None]:
    """Holds the lock of the store `path` if the file system has no locks. Yields None if it has locks.

    neighbour: an existing file in the same folder, which is examined if there is no store yet. Errors: StoreError if
    the file of another program exists for longer than WAIT_SECONDS; OSError.
    """
    file = path if path.exists() else neighbour
    why = locks.fault(file)
    if not why:
        yield None
        return
    locks.tell_once(path, why)
    lock = _create(Path(os.path.realpath(path) + SUFFIX), path)
    try:
        yield lock
    finally:
        if lock.owns(lock.file):  # the file has not become the store, and nobody has removed it
            lock.file.unlink(missing_ok=True)
        os.close(lock.descriptor)


def _create(file: Path, path: Path) -> WriteLock:
    end = time.monotonic() + store.WAIT_SECONDS
    while True:
        try:
            return WriteLock(file, os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            if time.monotonic() >= end:
                raise StoreError(
                    f"{file}: another program adds runs to {path}, or was killed while it did; wait for its end, or "
                    f"remove {file.name} if no program writes to the store, and merge again"
                ) from None
        time.sleep(_POLL_SECONDS)


@contextmanager
def replacing(path: Path, lock: WriteLock) -> Iterator[None]:
    """Copies the store `path` into the lock's file. At the end of the `with`, this file becomes the store.

    Inside the `with`, call lock.require_held() after opening the file, and leave no journal.
    Errors: StoreError, also if the store was changed in spite of the lock; OSError. The store is then as it was.
    """
    place = Path(os.path.realpath(path))
    if not os.access(place, os.W_OK):
        raise StoreError(f"{path}: cannot be written; change its permissions, or name another store")
    before = _require_no_journal(place)
    with place.open("rb") as old, open(lock.descriptor, "wb", closefd=False) as copy:
        shutil.copyfileobj(old, copy, 1 << 20)
        os.fchmod(lock.descriptor, stat.S_IMODE(os.fstat(old.fileno()).st_mode))
    store.journal_of(lock.file).unlink(missing_ok=True)  # SQLite would roll it back, whoever left it
    yield
    os.fsync(lock.descriptor)
    if _require_no_journal(place) != before:
        raise store.changed(path)
    _rename(lock, place)
    whole_file.sync(place.parent)


def _rename(lock: WriteLock, place: Path) -> None:
    """Renames the lock's file to `place`.

    If somebody removes the lock just now, its name may become another writer's unfinished copy. So a second name, which
    only this process uses, is checked and renamed. A file system without hard links leaves only the first name. On NFS,
    os.link() asks the server, and owns() may ask a cache for a name that it has known for long.
    """
    name = second = place.with_name(f"{place.name}.{secrets.token_hex(8)}{SUFFIX}")
    try:
        os.link(lock.file, second)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise lock.removed() from error
        name = lock.file
    try:
        lock.require_held(name)
        name.rename(place)
    finally:
        second.unlink(missing_ok=True)


def _require_no_journal(place: Path) -> tuple[int, int, int] | None:
    """Returns store.state() of the store. Errors: InUse if a program that has locks writes to the store."""
    if store.journal_of(place).exists():
        raise unfinished(place)
    return store.state(place)


def unfinished(path: Path) -> store.InUse:
    """Returns the error for a store with a journal. Without locks, nobody can tell if its writer was killed."""
    return store.InUse(
        f"{store.journal_of(path)}: a program on a host with file locks writes to the store, or was killed; wait for "
        "its end, or merge the store into a new one"
    )
