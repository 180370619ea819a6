"""A prediction, in memory and in the files that `hvdb predict --json` writes (results/prediction.schema.json).

The files may come from a stranger. read() checks every field and ignores all that it does not know.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record, whole_file
from hvdb.base.interval import Interval
from hvdb.base.record import Count, From, Malformed, Range, Text, Words
from hvdb.read.names import WIDEST_EFFICIENCY

FORMAT, VERSION = "hvdb-prediction", 1
MAX_FILE_BYTES = 8 << 20
PARTS = ("exposed", "stragglers", "control", "slowed", "interference")
MEASURED, SCALED, IMPORTED, DATA_SHEET, ASSUMED = "measured", "scaled", "imported", "data sheet", "assumed"
FEW = Count(1024)  # inputs, sessions, and options of a what-if
Name = Annotated[str, Text(300)]
LongName = Annotated[str, Text(4096)]
Lines = Annotated[tuple[LongName, ...], Count(4096)]
Ranks = Annotated[int, Range(1, 1 << 20)]
Whole = Annotated[int, Range(0, 1 << 40)]
Seconds = Annotated[float, Range(0, 1e9, inner=True)]
Names = Annotated[tuple[Name, ...], FEW]


@dataclass(frozen=True)
class Percentiles:
    """A band as a file has it: percentiles 5, 50 and 95 of the draws."""

    low: Seconds
    middle: Seconds
    high: Seconds

    def __post_init__(self) -> None:
        if self.low > self.middle or self.middle > self.high:
            raise Malformed("has not low <= middle <= high")


@dataclass(frozen=True)
class Difference(Percentiles):
    """A difference of efficiencies, which may be below 0."""

    low: float
    middle: float
    high: float


def interval(band: Percentiles) -> Interval:
    """Returns a band as it is in memory."""
    return Interval(band.middle, band.low, band.high)


Band = Annotated[Interval, From(Percentiles, interval)]


@dataclass(frozen=True)
class _Ends:
    value: float | None
    low: float | None
    high: float | None


def _answer(ends: _Ends) -> Interval:
    return Interval(float("nan") if ends.value is None else ends.value, ends.low, ends.high)


@dataclass(frozen=True)
class Label:
    """Where an input comes from. kind: one of MEASURED ... ASSUMED. value: its middle, None if it is not one number."""

    name: LongName
    kind: Annotated[str, Words((MEASURED, SCALED, IMPORTED, DATA_SHEET, ASSUMED))]
    source: LongName
    value: float | None = None


@dataclass(frozen=True)
class WhatIf:
    """text: what a person changed; "" means nothing. hardware: name -> value, of what was changed."""

    text: Name
    schedule: Name
    options: Names
    hardware: Annotated[dict[Name, Annotated[float, Range(0, 1e15)]], FEW]


@dataclass(frozen=True)
class Measured:
    """What the used sessions measured on as many ranks. step: seconds. efficiency: its value is NaN if it is not
    resolved. answer: the efficiency as text (%), or that it is not resolved."""

    step: Seconds
    efficiency: Annotated[Interval, From(_Ends, _answer)]
    answer: Name


@dataclass(frozen=True)
class PredictedRow:
    """what_if: index into Prediction.what_ifs. efficiency, parts: fractions; parts, those of PARTS, are of the step.
    steps: simulated in each draw. measured: by input sessions. warnings: what lies outside of what was measured."""

    what_if: int
    ranks: Ranks
    nodes: Ranks
    step_seconds: Band
    efficiency: Band
    parts: dict[str, Annotated[float, Range(-1e3, 1e3)]]
    steps: Whole = 0
    measured: Measured | None = None
    warnings: Lines = ()

    def __post_init__(self) -> None:
        if self.nodes > self.ranks:
            raise Malformed(f"{self.nodes} is more than the {self.ranks} ranks", "nodes")
        if missing := [name for name in PARTS if name not in self.parts]:
            raise Malformed(f"{missing[0]} is missing", "parts")

    @property
    def efficiency_text(self) -> str:
        """The efficiency in %, with its band, or that it is not resolved."""
        band = self.efficiency
        if band.width == 0:  # one rank alone
            return f"{100 * band.value:.1f}"
        if band.width <= WIDEST_EFFICIENCY:
            return band.text()
        return f"not resolved: between {100 * band.low:.0f} and {100 * band.high:.0f}"


@dataclass(frozen=True)
class Gain:
    """What another option would gain on `ranks`: by how much the efficiency, a fraction, is higher in each draw."""

    text: Name
    ranks: Ranks
    efficiency: Annotated[Interval, From(Difference, interval)]


@dataclass(frozen=True)
class Profile:
    """The step of one rank alone."""

    model: Name
    unit: Name
    units_per_step: Annotated[int, Range(1, 1 << 30)]
    compute_type: Name
    source_run: Name = ""


@dataclass(frozen=True)
class Input:
    file: LongName
    sha256: Annotated[str, Text(64, r"[0-9a-f]{64}", "a SHA-256 in hexadecimal digits")]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """file, sha256: of its bytes, once it is a file. confidence: share of the draws that lie in a band. latest_input:
    start of the newest input session, ISO 8601. training: fact -> value, of the predicted run; empty in the first
    predictions. rows: each what-if and number of ranks once. narrower: group of inputs -> by how much the band of the
    last row as the run was is narrower without it, in efficiency."""

    file: Path = Path("-")
    sha256: str = ""
    predicted: bool = True
    confidence: Annotated[float, Range(0, 1)] = 0.9
    seed: int = 0
    draws: Whole = 0
    profile: Profile
    device: Name
    ranks_per_node: Ranks
    inputs: Annotated[tuple[Input, ...], FEW]
    sessions: Names
    collectives: Names = ()
    latest_input: Annotated[
        str, Text(30, r"[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{1,9})?Z", "a time that predict writes")
    ]
    training: Annotated[dict[Name, LongName], FEW] = field(default_factory=dict)
    what_ifs: Annotated[tuple[WhatIf, ...], Count(256)]
    rows: Annotated[tuple[PredictedRow, ...], Count(4096)]
    gains: Annotated[tuple[Gain, ...], FEW] = ()
    labels: Annotated[tuple[Label, ...], FEW] = ()
    notes: Lines = ()
    narrower: Annotated[dict[Name, float], FEW] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.predicted:
            raise Malformed("'predicted' is not true")
        if not self.what_ifs or self.what_ifs[0].text:
            raise Malformed("the first of what_ifs is not the run as it was")
        if any(row.what_if >= len(self.what_ifs) for row in self.rows):
            raise Malformed("a row of a what-if that is not there")
        if not self.rows or len({(row.what_if, row.ranks) for row in self.rows}) != len(self.rows):
            raise Malformed("no rows, or two of one what-if and number of ranks")

    def rows_of(self, what_if: int) -> list[PredictedRow]:
        """Returns the rows of a what-if, in the order of the file."""
        return [row for row in self.rows if row.what_if == what_if]

    def units_per_second(self, row: PredictedRow) -> Interval:
        """Returns how many units all ranks process in a second."""
        step, units = row.step_seconds, row.ranks * self.profile.units_per_step
        return Interval(units / step.value, units / step.high, units / step.low)


def read(file: Path) -> Prediction:
    """Errors: HvdbError, one line that names the file and says what is wrong."""
    content = whole_file.read_at_most(file, MAX_FILE_BYTES)
    with record.faults_of(f"{file}: not a prediction of predict --json"):
        document = versioned(content, FORMAT)
        return record.read(Prediction, document, others=True, file=file, sha256=hashlib.sha256(content).hexdigest())


def versioned(content: bytes, form: str) -> dict[str, Any]:
    """Returns the JSON document of a format of ours, of version VERSION. Errors: Malformed."""
    document = record.json_object(record.decoded(content, MAX_FILE_BYTES), MAX_FILE_BYTES)
    if document.get("format") != form:
        raise Malformed(f"its format is not {form}")
    if (version := record.value(int, document.get("version"), "version")) != VERSION:
        raise Malformed(f"of version {version}, and this program knows version {VERSION}")
    return document


def text(made: Prediction) -> str:
    """Returns the contents of a file. Errors: HvdbError if read() would refuse them."""
    document = {"format": FORMAT, "version": VERSION, **_plain(made)}
    del document["file"], document["sha256"]
    with record.faults_of("this prediction would not be readable"):
        record.read(Prediction, document, others=True, file=made.file, sha256="")
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def band_document(band: Interval) -> dict[str, float]:
    """Returns a band as JSON values."""
    return {"low": band.low, "middle": band.value, "high": band.high}


def _plain(value: Any) -> Any:
    """Returns `value` as values of JSON."""
    if isinstance(value, Measured):  # an efficiency without an interval is not a result
        known = value.efficiency
        bounded = known.known or known.lowest is not None
        ends = {"value": known.value if bounded else None, "low": known.low, "high": known.high}
        return {"step": value.step, "efficiency": ends, "answer": value.answer}
    if isinstance(value, Interval):
        return band_document(value)
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return list(map(_plain, value)) if isinstance(value, tuple) else value
