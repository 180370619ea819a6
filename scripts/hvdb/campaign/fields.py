"""Reads TOML tables. An unknown key or a value of the wrong type gives an error of one line that names the place."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomllib

from hvdb.campaign.errors import CampaignError

Record = TypeVar("Record")
REQUIRED = object()
KINDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def load(path: Path) -> dict[str, Any]:
    """Returns the TOML document in `path`. Errors: CampaignError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CampaignError(f"{path}: not a text file; a TOML file is wanted here") from None
    except OSError as error:
        raise CampaignError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> dict[str, Any]:
    """Returns the TOML document in `text`; `source` names it in errors."""
    try:
        return document(text)
    except ValueError as error:
        raise CampaignError(f"{source}: not TOML: {error}") from None


def document(text: str) -> dict[str, Any]:
    """Returns the TOML document in `text`. Errors: ValueError; integers of more than 64 bits are an error."""
    try:
        data = tomllib.loads(text)
        _require_64_bits(data, "")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return data


def _require_64_bits(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _require_64_bits(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for item in value:
            _require_64_bits(item, name)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: a whole number has 64 bits at most")


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns " (did you mean X?)" for the word in `known` that is nearest to `word`, or ""."""
    matches = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


class Table:
    """A TOML table that is being read. The caller asks for every known key. Then close() refuses all other keys.

    Errors of all methods: CampaignError naming the file, the key, what was found and what is allowed.
    """

    def __init__(self, data: dict[str, Any], source: str, path: str = "") -> None:
        self._data = data
        self._source = source
        self._path = path
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        return key in self._data

    def fail(self, key: str, what: str) -> CampaignError:
        """Returns the error to raise about `key`."""
        return CampaignError(f"{self._source}: {self._name(key)}: {what}")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _take(self, key: str, kind: type, default: Any) -> Any:
        self._asked.append(key)
        if key not in self._data:
            if default is REQUIRED:
                raise CampaignError(f"{self._source}: {self._name(key)} is missing; it takes {KINDS[kind]}")
            return default
        return self._typed(key, self._data[key], kind)

    def _typed(self, key: str, value: Any, kind: type) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise self.fail(key, f"{value!r} is not {KINDS[kind]}")
        return value

    def text(self, key: str, default: Any = REQUIRED, *, pattern: str = "", means: str = "") -> str:
        """Returns a string. With `pattern`, the whole string must match; `means` describes the pattern in words."""
        value = self._take(key, str, default)
        if "\n" in value:
            raise self.fail(key, "holds a line break")
        if pattern and not re.fullmatch(pattern, value):
            raise self.fail(key, f"'{value}' is not {means}")
        return value

    def word(self, key: str, words: Sequence[str], default: Any = REQUIRED) -> str:
        """Returns the value of `key`, which must be one of `words`."""
        value = self._take(key, str, default)
        if value not in words:
            raise self.fail(key, f"'{value}' is not one of {', '.join(words)}{nearest(value, words)}")
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        return self._take(key, bool, default)

    def integer(self, key: str, default: Any = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """Returns the value of `key`, a whole number from `low` to `high`."""
        return self._in_range(key, self._take(key, int, default), low, high)

    def _in_range(self, key: str, value: int, low: int, high: int) -> int:
        if not low <= value <= high:
            raise self.fail(key, f"{value} is not a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: Any = REQUIRED, *, low: float = 0.0, high: float = 1e6) -> float:
        """Returns the value of `key`, a number from `low` to `high`."""
        value = self._take(key, float, default)
        if not low <= value <= high:
            raise self.fail(key, f"{value} is not a number from {low:g} to {high:g}")
        return value

    def duration(self, key: str, default: Any = REQUIRED) -> int:
        """Returns a duration in seconds. The TOML value is a text "HH:MM:SS"."""
        value = self._take(key, str, default)
        match = re.fullmatch(r"(\d{1,3}):([0-5]\d):([0-5]\d)", value)
        if not match or not (seconds := 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3])):
            raise self.fail(key, f"'{value}' is not a time of the form HH:MM:SS")
        return seconds

    def texts(
        self,
        key: str,
        default: Any = REQUIRED,
        *,
        words: Sequence[str] | None = None,
        pattern: str = "",
        means: str = "",
    ) -> tuple[str, ...]:
        """Returns a list of strings. With `words`, the list must contain one or more of `words`, each at most once. So
        it is with `pattern`, which each string must match; `means` describes the pattern in words."""
        values = tuple(self._typed(key, value, str) for value in self._take(key, list, default))
        if any("\n" in value for value in values):
            raise self.fail(key, "holds a line break")
        if pattern:
            self._all_different(key, values)
            for value in values:
                if not re.fullmatch(pattern, value):
                    raise self.fail(key, f"'{value}' is not {means}")
        if words is not None:
            self._all_different(key, values)
            for value in values:
                if value not in words:
                    raise self.fail(key, f"'{value}' is not one of {', '.join(words)}{nearest(value, words)}")
        return values

    def integers(self, key: str, default: Any = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> tuple[int, ...]:
        """Returns a non-empty list of different whole numbers from `low` to `high`."""
        values = tuple(self._typed(key, value, int) for value in self._take(key, list, default))
        self._all_different(key, values)
        return tuple(self._in_range(key, value, low, high) for value in values)

    def _all_different(self, key: str, values: Sequence[object]) -> None:
        if not values:
            raise self.fail(key, "is an empty list; give at least one value, or leave the key out")
        twice = [value for value in values if list(values).count(value) > 1]
        if twice:
            raise self.fail(key, f"holds {twice[0]!r} twice")

    def table(self, key: str, *, required: bool = False) -> Table:
        """Returns the table `key` inside this table, or an empty table if there is no such key."""
        data = self._take(key, dict, REQUIRED if required else {})
        return Table(data, self._source, self._name(key))

    def per_model(self, key: str, models: Sequence[str], *, low: int = 1, high: int = 2**31 - 1) -> dict[str, int]:
        """Returns a number for each model. The TOML value is one number for all models, or a table of such numbers."""
        if key in self._data and isinstance(self._data[key], dict):
            inner = self.table(key)
            values = {model: inner.integer(model, low=low, high=high) for model in models}
            inner.close()
            return values
        return dict.fromkeys(models, self.integer(key, low=low, high=high))

    def record(self, kind: type[Record], **given: Any) -> Record:
        """Returns an instance of the dataclass `kind`. Reads each field that is not in `given` by its type."""
        readers = {"str": self.text, "int": self.integer, "float": self.number, "bool": self.flag}
        readers["tuple[str, ...]"] = self.texts
        read = {f.name: readers[f.type](f.name) for f in dataclasses.fields(kind) if f.name not in given}
        return kind(**read, **given)

    def scalars(self) -> dict[str, str | int | float | bool]:
        """Returns everything in this table, which may contain only strings, numbers and flags."""
        for key, value in self._data.items():
            self._asked.append(key)
            if not isinstance(value, str | int | float | bool):
                raise self.fail(key, "takes a string, a number, or true")
        return dict(self._data)

    def close(self) -> None:
        """Raises CampaignError if the table has a key that the caller did not ask for."""
        for key in self._data:
            if key not in self._asked:
                known = ", ".join(dict.fromkeys(self._asked))
                raise self.fail(key, f"there is no such key{nearest(key, self._asked)}; known here: {known}")
