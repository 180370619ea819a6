"""A lock file that keeps a second program of ours away. Standard library only: hvdb.campaign uses it on login nodes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """Holds the lock of the file `path`, which is made if need be; yields its descriptor.

    A child that inherits the descriptor holds the lock too, also after its parent was killed. On a file system without
    locks nobody is kept out. Errors: BlockingIOError if another program holds it; OSError if it cannot be written.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield file.fileno()
