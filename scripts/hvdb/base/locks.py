"""Locks that keep out a second process of hvdb, also on file systems without file locks.

Lustre without -o flock, NFS without a lock daemon and some FUSE file systems refuse fcntl() and flock() locks. There, a
process creates a lock file with O_EXCL, which fails if the file exists, and removes it at the end. A killed process
leaves its lock file behind. bench/store/lockless.cpp makes lock files with the same content.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from hvdb.base import edge
from hvdb.base.errors import HvdbError, StoreError

# Errors of fcntl() and flock() on a file system without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
# SQLite locks bytes 0x40000000 to 0x400001ff, so a lock on the next byte is in nobody's way.
# Source: https://www.sqlite.org/fileformat.html, "The Lock-Byte Page".
_UNUSED_BYTE = 0x40000200
_POLL_SECONDS = 0.02
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
    without locks, the lock is the file `<path>.held`, and after a kill only a child on the same host holds it.
    Errors: an error like `taken` if another process holds the lock; OSError if the file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError as error:
            if error.errno in NO_LOCKS:
                tell_once(path, error.strerror)
                try:
                    stack.enter_context(lock_file(path.with_name(f"{path.name}.held"), 0.0, path))
                except StoreError as other:
                    raise type(taken)(f"{taken}; {other}") from None
        yield file.fileno()


@contextlib.contextmanager
def lock_file(path: Path, wait_seconds: float, inherited: Path | None = None) -> Iterator[Callable[[], bool]]:
    """Creates the lock file `path`, and removes it at the end of the `with`.

    Yields a function that returns False if somebody has removed the lock file in the meantime. A lock file of a process
    that has ended on this host is removed, except while another process of this host has the file `inherited` open.
    Errors: StoreError if another process holds the lock for longer than `wait_seconds`; OSError.
    """
    mine = _content()
    end = time.monotonic() + wait_seconds
    while not _create(path, mine):
        _remove_if_stale(path, inherited)
        if time.monotonic() > end and path.exists():
            raise StoreError(_held_by(path))
        time.sleep(_POLL_SECONDS)
    try:
        yield lambda: _read(path) == mine
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _content() -> str:
    """Returns the words of a lock file of this process: host, process, boot, PID namespace, time, random number."""
    words = [socket.gethostname(), str(os.getpid()), *_machine(), datetime.now(timezone.utc).isoformat("T", "seconds")]
    return " ".join([*words, secrets.token_hex(8)]) + "\n"


def _machine() -> list[str]:
    """Returns what identifies the boot of this host and the PID namespace: together they give a PID its meaning."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return [boot, str(Path("/proc/self/ns/pid").readlink())]
    except OSError:
        return ["unknown", "unknown"]


def _create(path: Path, content: str) -> bool:
    """Returns False if the file exists. Errors: OSError."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, content.encode())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> str:
    """Returns the content of a lock file. Returns "" if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:1000]
    except OSError:
        return ""


def _held_by(path: Path) -> str:
    words = _read(path).split()
    holder = f"process {words[1]} on {words[0]}" if len(words) == 6 else "an unknown process"
    since = f" since {words[4]}" if len(words) == 6 else ""
    return f"{path}: {holder} holds this lock{since}; wait for its end, or remove the file if that process has ended"


def _remove_if_stale(path: Path, inherited: Path | None) -> None:
    """Removes a lock file whose process has ended.

    Two processes may find the same stale file. If one of them removed it and a third process locked anew, the other
    must not remove the new file. So only the process that holds a second lock file looks again, and removes the file.
    """
    if not _is_stale(_read(path), inherited):
        return
    guard = path.with_name(f"{path.name}.breaking")
    if _create(guard, _content()):
        try:
            if _is_stale(_read(path), inherited):
                path.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)


def _is_stale(content: str, inherited: Path | None) -> bool:
    words = content.split()
    if len(words) != 6 or "unknown" in words or words[2:4] != _machine() or not words[1].isdecimal():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return inherited is None or not _is_open_elsewhere(inherited)
    except (PermissionError, OverflowError):
        pass
    return False


def _is_open_elsewhere(path: Path) -> bool:
    """Returns True if another process of this host has the file open, or if that cannot be known."""
    file = path.stat()
    if file.st_uid != os.geteuid() and os.geteuid() != 0:
        return True  # other users' processes do not show their files
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), file):
                        return True
    return False
