"""Reads predictions that `hvdb predict --json` wrote (results/prediction.schema.json), and records of their validation.

The files may come from a stranger. This module checks every field that it uses and ignores all other fields.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hvdb.base import strict_json, whole_file
from hvdb.base.errors import HvdbError
from hvdb.base.interval import Interval
from hvdb.base.strict_json import Malformed

FORMAT, VALIDATION, VERSION = "hvdb-prediction", "hvdb-validation", 1
MAX_FILE_BYTES = 8 << 20
MAX_ROWS, MAX_WHAT_IFS, MAX_LIST = 4096, 256, 1024  # MAX_LIST: of inputs, sessions, and options of a what-if
MAX_RANKS, MAX_UNITS = 1 << 20, 1 << 30
MAX_SECONDS, MAX_FRACTION = 1e9, 1e3
MAX_CELLS = 10_000
KINDS = ("calibrated", "beyond", "compute")
PARTS = ("exposed", "stragglers", "control", "slowed", "interference")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")

Read = TypeVar("Read")


@dataclass(frozen=True)
class WhatIf:
    """text: what a person changed; "" means nothing. hardware: name -> value, of what was changed."""

    text: str
    schedule: str
    options: tuple[str, ...]
    hardware: dict[str, float]


@dataclass(frozen=True)
class Row:
    """what_if: index into Prediction.what_ifs. step: seconds. efficiency, parts: fractions; parts are of the step."""

    what_if: int
    ranks: int
    nodes: int
    step: Interval
    efficiency: Interval
    parts: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """One file. sha256: of its bytes. confidence: share of the draws that lie in a band. inputs: file -> SHA-256.
    latest_input: start of the newest input session, ISO 8601. training: fact -> value, of the predicted run; empty in
    the first predictions. rows: each what-if and number of ranks once."""

    file: Path
    sha256: str
    model: str
    unit: str
    units_per_step: int
    compute_type: str
    device: str
    ranks_per_node: int
    confidence: float
    sessions: tuple[str, ...]
    inputs: dict[str, str]
    latest_input: str
    training: dict[str, str]
    what_ifs: tuple[WhatIf, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class HeldOut:
    """One cell of a validation. Times in seconds of a step. kind: the world was measured ("calibrated"), or is larger
    than those that were ("beyond"), or one machine trained really ("compute"). measured: its middle is the median.
    trivial: name of a predictor -> its time."""

    block: int
    kind: str
    ranks: int
    options: str
    rate_mbit: float
    latency_us: float
    predicted: Interval
    measured: Interval
    trivial: dict[str, float]

    @property
    def is_inside(self) -> bool:
        """Returns True if the measured step lies in the predicted band."""
        return self.predicted.holds(self.measured.value)


@dataclass(frozen=True)
class Validation:
    """One file. sha256: of its bytes."""

    file: Path
    sha256: str
    cells: tuple[HeldOut, ...]


def read(file: Path) -> Prediction:
    """Errors: HvdbError, one line that names the file and says what is wrong."""
    return _document(file, FORMAT, "a prediction of predict --json", _prediction)


def require_readable(document: dict[str, Any]) -> None:
    """Errors: HvdbError if read() would refuse the document."""
    try:
        _prediction(Path("-"), "", document)
    except Malformed as error:
        raise HvdbError(f"this prediction would not be readable: {error}") from error


def read_validation(file: Path) -> Validation:
    """Errors: those of read()."""
    return _document(file, VALIDATION, "a record of validate_prediction", _validation)


def _document(file: Path, form: str, what: str, make: Callable[[Path, str, dict[str, Any]], Read]) -> Read:
    """Returns make(file, SHA-256, object of JSON) for a file of version VERSION. Errors: those of read()."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES)
    try:
        if len(content) > MAX_FILE_BYTES:
            raise Malformed(f"more than {MAX_FILE_BYTES >> 20} MiB")
        document = strict_json.load(content.decode("utf-8"), MAX_FILE_BYTES)
        if document.get("format") != form:
            raise Malformed(f"its format is not {form}")
        if strict_json.whole(document.get("version"), 1, 1 << 30, "version") != VERSION:
            raise Malformed(f"of version {document['version']}, and this program knows version {VERSION}")
        return make(file, hashlib.sha256(content).hexdigest(), document)
    except UnicodeDecodeError as error:
        raise HvdbError(f"{file}: not {what}: not UTF-8") from error
    except Malformed as error:
        raise HvdbError(f"{file}: not {what}: {error}") from error


def _table(value: object, what: str, most: int = MAX_LIST) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > most:
        raise Malformed(f"{what} is not an object of at most {most} keys")
    return value


def _list(value: object, what: str, most: int = MAX_LIST) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Malformed(f"{what} is not a list of at most {most}")
    return value


def _number(value: object, low: float, high: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int) or not low <= value <= high:
        raise Malformed(f"{what} is not a number from {low:g} to {high:g}")
    return float(value)


def band_document(band: Interval) -> dict[str, float]:
    """Returns a band as JSON values: percentiles 5, 50 and 95 of the draws of a prediction."""
    return {"low": band.low, "middle": band.value, "high": band.high}


def _band(value: object, highest: float, what: str) -> Interval:
    known = _table(value, what)
    low, middle, high = (strict_json.above_zero(known.get(name), highest, what) for name in ("low", "middle", "high"))
    if not low <= middle <= high:
        raise Malformed(f"{what} has not low <= middle <= high")
    return Interval(middle, low, high)


def _match(value: object, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Malformed(f"{what} has not the form that predict writes")
    return value


def _what_if(value: object) -> WhatIf:
    known = _table(value, "a what-if")
    return WhatIf(
        text=strict_json.text(known.get("text"), "text"),
        schedule=strict_json.text(known.get("schedule"), "schedule"),
        options=tuple(strict_json.text(word, "an option") for word in _list(known.get("options"), "options")),
        hardware={
            strict_json.text(name, "a name of hardware"): _number(number, 0, 1e15, "hardware")
            for name, number in _table(known.get("hardware"), "hardware").items()
        },
    )


def _row(value: object, what_ifs: int) -> Row:
    known = _table(value, "a row")
    parts = _table(known.get("parts"), "parts")
    ranks = strict_json.whole(known.get("ranks"), 1, MAX_RANKS, "ranks")
    return Row(
        what_if=strict_json.whole(known.get("what_if"), 0, what_ifs - 1, "what_if"),
        ranks=ranks,
        nodes=strict_json.whole(known.get("nodes"), 1, ranks, "nodes"),
        step=_band(known.get("step_seconds"), MAX_SECONDS, "step_seconds"),
        efficiency=_band(known.get("efficiency"), MAX_FRACTION, "efficiency"),
        parts={name: _number(parts.get(name), -MAX_FRACTION, MAX_FRACTION, f"part {name}") for name in PARTS},
    )


def _prediction(file: Path, sha256: str, document: dict[str, Any]) -> Prediction:
    if document.get("predicted") is not True:
        raise Malformed("'predicted' is not true")
    profile = _table(document.get("profile"), "profile")
    what_ifs = tuple(map(_what_if, _list(document.get("what_ifs"), "what_ifs", MAX_WHAT_IFS)))
    if not what_ifs or what_ifs[0].text:
        raise Malformed("the first of what_ifs is not the run as it was")
    rows = tuple(_row(row, len(what_ifs)) for row in _list(document.get("rows"), "rows", MAX_ROWS))
    if not rows or len({(row.what_if, row.ranks) for row in rows}) != len(rows):
        raise Malformed("no rows, or two of one what-if and number of ranks")
    inputs = [_table(entry, "an input") for entry in _list(document.get("inputs"), "inputs")]
    confidence = _number(document.get("confidence"), 0, 1, "confidence")
    return Prediction(
        file=file,
        sha256=sha256,
        model=strict_json.text(profile.get("model"), "model"),
        unit=strict_json.text(profile.get("unit"), "unit"),
        units_per_step=strict_json.whole(profile.get("units_per_step"), 1, MAX_UNITS, "units_per_step"),
        compute_type=strict_json.text(profile.get("compute_type"), "compute_type"),
        device=strict_json.text(document.get("device"), "device"),
        ranks_per_node=strict_json.whole(document.get("ranks_per_node"), 1, MAX_RANKS, "ranks_per_node"),
        confidence=confidence,
        sessions=tuple(strict_json.text(uuid, "a session") for uuid in _list(document.get("sessions"), "sessions")),
        inputs={
            strict_json.text(entry.get("file"), "the file of an input", 4096): _match(
                entry.get("sha256"), _SHA256, "the SHA-256 of an input"
            )
            for entry in inputs
        },
        latest_input=_match(document.get("latest_input"), _TIME, "latest_input"),
        training={
            strict_json.text(name, "a fact of the training"): strict_json.text(value, name[:40], 4096)
            for name, value in _table(document.get("training", {}), "training").items()
        },
        what_ifs=what_ifs,
        rows=rows,
    )


def _held_out(value: object) -> HeldOut:
    known = _table(value, "a cell")
    measured = _table(known.get("measured"), "measured")
    if (kind := known.get("kind")) not in KINDS:
        raise Malformed(f"the kind of a cell is none of {', '.join(KINDS)}")
    return HeldOut(
        block=strict_json.whole(known.get("block"), 0, MAX_CELLS, "block"),
        kind=kind,
        ranks=strict_json.whole(known.get("ranks"), 1, MAX_RANKS, "ranks"),
        options=strict_json.text(known.get("options"), "options"),
        rate_mbit=_number(known.get("rate_mbit"), 0, 1e9, "rate_mbit"),
        latency_us=_number(known.get("latency_us"), 0, 1e9, "latency_us"),
        predicted=_band(known.get("predicted"), MAX_SECONDS, "predicted"),
        measured=_band({**measured, "middle": measured.get("step_seconds")}, MAX_SECONDS, "measured"),
        trivial={
            strict_json.text(name, "a predictor"): strict_json.above_zero(seconds, MAX_SECONDS, "a trivial prediction")
            for name, seconds in _table(known.get("trivial"), "trivial").items()
        },
    )


def _validation(file: Path, sha256: str, document: dict[str, Any]) -> Validation:
    cells = tuple(map(_held_out, _list(document.get("cells"), "cells", MAX_CELLS)))
    if not cells:
        raise Malformed("no cells")
    return Validation(file, sha256, cells)
