"""Counts test cases in ctest's JUnit file. Prints `passed failed skipped` and, on standard error, the failed entries.

ctest has one entry per program. The output of GoogleTest or unittest says how many cases a program ran. An entry
without this output counts as one case. An entry that ctest calls failed counts as at least one failure.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

GTEST_RAN = re.compile(r"^\[==========\] (\d+) tests? from \d+ test suites? ran\.", re.MULTILINE)
GTEST_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed below", re.MULTILINE)
GTEST_FAILED = re.compile(r"^\[  FAILED  \] (\d+) tests?, listed below", re.MULTILINE)
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_RESULT = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)


class Counts(NamedTuple):
    """Numbers of test cases."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


def _first(pattern: re.Pattern[str], text: str) -> int:
    # Only the first match counts, because a program under mpirun may print its summary once per rank.
    match = pattern.search(text)
    return int(match[1]) if match else 0


def count_output(output: str) -> Counts | None:
    """Returns the counts that GoogleTest or unittest printed in `output`; None if there are none."""
    if GTEST_RAN.search(output):
        ran, failed = _first(GTEST_RAN, output), _first(GTEST_FAILED, output)
        skipped = _first(GTEST_SKIPPED, output)
    elif UNITTEST_RAN.search(output):
        ran = _first(UNITTEST_RAN, output)
        result = UNITTEST_RESULT.search(output, UNITTEST_RAN.search(output).end())
        parts = dict(re.findall(r"(\w[\w ]*)=(\d+)", result[1] or "")) if result else {}
        failed = int(parts.get("failures", 0)) + int(parts.get("errors", 0))
        skipped = int(parts.get("skipped", 0))
    else:
        return None
    return Counts(max(0, ran - failed - skipped), failed, skipped)


def count_entry(entry: ElementTree.Element) -> Counts:
    """Counts one <testcase>."""
    status = entry.get("status")
    if status in ("notrun", "disabled"):
        return Counts(skipped=1)
    counts = count_output(entry.findtext("system-out") or "")
    if status == "run":
        return counts if counts and not counts.failed else Counts(passed=1)
    return counts if counts and counts.failed else (counts or Counts())._replace(failed=1)


def main(path: Path) -> None:
    """Prints the sum over all entries of `path`."""
    total = Counts()
    for entry in ElementTree.parse(path).getroot().iter("testcase"):
        counts = count_entry(entry)
        total = Counts(*map(sum, zip(total, counts, strict=True)))
        if counts.failed:
            print(f"  failed: {entry.get('name')}", file=sys.stderr)
    print(total.passed, total.failed, total.skipped)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
