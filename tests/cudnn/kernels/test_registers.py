"""Compiles the CUDA kernels for several GPUs and compares their registers and spills with golden/registers.txt.

HVD_NVCC names the compiler. Run this file with --write to write the golden file anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "registers.txt"
ARCHITECTURES = (80, 90, 100, 120)
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\S+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
UNNAMED = re.compile(r"\d+_GLOBAL__N__\w+?_cu_[0-9a-f]{8}")  # holds a hash of the source's path


def nvcc_release(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return found.group(1) if found else "unknown"


def resources(nvcc: str, source: Path, architecture: int) -> list[re.Match[str]]:
    """Returns what ptxas reports about each kernel of `source`."""
    command = [nvcc, "-std=c++20", "-O2", "--expt-relaxed-constexpr", f"-I{ROOT}", "-c", str(source), "-o", os.devnull]
    command += [f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-Xptxas=-v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} for sm_{architecture}: {done.stdout}{done.stderr}")
    return list(KERNEL.finditer(done.stdout + done.stderr))


def table(nvcc: str) -> list[str]:
    """Returns one line for each source and GPU, and one for each kernel that spills."""
    lines = []
    for source in sorted((*ROOT.glob("models/cudnn/kernels/*.cu"), *ROOT.glob("engine/gpu/*.cu"))):
        for architecture in ARCHITECTURES:
            kernels = resources(nvcc, source, architecture)
            most = max(int(kernel["registers"]) for kernel in kernels)
            lines.append(f"{source.name} sm_{architecture}: {len(kernels)} kernels, at most {most} registers")
            lines += sorted(
                f"  spills {kernel['stores']} and reloads {kernel['loads']} bytes: {UNNAMED.sub('', kernel['name'])}"
                for kernel in kernels
                if int(kernel["stores"]) + int(kernel["loads"]) > 0
            )
    return lines


class Registers(unittest.TestCase):
    maxDiff = None

    def test_no_kernel_spills_more_than_is_known(self) -> None:
        nvcc = os.environ["HVD_NVCC"]
        known = GOLDEN.read_text().splitlines()
        release = nvcc_release(nvcc)
        if known[0] != f"nvcc {release}":
            self.skipTest(f"the golden file is of {known[0]}, and this is nvcc {release}")
        self.assertEqual(known[1:], table(nvcc), f"if this is meant: python3 {Path(__file__).name} --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        compiler = os.environ.get("HVD_NVCC", "nvcc")
        GOLDEN.write_text("\n".join([f"nvcc {nvcc_release(compiler)}", *table(compiler)]) + "\n")
    else:
        unittest.main()
