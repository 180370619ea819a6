"""Reads what predict needs of a replay profile (models/replay). The file may come from a stranger.

hvd_bench reads the whole profile again when it simulates, and checks what is not checked here.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from hvdb.base.errors import HvdbError

MAX_FILE_BYTES = 4 << 20
MAX_SECONDS = 86400.0
MAX_UNITS, MAX_ELEMENTS = 1 << 30, 1 << 40
VERSIONS = ("hvd-replay 1", "hvd-replay 2")
MODEL_LETTERS = 200


@dataclass(frozen=True)
class Profile:
    """The step of one rank alone. Times in seconds. elements: of all gradients together."""

    file: Path
    sha256: str
    model: str
    unit: str
    units_per_step: int
    compute_type: str
    source_run: str
    backward_end: float
    update: float
    elements: int

    @property
    def step(self) -> float:
        """Seconds of a step of one rank alone."""
        return self.backward_end + self.update


class _Fault(ValueError):
    pass


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise _Fault("a time is not between 0 and 86400 s")
    return value


def _whole(text: str, highest: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= highest):
        raise _Fault(f"not a whole number from 1 to {highest}")
    return int(text)


def read(file: Path) -> Profile:
    """Returns the profile in `file`, of version 1 or 2. Errors: HvdbError, with the file and the line; OSError."""
    if file.exists() and not file.is_file():
        raise HvdbError(f"{file}: not a file")
    with file.open("rb") as opened:
        content = opened.read(MAX_FILE_BYTES + 1)
    lines = content[:MAX_FILE_BYTES].decode("utf-8", errors="replace").split("\n")
    number = 1
    try:
        if len(content) > MAX_FILE_BYTES:
            raise _Fault(f"more than {MAX_FILE_BYTES >> 20} MiB")
        if lines[0] not in VERSIONS:
            raise _Fault(f"not a replay profile: the first line must be '{VERSIONS[0]}' or '{VERSIONS[1]}'")
        header: dict[str, str] = {}
        gradients = elements = 0
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 (the error names it)
            key, _, value = line.partition(" ")
            if key == "end":
                break
            if key == "gradient":
                gradients += 1
                elements += _whole(value.partition(" ")[0], MAX_ELEMENTS)
            elif key in header:
                raise _Fault("a key that occurs twice")
            else:
                header[key] = value
        else:
            raise _Fault("the file ends early: the line 'end' is missing")
        if not gradients or value != str(gradients) or elements > MAX_ELEMENTS or any(lines[number:]):
            raise _Fault("the line 'end' is not the last one, or does not give the number of gradients")
        work = "batch_size" if lines[0] == VERSIONS[0] else "units_per_step"
        needed = ("model", work, "compute_type", "source_run", "backward_end_seconds", "update_seconds")
        if missing := [key for key in needed if key not in header]:
            raise _Fault(f"'{missing[0]}' is missing")
        if not 0 < len(header["model"]) <= MODEL_LETTERS:
            raise _Fault(f"the model's name has no letter, or more than {MODEL_LETTERS}")
        made = Profile(
            file=file,
            sha256=hashlib.sha256(content).hexdigest(),
            model=header["model"],
            unit=header.get("unit", "images"),
            units_per_step=_whole(header[work], MAX_UNITS),
            compute_type=header["compute_type"],
            source_run=header["source_run"],
            backward_end=_seconds(header["backward_end_seconds"]),
            update=_seconds(header["update_seconds"]),
            elements=elements,
        )
        if made.step == 0:
            raise _Fault("its step takes no time")
        return made
    except _Fault as fault:
        raise HvdbError(f"{file}:{number}: {fault}") from fault
    except ValueError as error:
        raise HvdbError(f"{file}:{number}: damaged: not a number") from error
