"""Reads damaged and hostile stores made from seeds. Every reader must give an exit code and one line, and must write
nothing beside its output.

HVD_FUZZ_DAMAGED and HVD_FUZZ_HOSTILE give the numbers of stores (2000 and 500 under ctest -C nightly -L nightly).
HVD_FUZZ_SEED is the first seed. A failure names its seed. HVD_FUZZ_SEED=<seed> HVD_FUZZ_DAMAGED=1 repeats the failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import unittest
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import fuzzed_stores
from export import prometheus_text
from html_check import Page
from limits import HANG, slowness

from harness import SCRIPTS, SharedFolderTest, call

from hvdb.base import record
from hvdb.base.errors import StoreError
from hvdb.read import runs
from hvdb.show import figure

try:
    from hvdb.base.errors import CampaignError
    from hvdb.campaign import stores
except ImportError:  # Python 3.10 has no tomllib
    stores = None

FIRST = int(os.environ.get("HVD_FUZZ_SEED", "0"))
DAMAGED = int(os.environ.get("HVD_FUZZ_DAMAGED", "60"))
HOSTILE = int(os.environ.get("HVD_FUZZ_HOSTILE", "40"))
SECONDS = 60.0  # processor time that all readers of one store may take (usually 0.1 s)
VERDICTS = {"compare": {1, 3}, "history": {1, 3}, "ranks": {1, 3}, "reproduce": {1, 3}}
FENCED = re.compile(r"^(`{3,})\n.*?^\1$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
SPEC = 'name = "fuzz"\nmodels = ["vgg16"]\nranks = [1]\nrepetitions = 1\n[weak]\nbatch_size = 4\n'


class Finding(Exception):
    """A fault of a reader."""


def judge(words: tuple, code: int, out: str, err: str) -> None:
    """Checks the exit code and the output of a command. Errors: Finding."""
    command = words[0]
    shown = f"{command}: exit code {code}: {err.strip()[-300:]!a}"
    if code not in {0, 2, 4} | VERDICTS.get(command, set()):
        raise Finding(shown)
    if "Traceback" in err or "unexpected" in err:
        raise Finding(shown)
    expected = ("a.db", "nothing to show", "nothing to draw", "no run starts with")
    if code in (2, 4) and (len(err.splitlines()) != 1 or (code == 2 and not any(word in err for word in expected))):
        raise Finding(f"not one line with the file's name: {shown}")
    for text in (out, err):
        if control := re.search(r"[^\n\x20-\x7e\u00a1-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]", text):
            raise Finding(f"{command} prints {control[0]!a}: {text[max(0, control.start() - 60) : control.end()]!a}")
    if command == "report" and (markup := re.search("<script|<img", CODE.sub("", FENCED.sub("", out)))):
        raise Finding(f"markup in the report: {out[max(0, markup.start() - 60) : markup.end()]!a}")


class Fuzz(SharedFolderTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.top = cls.folder
        cls.out = cls.top / "deep" / "er" / "out"
        cls.out.mkdir(parents=True)
        (cls.top / "here").mkdir()
        cls.base, cls.db = cls.top / "base.db", cls.top / "stores" / "a.db"
        cls.db.parent.mkdir()
        fuzzed_stores.make_base(cls.base)
        cls.run_id = runs.load([cls.base])[0].uuid
        if stores is not None:
            spec = cls.top / "spec.toml"
            spec.write_text(SPEC, encoding="utf-8")
            words = ("generate", spec, "--site", "laptop", "--out", cls.top / "campaign")
            call("campaign", *words, code=0)
            # The first resume makes the campaign's lock file. files() must see this file before any reader runs.
            call("campaign", "resume", cls.top / "campaign", "--dry-run", code=0)
        no_wait = unittest.mock.patch("os.fsync")  # saves time: no file here must survive a power failure
        no_wait.start()
        cls.addClassCleanup(no_wait.stop)
        directory = Path.cwd()
        os.chdir(cls.top / "here")
        cls.addClassCleanup(os.chdir, directory)
        for setting in ("figure.dpi", "savefig.dpi"):
            figure.plt.rcParams[setting] = 20  # small plots are quick, and no test reads them

    def files(self) -> dict[str, int]:
        """Maps every file outside of the output folder, except self.db, to its size."""
        return {
            str(path.relative_to(self.top)): path.stat().st_size
            for path in self.top.rglob("*")
            if path.is_file() and self.out not in path.parents and path != self.db
        }

    def read(self, draw: bool) -> None:
        """Runs every reader on self.db. Errors: Finding."""
        before, content = self.files(), self.db.read_bytes()
        merged = self.out / "merged.db"
        exported = self.out / "runs.prom", self.out / "runs.jsonl"
        for file in (merged, *exported):
            file.unlink(missing_ok=True)
        commands = [
            ("efficiency", self.db),
            ("efficiency", self.db, "--json", "--incomplete", "--mix-fingerprints"),
            ("report", self.db, "--mix-fingerprints"),
            ("merge", "-o", merged, self.db),
            ("ranks", self.db, "--incomplete"),
            ("compare", self.db, self.base),
            ("history", self.db, "--metric", "efficiency", "--json", self.out / "history.json"),
            ("rerun", self.run_id[:8], self.db),
            ("reproduce", "horovod-512", "--db", self.db, "--device", "cpu"),
            ("export", self.db, "--prometheus", exported[0], "--jsonl", exported[1]),
        ]
        page = self.out / "page.html"
        page.unlink(missing_ok=True)
        if draw:
            commands.append(("report", self.db, "--mix-fingerprints", "-o", page))
            commands.append(("plot", self.db, "--out", self.out, "--mix-fingerprints"))
            commands.append(("collectives", self.db, "--out", self.out))
            commands.append(("ranks", self.db, "--json", "--out", self.out))
            commands.append(("history", self.db, "--plot", self.out / "history.png"))
        codes = {}
        for words in commands:
            code, out, err = call(*words)
            judge(words, code, out, err)
            codes[words[0]] = code, err
        if page.exists() and (faults := Page(page.read_text(encoding="utf-8")).faults()):
            raise Finding(f"in the HTML report: {faults[:5]}")
        if codes["export"][0] == 0:
            for line in exported[1].read_text(encoding="ascii").splitlines():
                record.json_object(line, len(line))
            prometheus_text.parse(exported[0].read_text(encoding="utf-8"))
        if codes["merge"][0] == 0:
            try:
                runs.load([merged])
            except StoreError as error:
                raise Finding(f"merge took what no reader takes: {error}") from error
        damaged_for = [command for command, (_, err) in codes.items() if "a.db: damaged" in err]
        if damaged_for and "merge" not in damaged_for:
            raise Finding(f"damaged for {damaged_for}, not for merge: {codes['merge']}")
        if stores is not None:
            self.read_campaign(content)
        if (after := self.files()) != before or self.db.read_bytes() != content:
            raise Finding(f"written: {set(after.items()) ^ set(before.items())}")

    def read_campaign(self, content: bytes) -> None:
        cells, notes = stores.held([self.db])
        if any(not note.isprintable() or "a.db" not in note for note in notes):
            raise Finding(f"campaign notes {notes!a}")
        try:
            stores.pilot([self.db])
        except CampaignError as error:
            if "a.db" not in str(error) and "no complete launch" not in str(error):
                raise Finding(f"campaign pilot: {error!a}") from error
        inside = self.top / "campaign" / "stores" / "a.db"
        inside.write_bytes(content)
        try:
            for words in (("status", self.top / "campaign"), ("resume", self.top / "campaign", "--dry-run")):
                code, out, err = call("campaign", *words)
                if code != 0 or "Traceback" in err or "\x1b" in out + err:
                    raise Finding(f"campaign {words[0]}: exit code {code}: {err!a}")
        finally:
            inside.unlink()

    def sweep(self, make: Callable[[Path, Path, int], str], count: int, draw_each: int) -> None:
        findings = []
        refused = 0
        for seed in range(FIRST, FIRST + count):
            what = make(self.base, self.db, seed)
            begun = time.process_time()
            try:
                self.read(draw=seed % draw_each == 0)
                if (took := time.process_time() - begun) > SECONDS * slowness():
                    raise Finding(f"took {took:.0f} s")
            except Finding as finding:
                findings.append(f"seed {seed} ({what[:200]!a}): {finding}")
            except Exception as error:  # a traceback counts as a finding and must not end the sweep
                findings.append(f"seed {seed} ({what[:200]!a}): raises {error!r:.300}")
            refused += call("efficiency", self.db)[0] == 2
        self.assertEqual(findings[:20], [], f"{len(findings)} findings in {count} stores")
        if count >= 40:
            self.assertTrue(0.2 * count < refused < count, f"{refused} of {count} refused: the fuzz has lost its aim")

    def test_damaged(self) -> None:
        self.sweep(fuzzed_stores.damaged, DAMAGED, draw_each=10)

    def test_hostile(self) -> None:
        self.sweep(fuzzed_stores.hostile, HOSTILE, draw_each=2)

    def test_the_scripts_themselves(self) -> None:
        """For a few seeds, the scripts must give the same exit codes in new processes as in this process."""
        for seed, make in ((FIRST + 1, fuzzed_stores.damaged), (FIRST + 2, fuzzed_stores.hostile)):
            make(self.base, self.db, seed)
            here = call("efficiency", self.db)[0]
            script = [str(SCRIPTS / "efficiency"), str(self.db)]
            done = subprocess.run(script, capture_output=True, timeout=HANG, check=False)
            self.assertEqual(done.returncode, here, done.stderr)
