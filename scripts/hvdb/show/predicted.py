"""Shows predictions (hvdb predict --json) beside measured and published efficiencies. Every text says PREDICTED."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.base.interval import Interval
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read.predictions import PredictedRow, Prediction
from hvdb.read.published import PublishedPoint
from hvdb.read.runs import IMAGES, UNKNOWN
from hvdb.show import tables
from hvdb.show.document import Bullets, Section, Table

AS_IT_WAS = "as the run was"
TITLE = "predicted, not measured % [band]"
HEADER = ("what if", "ranks", "nodes", "PREDICTED step ms [band]", "PREDICTED efficiency % [band]")
HEADER += ("measured % [95 %]", "published % (other hardware)")


@dataclass(frozen=True)
class Subject:
    """What must agree before a prediction may stand beside a figure. units: of a step of one rank."""

    model: str
    compute_type: str
    unit: str
    units: int
    ranks: int


@dataclass(frozen=True)
class Curve:
    """The rows of one what-if of a prediction, by ranks. name: what a legend says."""

    name: str
    model: str
    rows: tuple[PredictedRow, ...]


def of_cell(cell: EfficiencyRow) -> Subject:
    """Returns the subject of a measured row."""
    known = cell.configuration
    return Subject(cell.model, known["compute_type"], cell.unit, known["batch_size"], cell.ranks)


def of_point(point: PublishedPoint) -> Subject:
    """Returns the subject of a published figure. All of them are of images, in fp32."""
    return Subject(point.model, "fp32", IMAGES, point.batch_per_gpu, point.gpus)


def _subject(prediction: Prediction, ranks: int) -> Subject:
    p = prediction.profile
    return Subject(p.model, p.compute_type, p.unit, p.units_per_step, ranks)


def _what(prediction: Prediction, what_if: int = 0) -> str:
    p, schedule = prediction.profile, prediction.what_ifs[what_if].schedule
    return f"{p.compute_type}, {p.units_per_step} {p.unit} a step, {schedule}, {prediction.device}"


def file_text(prediction: Prediction) -> str:
    """Returns the name and the hash of the file."""
    return f"{prediction.file.name} (SHA-256 {prediction.sha256[:12]})"


def _source(prediction: Prediction) -> str:
    gpus = "; never validated on GPUs" if prediction.device == "cuda" else ""
    return (
        f"{file_text(prediction)}, from sessions up to {prediction.latest_input}; "
        f"[band]: {100 * prediction.confidence:g} % of the draws{gpus}"
    )


def curves(predictions: Sequence[Prediction]) -> list[Curve]:
    """Returns the what-ifs of all predictions."""
    made = []
    for prediction in predictions:
        for place, what_if in enumerate(prediction.what_ifs):
            rows = sorted((row for row in prediction.rows if row.what_if == place), key=lambda row: row.ranks)
            if rows:
                changed = f"; {what_if.text}" if what_if.text else ""
                name = f"PREDICTED, {100 * prediction.confidence:g} % band ({_what(prediction, place)}{changed})"
                made.append(Curve(name, prediction.profile.model, tuple(rows)))
    return made


def bands(predictions: Sequence[Prediction], subject: Subject) -> list[Interval]:
    """Returns the predicted efficiencies of `subject`, with the options of the predicted runs."""
    return [
        row.efficiency
        for prediction in predictions
        for row in prediction.rows
        if row.what_if == 0 and _subject(prediction, row.ranks) == subject
    ]


def text(predictions: Sequence[Prediction], subject: Subject) -> str:
    """Returns bands() in % as text. '-': none."""
    return "; ".join(band.text() for band in bands(predictions, subject)) or "-"


def notes(predictions: Sequence[Prediction], subjects: Sequence[Subject]) -> list[str]:
    """Returns a line for each prediction that is shown beside `subjects` by text(), or is not."""
    said = []
    for prediction in predictions:
        beside = {_subject(prediction, row.ranks) for row in prediction.rows if row.what_if == 0} & set(subjects)
        what = f"{tables.title(prediction.profile.model)}, {_what(prediction)}"
        where = "" if beside else "; not shown, because no row agrees in model, type, units per step and ranks"
        said.append(f"{what}: {_source(prediction)}{where}")
    return said


def _measured(prediction: Prediction, row: PredictedRow, cells: Sequence[EfficiencyRow]) -> str:
    found = []
    for cell in cells:
        known = cell.configuration
        options = prediction.what_ifs[0].options
        kind = options[-1] if "--allreduce-dtype" in options else "fp32"
        how = (prediction.what_ifs[0].schedule, prediction.device, kind)
        there = tuple(known[name] for name in ("schedule", "device", "allreduce_type"))
        same = known["replay"] in ("", UNKNOWN, prediction.training.get("replay.profile"))
        if of_cell(cell) == _subject(prediction, row.ranks) and there == how and same:
            marks = tables.marks(known)
            found.append(tables.efficiency_text(cell.efficiency) + (f" ({', '.join(marks)})" if marks else ""))
    return "; ".join(found) or "-"


def _published(prediction: Prediction, row: PredictedRow, points: Sequence[PublishedPoint]) -> str:
    here = _subject(prediction, row.ranks)
    found = [
        f"{tables.percent(point.efficiency_stated)} ({point.network})" for point in points if of_point(point) == here
    ]
    return "; ".join(found) or "-"


def section(
    predictions: Sequence[Prediction], cells: Sequence[EfficiencyRow], points: Sequence[PublishedPoint]
) -> list[Section]:
    """Returns the section of the report: each prediction beside the measured and published efficiencies that agree."""
    full = [cell for cell in cells if cell.kind == "full" and cell.ranks > 1 and cell.efficiency is not None]
    stated = [point for point in points if point.efficiency_stated is not None]
    parts = []
    for prediction in predictions:
        rows, shown = [], 0
        for row in prediction.rows:
            # Nobody has measured or published the other options.
            known = ("-", "-")
            if row.what_if == 0:
                known = (_measured(prediction, row, full), _published(prediction, row, stated))
            shown += known[0] != "-"
            what_if = prediction.what_ifs[row.what_if].text or AS_IT_WAS
            bands = (row.step_seconds.text(1e3), row.efficiency.text())
            rows.append((what_if, str(row.ranks), str(row.nodes), *bands, *known))
        said = [_source(prediction), "What its own input sessions measured is no test of it."]
        others = [cell for cell in full if cell.model == prediction.profile.model]
        if not shown:
            said.append(
                f"Nothing measured is beside it: of {len(others)} rows of this network on several ranks, none agrees "
                "in type, unit, units per step, schedule, device and ranks."
            )
        title = f"PREDICTED, not measured: {tables.title(prediction.profile.model)}, {_what(prediction)}"
        parts.append(Section(title, [Table(HEADER, rows), Bullets(said)]))
    return [Section("Predicted, not measured", (), parts)] if parts else []
