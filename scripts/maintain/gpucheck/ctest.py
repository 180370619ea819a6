"""The tests of label `gpu`, from ctest for a build folder or from the file of a bundle."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

LABEL = "gpu"
ROOT_MARK = "{root}"  # in the bundle's file, replaced by the bundle's folder


@dataclass(frozen=True)
class GpuTest:
    """One entry of ctest. seconds: the time limit of the test."""

    name: str
    command: list[str]
    seconds: float = 120.0
    environment: dict[str, str] = field(default_factory=dict)


def parse(listing: str) -> list[GpuTest]:
    """Reads the text of `ctest --show-only=json-v1`. Errors: ValueError for a test that is not built."""
    tests = []
    for entry in json.loads(listing)["tests"]:
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        if LABEL not in properties.get("LABELS", []):
            continue
        if "command" not in entry:
            raise ValueError(f"the test {entry['name']} is not built")
        environment = dict(text.split("=", 1) for text in properties.get("ENVIRONMENT", []))
        seconds = float(properties.get("TIMEOUT", 120.0))
        tests.append(GpuTest(entry["name"], entry["command"], seconds, environment))
    return tests


def of_build(build: Path, ctest: str = "ctest") -> list[GpuTest]:
    """Returns the tests of a build folder. Errors: OSError without ctest, subprocess.CalledProcessError, ValueError as
    parse()."""
    command = [ctest, "--test-dir", str(build), "--show-only=json-v1", "-L", f"^{LABEL}$"]
    return parse(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


def write(tests: list[GpuTest], file: Path) -> None:
    """Writes the tests in the form that read() expects."""
    file.write_text(json.dumps([asdict(test) for test in tests], indent=1) + "\n", encoding="utf-8")


def read(file: Path, root: Path) -> list[GpuTest]:
    """Reads the tests of a bundle's file. Replaces ROOT_MARK by the bundle's folder."""

    def placed(text: str) -> str:
        return text.replace(ROOT_MARK, str(root))

    tests = []
    for entry in json.loads(file.read_text(encoding="utf-8")):
        environment = {name: placed(value) for name, value in entry["environment"].items()}
        tests.append(GpuTest(entry["name"], [placed(word) for word in entry["command"]], entry["seconds"], environment))
    return tests
