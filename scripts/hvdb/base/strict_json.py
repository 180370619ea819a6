"""Reads JSON that may come from a stranger. Each function checks one value. Error texts never quote a wrong value.

Uses only the standard library. Pure.
"""

from __future__ import annotations

import json
from typing import Any

MAX_TEXT_LENGTH = 300


class Malformed(ValueError):
    """The JSON contains a value that our programs never write. The error's text says what is wrong."""


def _reject(word: str) -> None:
    raise Malformed(f"the number {word[:8]}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Malformed("a key that occurs twice")
    return made


def load(text: str, longest: int) -> dict[str, Any]:
    """Parses a JSON object of at most `longest` characters. Errors: Malformed."""
    if len(text) > longest:
        raise Malformed("a line that is too long")
    try:
        document = json.loads(text, parse_constant=_reject, object_pairs_hook=_object)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits also raises ValueError
        raise Malformed("no JSON") from error
    if not isinstance(document, dict):
        raise Malformed("no JSON object")
    return document


def whole(value: object, low: int, high: int, what: str) -> int:
    """Returns `value` if it is a whole number from `low` to `high`. Errors: Malformed."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Malformed(f"{what} is not a whole number from {low} to {high}")
    return value


def above_zero(value: object, highest: float, what: str) -> float:
    """Returns `value` if it is a number above 0 and below `highest`. Errors: Malformed."""
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < highest:
        raise Malformed(f"{what} is not a number above 0 and below {highest:g}")
    return float(value)


def text(value: object, what: str, longest: int = MAX_TEXT_LENGTH) -> str:
    """Returns `value` if it is a text of at most `longest` characters. Errors: Malformed."""
    if not isinstance(value, str) or len(value) > longest:
        raise Malformed(f"{what} is not a text of at most {longest} characters")
    return value
