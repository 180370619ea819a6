"""Tells recorded steps apart. Two recordings may have one name, and the hash of the file is which one it is.

Uses only the standard library, because hvdb.campaign uses this module on login nodes.
"""

from __future__ import annotations

from pathlib import Path

from hvdb.base import whole_file
from hvdb.base.errors import HvdbError

MAX_FILE_BYTES = 4 << 20  # of a replay profile; hvd_bench reads no larger one to simulate


def of_content(content: bytes) -> str:
    """Returns FNV-1a with 64 bits as 16 hexadecimal digits, which hvd_bench stores as the fact replay.profile.

    Source: engine/base/hash.h, bench/world/setup.cpp.
    """
    state = 0xCBF29CE484222325
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def of_file(file: Path) -> str:
    """Returns of_content() of a replay profile. Errors: HvdbError if it cannot be read, or is too large for one."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES, "the recorded step ")
    if len(content) > MAX_FILE_BYTES:
        raise HvdbError(f"{file}: more than {MAX_FILE_BYTES >> 20} MiB, and so no recorded step")
    return of_content(content)
