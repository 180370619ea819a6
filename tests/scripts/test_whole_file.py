"""Stops scripts while they write a file. The complete old file or the complete new file must remain, and the message
must name the file."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from pathlib import Path
from unittest import mock

from harness import FolderTest, full_disk
from synthetic_store import SessionSpec, make

from hvdb.base import whole_file
from hvdb.cli import main
from hvdb.show import plot_scaling  # noqa: F401  (loads matplotlib and its fonts before the disk is full)


class WholeFile(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.old = self.folder / "old.txt"
        self.old.write_text("old")

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.iterdir() if path.is_file()}

    def test_what_cannot_be_written_leaves_the_old_file(self) -> None:
        with self.assertRaises(OSError) as caught, full_disk(10):
            whole_file.write_text(self.old, "x" * 100)
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.EFBIG, str(self.old)))
        self.assertEqual(self.files(), {"old.txt": "old"})

    def test_permissions_and_links_stay(self) -> None:
        self.old.chmod(0o604)
        link = self.folder / "link"
        link.symlink_to(self.old)
        whole_file.write_text(link, "caf\u00e9")
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.files(), {"old.txt": "caf\u00e9", "link": "caf\u00e9"})
        self.assertEqual(self.old.stat().st_mode & 0o777, 0o604)
        whole_file.write_bytes(self.old, b"", 0o755)
        self.assertEqual(self.old.stat().st_mode & 0o777, 0o755)

    def test_the_permissions_are_there_before_the_file_is(self) -> None:
        seen = []
        rename = Path.replace

        def watched(fresh: Path, target: Path) -> Path:
            seen.append(fresh.stat().st_mode & 0o777)
            return rename(fresh, target)

        with mock.patch.object(Path, "replace", watched):
            whole_file.write_bytes(self.folder / "key", b"x", 0o600)
            whole_file.write_bytes(self.old, b"x", 0o755)
        self.assertEqual(seen, [0o600, 0o755])

    def test_a_copy_of_nothing_names_the_source(self) -> None:
        with self.assertRaises(FileNotFoundError) as caught:
            whole_file.copy(self.folder / "none", self.old)
        self.assertEqual(caught.exception.filename, str(self.folder / "none"))
        with self.assertRaises(FileNotFoundError) as caught:
            whole_file.copy(self.old, self.folder / "no" / "new")
        self.assertEqual(caught.exception.filename, str(self.folder / "no" / "new"))
        self.assertEqual(self.files(), {"old.txt": "old"})

    def test_a_file_that_waits_under_the_new_name_is_not_written(self) -> None:
        """Another user with access to the folder could make a link with the name that the new file has until it is
        complete."""
        victim = self.folder / "victim"
        victim.write_text("untouched")
        with mock.patch.object(whole_file, "_fresh_name", lambda target: target.with_name(".x.unfinished")):
            (self.folder / ".x.unfinished").symlink_to(victim)
            with self.assertRaises(FileExistsError) as caught:
                whole_file.write_text(self.old, "new")
        self.assertEqual(caught.exception.filename, str(self.old))
        self.assertEqual((victim.read_text(), self.old.read_text()), ("untouched", "old"))
        self.assertTrue((self.folder / ".x.unfinished").is_symlink(), "it is not ours")

    def test_what_a_kill_leaves_is_recognised(self) -> None:
        with whole_file.replacing(self.old) as fresh:
            self.assertTrue(whole_file.is_unfinished(fresh))
            with whole_file.replacing(self.old) as another:
                self.assertNotEqual(fresh, another)
        for name in ("old.txt", ".old.txt", "x.unfinished"):
            self.assertFalse(whole_file.is_unfinished(Path(name)), name)

    def test_a_device_stays_one(self) -> None:
        whole_file.write_text(Path("/dev/null"), "x")
        self.assertTrue(Path("/dev/null").is_char_device())
        with self.assertRaises(OSError) as caught:
            whole_file.write_text(Path("/dev/full"), "x")
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENOSPC, "/dev/full"))
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        whole_file.write_text(pipe, "x")
        self.assertEqual(os.read(reader, 9), b"x")

    def test_report_and_plots_on_a_full_disk(self) -> None:
        db = self.folder / "a.db"
        make(db, SessionSpec())
        plots = self.folder / "plots"
        plots.mkdir()
        for form in ("png", "svg"):
            (plots / f"scaling.{form}").write_text("old")
        for words, file in (
            (["report", str(db), "-o", str(self.old)], self.old),
            (["plot", str(db), "--out", str(plots)], plots / "scaling.png"),
            (["plot", str(db), "--out", str(plots), "--format", "svg"], plots / "scaling.svg"),
        ):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), full_disk(1000):
                code = main(words)
            self.assertEqual((code, said.getvalue()), (2, f"scripts/{words[0]}: {file}: File too large\n"))
            self.assertEqual(file.read_text(), "old")
        self.assertEqual(sorted(os.listdir(plots)), ["scaling.png", "scaling.svg"])
