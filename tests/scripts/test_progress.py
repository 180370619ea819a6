"""Tests the progress line on a terminal: its text, when it begins and ends, and that it appears only on terminals."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
import unittest
import unittest.mock
from collections.abc import Callable

from harness import SCRIPTS, FolderTest, eventually
from synthetic_store import SessionSpec, make

from hvdb.base import progress
from hvdb.read import runs
from hvdb.read.merge import merge


class TextTest(unittest.TestCase):
    def test_durations(self) -> None:
        for seconds, words in ((-3, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s")):
            self.assertEqual(progress.duration(seconds), words)
        self.assertEqual(progress.duration(3600 * 2 + 60 * 5 + 7), "2 h 5 min")

    def test_the_time_left_follows_from_what_is_done(self) -> None:
        self.assertEqual(progress.text("merging", 30, 3, 12), "merging, 25 %, about 1 min 30 s left")
        self.assertEqual(progress.text("merging", 30, 12, 12), "merging, 100 %, about 0 s left")

    def test_nothing_is_promised_before_something_is_done(self) -> None:
        self.assertEqual(progress.text("merging", 30, 0, 12), "merging, 0 %, 30 s so far")
        self.assertEqual(progress.text("writing", 7, 0, 0), "writing, 7 s so far")

    def test_a_bound(self) -> None:
        self.assertEqual(progress.text("job 1 of 3", 100, 0, 0, 700), "job 1 of 3, at most 10 min 0 s left")
        self.assertEqual(progress.text("job 1 of 3", 800, 0, 0, 700), "job 1 of 3, at most 0 s left")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ShownTest(unittest.TestCase):
    def shown(self, stream: io.StringIO, begin_seconds: float, work: Callable[[], object]) -> str:
        """Returns the text that `work` writes to `stream` if progress begins after `begin_seconds`."""
        with (
            unittest.mock.patch.multiple(progress, BEGIN_SECONDS=begin_seconds, REDRAW_SECONDS=0.05),
            progress.shown("reading", stream=stream) as step,
        ):
            step(1, 4)
            work()
        return stream.getvalue()

    def test_a_line_that_is_removed(self) -> None:
        stream, line = Terminal(), f"{progress.ERASE}reading, 25 %, about "
        seen = self.shown(stream, 0.2, lambda: eventually(lambda: line in stream.getvalue()))
        self.assertTrue(seen.startswith(f"{progress.ERASE}reading"), seen)
        self.assertTrue(seen.endswith(progress.ERASE), seen)
        self.assertNotIn("\n", seen)

    def test_short_work_shows_nothing(self) -> None:
        self.assertEqual(self.shown(Terminal(), 3600, lambda: None), "")

    def test_only_a_terminal_is_shown_anything(self) -> None:
        self.assertEqual(self.shown(io.StringIO(), 0.1, lambda: time.sleep(0.4)), "")

    def test_a_fault_removes_it_too(self) -> None:
        stream = Terminal()
        with (
            unittest.mock.patch.multiple(progress, BEGIN_SECONDS=0.05, REDRAW_SECONDS=0.05),
            contextlib.suppress(KeyboardInterrupt),
            progress.shown("reading", stream=stream),
        ):
            eventually(stream.getvalue)
            raise KeyboardInterrupt
        self.assertTrue(stream.getvalue().endswith(progress.ERASE))


class CommandTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.stores = [self.folder / name for name in ("a.db", "b.db")]
        for seed, store in enumerate(self.stores):
            make(store, SessionSpec(), seed=seed)

    def test_steps_end_with_all_bytes(self) -> None:
        size = sum(store.stat().st_size for store in self.stores)
        for work in (
            lambda step: runs.load(self.stores, step),
            lambda step: merge(self.folder / "out.db", self.stores, step=step),
        ):
            seen: list[tuple[float, float]] = []
            work(lambda done, total, seen=seen: seen.append((done, total)))
            self.assertEqual(seen, sorted(seen), "it never goes back")
            self.assertEqual(seen[-1], (size, size))

    def test_on_a_terminal_it_goes_to_standard_error(self) -> None:
        """Progress begins at once here. Standard output must contain the whole table and nothing else."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from hvdb import cli\nfrom hvdb.base import progress\n"
            "progress.BEGIN_SECONDS = progress.REDRAW_SECONDS = 0.001\n"
            "sys.exit(cli.main(sys.argv[2:]))"
        )
        words = [sys.executable, "-B", "-c", script, str(SCRIPTS), "efficiency", *map(str, self.stores)]
        table = self.folder / "table"
        with table.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=theirs) as running:
            os.close(theirs)
            said = ""
            with contextlib.suppress(OSError):  # EIO: no process has the terminal open any more
                while piece := os.read(ours, 1 << 16):
                    said += piece.decode()
        self.assertEqual(running.returncode, 0)
        self.assertIn("reading 2 stores", said)
        self.assertTrue(said.endswith(progress.ERASE), said[-200:])
        self.assertTrue(table.read_text().startswith("model "))
        self.assertNotIn("reading", table.read_text())
