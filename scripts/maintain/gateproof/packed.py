"""Makes small copies of stores of pairs. A copy contains only step times and is compressed."""

from __future__ import annotations

import contextlib
import lzma
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hvdb import whole_file
from hvdb.errors import HvdbError
from hvdb.store import open_readonly

SUFFIX = ".db.xz"
MOST_BYTES = 1 << 30  # largest size of an unpacked store


def stores(folder: Path) -> dict[str, Path]:
    """Returns the stores of `folder` by name, packed or not."""
    files = [*folder.glob(f"*{SUFFIX}"), *folder.glob("*.db")]
    return {file.name.partition(".")[0]: file for file in files}


def pack(folder: Path, out: Path) -> None:
    """Writes the recorded steps and the stores of `folder` into `out`. The copies' only samples are step times.

    Errors: HvdbError if there is no store, or if a store is damaged; OSError.
    """
    if out.exists() and out.samefile(folder):
        raise HvdbError(f"{out}: is the folder that is read; name another one")
    plain = sorted(folder.glob("*.db"))
    if not plain:
        raise HvdbError(f"{folder}: there is no store; measure with `gate_proof collect`")
    out.mkdir(parents=True, exist_ok=True)
    for store in plain:
        with tempfile.TemporaryDirectory() as scratch, open_readonly(store) as source:
            copy = Path(scratch) / store.name
            with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as made:
                source.backup(made)
                made.execute("DELETE FROM sample WHERE kind <> 'step_seconds'")
                made.execute("VACUUM")
            whole_file.write_bytes(out / f"{store.stem}{SUFFIX}", lzma.compress(copy.read_bytes()))
    for step in folder.glob("step*.txt"):
        shutil.copyfile(step, out / step.name)


@contextlib.contextmanager
def unpacked(store: Path) -> Iterator[Path]:
    """Yields the path of the store. A packed store is unpacked into a temporary file. Errors: HvdbError if the store is
    damaged; OSError."""
    if not store.name.endswith(SUFFIX):
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / store.stem
        try:
            with lzma.open(store) as source:
                content = source.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise HvdbError(f"{store}: holds more than {MOST_BYTES} bytes; unpack it, and give the store")
            whole_file.write_bytes(plain, content)
        except (lzma.LZMAError, EOFError) as error:
            raise HvdbError(f"{store}: is damaged ({error}); get it again") from None
        yield plain
