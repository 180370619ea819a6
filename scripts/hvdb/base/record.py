"""Reads checked records: dataclasses whose fields say which values they take, from TOML and from JSON.

    @dataclass(frozen=True)
    class Node:
        device: Annotated[str, Words(("cpu", "cuda"))]
        ranks_per_node: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], SEVERAL]
        cores: int = 0  # a default makes a key optional

The files may come from a stranger. Every fault is a Malformed: one line with the place, the value (escaped, and cut if
long) and what is allowed. __post_init__ of a record checks what concerns several fields, and may raise Malformed.

A field is a str, int, float, bool, object (any value), datetime.date, record, list[T], tuple[T, ...], dict[K, V], or a
union, which takes the first of its types that the value has in the file. Uses only the standard library, because
hvdb.campaign runs on login nodes without packages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import functools
import json
import re
import reprlib
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, Union

from hvdb.base import whole_file
from hvdb.base.errors import HvdbError

Record = TypeVar("Record")
MAX_FILE_BYTES = 100_000  # of a TOML file


class Malformed(ValueError):
    """A file holds what is not allowed. place: the keys that lead to it; the items of a list are numbered from 1."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self.what, self.place = what, place

    def inside(self, place: str) -> Malformed:
        """Returns the same fault, seen from the table or list in which the faulty value is at `place`."""
        dot = "." if self.place and not self.place.startswith("[") else ""
        return Malformed(self.what, f"{place}{dot}{self.place}")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`. inner: without `low` and `high` themselves."""

    low: float
    high: float
    inner: bool = False

    def holds(self, number: float) -> bool:
        return self.low < number < self.high if self.inner else self.low <= number <= self.high

    def __str__(self) -> str:
        low, high = (str(end) if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        return f"above {low} and below {high}" if self.inner else f"from {low} to {high}"


@dataclass(frozen=True)
class Text:
    """Strings of at most `longest` characters, all of which match `pattern`. means: the pattern in words."""

    longest: int = sys.maxsize
    pattern: str = r"(?s:.*)"
    means: str = ""


@dataclass(frozen=True)
class Words:
    words: Sequence[str]


@dataclass(frozen=True)
class Count:
    """Lists and tables of at most `most` values. different: of one value at least, and of no value twice."""

    most: int = sys.maxsize
    different: bool = False


@dataclass(frozen=True)
class From:
    """The file has a value of type `kind`. `make` makes the value of the field; its ValueErrors are faults."""

    kind: Any
    make: Callable[[Any], Any]


SEVERAL = Count(different=True)
LINE = Text(pattern=r"[^\n]*", means="a text of one line")
FINITE, WHOLE = Range(-sys.float_info.max, sys.float_info.max), Range(0, 2**31 - 1)


class _Short(reprlib.Repr):
    def repr_int(self, number: int, level: int) -> str:
        """Python refuses to print very long numbers."""
        bits = number.bit_length()
        return f"a number of {bits} bits" if bits > 64 else super().repr_int(number, level)


MAX_SHOWN = 80  # characters of a value or key in an error
_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN


def nearest(word: object, known: Iterable[str]) -> str:
    """Returns " (did you mean X?)" for the word in `known` that is nearest to `word`, or ""."""
    is_short = isinstance(word, str) and len(word) <= MAX_SHOWN
    matches = difflib.get_close_matches(word, list(known), n=1) if is_short else []
    return f" (did you mean {matches[0]}?)" if matches else ""


def refused(data: object, words: str, known: Iterable[str] = ()) -> Malformed:
    """Returns the fault to raise for a value that is not what `words` say. known: the words that are allowed."""
    return Malformed(f"{_SHORT.repr(data)} is not {words}{nearest(data, known)}")


def read(kind: type[Record], data: object, *, others: bool = False, **given: Any) -> Record:
    """Returns an instance of the dataclass `kind`. data: a table of TOML, or an object of JSON.

    given: values of fields that are not read. others: ignores keys that the record does not have. Errors: Malformed.
    """
    known = _fields(kind, others, frozenset(given))
    if not isinstance(data, dict):
        raise refused(data, "a table")
    for key in data if not others else ():
        if key not in known:
            raise Malformed(f"there is no such key{nearest(key, known)}; known here: {', '.join(known)}", _shown(key))
    for key, (reader, is_required) in known.items():
        if is_required and key not in data:
            raise Malformed(f"{key} is missing; it takes {reader.words}")
    there = [key for key in known if key in data]
    values = _each((key, known[key][0], data[key]) for key in there)
    return kind(**dict(zip(there, values, strict=True)), **given)


def value(kind: Any, data: object, place: str) -> Any:
    """Returns `data` as a value of type `kind`, which is any type of a field. Errors: Malformed, at `place`."""
    return next(_each([(place, _reader(kind, True), data)]))


class _Reader(NamedTuple):
    """words: what `read` takes. types: of the values as TOML and JSON give them."""

    words: str
    types: tuple[type, ...]
    read: Callable[[Any], Any]


@functools.cache
def _fields(kind: type, others: bool, given: frozenset[str]) -> dict[str, tuple[_Reader, bool]]:
    """Returns the name of each field -> (reader, True if it is required), without the fields `given`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    made = {}
    for one in dataclasses.fields(kind):
        if one.name not in given:
            is_required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            made[one.name] = _reader(hints[one.name], others), is_required
    return made


def _shown(key: str) -> str:
    return key if key.isprintable() and len(key) <= MAX_SHOWN else _SHORT.repr(key)


def _each(items: Iterable[tuple[str, _Reader, Any]]) -> Iterator[Any]:
    """Yields the values of (place, reader, what it reads). A fault names the place."""
    for place, reader, data in items:
        try:
            yield reader.read(data)
        except Malformed as fault:
            raise fault.inside(_shown(place)) from None


@functools.cache
def _reader(kind: Any, others: bool) -> _Reader:
    kind, *marks = typing.get_args(kind) if typing.get_origin(kind) is Annotated else (kind,)
    mark = marks[0] if marks else None
    of, parts = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(mark, From):
        raw = _reader(mark.kind, others)
        return raw._replace(read=lambda data: _made(mark.make, raw.read(data)))
    if of in (Union, types.UnionType):
        return _union([_reader(part, others) for part in parts])
    if of in (list, tuple, dict):
        return _container(of, [_reader(part, others) for part in parts if part is not ...], mark or Count())
    if dataclasses.is_dataclass(kind):
        return _Reader("a table", (dict,), lambda data: read(kind, data, others=others))
    if isinstance(mark, Words):
        return _plain(f"one of {', '.join(mark.words)}", (str,), lambda data: data in mark.words, mark.words)
    if isinstance(mark, Text):
        words, matches = mark.means or f"a text of at most {mark.longest} characters", re.compile(mark.pattern)
        return _plain(words, (str,), lambda data: len(data) <= mark.longest and bool(matches.fullmatch(data)))
    if kind is int:
        return _plain(f"a whole number {mark or WHOLE}", (int,), (mark or WHOLE).holds)
    if kind is float:
        number = _plain(f"a number {mark}" if mark else "a number", (float, int), (mark or FINITE).holds)
        return number._replace(read=lambda data: float(number.read(data)))
    if kind is datetime.date:
        return _plain("a date", (datetime.date, datetime.datetime))
    words = {str: "a string", bool: "true or false", type(None): "", object: "a value"}[kind]
    return _plain(words, (kind,)) if kind is not object else _Reader(words, (object,), lambda data: data)


def _made(make: Callable[[Any], Any], data: Any) -> Any:
    try:
        return make(data)
    except Malformed:
        raise
    except (ValueError, ArithmeticError) as error:
        raise Malformed(str(error)) from error


def _plain(
    words: str, kinds: tuple[type, ...], allowed: Callable[[Any], bool] = lambda _: True, known: Sequence[str] = ()
) -> _Reader:
    """Takes the `allowed` values of the types `kinds`. known: the words that are allowed."""

    def checked(data: Any) -> Any:
        if type(data) not in kinds or not allowed(data):
            raise refused(data, words, known)
        return data

    return _Reader(words, kinds, checked)


def _union(options: list[_Reader]) -> _Reader:
    words = ", or ".join(option.words for option in options if option.words)

    def first(data: Any) -> Any:
        for option in options:
            if type(data) in option.types:
                return option.read(data)
        raise refused(data, words)

    return _Reader(words, tuple(kind for option in options for kind in option.types), first)


def _container(of: type, readers: list[_Reader], count: Count) -> _Reader:
    """of: list, tuple or dict. readers: of the items; of a dict, of the keys and of the values."""
    kind, words = (dict, "a table") if of is dict else (list, "a list")
    words += f" of at most {count.most}" if count.most < sys.maxsize else ""

    def items(data: Any) -> Any:
        if type(data) is not kind or len(data) > count.most:
            raise refused(data, words)
        pairs = data.items() if of is dict else ((f"[{number}]", one) for number, one in enumerate(data, 1))
        found = list(_each((place, readers[-1], one) for place, one in pairs))
        if count.different and not found:
            raise Malformed("is an empty list; give at least one value, or leave the key out")
        if count.different and (twice := [one for one, times in Counter(found).items() if times > 1]):
            raise Malformed(f"holds {_SHORT.repr(twice[0])} twice")
        return dict(zip(map(readers[0].read, data), found, strict=True)) if of is dict else of(found)

    return _Reader(words, (kind,), items)


# --- Files ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def faults_of(source: object, error: type[HvdbError] = HvdbError) -> Iterator[None]:
    """Turns a Malformed inside the `with` into an `error`, whose text begins with `source`."""
    try:
        yield
    except Malformed as fault:
        raise error(f"{source}: {fault}") from fault


def decoded(content: bytes, most: int) -> str:
    """Returns the text of a file of at most `most` bytes. Errors: Malformed if it has more, or is not UTF-8."""
    if len(content) > most:
        raise Malformed(f"more than {most >> 20} MiB" if most >= 1 << 20 else f"more than {most} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Malformed("not a text file (UTF-8)") from None


def content(file: Path) -> str:
    """Returns the text of a TOML file. Errors: those of decoded(); HvdbError."""
    return decoded(whole_file.read_at_most(file, MAX_FILE_BYTES), MAX_FILE_BYTES)


def toml(text: str) -> dict[str, Any]:
    """Returns a TOML document. Errors: Malformed, in versions of Python before 3.11 always."""
    try:
        import tomllib
    except ModuleNotFoundError:
        raise Malformed("a TOML file needs Python 3.11 or newer (HVD_PYTHON names one)") from None
    try:
        return tomllib.loads(text)
    except (ValueError, ArithmeticError) as error:
        raise Malformed(f"not TOML: {error}") from None
    except RecursionError:
        raise Malformed("not TOML: nested too deeply") from None


def document(file: Path) -> dict[str, Any]:
    """Returns the TOML document in `file`. Errors: HvdbError."""
    with faults_of(file):
        return toml(content(file))


def entries(kind: type[Record], text: str, name: str, most: int) -> tuple[Record, ...]:
    """Returns the tables `[[name]]` of a TOML document, which must have nothing else. Errors: Malformed."""
    others = toml(text)
    found = others.pop(name, [])
    if others or not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise Malformed(f"an entry begins with [[{name}]], and nothing else is known here", *map(_shown, [*others][:1]))
    return next(_each([(name, _reader(Annotated[tuple[kind, ...], Count(most)], False), found)]))


def json_object(text: str, longest: int) -> dict[str, Any]:
    """Returns an object of JSON. Errors: Malformed if it is none, or has more than `longest` characters."""
    if len(text) > longest:
        raise Malformed("a line that is too long")
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_without_doubles)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits also raises ValueError
        raise Malformed("no JSON") from error
    if not isinstance(document, dict):
        raise Malformed("no JSON object")
    return document


def _no_constant(word: str) -> None:
    raise Malformed(f"the number {word[:8]}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Malformed("a key that occurs twice")
    return made
