"""Adds rows to a store on a file system without locks, where SQLite cannot keep other programs out.

A writer holds the lock file `<store>.write-lock`, which keeps other writers out, changes a copy of the store, and
renames the copy to the store. So a reader needs no lock: it always opens a complete store, which nobody changes. A
killed writer leaves the store as it was. bench/store/lockless.cpp does the same, with the same names.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdb.base import locks, whole_file
from hvdb.base.errors import StoreError
from hvdb.read import store

LOCK_SUFFIX, COPY_SUFFIX = ".write-lock", ".replacing"


@contextmanager
def writers_kept_out(path: Path, neighbour: Path) -> Iterator[Callable[[], bool] | None]:
    """Holds the lock file of the store `path` if the file system has no locks. Yields None if it has locks.

    Otherwise yields a function for replacing(). neighbour: an existing file in the same folder, which is examined if
    there is no store yet. Errors: StoreError if another program holds the lock file for longer than WAIT_SECONDS.
    """
    file = path if path.exists() else neighbour
    why = locks.fault(file)
    if not why:
        yield None
        return
    locks.tell_once(path, why)
    with locks.lock_file(Path(os.path.realpath(path) + LOCK_SUFFIX), store.WAIT_SECONDS) as is_held:
        yield is_held


@contextmanager
def replacing(path: Path, is_held: Callable[[], bool]) -> Iterator[str]:
    """Yields the URI of a copy of the store `path`, for SQLite. At the end of the `with`, the copy becomes the store.

    Call inside writers_kept_out(). Errors: StoreError, also if the store was changed in spite of the lock; OSError.
    """
    place = Path(os.path.realpath(path))
    if not os.access(place, os.W_OK):
        raise StoreError(f"{path}: cannot be written; change its permissions, or name another store")
    for left in place.parent.iterdir():  # copies of killed writers, because only one writer holds the lock file
        if left.name.startswith(f"{place.name}.") and left.suffix == COPY_SUFFIX:
            left.unlink(missing_ok=True)
    copy = place.with_name(f"{place.name}.{socket.gethostname()}.{os.getpid()}{COPY_SUFFIX}")
    before = _require_no_journal(place)
    try:
        shutil.copy(place, copy)
        yield f"{copy.as_uri()}?mode=rw&vfs=unix-none"
        whole_file.sync(copy)
        if _require_no_journal(place) != before or not is_held():
            raise store.changed(path)
        copy.rename(place)
        whole_file.sync(place.parent)
    finally:
        copy.unlink(missing_ok=True)
        store.journal_of(copy).unlink(missing_ok=True)


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
