"""Reads what predict needs of a replay profile (models/replay). The file may come from a stranger.

hvd_bench reads the whole profile again when it simulates, and checks what is not checked here.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.base.errors import HvdbError
from hvdb.base.record import Malformed

MAX_FILE_BYTES = 4 << 20
MAX_SECONDS = 86400.0
LATE = 1.1  # a gradient may be ready so late, of the end of backward, which another clock may have told
MAX_UNITS, MAX_ELEMENTS = 1 << 30, 1 << 40
VERSIONS = ("hvd-replay 1", "hvd-replay 2")
MAX_LETTERS, MAX_FACTORS_LETTERS = 200, 1 << 16  # of a key and a value, and of the value of `factors`


@dataclass(frozen=True)
class Profile:
    """The step of one rank alone. Times in seconds. gradients: their number. elements: of all of them
    together; smallest, largest: of one."""

    file: Path
    sha256: str
    model: str
    unit: str
    units_per_step: int
    compute_type: str
    source_run: str
    backward_end: float
    update: float
    gradients: int
    elements: int
    smallest: int
    largest: int

    @property
    def step(self) -> float:
        """Seconds of a step of one rank alone."""
        return self.backward_end + self.update


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise Malformed("a time is not between 0 and 86400 s")
    return value


def _whole(text: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= highest):
        raise Malformed(f"not a whole number from 1 to {highest}")
    return int(text)


def _units(text: str) -> int:
    return _whole(text, MAX_UNITS)


def read(file: Path) -> Profile:
    """Returns the profile in `file`, of version 1 or 2. Errors: HvdbError, with the file and the line; OSError."""
    if file.exists() and not file.is_file():
        raise HvdbError(f"{file}: not a file")
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    lines = content.decode("utf-8", errors="replace").split("\n")
    header: dict[str, str] = {}
    number = 1
    counts: list[int] = []
    places: dict[str, int] = {}  # key -> its line
    ready = 0.0
    try:
        if len(content) > MAX_FILE_BYTES:
            raise Malformed(f"more than {MAX_FILE_BYTES >> 20} MiB")
        if lines[0] not in VERSIONS:
            raise Malformed(f"not a replay profile: the first line must be '{VERSIONS[0]}' or '{VERSIONS[1]}'")
        for number, line in enumerate(lines[1:], 2):
            key, _, value = line.partition(" ")
            if key == "gradient":
                words = value.split(" ", 3)
                counts.append(_whole(words[0], MAX_ELEMENTS))
                ready = max(ready, _seconds(words[2] if len(words) > 2 else ""))
            elif key in header:
                raise Malformed("a key that occurs twice")
            else:
                most = MAX_FACTORS_LETTERS if key == "factors" else MAX_LETTERS
                if max(len(key), len(value)) > most:
                    raise Malformed(f"'{key[:20]}' has more than {most} letters")
                header[key], places[key] = value, number
        work = "batch_size" if lines[0] == VERSIONS[0] else "units_per_step"
        needed = ("model", work, "compute_type", "source_run", "backward_end_seconds", "update_seconds", "end")
        if missing := [key for key in needed if key not in header]:
            raise Malformed(f"'{missing[0]}' is missing")
        numbers: dict[str, Any] = {}
        for key, parse in ((work, _units), ("backward_end_seconds", _seconds), ("update_seconds", _seconds)):
            number = places[key]
            numbers[key] = parse(header[key])
        number = len(lines)
        made = Profile(
            file=file,
            sha256=hashlib.sha256(content).hexdigest(),
            model=header["model"],
            unit=header.get("unit", "images"),
            units_per_step=numbers[work],
            compute_type=header["compute_type"],
            source_run=header["source_run"],
            backward_end=numbers["backward_end_seconds"],
            update=numbers["update_seconds"],
            gradients=len(counts),
            elements=sum(counts),
            smallest=min(counts, default=0),
            largest=max(counts, default=0),
        )
        if made.step == 0 or not 0 < made.elements <= MAX_ELEMENTS:
            raise Malformed("its step takes no time, or it has no gradients, or too many elements of them")
        if ready > LATE * made.backward_end:
            raise Malformed(f"a gradient is ready after {ready:g} s, but backward ends after {made.backward_end:g} s")
        return made
    except Malformed as fault:
        raise HvdbError(f"{file}:{number}: {fault}") from fault
    except ValueError as error:
        raise HvdbError(f"{file}:{number}: damaged: not a number") from error
