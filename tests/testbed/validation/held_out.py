"""Reads records of validate_prediction. This module checks every field that it uses and ignores all other fields."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hvdb.base import record, whole_file
from hvdb.base.interval import Interval
from hvdb.base.record import Count, From, Malformed, Range, Words
from hvdb.read import predictions
from hvdb.read.predictions import FEW, Band, Name, Percentiles, Ranks, Seconds

FORMAT = "hvdb-validation"
KINDS = ("calibrated", "beyond", "compute")
Rate = Annotated[float, Range(0, 1e9)]


def _measured(known: dict[str, object]) -> Interval:
    ends = {**known, "middle": known.get("step_seconds")}
    return predictions.interval(record.read(Percentiles, ends, others=True))


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


def read(file: Path) -> Validation:
    """Errors: HvdbError, one line that names the file and says what is wrong."""
    content = whole_file.read_at_most(file, predictions.MAX_FILE_BYTES)
    with record.faults_of(f"{file}: not a record of validate_prediction"):
        document = predictions.versioned(content, FORMAT)
        return record.read(Validation, document, others=True, file=file, sha256=hashlib.sha256(content).hexdigest())
