"""Compares job scripts byte for byte with the expected text: a head in golden/, followed by slurm/job_body.sh.

After an intended change run tests/slurm/test_golden.py --update and read the diff.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from campaigns import HANG, LAYOUT, REPOSITORY, campaign, slowness

from hvdb.campaign import plan, script, site, spec

HVD_BENCH = Path("/opt/hvd bench/bin/hvd_bench")
GOLDEN = Path(__file__).resolve().parent / "golden"
BODY_BEGINS = "# ---- From here on"
# Maps a site to those of its jobs whose scripts are compared.
KEPT = {
    "slurm-4gpu": ("n0128",),
    "summit": ("n0128",),
    "laptop": ("n0001-r2",),
    str(GOLDEN / "ours.toml"): ("n0003-r2",),
}


def scripts() -> dict[str, str]:
    """Generates all scripts that are compared. Maps their file names to their texts."""
    found = {}
    for name, jobs in KEPT.items():
        machine = site.read(name)
        study = spec.read(GOLDEN / "study.toml")
        if machine.name == "ours":  # 8 ranks on nodes of 3 GPUs: 3 + 3 + 2
            study = spec.from_data({**_data("study.toml"), "ranks": [2, 8], "allow_ragged": True}, "study.toml")
        made = plan.make(study, machine)
        for job in made.jobs:
            if job.name in jobs:
                found[f"{machine.name}.{job.name}.sh"] = script.text(made, job, LAYOUT, HVD_BENCH)
    return found


def _data(name: str) -> dict:
    from hvdb.base import record

    return record.document(GOLDEN / name)


class GoldenTest(unittest.TestCase):
    maxDiff = None

    def test_scripts_are_as_they_were(self) -> None:
        made = scripts()
        kept = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.sh")}
        self.assertEqual(sorted(made), sorted(kept))
        source = (REPOSITORY / "slurm" / "job_body.sh").read_text(encoding="utf-8")
        body = source[source.index(BODY_BEGINS) :]
        for name, text in made.items():
            with self.subTest(name):
                self.assertEqual(text, kept[name] + body)

    def test_what_every_script_must_hold(self) -> None:
        for name, text in scripts().items():
            with self.subTest(name):
                study = spec.read(GOLDEN / "study.toml")
                if not name.startswith("ours"):
                    self.assertIn(f"# spec {study.hash}\n", text)
                    self.assertIn(f"\nspec={study.hash}\n", text)
                for word in ("cmake", "make ", "scripts/build ", "gcc -", "nvcc", "pip "):
                    self.assertNotIn(f"\n{word}", text, "nothing is compiled or installed in a job")
                self.assertIn("trap 'on_signal USR1 yes' USR1", text)
                self.assertNotIn("TMPDIR", text)
                self.assertNotIn("gpus-per-task", text)

    @unittest.skipUnless(shutil.which("shellcheck"), "needs shellcheck")
    def test_shellcheck_finds_nothing(self) -> None:
        made = scripts()
        for name in ("ours.n0003-r2.sh", "summit.n0128.sh"):
            done = subprocess.run(
                ["shellcheck", "-"], input=made[name], capture_output=True, text=True, check=False, timeout=HANG
            )
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_bash_reads_the_words_back(self) -> None:
        text = scripts()["ours.n0003-r2.sh"]
        head = "module() { shift; printf '%s\\n' module \"$@\"; }\n" + text[: text.index(BODY_BEGINS)]
        probe = head + 'set_up; launcher_for 8; printf "%s\\n" "$hvd_bench" "$NOTE" "${launcher[@]}"'
        environment = {**os.environ, "SLURM_JOB_ID": "7"}
        command = ["bash", "-c", probe]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG, env=environment)
        lines = done.stdout.splitlines()
        self.assertEqual(
            lines[:5], ["module", "gcc/12.2", "openmpi/4.1 (cuda)", "/opt/hvd bench/bin/hvd_bench", "it's quoted"]
        )
        self.assertIn("--distribution=block:block,Pack", lines)


class SpeedTest(unittest.TestCase):
    def test_all_sites_in_under_a_second(self) -> None:
        """Makes the scripts of every site for 1 to 512 ranks, three networks and two schedules."""
        begin = time.process_time()
        jobs = 0
        for name in site.known():
            made = plan.make(spec.read(REPOSITORY / "slurm" / "specs" / "horovod-512.toml"), site.read(name))
            jobs += len([script.text(made, job, LAYOUT, HVD_BENCH) for job in made.jobs])
        seconds = time.process_time() - begin
        self.assertGreater(jobs, 30)
        self.assertLess(seconds, slowness())
        print(f"{jobs} scripts for {len(site.known())} sites in {seconds:.3f} s", file=sys.stderr)


class FolderTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name) / "campaign"
        self.study = GOLDEN / "study.toml"

    def generate(
        self, *more: str, study: Path | None = None, site_name: str = "slurm-4gpu"
    ) -> subprocess.CompletedProcess:
        return campaign("generate", study or self.study, "--site", site_name, "--out", self.folder, *more)

    def assert_fault(self, done: subprocess.CompletedProcess, *texts: str, code: int = 2) -> None:
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def test_the_folder(self) -> None:
        done = self.generate()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(p.name for p in (self.folder / "jobs").iterdir())[0], "n0001.sh")
        self.assertTrue(os.access(self.folder / "jobs" / "n0128.sh", os.X_OK))
        self.assertEqual((self.folder / "spec.toml").read_text(), self.study.read_text())
        before = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        self.assertEqual(self.generate().returncode, 0, "again changes nothing")
        self.assertEqual(before, {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()})

    def test_a_dry_run_prints_and_writes_nothing(self) -> None:
        done = campaign("generate", self.study, "--site", "slurm-8gpu", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"n0064 +64 +2 +10 +\S+ +\d+\.\d\d  512\n")
        made = plan.make(spec.read(self.study), site.read("slurm-8gpu"))
        self.assertIn(f"{sum(j.node_hours for j in made.jobs):.2f}", done.stdout.splitlines()[-1])
        self.assertEqual(self.generate("--dry-run").returncode, 0)
        self.assertFalse(self.folder.exists())

    def test_another_spec_needs_replace(self) -> None:
        self.assertEqual(self.generate().returncode, 0)
        other = self.folder.parent / "other.toml"
        other.write_text(self.study.read_text().replace("repetitions = 2", "repetitions = 3\nranks = [8]"))
        self.assert_fault(self.generate(study=other), "another spec or site", "--replace")
        self.assert_fault(self.generate(site_name="summit"), "--replace")
        done = self.generate("--replace", study=other)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([p.name for p in (self.folder / "jobs").iterdir()], ["n0002.sh"], "old scripts are gone")

    def test_faults(self) -> None:
        self.assert_fault(campaign("generate", self.study, "--site", "slurm"), "--out FOLDER is missing")
        self.assert_fault(self.generate(site_name="slrm"), "there is no such site", "did you mean slurm")
        self.assert_fault(
            campaign("generate", "none.toml", "--site", "slurm", "--dry-run"), "none.toml: cannot be read"
        )
        self.folder.parent.joinpath("file").write_text("")
        blocked = campaign("generate", self.study, "--site", "slurm", "--out", self.folder.parent / "file" / "x")
        self.assert_fault(blocked, "cannot be written")
        for command in ("submit", "status", "resume", "cancel"):
            with self.subTest(command):
                self.assert_fault(campaign(command, self.folder.parent), "is not a campaign's folder", "generate SPEC")
        self.assertEqual(campaign("explode").returncode, 2)

    def test_a_damaged_or_moved_folder(self) -> None:
        self.generate()
        moved = self.folder.with_name("moved")
        self.folder.rename(moved)
        self.assert_fault(campaign("status", moved), f"was generated as {self.folder}", "generate it again")
        manifest = moved / "campaign.json"
        manifest.write_text(manifest.read_text()[:100])
        self.assert_fault(campaign("status", moved), "campaign.json: damaged", "generate again")
        manifest.write_text('{"format": 99}')
        self.assert_fault(campaign("status", moved), "another version")


def update() -> None:
    for path in GOLDEN.glob("*.sh"):
        path.unlink()
    for name, text in scripts().items():
        (GOLDEN / name).write_text(text[: text.index(BODY_BEGINS)], encoding="utf-8")


if __name__ == "__main__":
    if "--update" in sys.argv:
        update()
    else:
        unittest.main()
