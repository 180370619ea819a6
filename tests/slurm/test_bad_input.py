"""Tests bad input and failing surroundings: one error line, the right exit code, and no lost job if nobody reads the
output."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import unittest
import unittest.mock
from pathlib import Path

from campaigns import HANG, REPOSITORY, STAND_INS
from test_life import LifeTest

PROGRAM = REPOSITORY / "scripts" / "campaign"
SPEC = """
name = "here"
models = ["vgg16"]
ranks = [1]
repetitions = 3
[weak]
batch_size = 4
"""
# Jobs run on this machine. The launcher drops its own option (-n RANKS) and runs the rest.
SITE = f"""
base = "laptop"
name = "here"
[program]
hvd_bench = "{STAND_INS}/hvd_bench"
[launch]
command = ["bash", "-c", 'shift 2; exec "$@"', "-"]
"""


class HereTest(LifeTest):
    SCHEDULER_SITE = SITE

    def setUp(self) -> None:
        super().setUp()
        (self.top / "spec.toml").write_text(SPEC, encoding="utf-8")

    def run_with(self, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
        """Runs scripts/campaign as a user does, with `more` passed to subprocess.run."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.cluster.environment(), **more}
        return subprocess.run([PROGRAM, *map(str, words)], text=True, timeout=HANG, check=False, **streams)

    def nobody(self) -> int:
        """Returns the writing end of a pipe whose reading end is closed."""
        read, write = os.pipe()
        os.close(read)
        self.addCleanup(os.close, write)
        return write


class NobodyReadsTest(HereTest):
    def test_all_jobs_are_run_all_the_same(self) -> None:
        self.generate()
        done = self.run_with("submit", self.folder, stdout=self.nobody())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.counts(), {"done": 3})

    def test_a_status_that_nobody_reads_ends_with_its_exit_code(self) -> None:
        self.generate()
        cell = json.loads((self.folder / "campaign.json").read_text())["jobs"][0]["cells"]["1"][0][0]
        self.call("submit", self.folder, **{f"FAKE_CODE_{cell}": "8"})
        self.assertEqual(self.run_with("status", self.folder, stdout=self.nobody()).returncode, 1)

    def test_notes_that_nobody_reads(self) -> None:
        self.generate()
        (self.folder / "stores" / "empty.db").touch()
        nobody = self.nobody()
        self.assertEqual(self.run_with("resume", self.folder, stdout=nobody, stderr=nobody).returncode, 0)
        self.assertEqual(self.counts(), {"done": 3})

    def test_a_full_disk_below_the_output(self) -> None:
        self.generate()
        with Path("/dev/full").open("w") as full:
            done = self.run_with("submit", self.folder, stdout=full)
        self.assertEqual(done.returncode, 0)
        said = "scripts/campaign: standard output: No space left on device; going on without it\n"
        self.assertEqual(done.stderr, said)
        self.assertEqual(self.counts(), {"done": 3})

    def test_what_was_run_is_said_at_once(self) -> None:
        self.generate()
        (self.folder / "jobs" / "n0001-r2.sh").write_text("exit 2\n", encoding="utf-8")
        done = self.call("submit", self.folder)
        self.refused(done, "job n0001-r2 ended with 2", code=1)
        self.assertIn("n0001-r1: done\nn0001-r2: 1 cells", done.stdout)

    def test_generate_writes_its_folder(self) -> None:
        (self.top / "spec.toml").write_text(SPEC.replace("= 3", "= 200"), encoding="utf-8")
        words = ("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--out", self.folder)
        self.assertEqual(self.run_with(*words, stdout=self.nobody()).returncode, 0)
        self.assertEqual(self.counts(), {"lacking": 200})

    def test_status_that_goes_nowhere(self) -> None:
        self.generate()
        for where, message in ((">&-", "standard output is closed"), (">/dev/full", "standard output: No space left")):
            command = f"{shlex.quote(str(PROGRAM))} status {shlex.quote(str(self.folder))} {where}"
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=HANG, check=False)
            self.refused(done, f"scripts/campaign: {message}")

    def test_a_path_that_the_terminal_has_no_characters_for(self) -> None:
        self.folder = self.top / "café"
        self.generate()
        environment = {**self.cluster.environment(), "PYTHONIOENCODING": "ascii"}
        done = self.run_with("status", self.folder, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("caf\\xe9", done.stdout)


class LocaleTest(HereTest):
    """A folder's name is bytes. Its campaign must write there in every locale, and nowhere else."""

    def setUp(self) -> None:
        super().setUp()
        (self.top / "site.toml").rename(self.top / "日本.toml")
        (self.top / "site.toml").write_text('base = "日本.toml"\nname = "here"\n', encoding="utf-8")

    def in_locale(self, **variables: str) -> None:
        usual = {name: value for name, value in self.cluster.environment().items() if not name.startswith("LC_")}
        environment = {**usual, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **variables}
        for name in ("\udcfcmlaut", "\xfcmlaut"):  # in ISO-8859-1 the first name is the text of the second
            self.folder = self.top / name
            words = ("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--out", self.folder)
            for command in (words, ("submit", self.folder)):
                done = self.run_with(*command, env=environment, errors="surrogateescape")
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(list(self.folder.glob("events/*.log"))), 3)
        written = sorted(path.name for path in self.top.iterdir() if (path / "events").exists())
        self.assertEqual(written, ["\xfcmlaut", "\udcfcmlaut"])
        for name in written:
            self.folder = self.top / name
            self.assertEqual(self.counts(), {"done": 3}, "the same in the locale of this test")
            self.assertEqual(len(list(self.folder.glob("events/*.log"))), 3)

    def test_ascii(self) -> None:
        self.in_locale(LC_ALL="C")

    def test_iso_8859_1(self) -> None:
        made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", self.top / "de_DE.ISO-8859-1"]
        try:
            subprocess.run(made, check=True, capture_output=True, timeout=HANG)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("needs localedef, and the sources of locales")
        self.in_locale(LC_ALL="de_DE.ISO-8859-1", LOCPATH=str(self.top))


class DamagedTest(HereTest):
    def test_the_manifest(self) -> None:
        self.generate()
        manifest = self.folder / "campaign.json"
        whole = json.loads(manifest.read_text(encoding="utf-8"))
        changes = ({"jobs": [3]}, {"submit": {}}, {"name": 3}, {"jobs": [{**whole["jobs"][0], "cells": 3}]})
        for text in ('{"format": 1}', "[" * 100_000, *(json.dumps(whole | change) for change in changes)):
            with self.subTest(text[:20]):
                manifest.write_text(text, encoding="utf-8")
                self.refused(self.call("status", self.folder), "campaign.json: damaged (", "generate again")

    def test_the_journal(self) -> None:
        self.submitted()
        journal = self.folder / "submissions.jsonl"
        bad = b'null\n\xff\xfe\n{"job": [], "repetitions": [1]}\n' + b"[" * 100_000 + b"\n"
        journal.write_bytes(bad + journal.read_bytes())
        self.assertEqual(self.counts(), {"done": 3})
        self.refused(self.call("submit", self.folder), "was submitted before")

    def test_links_to_themselves(self) -> None:
        loop = self.top / "loop"
        loop.symlink_to(loop)
        self.refused(self.call("status", loop), "loop: is not a campaign's folder", "symbolic links")
        spec, site = self.top / "spec.toml", self.top / "site.toml"
        self.refused(self.call("generate", spec, "--site", site, "--out", loop), "loop: cannot be written")

    def test_names_that_are_not_utf8(self) -> None:
        """A shell takes them, but a scheduler also has other uses for them."""
        (self.top / "slurm.toml").write_text('base = "slurm"\nname = "slurm"\n', encoding="utf-8")
        words = ("generate", self.top / "spec.toml", "--site", self.top / "slurm.toml", "--out")
        folder = self.top / "c\udcff"
        self.refused(self.call(*words, folder), "c\\xff: cannot be written: job scripts are UTF-8, and the byte \\xff")
        self.refused(self.call(*words, self.folder, "--set", "program.hvd_bench=\udcff"), "job scripts are UTF-8")
        self.assertFalse(folder.exists() or self.folder.exists())

    def test_pipes_are_not_waited_for(self) -> None:
        self.generate()
        os.mkfifo(self.folder / "stores" / "y.db")
        os.mkfifo(self.folder / "events" / "n0001-r1.r1.a.log")
        for command in ("status", "resume"):
            done = self.run_with(command, self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("y.db: not a file; its cells count as lacking", done.stdout + done.stderr)


class EndTest(HereTest):
    """A command must print one line, however it ends."""

    def ended_by(self, fault: BaseException) -> subprocess.CompletedProcess[str]:
        self.generate()
        with unittest.mock.patch("hvdb.campaign.life.held_cells", side_effect=fault):
            return self.call("status", self.folder)

    def test_control_c(self) -> None:
        self.refused(self.ended_by(KeyboardInterrupt()), "scripts/campaign: interrupted", code=7)

    def test_a_defect_of_ours(self) -> None:
        done = self.ended_by(ZeroDivisionError("two\nlines"))
        self.refused(done, "unexpected ZeroDivisionError: two lines (", "please report it", code=9)
