"""Writes files that are there whole or not at all: beside the old one first, then renamed into its place.

A full disk or a kill leaves the old file as it was. Standard library only, and nothing of hvdb: the bundle for GPU
hosts (scripts/bundle) has this module alone.
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
    """Beside `target`; another one each time."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}{_UNFINISHED}")


def is_unfinished(file: Path) -> bool:
    """Whether `file` has the name of a file that replacing() writes: without a writer it is the rest of a kill."""
    return file.name.startswith(".") and file.suffix == _UNFINISHED


@contextlib.contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[Path]:
    """Yields the name of a new, empty file to write; it becomes `file` at the end of the `with`.

    A link is followed, and a device or a pipe is written to directly. `mode`: the permissions of the file (default:
    those of the file that was there). Errors: OSError, whose filename is `file`; those about other files stay as they
    are.
    """
    target = Path(os.path.realpath(file))
    if target.is_symlink():  # realpath() ends there where links form a loop
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(file))
    fresh = _fresh_name(target)
    try:
        if target.exists():
            if not target.is_file():
                yield target
                return
            mode = stat.S_IMODE(target.stat().st_mode) if mode is None else mode
        # With O_EXCL neither a file nor a link that waits under this name is written to.
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
    """Some file systems report a full disk only here."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(file: Path, content: bytes, mode: int | None = None) -> None:
    """Arguments and errors: as replacing()."""
    with replacing(file, mode) as fresh:
        fresh.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """In UTF-8. Errors: as replacing(); UnicodeEncodeError."""
    write_bytes(file, text.encode())


def copy(file: Path, target: Path) -> None:
    """The content of `file`. Errors: as replacing(); OSError of `file`."""
    with replacing(target) as fresh:
        shutil.copyfile(file, fresh)
