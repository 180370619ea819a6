"""Writes files completely or not at all: writes a new file beside the old file, then gives it the old file's name.

After a full disk or a kill the old file is unchanged. Uses only the standard library, because hvdb.campaign, which
imports this module, runs on login nodes without packages.
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

from hvdb.base.errors import HvdbError

_UNFINISHED = ".unfinished"


def _fresh_name(target: Path) -> Path:
    """Returns a path for a new file beside `target`. Each call returns another path."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}{_UNFINISHED}")


def is_unfinished(file: Path) -> bool:
    """Returns True if `file` has the name of an unfinished file of replacing(). A kill may leave such a file."""
    return file.name.startswith(".") and file.suffix == _UNFINISHED


@contextlib.contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[Path]:
    """Yields the path of a new, empty file to write. At the end of the `with` the new file replaces `file`.

    If `file` is a link, replaces the link's target. If `file` is a device or a pipe, yields its own path. mode: the
    permissions of the new file (default: those of the old file). Errors: OSError, whose filename is `file`; an OSError
    about any file except the new and the old one passes unchanged.
    """
    target = Path(os.path.realpath(file))
    if target.is_symlink():  # the links form a loop, because otherwise realpath() returns no link
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
            sync(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        if error.filename not in (None, str(fresh), str(target)):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(file)) from error


def sync(path: Path) -> None:
    """Syncs a file or folder to disk. Some file systems report a full disk only when a file is synced.

    Ignores errors for a folder, because some file systems cannot sync folders.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def read_at_most(file: Path, most: int, what: str = "") -> bytes:
    """Returns the content of a regular file, or its first `most` + 1 bytes if it is larger. Errors: HvdbError.

    what: what a person takes the file for, with a space at its end; for the error's text.
    """
    try:
        if file.exists() and not file.is_file():  # reading a pipe would wait for ever
            raise HvdbError(f"{file}: not a file")
        with file.open("rb") as opened:
            return opened.read(most + 1)
    except OSError as error:
        raise HvdbError(f"{file}: {what}cannot be read: {error.strerror}") from error


def write_bytes(file: Path, content: bytes, mode: int | None = None) -> None:
    """Writes `content` to `file`. Arguments and errors: those of replacing()."""
    with replacing(file, mode) as fresh:
        fresh.write_bytes(content)


def write_text(file: Path, text: str) -> None:
    """Writes `text` to `file` in UTF-8. Errors: those of replacing(); UnicodeEncodeError."""
    write_bytes(file, text.encode())


def copy(file: Path, target: Path) -> None:
    """Copies the content of `file` to `target`. Errors: those of replacing(); OSError if `file` cannot be read."""
    with replacing(target) as fresh:
        shutil.copyfile(file, fresh)
