"""Lock files, which keep out a second process of hvdb.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path, taken: Exception) -> Iterator[int]:
    """Holds a lock on the file `path` and creates the file if needed. Yields the file's descriptor.

    A child process that inherits the descriptor also holds the lock, even after its parent was killed. On a file system
    without locks, the lock keeps nobody out. Errors: `taken` if another process holds the lock; OSError if the file
    cannot be written.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError:
            pass
        yield file.fileno()
