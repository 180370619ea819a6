"""The record of the validated predictions: audit.py prints audit.txt, and pages that quote one result quote both."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from limits import HANG

from harness import FolderTest

ROOT = Path(__file__).resolve().parents[3]
RECORD, TRUTHS = "2026-11-26-prediction", "2026-11-26-prediction-truths"
SECOND = "2026-11-29-validation"
RECORDED = ROOT / "results/recorded"
DESIGNED, REPLACED, EVERYTHING = "118 of 144", "140 of 144", "165 of 192"
PAGES = (ROOT / "README.md", ROOT / "docs/prediction.md", RECORDED / RECORD / "README.md")


def audited(recorded: Path) -> str:
    """Returns what audit.py prints from the record below `recorded`."""
    command = [sys.executable, "-B", recorded / RECORD / "audit.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG).stdout


class AuditTest(FolderTest):
    def test_the_kept_output_follows_from_the_files(self) -> None:
        kept = (RECORDED / RECORD / "audit.txt").read_text(encoding="utf-8")
        self.assertEqual(audited(RECORDED).splitlines(), kept.splitlines())

    def test_the_second_record_follows_from_its_files(self) -> None:
        kept = (RECORDED / SECOND / "audit.txt").read_text(encoding="utf-8")
        command = [sys.executable, "-B", RECORDED / SECOND / "audit.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG).stdout
        self.assertEqual(done.splitlines(), kept.splitlines())
        for page in (ROOT / "README.md", ROOT / "docs/prediction.md", RECORDED / SECOND / "README.md"):
            text = " ".join(page.read_text(encoding="utf-8").split())
            for figure in ("319 of 384", "154 of 192"):
                self.assertTrue(f"{figure} inside" in kept and figure in text, (page, figure))

    def test_another_measured_step_is_another_output(self) -> None:
        for name in (RECORD, TRUTHS):
            shutil.copytree(RECORDED / name, self.folder / name)
        file = self.folder / RECORD / "saturated/cells.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        cell = next(c for c in document["cells"] if c["block"] == 2 and c["kind"] == "beyond")
        cell["measured"]["step_seconds"] *= 2
        file.write_text(json.dumps(document), encoding="utf-8")
        changed = audited(self.folder)
        for line in ("cells of kept stores with the step that their run has: 95 of 96", "117 of 144 inside"):
            self.assertTrue(line in changed, line)

    def test_a_page_that_quotes_one_result_quotes_all(self) -> None:
        kept = (RECORDED / RECORD / "audit.txt").read_text(encoding="utf-8")
        for page in PAGES:
            text = " ".join(page.read_text(encoding="utf-8").split())
            for figure in (DESIGNED, REPLACED, EVERYTHING):
                with self.subTest(page=str(page), figure=figure):
                    self.assertTrue(f"{figure} inside" in kept, "audit.txt does not have this figure")
                    self.assertTrue(figure in text, "the page does not have this figure")


if __name__ == "__main__":
    unittest.main()
