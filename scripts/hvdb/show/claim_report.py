"""Shows a published claim, its measurements, the ring model's bounds and the verdict, as text and as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdb.base import data, printable
from hvdb.judge import claims, efficiency, ring_model
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.judge.claims import Claim, Line, Options
from hvdb.judge.efficiency import EfficiencyRow
from hvdb.read.predictions import Prediction, band_document
from hvdb.show import predicted, tables

HEADER = ("model", "GPUs", "claim %", "model expects %", "measured % [95 %]", "jobs", "schedule", "verdict")
BESIDE = HEADER.index("measured % [95 %]") + 1  # where a column of predictions stands


def commands(claim: Claim) -> list[str]:
    """Returns the commands that measure the claim.

    They are run in the root of the checkout or, if hvdb is installed, in any folder.
    """
    folder = f"runs/{claim.name}"
    campaign, merge, reproduce = map(data.called, ("campaign", "merge", "reproduce"))
    what, target = f"{claim.spec} --site slurm-4gpu", ""
    if claim.target is not None:
        what, target = f"{what} --set node.limit={_nodes(claim)}", f" --target {_points(claim)}% --gpus {claim.gpus}"
    return [
        f"{campaign} generate {what} --dry-run     # jobs and node-hours",
        f"{campaign} generate {what} --out {folder}",
        f"{campaign} submit {folder}",
        f"{campaign} status {folder}     # resume {folder}: submits again what is missing",
        f"{merge} -o {claim.name}.db {folder}/stores",
        f"{reproduce} {claim.name} --db {claim.name}.db{target}",
    ]


def _nodes(claim: Claim) -> int:
    return -(-claim.gpus // 4)


def _points(claim: Claim) -> str:
    return f"{100 * (claim.target or 0):g}"


def _fewest(claim: Claim, lines: Sequence[Line]) -> str:
    """Returns a line on the numbers of GPUs that get a verdict."""
    if claim.target is None:
        least = min(line.point.gpus for line in lines)
        return f"A verdict needs {least} GPUs or more. --target 90% --gpus N judges by a figure of your own."
    return f"The campaign has 1, 2, 4 .. 512 ranks. For other numbers copy {claim.spec}.toml and set ranks."


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _claimed(line: Line) -> str:
    digits = 1 if line.point.rounding is not None and line.point.rounding < 0.005 else 0
    return f"{100 * (line.point.efficiency_stated or 0):.{digits}f}"


def _row(line: Line) -> tuple[str, ...]:
    verdict = line.verdict if line.deciding else f"({line.verdict})"
    return (
        tables.title(line.point.model),
        str(line.point.gpus),
        _claimed(line),
        f"{_percent(line.expected.at_least)} .. {_percent(line.expected.at_most)}",
        tables.efficiency_text(line.measured),
        str(line.sessions) if line.sessions else "-",
        line.schedule or "-",
        verdict + (f": {line.reason}" if line.reason else ""),
    )


def _claim_lies(line: Line) -> str:
    claimed, rounding = line.point.efficiency_stated or 0.0, line.point.rounding or 0
    if line.expected.at_least - rounding <= claimed <= line.expected.at_most + rounding:
        return "inside"
    return "below" if claimed < line.expected.at_least else "above"


_INPUTS: dict[str, Callable[[Line], str]] = {
    "model": lambda line: tables.title(line.point.model),
    "GPUs": lambda line: str(line.inputs.gpus),
    "S (MB)": lambda line: f"{ring_model.BYTES_PER_PARAMETER * line.inputs.parameters / 1e6:.1f}",
    "B (Gbit/s)": lambda line: f"{line.inputs.gbit_per_second:g}",
    "images/s of one": lambda line: f"{line.inputs.images_per_second:g}",
    "batch": lambda line: str(line.inputs.batch),
    "step (ms)": lambda line: f"{1000 * line.expected.step_seconds:.0f}",
    "backward (ms)": lambda line: f"{1000 * line.expected.backward_seconds:.0f}",
    "ring (ms)": lambda line: f"{1000 * line.expected.ring_seconds:.0f}",
    "claim lies": _claim_lies,
    "published set-up": lambda line: line.point.setup,
}


def others(claim: Claim, cells: Sequence[EfficiencyRow], lines: Sequence[Line], device: str) -> list[str]:
    """Returns a line for each measured efficiency of the claim's networks that is no test of the claim.

    Each line gives the reason.
    """
    used = {line.run_ids for line in lines}
    points = claims.points_of(claim, [line.point for line in lines])
    said = []
    for cell in cells:
        if cell.kind != "full" or cell.efficiency is None or cell.model not in claim.models or cell.run_ids in used:
            continue
        nearest = min(
            (
                claims.mismatches(cell.configuration, cell.ranks, point, device)
                for point in points
                if point.model == cell.model
            ),
            key=len,
        )
        figure = tables.efficiency_text(cell.efficiency) + (" %" if efficiency.resolved(cell.efficiency) else "")
        jobs = f"{cell.sessions} job{'s' if cell.sessions > 1 else ''}"
        said.append(f"{tables.title(cell.model)} on {cell.ranks} ranks: {figure} ({jobs}): {', '.join(nearest)}")
    return said


def _table(lines: Sequence[Line], predictions: Sequence[Prediction]) -> str:
    header, rows = list(HEADER), [list(_row(line)) for line in lines]
    if predictions:
        header.insert(BESIDE, predicted.TITLE)
        for row, line in zip(rows, lines, strict=True):
            row.insert(BESIDE, predicted.text(predictions, predicted.of_point(line.point)))
    return tables.text_table(header, rows)


def text(
    claim: Claim,
    lines: Sequence[Line],
    notes: Sequence[str],
    left_out: Sequence[str],
    options: Options,
    predictions: Sequence[Prediction] = (),
) -> str:
    """Returns the whole text. Its first lines say which commands to run."""
    verdict = claims.overall(lines, claim.gpus)
    edge = "at least" if options.at_least else "within"
    where = f"lies {edge} the claim's rounding and {100 * options.margin:g} points of margin"
    if claim.target is not None:
        where = "lies at or above the target"
        where += f" less {100 * options.margin:g} points" if options.margin else ""
    nodes = f"{_nodes(claim)} nodes x 4; docs/campaigns.md has other sites"
    out = [
        f"To put this claim to the test on {claim.gpus} GPUs ({nodes}):",
        *(f"  {command}" for command in commands(claim)),
        "",
        f"Claim: {claim.text}",
        f"Sources: {printable.terminal(data.named(data.PUBLISHED))}",
        _fewest(claim, lines),
        "",
        _table(lines, predictions),
        "",
        f"reproduced: the 95 % interval over jobs (at least {MIN_SESSIONS}) {where}.",
        "In brackets: a second schedule, shown beside the one that decides.",
        "counts: complete, untraced, measured training with its one-rank baseline in the same job, fp32, 64 images per",
        f"rank, on exactly that number of ranks, device {options.device}. docs/claims.md says why.",
    ]
    if options.device != "cuda":
        out.append("The claim is about GPUs: verdicts on CPUs say whether this machine scales alike, not more.")
    if predictions:
        of_lines = [predicted.of_point(line.point) for line in lines]
        out += ["", "PREDICTED, not measured, and no part of the verdict:"]
        out += [f"  {printable.terminal(note)}" for note in predicted.notes(predictions, of_lines)]
    out += [
        "",
        "What the model expects (no latency, no interference: the bounds of the simplest model, not a prediction):",
    ]
    out += [f"  {formula}" for formula in ring_model.FORMULA]
    out += [f"  share = {options.backward_share:.3f}; S: fp32 gradients; B: line rate of a node's link"]
    out += ["  A claim below its range: the link was slower than its line rate (as TCP often is), or more cost time."]
    out += [tables.text_table(tuple(_INPUTS), tables.rows(_INPUTS, [line for line in lines if line.deciding]))]
    if notes:
        out += ["", "Measured here, but no test of the claim:", *(f"  {printable.terminal(note)}" for note in notes)]
    out += [f"left out: {printable.terminal(line)}" for line in left_out]
    judged = [line for line in lines if line.deciding and line.point.gpus == claim.gpus]
    count = sum(line.measured is not None for line in judged)
    name = claim.name if claim.target is None else f"target of {_points(claim)} %"
    out += ["", f"{name}: {verdict} ({count} of {len(judged)} networks measured on {claim.gpus} GPUs)"]
    return "\n".join(out)


def document(
    claim: Claim,
    lines: Sequence[Line],
    notes: Sequence[str],
    left_out: Sequence[str],
    options: Options,
    stores: Sequence[Path],
    predictions: Sequence[Prediction] = (),
) -> dict:
    """Returns the contents of text() as plain data. Units: efficiencies 0..1, seconds, Gbit/s, images/s.

    "predicted" of a line: the bands of the predictions that agree with it.
    """
    rows = []
    for line in lines:
        row = dataclasses.asdict(line)
        row["band"] = claims.band(line.point, options)
        found = predicted.bands(predictions, predicted.of_point(line.point))
        row["predicted"] = [band_document(band) for band in found]
        rows.append(row)
    return {
        "claim": dataclasses.asdict(claim),
        "commands": commands(claim),
        "stores": [str(path) for path in stores],
        "predictions": [{"file": str(p.file), "sha256": p.sha256} for p in predictions],
        "rule": {**dataclasses.asdict(options), "min_sessions": MIN_SESSIONS, "confidence": 0.95},
        "formula": list(ring_model.FORMULA),
        "lines": rows,
        "other_measurements": list(notes),
        "left_out": list(left_out),
        "verdict": claims.overall(lines, claim.gpus),
    }
