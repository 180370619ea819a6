"""Tests cudnn_device, which prints a GPU's properties as the files in tests/cudnn/devices have them."""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path

from harness import execute
from synthetic_store import REPOSITORY

CUDNN_DEVICE = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("cudnn_device")
DEVICES = REPOSITORY / "tests" / "cudnn" / "devices"


@unittest.skipUnless(CUDNN_DEVICE.exists(), f"needs {CUDNN_DEVICE}")
class CudnnDeviceTest(unittest.TestCase):
    def cudnn_device(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = execute(CUDNN_DEVICE, *arguments)
        if "could not be loaded" in done.stderr:
            self.skipTest(done.stderr)
        return done

    def test_the_files_of_the_tests_are_understood(self) -> None:
        for file in sorted(DEVICES.glob("*.json")):
            done = self.cudnn_device("--read", str(file))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), json.loads(file.read_text()))

    def test_bad_input_is_one_line(self) -> None:
        cases = ([["one"], "usage: "], [["0", "1"], "usage: "], [["--read", "/none"], "/none: cannot be read"])
        for arguments, text in cases:
            done = self.cudnn_device(*arguments)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(text, done.stderr)

    @unittest.skipIf(Path("/dev/nvidia0").exists(), "there is a GPU")
    def test_without_a_gpu(self) -> None:
        done = self.cudnn_device()
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assertIn("no GPU can be used", done.stderr)
