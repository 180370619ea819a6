"""Hashes and shuffles plain data. Equal input gives equal results on every machine and with every version of Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


def digest(data: Any, length: int = 16) -> str:
    """Returns the first `length` hexadecimal digits of SHA-256 over `data` as JSON with sorted keys and no spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def shuffled(items: Sequence[Item], *key: object) -> list[Item]:
    """Returns `items` in an order that looks random and depends only on the number of items and on `key`."""
    return [item for _, item in sorted(enumerate(items), key=lambda pair: digest([*map(str, key), pair[0]], 64))]
