"""Parts that most tests of scripts/ share: a test case with a folder, and commands in this or in a new process."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import sqlite3
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

from limits import HANG

from synthetic_store import REPOSITORY

from hvdb.cli import main

SCRIPTS = REPOSITORY / "scripts"
TESTBED = REPOSITORY / "tests" / "testbed"


def execute(*words: object, code: int | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command in a new process with the `options` of subprocess.run. The usual limit is HANG.

    Errors: AssertionError with the command's output if its exit code is not `code`. With None, any code is right.
    """
    usual = {"capture_output": True, "text": True, "timeout": HANG, "check": False}
    done = subprocess.run(list(map(str, words)), **usual | options)
    assert code in (None, done.returncode), f"exit code {done.returncode} of {words}\n{done.stdout}\n{done.stderr}"
    return done


def call(*words: object, code: int | None = None) -> tuple[int, str, str]:
    """Runs a command of hvdb in this process. Returns exit code, standard output and standard error.

    Errors: AssertionError as for execute().
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            returned = main(list(map(str, words)))
        except SystemExit as end:
            returned = int(end.code or 0)
    assert code in (None, returned), f"exit code {returned} of {words}\n{out.getvalue()}\n{err.getvalue()}"
    return returned, out.getvalue(), err.getvalue()


def unread(*words: object) -> tuple[int, str]:
    """Runs a command whose output nobody reads, as a new process. Returns exit code and standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = execute(*words, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def refused(pattern: str, *words: object, code: int = 2) -> None:
    """Runs a command of hvdb in this process. It must end with `code` and one printable line that matches `pattern`.

    Errors: AssertionError.
    """
    _, out, err = call(*words, code=code)
    line = err.removesuffix("\n")
    assert not out and line.isprintable() and re.search(pattern, line), f"{words}: {out!r} {err!r}, not '{pattern}'"


def alter(path: Path, *statements: str, values: object = ()) -> None:
    """Executes statements on the store `path`. CHECK constraints are ignored."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        for statement in statements:
            connection.execute(statement, values)


def eventually(condition: Callable[[], object]) -> None:
    """Waits until `condition()` is true. Errors: AssertionError after HANG."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"not within {HANG} s"
        time.sleep(0.05)


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Inside this context no file can grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def executable(path: Path, text: str) -> Path:
    """Makes a file that can be executed, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


class SharedFolderTest(unittest.TestCase):
    """A test case whose tests share a folder. cls.db is the path of a store in this folder."""

    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = Path(scratch.name).resolve()
        cls.db = cls.folder / "a.db"


class FolderTest(unittest.TestCase):
    """A test case whose tests each have a folder of their own. self.db is the path of a store in this folder."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.db = self.folder / "a.db"

    def change(self, sql: str, *values: object) -> None:
        alter(self.db, sql, values=values)
