"""Merges stores into one output store. Merging rows that the output already has does not change the output.

The merge opens each input read-only, checks the whole input, and copies its rows to a working file beside the output.
The working file then becomes the output. If there is an output already, the rows are added to it in one transaction.
After a fault, a full disk or a kill at any point, the output has either all new rows or none of them.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from hvdb.base import locks, progress, sqlite, whole_file
from hvdb.base.errors import StoreError
from hvdb.base.sqlite import sqlite3
from hvdb.read import lockless, schema, store, untrusted
from hvdb.read.absorb import LEFTOVER_REASON, Place, absorb

__all__ = ["LEFTOVER_REASON", "MergeInputs", "MergeResult", "merge", "plan"]

# Jobs save every few seconds, so a .partial file that changed within this time probably belongs to a running job.
ALIVE_SECONDS = 120.0
# From LARGE_BYTES on, the output gets pages of LARGE_PAGE_BYTES instead of PAGE_BYTES. Blobs of some hundred steps fill
# the large pages well, and SQLite has fewer pages to manage.
LARGE_BYTES, LARGE_PAGE_BYTES, PAGE_BYTES = 64 << 20, 16384, 4096
CACHE_KIB = 65536
# Limits on reading ahead: number of files, and MiB of each file.
READ_AHEAD_FILES, READ_AHEAD_MIB = 2, 256
WORKING_SUFFIX = ".merging"


@dataclass
class MergeInputs:
    """The files to read. named: files that must be intact. leftovers: files of killed jobs, which may be in use."""

    named: list[Path]
    leftovers: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge: numbers of runs, and lines to print.

    added: runs that are new in the output. present: runs that the output already had. incomplete: runs written with
    status 'incomplete'. superseded: unfinished runs that were replaced by a later state of the same run. left_out: one
    line per file that was not merged. coll_added: sessions of collectives that are new in the output. coll_present:
    sessions of collectives that the output already had.
    """

    added: int
    present: int
    incomplete: int
    superseded: int
    notes: list[str]
    left_out: list[str]
    coll_added: int = 0
    coll_present: int = 0


def plan(inputs: Sequence[Path], output: Path, now: float | None = None) -> MergeInputs:
    """Returns the files to read: `inputs`, and the `.partial` files that killed jobs left beside these files.

    A folder in `inputs` stands for its .db files. A `.partial` file that changed within the last ALIVE_SECONDS is read
    only if `inputs` names it.
    Errors: StoreError for a folder without stores, or if the output is among the inputs.
    """
    now = time.time() if now is None else now
    listings: dict[Path, list[Path]] = {}

    def listing(folder: Path) -> list[Path]:
        if folder not in listings:
            listings[folder] = sorted(folder.iterdir()) if folder.is_dir() else []
        return listings[folder]

    target = os.path.realpath(output)  # Path.resolve() raises an error for a link to itself
    named: dict[Path, None] = {}
    beside: dict[Path, None] = {}
    for path in inputs:
        if path.is_dir():
            stores = [p for p in listing(path) if p.suffix == ".db" and os.path.realpath(p) != target]
            partials = [p for p in listing(path) if store.is_partial(p)]
            if not stores and not partials:
                raise StoreError(f"{path}: a folder without stores (*.db)")
            named.update(dict.fromkeys(stores))
            beside.update(dict.fromkeys(partials))
            continue
        if os.path.realpath(path) == target:
            raise StoreError(f"{path}: is the output as well; name only the stores to add")
        named[path] = None
        if not store.is_partial(path):
            start = f"{path.name}."
            near = (p for p in listing(path.parent) if store.is_partial(p) and p.name.startswith(start))
            beside.update(dict.fromkeys(near))
    made = MergeInputs(list(named))
    for leftover in beside:
        if leftover in named:
            continue
        try:
            seen = leftover.stat()
        except FileNotFoundError:
            made.notes.append(_gone(leftover))
            continue
        if not stat.S_ISREG(seen.st_mode):  # for example a pipe, whose opening may wait for ever
            made.notes.append(f"{leftover}: is not a file: left out")
        elif now - seen.st_mtime < ALIVE_SECONDS:
            made.notes.append(f"{leftover}: changed just now, its job may still run: left out (name it to take it)")
        else:
            made.leftovers.append(leftover)
    return made


def _gone(leftover: Path) -> str:
    return f"{leftover}: no longer exists, because its job has just finished: merge again to include its results"


def merge(
    output: Path, inputs: Iterable[Path], *, skip_damaged: bool = False, step: progress.Step = progress.silent
) -> MergeResult:
    """Adds all runs of `inputs` (files, or folders of files) to `output`, which is created if it does not exist.

    skip_damaged: leave out and report inputs that cannot be read. Without it, such an input is an error.
    step: called with (bytes done, total bytes) after each file.
    Memory: some 100 MB for any number of samples. Disk: a temporary copy of the new rows beside the output, and a
    temporary file with the checked rows of one store, without blobs, in the folder that SQLITE_TMPDIR names.
    Errors: StoreError if a store is unreadable, damaged, of an unknown schema, not writable or locked; NotComparable
    if two stores have different contents for one UUID. After an error the output is unchanged.
    """
    work = plan(list(inputs), output)
    work.notes += _remove_dead_working_files(output)
    left_out: list[str] = []
    named = _readable_headers(work.named, skip_damaged, left_out)
    if output.exists():
        store.require_ours(output)
    elif not output.parent.is_dir():
        raise StoreError(f"{output}: cannot be written: there is no folder {output.parent}; make it (mkdir -p)")
    if not named and not work.leftovers and not output.exists():
        raise _nothing(output, left_out, work.notes)
    working = output.with_name(f"{output.name}.{socket.gethostname()}.{os.getpid()}{WORKING_SUFFIX}")
    store.require_short(working)
    try:
        return _run(work, named, output, working, skip_damaged, left_out, step)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"{output}: cannot be written: {error}; check that the folder is writable, has space, and that no "
            "other program holds the file"
        ) from error
    finally:
        working.unlink(missing_ok=True)


def _nothing(output: Path, left_out: Sequence[str], notes: Sequence[str]) -> StoreError:
    return StoreError(f"{output}: nothing to merge: {'; '.join([*left_out, *notes]) or 'no stores named'}")


def _run(
    work: MergeInputs,
    named: list[Path],
    output: Path,
    working: Path,
    skip_damaged: bool,
    left_out: list[str],
    step: progress.Step,
) -> MergeResult:
    files = [*named, *work.leftovers]
    sizes = [seen[1] if (seen := store.state(path)) else 0 for path in files]
    collected = _Collector(working, output, LARGE_PAGE_BYTES if sum(sizes) > LARGE_BYTES else PAGE_BYTES)
    taken = 0
    try:
        with _ReadAhead(files) as ahead:
            for number, path in enumerate(ahead, 1):
                taken += _take(collected, path, path in work.leftovers, skip_damaged, work.notes, left_out)
                step(sum(sizes[:number]), sum(sizes))
        if taken == 0 and not output.exists():
            raise _nothing(output, left_out, work.notes)
        outcome = collected.outcome(work.notes, left_out)
    finally:
        collected.close()
    _publish(working, output, collected.file_of, collected.is_new(), collected.output_checked)
    return outcome


def _readable_headers(paths: list[Path], skip_damaged: bool, left_out: list[str]) -> list[Path]:
    """Checks the headers of all files before any file is read, so that one error names all files with a faulty header.

    Returns the files to merge.
    """
    good, faults = [], []
    for path in paths:
        try:
            store.require_ours(path)
            good.append(path)
        except StoreError as error:
            faults.append(str(error))
    if len(faults) == 1 and not skip_damaged:
        raise StoreError(faults[0])
    if faults and not skip_damaged:
        more = f" | and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise StoreError(
            f"{len(faults)} of {len(paths)} files cannot be merged (--skip-damaged leaves them out): "
            + " | ".join(faults[:5])
            + more
        )
    left_out += faults
    return good


def _take(
    collected: _Collector, path: Path, leftover: bool, skip_damaged: bool, notes: list[str], left_out: list[str]
) -> bool:
    """Collects the rows of one file. Returns False if the file was left out.

    The reason is then added to `notes` if the file is a leftover that has vanished, otherwise to `left_out`.
    """
    try:
        collected.take(path)
        if leftover:
            notes.append(f"{path}: merged, too")
        return True
    except StoreError as error:
        if leftover and not path.exists():
            notes.append(_gone(path))
        elif skip_damaged or (leftover and isinstance(error, store.InUse)):
            left_out.append(str(error))
        else:
            raise
        return False


class _Collector:
    """The working file, with the existing output attached, and the UUIDs of the records collected so far.

    The working file has no journal file and is not synced. Neither is needed, because no other program reads the
    working file, and because the working file is deleted after a fault.
    """

    def __init__(self, working: Path, output: Path, page_bytes: int) -> None:
        self._output = output
        self.output_checked: tuple[int, int, int] | None = None
        self._file_of: dict[str, str] = {}
        # _present and _added: table -> UUIDs of the table's records.
        self._present: dict[str, set[str]] = {record.table: set() for record in schema.RECORDS}
        self._added: dict[str, set[str]] = {record.table: set() for record in schema.RECORDS}
        self._superseded: set[str] = set()
        self._places = [Place("main", self.file_of)]
        self._connection = store.create(working, page_bytes)
        self._connection.isolation_level = None
        untrusted.harden(self._connection)
        for pragma in ("journal_mode = MEMORY", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            self._connection.execute(f"PRAGMA main.{pragma}").fetchall()
        self._connection.execute(f"PRAGMA main.cache_size = -{CACHE_KIB}")
        if output.exists():
            self._attach_output()

    def _attach_output(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * store.WAIT_SECONDS)}")
        try:
            # This connection writes nothing to the output. But a killed merge may have left a journal, and mode rw is
            # needed to roll it back. Without locks, it might be the journal of a program that is writing on another
            # host.
            mode = "ro" if locks.fault(self._output) else "rw"
            self._connection.execute("ATTACH ? AS present", (store.uri(self._output, mode),))
        except untrusted.DAMAGE as error:
            if store.needs_rollback(error):
                raise lockless.unfinished(self._output) from error
            raise store.fault(self._output, error) from error
        state = store.state(self._output)
        self._connection.execute("BEGIN")  # the check sees one state of the output
        try:
            store.check(self._connection, self._output, "present")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self.output_checked = state
        self._places.append(Place("present", lambda _: str(self._output)))

    def file_of(self, uuid: str) -> str:
        """Returns the input file of a session or run."""
        return self._file_of.get(uuid, str(self._output))

    def take(self, path: Path) -> None:
        """Collects the rows of one input.

        Errors: StoreError, also if the input changes while it is read; NotComparable; sqlite3.Error.
        """
        with store.attached(self._connection, path, "incoming"):
            taken = absorb(self._connection, Place("incoming", lambda _: str(path)), self._places)
        for uuid in taken.copied():
            self._file_of[uuid] = str(path)
        for table in self._added:
            self._added[table].update(taken.added[table])
            self._present[table].update(taken.present[table])
        self._superseded |= set(taken.superseded)

    def is_new(self) -> bool:
        """Returns True if the working file has rows that the output does not have."""
        return bool(self._file_of)

    def outcome(self, notes: list[str], left_out: list[str]) -> MergeResult:
        """Returns the numbers of runs and sessions collected so far, with the given lines."""
        cut = "SELECT count(*) FROM main.run WHERE status = 'incomplete'"
        (incomplete,) = self._connection.execute(cut).fetchone()
        added = {table: len(uuids) for table, uuids in self._added.items()}
        present = {table: len(uuids - self._added[table]) for table, uuids in self._present.items()}
        return MergeResult(
            added=added[schema.RUN.table],
            present=present[schema.RUN.table],
            incomplete=incomplete,
            superseded=len(self._superseded),
            notes=notes,
            left_out=left_out,
            coll_added=added[schema.COLL.table],
            coll_present=present[schema.COLL.table],
        )

    def close(self) -> None:
        """Closes the working file. Never throws."""
        self._connection.close()


class _ReadAhead:
    """Reads the next files into the operating system's cache, in a thread, while the caller processes a file.

    The thread closes each file before SQLite opens the file, because closing would drop SQLite's POSIX locks on it.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._begun: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> _ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[Path]:
        for number, path in enumerate(self._files):
            while len(self._begun) < min(number + 1 + READ_AHEAD_FILES, len(self._files)):
                self._begun.append(self._thread.submit(_load, self._files[len(self._begun)]))
            self._begun[number].result()
            yield path


def _load(path: Path) -> None:
    """Reads and discards the first part of the file. Never throws, because the merge reports any fault of the file."""
    block = bytearray(1 << 20)
    try:
        with path.open("rb", buffering=0) as file:
            for _ in range(READ_AHEAD_MIB):
                if not file.readinto(block):
                    return
    except OSError:
        pass


def _publish(
    working: Path, output: Path, file_of: Callable[[str], str], is_new: bool, checked: tuple[int, int, int] | None
) -> None:
    """Renames the working file to the output, or adds its rows to the output if the output exists.

    checked: store.state() of the output when the output was checked; None if there was no output.
    """
    with lockless.writers_kept_out(output, working) as lock:
        if not output.exists():
            whole_file.sync(working)
            try:
                os.link(working, output)  # unlike rename(), fails if another program has created the output meanwhile
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                working.rename(output)
            if not working.exists() or working.samefile(output):
                whole_file.sync(output.parent)
                return
        if not is_new:
            return
        store.require_safe_to_open(output)
        with nullcontext() if lock is None else lockless.replacing(output, lock):
            _add(lock, working, output, file_of, checked)


def _add(
    lock: lockless.WriteLock | None,
    working: Path,
    output: Path,
    file_of: Callable[[str], str],
    checked: tuple[int, int, int] | None,
) -> None:
    """Adds the working file's rows to the output in one transaction. Leaves out rows that are already in the output.

    lock: its file, a copy of the output, gets the rows; None if the output itself gets them. Checks the output again if
    it was replaced or written since its last check.
    """
    uri = f"{lock.file.as_uri()}?mode=rw&vfs=unix-none" if lock else store.uri(output, "rw")
    connection = sqlite.connect(uri, uri=True, timeout=store.WAIT_SECONDS, isolation_level=None)
    try:
        if lock:
            lock.require_held()  # SQLite opened the file by its name
        untrusted.harden(connection)
        connection.execute(f"PRAGMA main.cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA main.synchronous = FULL")
        if lock:
            connection.execute("PRAGMA main.journal_mode = MEMORY").fetchall()  # a copy that fails is not used
        connection.execute("ATTACH ? AS incoming", (f"{working.resolve().as_uri()}?mode=ro&vfs=unix-none",))
        connection.execute("BEGIN IMMEDIATE")
        if checked is None or store.state(output) != checked:
            store.check(connection, output)
        absorb(connection, Place("incoming", file_of), [Place("main", lambda _: str(output))])
        connection.execute("COMMIT")
    finally:
        connection.close()  # rolls the transaction back if it was not committed


def _remove_dead_working_files(output: Path) -> list[str]:
    """Deletes the working files of merges that were killed on this host.

    Returns notes about the deleted files, and about working files of merges on other hosts.
    """
    notes = []
    start = f"{output.name}."
    for path in sorted(output.parent.iterdir()) if output.parent.is_dir() else []:
        if not path.name.startswith(start) or path.suffix != WORKING_SUFFIX:
            continue
        host, _, process = path.name[len(start) : -len(WORKING_SUFFIX)].rpartition(".")
        if host == socket.gethostname() and re.fullmatch("[0-9]{1,9}", process) and not _is_alive(int(process)):
            path.unlink(missing_ok=True)
            notes.append(f"{path}: removed, the merge that wrote it was killed")
        elif host != socket.gethostname():
            notes.append(f"{path}: of a merge on {host}; remove it if none is running there")
    return notes


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
