"""File locks, and file systems that have none.

Lustre without -o flock, NFS without a lock daemon and some FUSE file systems refuse fcntl() and flock() locks.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from hvdb.base import edge
from hvdb.base.errors import HvdbError

# Errors of fcntl() and flock() on a file system without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
# SQLite locks bytes 0x40000000 to 0x400001ff, so a lock on the next byte is in nobody's way.
# Source: https://www.sqlite.org/fileformat.html, "The Lock-Byte Page".
_UNUSED_BYTE = 0x40000200
_note_printed = threading.Event()


def fault(file: Path) -> str | None:
    """Returns why the file system of `file`, an existing file, has no locks. Returns None if it has locks.

    Never call this while SQLite has the file open in this process, because closing a file drops all POSIX locks of the
    process on the file.
    """
    try:
        with file.open("rb") as opened:
            fcntl.lockf(opened, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _UNUSED_BYTE)
    except OSError as error:
        return error.strerror if error.errno in NO_LOCKS else None
    return None


def tell_once(file: Path, why: str) -> None:
    """Prints on standard error that the file system of `file` has no locks. Prints one note per process.

    why: the result of fault().
    """
    if not _note_printed.is_set():
        _note_printed.set()
        note = (
            f"{file}: its file system has no file locks ({why}): runs are added to a store by replacing the store with "
            "a copy, and a file that changes while it is read is refused; read such a file again, or mount the file "
            "system with locks (Lustre: -o flock)"
        )
        edge.tell("hvdb", f"note: {note}", sys.stderr)


@contextlib.contextmanager
def held(path: Path, taken: HvdbError) -> Iterator[int]:
    """Holds a lock on the file `path` and creates the file if needed. Yields the file's descriptor.

    A child process that inherits the descriptor also holds the lock, even after its parent was killed. On a file system
    without locks, prints a note that nothing keeps a second process out.
    Errors: `taken` if another process holds the lock; OSError if the file cannot be written.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError as error:
            if error.errno in NO_LOCKS:
                why = f"its file system has no file locks ({error.strerror})"
                edge.tell("hvdb", f"note: {path}: {why}, so nothing keeps a second process out; start one", sys.stderr)
        yield file.fileno()
