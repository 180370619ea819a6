"""A dry run of docs/accept.md: every command of the page is parsed, and all but doctor run on two ranks of a CPU.

stand_in.py says how. Only the program's answers are judged, never a time, so exit codes that depend on times may vary.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unittest
from pathlib import Path

from harness import FolderTest, executable, execute
from synthetic_store import REPOSITORY

PAGE = REPOSITORY / "docs/accept.md"
HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
STAND_IN = Path(__file__).resolve().with_name("stand_in.py")
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The words by which a command of the page is known, and its possible exit codes here. reproduce: no run is on 512 GPUs.
CODES = {
    "hvd_bench doctor": {2},  # only parsed: HVD_MAX_CPU_ISA is refused
    "hvd_bench validate": {0},
    "hvd_bench coll": {0},
    "hvd_bench --device": {0},
    "campaign generate": {0},
    "campaign submit": {0},
    "campaign status": {0},
    "merge -o": {0},
    "ranks accept.db": {0, 1, 3},
    "report accept.db": {0},
    "predict small.db": {0},
    "predict --judge": {0, 1},
    "reproduce horovod-512": {3},
}


@unittest.skipUnless(HVD_BENCH.is_file(), f"the program is not built ({HVD_BENCH})")
@unittest.skipUnless(sys.version_info >= (3, 11), "a campaign needs Python 3.11")
class AcceptTest(FolderTest):
    def dry_run(self, page: str) -> list[dict]:
        """Runs the code blocks of a page in one shell. Returns what stand_in.py says about each command."""
        found, tools, log = self.folder / "work", self.folder / "tools", self.folder / "log"
        shim = f'#!/bin/sh\nexec {sys.executable} -B {STAND_IN} "${{0##*/}}" "$@"\n'
        for name in ("srun", "jsrun"):
            executable(tools / name, shim)
        for name in re.findall(r"\bscripts/(\w+)", page):
            executable(found / "scripts" / name, shim)
        for name in ("sha256sum", "cut"):
            executable(tools / name, f'#!/bin/sh\nexec {shutil.which(name)} "$@"\n')
        found.mkdir(exist_ok=True)
        own = {"PATH": str(tools), "ACCEPT_PATH": os.environ["PATH"], "ACCEPT_LOG": str(log)}
        own |= {"HVD_BENCH": str(HVD_BENCH.resolve())}
        log.write_text("", encoding="utf-8")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HOROVOD_", "HVD_"))}
        script = "\n".join(FENCED.findall(page))
        done = execute("/bin/bash", "-uc", script, env={**clean, **own}, cwd=found)
        self.assertEqual(done.stderr, "", "the shell understands every line")
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]

    def test_the_page_runs_from_the_first_command_to_the_last(self) -> None:
        text = PAGE.read_text(encoding="utf-8")
        entries = self.dry_run(text)
        for entry in entries:
            with self.subTest(words=entry["words"]):
                self.assertEqual(entry["fault"], "")
                known = " ".join(entry["words"][:2])
                self.assertIn(entry["code"], CODES[known], entry["output"])
        called = {" ".join(entry["words"][:2]): entry for entry in entries}
        self.assertEqual(called.keys(), CODES.keys(), "the page has every step")
        hours = re.search(r"^at most +(\d+)\.00$", called["campaign generate"]["output"], re.MULTILINE)[1]
        self.assertIn(f"{hours} node-hours, {int(hours) / 32:.0f} hours of all nodes", " ".join(text.split()))
        self.assertIn("steps: ", called["predict --judge"]["output"])
        self.assertTrue((self.folder / "work" / "accept.html").is_file())
        self.assertRegex(called["reproduce horovod-512"]["output"], r"\(0 of 3 networks measured on 512 GPUs\)\n$")

    def test_a_wrong_command_is_noticed(self) -> None:
        wrong = {
            "srun -N 2 -n 16 hvd_bench validate --nonesuch 3": "--nonesuch",
            "srun --nonesuch hvd_bench doctor": "--nonesuch",
            "jsrun -n33 -r1 -a1 -c128 -g8 hvd_bench doctor": "33 resource sets",
            "srun -N 2 -n 16 hvd_bench --db a.db --efficiency --nonesuch": "--nonesuch",
            "srun -N 2 -n 16 hostname": "hostname",
            "scripts/nonesuch a.db": "no scripts/nonesuch",
        }
        page = "\n".join(["```", *wrong, "scripts/ranks --nonesuch a.db", "```", ""])
        *entries, last = self.dry_run(page)
        for (line, why), entry in zip(wrong.items(), entries, strict=True):
            with self.subTest(line=line):
                self.assertIn(why, entry["fault"])
        self.assertEqual(last["code"], 2)
        with self.assertRaisesRegex(AssertionError, "the shell understands"):
            self.dry_run("```\nnonesuch a.db\n```\n")
