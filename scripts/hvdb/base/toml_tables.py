"""Reads the TOML files that a team keeps beside its code. Such a file is a list of tables that all have one name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hvdb.base.errors import HvdbError

MAX_FILE_BYTES = 100_000  # bytes


@contextlib.contextmanager
def faults_of(file: Path) -> Iterator[None]:
    """Turns errors about the content of `file` that occur inside the `with` into an HvdbError that names `file`."""
    try:
        yield
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise HvdbError(f"{file}: {error}") from error


def content(file: Path) -> str:
    """Returns the text of `file`. Errors: ValueError if the text is too long or not UTF-8; OSError."""
    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # reading a pipe would wait for a writer
    with file.open("rb") as opened:
        raw = opened.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"has more than {MAX_FILE_BYTES} bytes")
    return raw.decode()


def tables(text: str, name: str) -> list[dict[str, Any]]:
    """Returns the tables `[[name]]` of a TOML document, which must contain nothing else.

    Errors: ValueError. Versions of Python before 3.11 cannot read TOML, so they always give this error.
    """
    try:
        import tomllib
    except ModuleNotFoundError:
        raise ValueError("a TOML file needs Python 3.11 or newer (HVD_PYTHON names one)") from None
    document = tomllib.loads(text)
    if unknown := set(document) - {name}:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}; an entry begins with [[{name}]]")
    entries = document.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"an entry begins with [[{name}]]")
    return entries


def check_types(entry: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Checks the types of the values in `entry`. kinds: key -> allowed type. None is always allowed.

    Errors: ValueError for a key that is not in `kinds`, or for a value of a type that is not allowed.
    """
    if unknown := set(entry) - set(kinds):
        raise ValueError(f"{where}: unknown key {sorted(unknown)[0]!r}")
    for key, kind in kinds.items():
        value = entry.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ValueError(f"{where}: {key} is {value!r}")
