"""The reader of records: what it takes from TOML and JSON, and the line that it gives for each fault."""

from __future__ import annotations

import datetime
import sys
import unittest
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from harness import FolderTest

from hvdb.base import record
from hvdb.base.errors import HvdbError
from hvdb.base.record import SEVERAL, Count, From, Malformed, Range, Text, Words


@dataclass(frozen=True)
class Band:
    low: Annotated[float, Range(0, 10.0, inner=True)]
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise Malformed("is below low", "high")


def squared(number: int) -> float:
    if number == 0:
        raise ZeroDivisionError("no square of zero")
    return float(number**2)


@dataclass
class Whole:
    device: Annotated[str, Words(("cpu", "cuda"))]
    bands: Annotated[tuple[Band, ...], Count(2)] = ()
    ranks: Annotated[list[Annotated[int, Range(1, 8)]], SEVERAL] = field(default_factory=lambda: [1])
    name: Annotated[str, Text(4, "[a-z]*", "a short name")] = ""
    text: Annotated[str, Text(3)] = ""
    by_name: dict[str, int | bool | None] = field(default_factory=dict)
    day: str | datetime.date = ""
    square: Annotated[float, From(int, squared)] = 1.0
    anything: object = None


class RecordTest(unittest.TestCase):
    def test_values(self) -> None:
        self.assertEqual(record.read(Whole, {"device": "cpu"}), Whole("cpu"))
        data = {"device": "cuda", "bands": [{"low": 1, "high": 2}], "ranks": [8, 2], "name": "ab", "anything": [{}]}
        data |= {"by_name": {"x": 3, "y": True, "z": None}, "day": datetime.date(2026, 1, 2), "square": 3, "text": "\n"}
        made = record.read(Whole, data)
        self.assertEqual(made.bands, (Band(1.0, 2.0),))
        self.assertIs(type(made.bands[0].low), float)
        self.assertEqual((made.ranks, made.by_name, made.square), ([8, 2], {"x": 3, "y": True, "z": None}, 9.0))
        self.assertEqual((made.day, made.anything, made.text), (datetime.date(2026, 1, 2), [{}], "\n"))
        self.assertEqual(record.read(Band, {"new": 1}, others=True, low=0.5), Band(0.5))

    FAULTS: ClassVar[list[tuple[str, dict[str, Any]]]] = [
        ("devise: there is no such key (did you mean device?); known here: device, bands, ranks, name,", {"devise": 1}),
        ("device: 'cud' is not one of cpu, cuda (did you mean cuda?)", {"device": "cud"}),
        ("device: 3 is not one of cpu, cuda", {"device": 3}),
        ("bands: {} is not a list of at most 2", {"bands": {}}),
        ("bands: [1, 1, 1] is not a list of at most 2", {"bands": [1] * 3}),
        ("bands[1]: 1 is not a table", {"bands": [1]}),
        ("bands[2]: low is missing; it takes a number above 0 and below 10", {"bands": [{"low": 1}, {}]}),
        ("bands[1].low: 0 is not a number above 0 and below 10", {"bands": [{"low": 0}]}),
        ("bands[1].high: nan is not a number", {"bands": [{"low": 1, "high": float("nan")}]}),
        ("bands[1].high: inf is not a number", {"bands": [{"low": 1, "high": float("inf")}]}),
        ("bands[1].high: is below low", {"bands": [{"low": 2}]}),
        ("ranks[2]: 9 is not a whole number from 1 to 8", {"ranks": [1, 9]}),
        ("ranks[1]: True is not a whole number", {"ranks": [True]}),
        ("ranks[1]: 1.0 is not a whole number", {"ranks": [1.0]}),
        ("ranks[1]: a number of 40001 bits is not a whole number", {"ranks": [1 << 40_000]}),
        ("ranks: holds 2 twice", {"ranks": [2, 1, 2]}),
        ("ranks: is an empty list; give at least one value, or leave the key out", {"ranks": []}),
        ("name: 'A' is not a short name", {"name": "A"}),
        ("name: 'abcde' is not a short name", {"name": "abcde"}),
        ("text: 'abcd' is not a text of at most 3 characters", {"text": "abcd"}),
        ("by_name.x: 'a' is not a whole number from 0 to 2147483647, or true or false", {"by_name": {"x": "a"}}),
        (r"by_name.'\x1b\n': -1 is not a whole number", {"by_name": {"\x1b\n": -1}}),
        ("day: 3 is not a string, or a date", {"day": 3}),
        ("square: no square of zero", {"square": 0}),
        (r"text: '\x1b[2J\n\u202e' is not", {"text": "\x1b[2J\n\u202e"}),
    ]

    def test_faults(self) -> None:
        for words, change in self.FAULTS:
            with self.subTest(words), self.assertRaises(Malformed) as caught:
                record.read(Whole, {"device": "cpu", **change})
            said = str(caught.exception)
            self.assertTrue(said.startswith(words), said)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for key, data in (("k" * 10_000, 1), ("text", "t" * 10_000), ("text", deep), ("ranks", list(range(10_000)))):
            with self.assertRaises(Malformed) as caught:
                record.read(Whole, {"device": "cpu", key: data})
            self.assertLess(len(str(caught.exception)), 300)
        with self.assertRaisesRegex(Malformed, r"^step: \[\] is not a number$"):
            record.value(float, [], "step")


class FileTest(FolderTest):
    def test_json(self) -> None:
        self.assertEqual(record.json_object('{"a": [1e3]}', 99), {"a": [1000.0]})
        for words, text in {
            "no JSON": "{",
            "no JSON object": "[]",
            "a key that occurs twice": '{"a": {"b": 1, "b": 1}}',
            "the number Infinity": '{"a": Infinity}',
            "a line that is too long": " " * 100,
        }.items():
            with self.assertRaisesRegex(Malformed, f"^{words}$"):
                record.json_object(text, 99)
        for text in ('{"a":' * 100_000, '{"a": 1' + "0" * 5000 + "}"):
            with self.assertRaisesRegex(Malformed, "^no JSON$"):
                record.json_object(text, sys.maxsize)

    @unittest.skipIf(sys.version_info < (3, 11), "TOML needs Python 3.11")
    def test_toml(self) -> None:
        self.assertEqual(record.entries(Band, "[[band]]\nlow = 0.5", "band", 2), (Band(0.5),))
        for words, text in (
            ("not TOML: .*line 1", "a = b"),
            ("not TOML: .* 5000 digits", "a = " + "1" * 5000),
            ("not TOML: nested too deeply", "a = " + "[" * 3000),
            (r"^x: an entry begins with \[\[band\]\], and nothing else is known here", "x = 1"),
            (r"^an entry begins with \[\[band\]\]", "[band]"),
            (r"^band: .* is not a list of at most 2", "[[band]]\n" * 3),
            (r"^band\[1\].x: there is no such key; known here: low, high", "[[band]]\nlow = 1\nx = 1"),
        ):
            with self.subTest(words), self.assertRaisesRegex(Malformed, words):
                record.entries(Band, text, "band", 2)

    def test_what_is_no_file(self) -> None:
        file = self.folder / "a.toml"
        for words, raw in (("not a text file", b"\xff"), ("more than 100000 bytes", b"#" * 100_001)):
            file.write_bytes(raw)
            with self.assertRaisesRegex(HvdbError, f"^{file}: {words}"):
                record.document(file)
        for words, path in (("not a file", self.folder), ("cannot be read: No such file", Path("/nowhere/x"))):
            with self.assertRaisesRegex(HvdbError, f"^{path}: {words}"):
                record.document(path)


if __name__ == "__main__":
    unittest.main()
