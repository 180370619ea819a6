"""Reads predictions that `hvdb predict --json` wrote (results/prediction.schema.json), and records of their validation.

The files may come from a stranger. This module checks every field that it uses and ignores all other fields.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from hvdb.base import record, whole_file
from hvdb.base.interval import Interval
from hvdb.base.record import Count, From, Malformed, Range, Text, Words

FORMAT, VALIDATION, VERSION = "hvdb-prediction", "hvdb-validation", 1
MAX_FILE_BYTES = 8 << 20
KINDS = ("calibrated", "beyond", "compute")
PARTS = ("exposed", "stragglers", "control", "slowed", "interference")
FEW = Count(1024)  # inputs, sessions, and options of a what-if
Name = Annotated[str, Text(300)]
LongName = Annotated[str, Text(4096)]
Ranks = Annotated[int, Range(1, 1 << 20)]
Seconds = Annotated[float, Range(0, 1e9, inner=True)]
Rate = Annotated[float, Range(0, 1e9)]
Names = Annotated[tuple[Name, ...], FEW]

Read = TypeVar("Read")


@dataclass(frozen=True)
class _Percentiles:
    """A band as a file has it: percentiles 5, 50 and 95 of the draws; of a measurement, the median and its interval."""

    low: Seconds
    middle: Seconds
    high: Seconds

    def __post_init__(self) -> None:
        if self.low > self.middle or self.middle > self.high:
            raise Malformed("has not low <= middle <= high")


def _interval(band: _Percentiles) -> Interval:
    return Interval(band.middle, band.low, band.high)


Band = Annotated[Interval, From(_Percentiles, _interval)]


def band_document(band: Interval) -> dict[str, float]:
    """Returns a band as JSON values: percentiles 5, 50 and 95 of the draws of a prediction."""
    return {"low": band.low, "middle": band.value, "high": band.high}


@dataclass(frozen=True)
class WhatIf:
    """text: what a person changed; "" means nothing. hardware: name -> value, of what was changed."""

    text: Name
    schedule: Name
    options: Names
    hardware: Annotated[dict[Name, Annotated[float, Range(0, 1e15)]], FEW]


@dataclass(frozen=True)
class PredictedRow:
    """what_if: index into Prediction.what_ifs. efficiency, parts: fractions; parts, those of PARTS, are of the step."""

    what_if: int
    ranks: Ranks
    nodes: Ranks
    step_seconds: Band
    efficiency: Band
    parts: dict[str, Annotated[float, Range(-1e3, 1e3)]]

    def __post_init__(self) -> None:
        if self.nodes > self.ranks:
            raise Malformed(f"{self.nodes} is more than the {self.ranks} ranks", "nodes")
        if missing := [name for name in PARTS if name not in self.parts]:
            raise Malformed(f"{missing[0]} is missing", "parts")


@dataclass(frozen=True)
class Profile:
    """The step of one rank alone."""

    model: Name
    unit: Name
    units_per_step: Annotated[int, Range(1, 1 << 30)]
    compute_type: Name


@dataclass(frozen=True)
class Input:
    file: LongName
    sha256: Annotated[str, Text(64, r"[0-9a-f]{64}", "a SHA-256 in hexadecimal digits")]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One file. sha256: of its bytes. confidence: share of the draws that lie in a band. latest_input: start of the
    newest input session, ISO 8601. training: fact -> value, of the predicted run; empty in the first predictions. rows:
    each what-if and number of ranks once."""

    file: Path
    sha256: str
    predicted: bool
    profile: Profile
    device: Name
    ranks_per_node: Ranks
    confidence: Annotated[float, Range(0, 1)]
    sessions: Names
    inputs: Annotated[tuple[Input, ...], FEW]
    latest_input: Annotated[
        str, Text(30, r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,9})?Z", "a time that predict writes")
    ]
    training: Annotated[dict[Name, LongName], FEW] = field(default_factory=dict)
    what_ifs: Annotated[tuple[WhatIf, ...], Count(256)]
    rows: Annotated[tuple[PredictedRow, ...], Count(4096)]

    def __post_init__(self) -> None:
        if not self.predicted:
            raise Malformed("'predicted' is not true")
        if not self.what_ifs or self.what_ifs[0].text:
            raise Malformed("the first of what_ifs is not the run as it was")
        if any(row.what_if >= len(self.what_ifs) for row in self.rows):
            raise Malformed("a row of a what-if that is not there")
        if not self.rows or len({(row.what_if, row.ranks) for row in self.rows}) != len(self.rows):
            raise Malformed("no rows, or two of one what-if and number of ranks")


def _measured(known: dict[str, object]) -> Interval:
    return _interval(record.read(_Percentiles, {**known, "middle": known.get("step_seconds")}, others=True))


@dataclass(frozen=True)
class HeldOut:
    """One cell of a validation. Times in seconds of a step. kind: the world was measured ("calibrated"), or is larger
    than those that were ("beyond"), or one machine trained really ("compute"). measured: its middle is the median.
    trivial: name of a predictor -> its time."""

    block: int
    kind: Annotated[str, Words(KINDS)]
    ranks: Ranks
    options: Name
    rate_mbit: Rate
    latency_us: Rate
    predicted: Band
    measured: Annotated[Interval, From(dict[str, object], _measured)]
    trivial: Annotated[dict[Name, Seconds], FEW]

    @property
    def is_inside(self) -> bool:
        """Returns True if the measured step lies in the predicted band."""
        return self.predicted.holds(self.measured.value)


@dataclass(frozen=True)
class Validation:
    """One file. sha256: of its bytes."""

    file: Path
    sha256: str
    cells: Annotated[tuple[HeldOut, ...], Count(10_000)]

    def __post_init__(self) -> None:
        if not self.cells:
            raise Malformed("no cells")


def read(file: Path) -> Prediction:
    """Errors: HvdbError, one line that names the file and says what is wrong."""
    return _document(file, FORMAT, "a prediction of predict --json", Prediction)


def require_readable(document: dict[str, Any]) -> None:
    """Errors: HvdbError if read() would refuse the document."""
    with record.faults_of("this prediction would not be readable"):
        record.read(Prediction, document, others=True, file=Path("-"), sha256="")


def read_validation(file: Path) -> Validation:
    """Errors: those of read()."""
    return _document(file, VALIDATION, "a record of validate_prediction", Validation)


def _document(file: Path, form: str, what: str, kind: type[Read]) -> Read:
    """Returns the record in a file of version VERSION. Errors: those of read()."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES)
    with record.faults_of(f"{file}: not {what}"):
        document = record.json_object(record.decoded(content, MAX_FILE_BYTES), MAX_FILE_BYTES)
        if document.get("format") != form:
            raise Malformed(f"its format is not {form}")
        if (version := record.value(int, document.get("version"), "version")) != VERSION:
            raise Malformed(f"of version {version}, and this program knows version {VERSION}")
        return record.read(kind, document, others=True, file=file, sha256=hashlib.sha256(content).hexdigest())
