"""Reads what predict needs of a replay profile (models/replay), and makes a profile of the times of recorded steps.

A profile may come from a stranger. hvd_bench reads the whole profile again when it simulates, and checks what is not
checked here. The rules for medians and factors are those of ReplayRecorder, which writes `hvd_bench --record-replay`.
Uses only the standard library, because a Python with PyTorch may have no other packages.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.base import identity, printable
from hvdb.base.errors import HvdbError
from hvdb.base.record import Malformed

MAX_FILE_BYTES = identity.MAX_FILE_BYTES
MAX_SECONDS = 86400.0
LATE = 1.1  # a gradient may be ready this many times the end of backward: two clocks may have told the two times
MAX_UNITS, MAX_ELEMENTS = 1 << 30, 1 << 40
VERSIONS = ("hvd-replay 1", "hvd-replay 2")
MAX_LETTERS, MAX_FACTORS_LETTERS = 200, 1 << 16  # of a key and a value, and of the value of `factors`


@dataclass(frozen=True)
class Profile:
    """The step of one rank alone. Times in seconds. hash: Run.replay of a run that replays it. gradients: their number.
    elements: of all of them together; smallest, largest: of one. ready: when the last gradient is. spread: of the
    recorded steps, see spread()."""

    file: Path
    sha256: str
    hash: str
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
    ready: float = 0.0
    spread: float = 0.0

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
        if windows := [place for place, line in enumerate(lines, 1) if line.endswith("\r")]:
            number = windows[0]
            raise Malformed(r"has the line ends of Windows (CR LF); convert them: sed -i 's/\r$//' FILE")
        if lines[0].startswith("\ufeff"):
            raise Malformed(r"begins with a byte-order mark; remove it: sed -i '1s/^\xEF\xBB\xBF//' FILE")
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
            hash=identity.of_content(content),
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
            ready=ready,
            spread=spread(list(map(_seconds, header.get("factors", "").split()))),
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


COMPUTE_TYPES = ("fp32", "tf32", "bf16", "fp16", "fp64")
MAX_STEPS = 4096  # factors that a profile may have
MIN_FACTOR, MAX_FACTOR = 1e-3, 1e3
MAX_NAME_LETTERS = 120
NOISY = 0.2  # a spread of the steps above which a note says so
MAX_MODEL_LETTERS, MODEL_DIGITS = 64, 8
MAX_TEXT_LETTERS = 150
_OUTSIDE_NAMES = re.compile(r"[^A-Za-z0-9_.:/+-]+")
_OUTSIDE_MODELS = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Header:
    """What a profile says besides times. units_per_step: of one rank."""

    model: str
    unit: str
    units_per_step: int
    device: str
    compute_type: str
    source_run: str


@dataclass(frozen=True)
class Step:
    """The times of one recorded step in seconds. All but `update` count from the start of the step.

    submit, ready: a time for each gradient, at which the host reported it and at which it was final. On a CPU both are
    equal. forward: when the loss was computed.
    """

    submit: Sequence[float]
    ready: Sequence[float]
    forward: float
    backward_end: float
    update: float


def clean(name: str) -> str:
    """Returns a gradient's name with "_" in place of characters other than letters, digits and `_.:/+-`."""
    return _OUTSIDE_NAMES.sub("_", name)[:MAX_NAME_LETTERS] or "_"


def model_name(text: str) -> str:
    """Returns the name of a network: letters, digits and `_.-`, of which the first is a letter or a digit.

    A `text` that is no such name gets the beginning of its SHA-256, so that names that differ stay different.
    """
    plain = _OUTSIDE_MODELS.sub("_", text).lstrip("_.-")
    if plain == text and len(text) <= MAX_MODEL_LETTERS:
        return text or "network"
    digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:MODEL_DIGITS]
    return f"{plain[: MAX_MODEL_LETTERS - MODEL_DIGITS - 1] or 'network'}-{digits}"


def unique_names(names: Iterable[str]) -> list[str]:
    """Returns a clean name for each of `names`. Names that would be equal get a number."""
    found: dict[str, None] = {}
    numbers: dict[str, int] = {}  # the last number of each clean name
    for name in names:
        plain = unique = clean(name)
        while unique in found:
            numbers[plain] = numbers.get(plain, 1) + 1
            unique = f"{plain}:{numbers[plain]}"
        found[unique] = None
    return list(found)


def factors(backward_ends: Sequence[float]) -> list[float]:
    """Returns the time of forward and backward of each step, divided by their median."""
    middle = statistics.median(backward_ends)
    return [min(max(round(end / middle, 6), MIN_FACTOR), MAX_FACTOR) for end in backward_ends]


def spread(times: Sequence[float]) -> float:
    """Returns by how much the slowest tenth of `times` lies above the fastest tenth, as a fraction. 0 below ten."""
    if len(times) < 10:
        return 0.0
    tenths = statistics.quantiles(times, n=10)
    return tenths[-1] / tenths[0] - 1


def check_header(header: Header) -> None:
    """Errors: HvdbError if a field is none that hvd_bench reads."""
    if not isinstance(header.unit, str) or not re.fullmatch("[a-z]{1,20}", header.unit):
        raise HvdbError(f"unit {header.unit!r:.40}: must be 1 to 20 small letters, such as sequences or tokens")
    if type(header.units_per_step) is not int or not 1 <= header.units_per_step <= MAX_UNITS:
        raise HvdbError(f"units {header.units_per_step!r:.40}: must be a whole number from 1 to {MAX_UNITS}")
    if header.compute_type not in COMPUTE_TYPES:
        raise HvdbError(f"compute_type {header.compute_type!r} is not one of {', '.join(COMPUTE_TYPES)}")


def _seconds_text(value: float) -> str:
    return repr(round(value, 9))


def text(header: Header, gradients: Sequence[tuple[str, int]], steps: Sequence[Step]) -> str:
    """Returns the text of the profile: medians over `steps`, and gradients in the order in which they are ready.

    gradients: name and number of elements of each, in the order of the times in `steps`. Gradients that are
    ready at the same time keep the order that they have in `gradients`.
    Errors: HvdbError for what hvd_bench and hvdb would refuse to read.
    """
    check_header(header)
    if not (gradients and steps):
        raise HvdbError("no gradients or no steps were recorded")
    elements = sum(count for _, count in gradients)
    if elements > MAX_ELEMENTS:
        raise HvdbError(f"{elements} elements of gradients, and a replay has at most {MAX_ELEMENTS}")
    backward_end = statistics.median(step.backward_end for step in steps)
    update = statistics.median(step.update for step in steps)
    if not (0 < backward_end <= MAX_SECONDS and 0 <= update <= MAX_SECONDS):
        raise HvdbError(f"backward ends after {backward_end:g} s and the update takes {update:g} s: no step of a day")
    columns = range(len(gradients))
    submit = [max(0.0, statistics.median(step.submit[i] for step in steps)) for i in columns]
    ready = [max(0.0, statistics.median(step.ready[i] for step in steps)) for i in columns]
    lines = [
        VERSIONS[-1],
        f"model {model_name(header.model)}",
        f"unit {header.unit}",
        f"units_per_step {header.units_per_step}",
        f"device {printable.terminal(header.device)[:MAX_TEXT_LETTERS]}",
        f"compute_type {header.compute_type}",
        f"source_run {printable.terminal(header.source_run)[:MAX_TEXT_LETTERS]}",
    ]
    if forward := statistics.median(step.forward for step in steps):
        lines.append(f"forward_seconds {_seconds_text(forward)}")
    lines += [f"backward_end_seconds {_seconds_text(backward_end)}", f"update_seconds {_seconds_text(update)}"]
    lines.append(f"factors {' '.join(map(repr, factors([step.backward_end for step in steps[:MAX_STEPS]])))}")
    names = unique_names(name for name, _ in gradients)
    for i in sorted(columns, key=lambda i: ready[i]):
        lines.append(f"gradient {gradients[i][1]} {_seconds_text(submit[i])} {_seconds_text(ready[i])} {names[i]}")
    made = "\n".join([*lines, f"end {len(gradients)}", ""])
    if len(made) > MAX_FILE_BYTES:
        raise HvdbError(
            f"{len(gradients)} gradients make a replay of {len(made) / (1 << 20):.1f} MiB, and hvd_bench reads at most "
            f"{MAX_FILE_BYTES >> 20} MiB"
        )
    return made
