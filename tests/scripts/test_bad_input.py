"""Tests foreign stores and failing commands: one error line, the right exit code, and no files left behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from limits import HANG

from harness import SCRIPTS, FolderTest, eventually, executable, execute
from synthetic_store import SessionSpec, make

# Stands in for Python's sqlite3 where its library is that of RHEL 9, which knows no STRICT tables.
OLD_SQLITE = """
import _sqlite3
from _sqlite3 import *

sqlite_version = "3.34.1"
sqlite_version_info = (3, 34, 1)


class Old(_sqlite3.Connection):
    def execute(self, sql, *values):
        if "sqlite_schema" in sql or "STRICT" in sql:
            raise DatabaseError('malformed database schema (session) - near "STRICT": syntax error')
        return super().execute(sql, *values)


def connect(*words, **options):
    return _sqlite3.connect(*words, factory=Old, **options)
"""
# Stands in for pysqlite3.
NEWER_SQLITE = """
from _sqlite3 import *

sqlite_version_info = tuple(map(int, sqlite_version.split(".")))
"""


class BadInput(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.runs = make(self.db, SessionSpec())[0]

    def run_script(self, command: str, *words: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return execute(SCRIPTS / command, *words, code=code)

    def refused(self, message: str, *words: object, code: int = 2) -> None:
        done = self.run_script(*words, code=code)
        self.assertRegex(done.stderr, message)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_a_model_that_was_not_measured(self) -> None:
        self.refused(
            "--model vgg16: the stores hold no such runs, but of resnet101", "efficiency", self.db, "--model", "vgg16"
        )

    def test_a_timeout_that_is_none(self) -> None:
        for text in ("-1", "0", "nan", "soon"):
            self.run_script("rerun", self.runs["full"], self.db, "--timeout", text, code=2)

    def test_output_that_goes_nowhere(self) -> None:
        program = str(SCRIPTS / "efficiency")
        for where in (">&-", ">/dev/full"):
            command = f"{shlex.quote(program)} {shlex.quote(str(self.db))} {where}"
            done = execute("bash", "-c", command, code=2)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_a_label_that_the_terminal_has_no_characters_for(self) -> None:
        self.change("UPDATE provenance SET value = 'caf\u00e9' WHERE key = 'cpu.model'")
        other = self.folder / "caf\u00e9.db"
        shutil.copy(self.db, other)
        for words in (("report", other), ("merge", "-o", other, self.db)):
            done = execute(SCRIPTS / words[0], *words[1:], env={**os.environ, "PYTHONIOENCODING": "ascii"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("caf\\xe9", done.stdout)

    def test_a_python_whose_sqlite_is_too_old(self) -> None:
        fakes = self.folder / "fakes"
        executable(fakes / "sqlite3.py", OLD_SQLITE)
        environment = {**os.environ, "PYTHONPATH": str(fakes)}
        words = ("efficiency", "ranks", "report", "merge", "compare", "export", "campaign")
        last = {"merge": ("-o", self.folder / "out.db"), "export": ("--jsonl", self.folder / "out.jsonl")}
        last["campaign"] = ("generate", "laptop", "--site", "laptop", "--out", self.folder / "made", "--pilot")
        commands = [(word, *last.get(word, ()), self.db) for word in words]
        for old in ("sqlite3", "pysqlite3"):
            for command in commands:
                done = execute(SCRIPTS / command[0], *command[1:], code=2, env=environment)
                self.assertRegex(
                    done.stderr,
                    rf"^scripts/{command[0]}: SQLite 3\.34\.1 of Python's module {old} is too old for stores, which "
                    r"need 3\.37: run `\S+ -m pip install pysqlite3-binary`, or let HVD_PYTHON name another Python\n$",
                )
            execute(SCRIPTS / "merge", "--help", code=0, env=environment)
            executable(fakes / "pysqlite3.py", OLD_SQLITE)
        executable(fakes / "pysqlite3.py", NEWER_SQLITE)
        for command in commands[:4]:
            done = execute(SCRIPTS / command[0], *command[1:], env=environment)
            self.assertEqual(done.stderr, "", command)

    def test_a_recorded_command_that_is_none(self) -> None:
        self.change("UPDATE session SET command_line = 'hvd_bench --model \"x'")
        self.refused("run .* is not run again: no closing", "rerun", self.runs["full"], self.db, "--execute")

    def record_with_endless_program(self) -> Path:
        """Makes a record, and a self.program that never ends. Returns the file with the program's process id."""
        note = self.folder / "pid"
        # The shell waits for its child. A signal that is sent only to the shell does not reach the child.
        script = f"#!/bin/sh\nsleep 86400 &\necho $! >{shlex.quote(str(note))}\nwait\n"
        self.program = executable(self.folder / "sleeper", script)
        self.change("UPDATE session SET command_line = 'hvd_bench --ranks 2'")
        return note

    def test_a_rerun_that_takes_too_long_leaves_nobody_behind(self) -> None:
        note = self.record_with_endless_program()
        words = ("--execute", "--program", self.program, "--timeout", 3)
        self.refused("took longer than 3 s", "rerun", self.runs["full"], self.db, *words)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)

    def test_a_rerun_that_is_ended_leaves_nobody_behind(self) -> None:
        """SIGTERM and SIGHUP must end both the script and the program, and must leave no scratch folder."""
        note, scratch = self.record_with_endless_program(), self.folder / "scratch"
        scratch.mkdir()
        command = [str(SCRIPTS / "rerun"), self.runs["full"], str(self.db), "--execute"]
        command += ["--program", str(self.program)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        for number in (signal.SIGTERM, signal.SIGHUP):
            note.unlink(missing_ok=True)
            with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch)}, **pipes) as running:
                eventually(lambda: note.exists() and note.read_text())
                running.send_signal(number)
                self.assertEqual(running.communicate(timeout=HANG)[1], "scripts/rerun: interrupted\n")
            self.assertEqual(running.returncode, 7)
            with self.assertRaises(ProcessLookupError):
                os.kill(int(note.read_text()), 0)
            self.assertEqual(os.listdir(scratch), [])
