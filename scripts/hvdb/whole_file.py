"""Writes files that exist completely or not at all: writes a new file beside the old file and renames the new file.

A full disk or a kill leaves the old file unchanged. This module uses only the standard library and no other module of
hvdb, because the bundle for GPU hosts (scripts/maintain/bundle) has only this module of hvdb.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_UNFINISHED = ".unfinished"


def _fresh_name(target: Path) -> Path:
    """Returns the path of a new file beside `target`, with a different name each time."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}{_UNFINISHED}")


def is_unfinished(file: Path) -> bool:
    """Returns True if `file` has a name from replacing(). A kill may leave such a file."""
    return file.name.startswith(".") and file.suffix == _UNFINISHED


@contextlib.contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[Path]:
    """Yields the path of a new, empty file to write, which becomes `file` at the end of the `with`.

    Follows links. Writes directly to a device or a pipe. mode: the permissions of the file (default: those of the
    previous file). Errors: OSError, whose filename is `file`; errors about other files stay unchanged.
    """
    target = Path(os.path.realpath(file))
    if target.is_symlink():  # realpath() returns a link only if links form a loop
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(file))
    fresh = _fresh_name(target)
    try:
        if target.exists():
            if not target.is_file():
                yield target
                return
            mode = stat.S_IMODE(target.stat().st_mode) if mode is None else mode
        # With O_EXCL, the call fails if a file or a link with this name already exists.
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600))
        try:
            yield fresh
            if mode is not None:
                fresh.chmod(mode)
            _sync(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        if error.filename not in (None, str(fresh), str(target)):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(file)) from error


def _sync(file: Path) -> None:
    """Flushes the file to disk, because some file systems report a full disk only then."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(file: Path, content: bytes, mode: int | None = None) -> None:
    """Writes `content` as `file`. Arguments and errors: as replacing()."""
    with replacing(file, mode) as fresh:
        fresh.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """Writes `text` in UTF-8. Errors: as replacing(); UnicodeEncodeError."""
    write_bytes(file, text.encode())


def copy(file: Path, target: Path) -> None:
    """Copies the content of `file` to `target`. Errors: as replacing(); OSError of `file`."""
    with replacing(target) as fresh:
        shutil.copyfile(file, fresh)
