"""For the tests of scripts/maintain/gpu_check: a fake bundle whose programs are shell scripts."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

from harness import FolderTest, executable

from maintain.gpucheck import __main__ as program
from maintain.gpucheck import ctest, host

GTEST = """#!/bin/sh
echo '{"testsuites":[{"name":"S","testsuite":[%s]}]}' >"${GTEST_OUTPUT#json:}"
exit %d
"""
PASSED = '{"name":"a","result":"COMPLETED"}'
SKIPPED = '{"name":"b","result":"SKIPPED"}'
FAILED = '{"name":"c","result":"COMPLETED","failures":[{"failure":"1 is not 2"}]}'


class Folder(FolderTest):
    def script(self, path: str, text: str) -> Path:
        return executable(self.folder / path, text)


class Visited(Folder):
    """A test case with a fake bundle of shell scripts. visit() runs gpu_check on this bundle."""

    device = "cpu"
    gpu: host.Gpu | None = None
    torch: tuple[str, str] | str = "no PyTorch"
    sanitizer: str | None = None

    def setUp(self) -> None:
        super().setUp()
        self.root = self.folder / "bundle"
        self.bench("echo checked; echo 'total images/sec: 42.5'")
        self.tests(PASSED)

    def bench(self, body: str) -> None:
        self.script("bundle/bin/hvd_bench", f"#!/bin/sh\n{body}\n")

    def tests(self, *cases: str, code: int = 0) -> None:
        self.script("bundle/tests/x", GTEST % (",".join(cases), code))
        ctest.write([ctest.GpuTest("x", ["{root}/tests/x"], 5.0)], self.root / "tests" / "tests.json")

    def visit(self, *arguments: str) -> tuple[int, dict[str, dict], str]:
        out = self.folder / "out"
        command = ["gpu_check", str(out), *arguments, "--device", self.device]
        text = io.StringIO()
        self.script("wheels/libcudnn.so.9", "")
        with (
            mock.patch.object(sys, "argv", command),
            mock.patch.object(program, "ROOT", self.root),
            mock.patch.object(host, "find_gpu", return_value=self.gpu),
            mock.patch.object(host, "find_torch", return_value=self.torch),
            mock.patch.object(host, "library_folders", return_value=[f"{self.folder}/wheels"]),
            mock.patch.object(host, "find_sanitizer", return_value=self.sanitizer),
            contextlib.redirect_stdout(text),
        ):
            code = program.main()
        rows = {row["part"]: row for row in json.loads((out / "summary.json").read_text())}
        return code, rows, text.getvalue()
