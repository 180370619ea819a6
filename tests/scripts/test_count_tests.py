"""Tests scripts/lib/count_tests.py. The last line of scripts/test must count every failed test case."""

from __future__ import annotations

import importlib.util
import unittest
import xml.etree.ElementTree as ElementTree

from harness import SCRIPTS

spec = importlib.util.spec_from_file_location("count_tests", SCRIPTS / "lib" / "count_tests.py")
count_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(count_tests)
Counts = count_tests.Counts

GTEST = """[==========] Running 5 tests from 2 test suites.
[==========] 5 tests from 2 test suites ran. (3 ms total)
[  PASSED  ] 3 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.b
[  FAILED  ] 1 test, listed below:
[  FAILED  ] A.c
"""
UNITTEST = "..F.s\nRan 5 tests in 0.1s\n\nFAILED (failures=1, skipped=1)\n"


class CountTest(unittest.TestCase):
    def entry(self, status: str, output: str) -> Counts:
        element = ElementTree.Element("testcase", status=status, name="x")
        ElementTree.SubElement(element, "system-out").text = output
        return count_tests.count_entry(element)

    def test_gtest(self) -> None:
        self.assertEqual(self.entry("fail", GTEST), Counts(3, 1, 1))

    def test_gtest_of_two_ranks_counts_once(self) -> None:
        clean = "[==========] 5 tests from 2 test suites ran. (3 ms total)\n[  PASSED  ] 5 tests.\n"
        self.assertEqual(self.entry("run", clean + clean), Counts(5, 0, 0))

    def test_unittest(self) -> None:
        self.assertEqual(self.entry("fail", UNITTEST), Counts(3, 1, 1))
        self.assertEqual(self.entry("run", "Ran 7 tests in 0.1s\n\nOK\n"), Counts(7, 0, 0))
        self.assertEqual(self.entry("run", "Ran 7 tests in 0.1s\n\nOK (skipped=7)\n"), Counts(0, 0, 7))

    def test_silent_entry_counts_as_one(self) -> None:
        self.assertEqual(self.entry("run", "hello"), Counts(1, 0, 0))
        self.assertEqual(self.entry("fail", "Segmentation fault"), Counts(0, 1, 0))

    def test_a_crash_after_good_cases_is_a_failure(self) -> None:
        output = "[==========] 2 tests from 1 test suite ran. (3 ms total)\n[  PASSED  ] 2 tests.\nsanitizer: leak\n"
        self.assertEqual(self.entry("fail", output), Counts(2, 1, 0))

    def test_disabled(self) -> None:
        self.assertEqual(self.entry("notrun", ""), Counts(0, 0, 1))
