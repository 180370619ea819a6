"""Shows a prediction: rows of a table and lines for a person, and the JSON document. Never rows in a store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.predict import judge
from hvdb.predict.draws import GROUPS, PredictedWorld, Prediction, Variant
from hvdb.predict.inputs import Inputs
from hvdb.predict.judge import Judged
from hvdb.read.predictions import FORMAT, VERSION, band_document

HEADER = ("ranks", "nodes", "step ms [90 %]", "efficiency % [90 %]", "measured %", "exposed %", "stragglers %")
HEADER += ("slowed %", "interference %")
MIN_PART = 0.1  # a group that makes less of a band's width is not named


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the used sessions measured on as many ranks. step: seconds. answer: the efficiency as text (%), or that it
    is not resolved."""

    step: float
    efficiency: Interval
    answer: str


def measured(inputs: Inputs, text: Callable[[Interval], str]) -> dict[int, Measured]:
    """Returns ranks -> what was measured there. text: of an efficiency."""
    found: dict[int, Measured] = {}
    used = [run for session in inputs.sessions for run in (session.solo, session.full)]
    for cell in efficiency.cells(used, mix_fingerprints=True):
        if cell.kind != "full" or cell.efficiency is None:
            continue
        full = [session.full for session in inputs.sessions if session.world.ranks == cell.ranks]
        step = float(np.median([efficiency.step_time(run).value for run in full]))
        found[cell.ranks] = Measured(step, cell.efficiency, text(cell.efficiency))
    return found


def title(inputs: Inputs) -> str:
    """Returns the line above the table."""
    profile = inputs.profile
    return (
        f"PREDICTED, not measured: {profile.model}, {profile.compute_type}, {profile.units_per_step} {profile.unit} a "
        f"step, {inputs.schedule.name}; from training on {inputs.nodes_text()} with "
        f"{inputs.ranks_per_node} rank{'s' * (inputs.ranks_per_node > 1)} each"
    )


def header(prediction: Prediction) -> list[str]:
    """Returns the heads of the columns: HEADER, and one for the efficiency of each what-if."""
    return [*HEADER, *(f"{variant.text} %" for variant in prediction.variants[1:])]


def rows(prediction: Prediction, there: Mapping[int, Measured]) -> list[list[str]]:
    """Returns the rows below header()."""
    first, *what_ifs = prediction.variants
    made = []
    for place, row in enumerate(first.rows):
        known = there.get(row.world.ranks)
        shown = "" if known is None else known.answer
        shares = (100 * row.parts[name] for name in ("exposed", "stragglers", "slowed", "interference"))
        parts = [f"{round(share, 1) + 0.0:.1f}" for share in shares]  # no -0.0
        others = [variant.rows[place].efficiency.text() for variant in what_ifs]
        bands = (row.step.text(1e3), row.efficiency.text())
        made.append([str(row.world.ranks), str(row.world.nodes), *bands, shown, *parts, *others])
    return made


def narrower(prediction: Prediction) -> list[str]:
    """Returns what would make the band of the last row narrower, the largest part first."""
    last = prediction.variants[0].rows[-1]
    wide = last.efficiency.width
    parts = sorted(prediction.narrower.items(), key=lambda item: -item[1])
    return [
        f"{GROUPS[group]}: {100 * part:.1f} of {100 * wide:.1f} points on {last.world.ranks} ranks"
        for group, part in parts
        if wide > 0 and part / wide >= MIN_PART
    ]


def lines(inputs: Inputs, prediction: Prediction) -> list[str]:
    """Returns the lines below the table."""
    made = []
    for label in prediction.labels:
        value = "" if label.value is None else f" {label.value:.4g}"
        made.append(f"{label.kind:<10}  {label.name}{value}: {label.source}")
    about: dict[str, list[str]] = {}
    for variant in prediction.variants:
        for row in variant.rows:
            for note in row.notes:
                about.setdefault(note, []).append(str(row.world.ranks))
    made += [f"warning: {', '.join(dict.fromkeys(ranks))} ranks: {note}" for note, ranks in about.items()]
    made += [f"note: {note}" for note in (*inputs.notes, *prediction.notes)]
    return made + [f"narrower: {line}" for line in narrower(prediction)]


JUDGED = ("ranks", "what-if", "step ms [90 %]", "measured", "efficiency % [90 %]", "measured", "", "differs most")


def judged_rows(found: Sequence[Judged]) -> list[list[str]]:
    """Returns the rows below JUDGED."""
    made = []
    for one in found:
        row, interval = one.row, one.interval
        step = f"{1e3 * one.step:.1f}"
        if interval:
            step += f" [{1e3 * interval[0]:.1f}, {1e3 * interval[1]:.1f}]"
        reached = "" if one.efficiency is None else f"{100 * one.efficiency:.1f}"
        verdict = "inside" if one.inside else "OUTSIDE"
        bands = (row.step_seconds.text(1e3), row.efficiency.text())
        made.append([str(row.ranks), one.what_if, bands[0], step, bands[1], reached, verdict, one.differs])
    return made


def _measured(known: Measured) -> dict[str, Any]:
    """Returns JSON values. An efficiency without an interval is not a result, so its value is null."""
    made = dataclasses.asdict(known)
    if not efficiency.bounded(known.efficiency):
        made["efficiency"]["value"] = None
    return made


def _row(place: int, row: PredictedWorld, known: Measured | None) -> dict[str, Any]:
    return {
        "what_if": place,
        "ranks": row.world.ranks,
        "nodes": row.world.nodes,
        "step_seconds": band_document(row.step),
        "efficiency": band_document(row.efficiency),
        "parts": row.parts,
        "steps": row.steps,
        "measured": _measured(known) if known else None,
        "warnings": list(row.notes),
    }


def _what_if(variant: Variant) -> dict[str, Any]:
    plan, changed = variant.inputs.schedule, variant.inputs.fabric.change.values()
    return {"text": variant.text, "schedule": plan.name, "options": plan.options(), "hardware": changed}


def document(
    inputs: Inputs, prediction: Prediction, there: Mapping[int, Measured], drawn: Mapping[str, int]
) -> dict[str, Any]:
    """Returns the JSON document. drawn: seed and draws. Times in seconds, other figures as fractions."""
    profile = inputs.profile
    names = ("model", "unit", "units_per_step", "compute_type", "source_run")
    return {
        "format": FORMAT,
        "version": VERSION,
        "predicted": True,
        "confidence": 0.9,
        **drawn,
        "profile": {name: getattr(profile, name) for name in names},
        "device": inputs.base.device,
        "ranks_per_node": inputs.ranks_per_node,
        "inputs": [{"file": file, "sha256": digest} for file, digest in inputs.files.items()],
        "sessions": [session.full.session_uuid for session in inputs.sessions],
        "collectives": inputs.fabric.sessions,
        "latest_input": inputs.latest,
        "training": judge.training_facts(inputs.base),
        "what_ifs": list(map(_what_if, prediction.variants)),
        "rows": [
            _row(place, row, there.get(row.world.ranks) if place == 0 else None)
            for place, variant in enumerate(prediction.variants)
            for row in variant.rows
        ],
        "labels": [dataclasses.asdict(label) for label in prediction.labels],
        "notes": [*inputs.notes, *prediction.notes],
        "narrower": prediction.narrower,
    }


def json_text(made: Mapping[str, Any]) -> str:
    """Returns the JSON document as text."""
    return json.dumps(made, indent=2, allow_nan=False) + "\n"
