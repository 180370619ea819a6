"""Computes the state of every cell of a campaign, and shows it as a table and as JSON. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdb.base import printable
from hvdb.base.data import called
from hvdb.campaign.events import Attempt
from hvdb.campaign.folder import CellEntry, JobEntry, Manifest
from hvdb.campaign.plan import duration_text
from hvdb.campaign.scheduler import RUNNING, Active, Unit

STATES = ("done", "running", "queued", "failed", "lacking")
FAILURES_SHOWN = 20


@dataclass(frozen=True)
class Failure:
    """A cell whose last launch failed. code: exit code of hvd_bench (README.md lists these) or of the launcher."""

    job: str
    repetition: int
    cell: str
    what: str
    code: int


@dataclass(frozen=True)
class UnitState:
    """One repetition of one job. state: done, running, queued, ended or not submitted. note: a remark on the state."""

    job: str
    repetition: int
    state: str
    id: str
    seconds_left: int | None
    note: str


@dataclass(frozen=True)
class Standing:
    """The state of a campaign. counts: state -> number of cells. jobs: job -> state -> number of cells.

    node_hours_left: of the node hours that `generate` prints, the share of the cells that are not done, by their time.
    submitted: True if a job was ever submitted.
    """

    name: str
    site: str
    spec: str
    folder: str
    counts: dict[str, int]
    jobs: dict[str, dict[str, int]]
    units: list[UnitState]
    failures: list[Failure]
    seconds_left: int | None  # time until the last running job must end; None if unknown
    node_hours_left: float
    submitted: bool
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.counts["done"] == sum(self.counts.values())


def _cell_state(cell: CellEntry, held: set[str], active: Active | None, attempt: Attempt | None) -> str:
    if cell.hash in held:
        return "done"
    if active is not None:
        begun = active.state == RUNNING and attempt is not None and attempt.running == cell.hash
        return "running" if begun else "queued"
    if attempt is not None and attempt.codes.get(cell.hash, 0) not in (0, 7):
        return "failed"
    return "lacking"


def _unit_state(
    job: JobEntry, repetition: int, lacks: int, active: Active | None, attempt: Attempt | None, submitted: bool
) -> UnitState:
    if active is not None:
        return UnitState(job.name, repetition, active.state, active.id, active.seconds_left, active.reason)
    if lacks == 0:
        return UnitState(job.name, repetition, "done", "", None, "")
    if attempt is not None:
        return UnitState(job.name, repetition, "ended", attempt.attempt, None, attempt.how_it_ended())
    note = "left the queue without starting (cancelled, or what it waited for failed)" if submitted else ""
    return UnitState(job.name, repetition, "ended" if submitted else "not submitted", "", None, note)


def standing(
    manifest: Manifest,
    held: set[str],
    active: dict[Unit, Active],
    attempts: dict[Unit, Attempt],
    submitted: set[Unit],
    notes: Sequence[str] = (),
) -> Standing:
    """Returns the state of every cell of the campaign.

    held: done cells, from the stores. active: from the scheduler. attempts: from the jobs' logs. submitted: from the
    journal.
    """
    totals: Counter[str] = Counter()
    jobs: dict[str, dict[str, int]] = {}
    units, failures = [], []
    node_hours = 0.0
    for job, repetition in manifest.units():
        unit = (job.name, repetition)
        attempt = attempts.get(unit)
        counts: Counter[str] = Counter()
        for cell in job.cells[repetition]:
            state = _cell_state(cell, held, active.get(unit), attempt)
            counts[state] += 1
            if state == "failed" and attempt is not None:
                what = f"{cell.what}, {cell.ranks} ranks"
                failures.append(Failure(job.name, repetition, cell.hash, what, attempt.codes[cell.hash]))
        left_seconds = [cell.seconds for cell in job.cells[repetition] if cell.hash not in held]
        share = sum(left_seconds) / (sum(cell.seconds for cell in job.cells[repetition]) or 1.0)
        node_hours += share * job.nodes * job.walltime_seconds / 3600
        lacks = len(left_seconds)
        units.append(_unit_state(job, repetition, lacks, active.get(unit), attempt, unit in submitted))
        mine = jobs.setdefault(job.name, dict.fromkeys(STATES, 0))
        for state, count in counts.items():
            mine[state] += count
        totals += counts
    left = [unit.seconds_left for unit in units if unit.state == RUNNING and unit.seconds_left is not None]
    return Standing(
        name=manifest.name,
        site=manifest.site,
        spec=manifest.spec_hash,
        folder=str(manifest.layout.folder),
        counts={state: totals[state] for state in STATES},
        jobs=jobs,
        units=units,
        failures=failures,
        seconds_left=max(left, default=None),
        node_hours_left=round(node_hours, 2),
        submitted=bool(submitted),
        notes=list(notes),
    )


def as_data(standing: Standing) -> dict[str, object]:
    """Returns the data for --json: the fields of `standing`, and its property `complete`."""
    return {**dataclasses.asdict(standing), "complete": standing.complete}


def _unit_text(unit: UnitState) -> str:
    parts = [f"r{unit.repetition} {unit.state}"]
    if unit.seconds_left is not None:
        parts.append(f"{duration_text(unit.seconds_left)} left")
    if unit.note:
        parts.append(unit.note)
    return ", ".join(parts) + (f" ({unit.id})" if unit.id else "")


def as_text(standing: Standing) -> str:
    """Returns the text for the terminal: one line per job, failures, the time left, and what to do next."""
    lines = [f"campaign {standing.name} on {standing.site}, spec {standing.spec}, in {standing.folder}", ""]
    lines.append(f"{'job':<12}" + "".join(f"{state:>9}" for state in STATES))
    for name, counts in standing.jobs.items():
        lines.append(f"{name:<12}" + "".join(f"{counts[state]:>9}" for state in STATES))
        lines += [f"  {_unit_text(unit)}" for unit in standing.units if unit.job == name and unit.state != "done"]
    if len(standing.jobs) > 1:
        lines.append(f"{'all':<12}" + "".join(f"{standing.counts[state]:>9}" for state in STATES))
    if standing.failures:
        lines += ["", "failed:"]
        for failure in standing.failures[:FAILURES_SHOWN]:
            cell = f"{failure.job} r{failure.repetition} {failure.cell}"
            lines.append(f"  {cell}: {failure.what}: exit code {failure.code}")
        if len(standing.failures) > FAILURES_SHOWN:
            lines.append(f"  and {len(standing.failures) - FAILURES_SHOWN} more (--json)")
        lines.append(f"  what they said is in {standing.folder}/logs")
    lines.append("")
    lines += [f"note: {note}" for note in standing.notes]
    lines.append(_next(standing))
    return "\n".join(map(printable.terminal, lines))


def _next(standing: Standing) -> str:
    folder = shlex.quote(standing.folder)
    if standing.complete:
        return f"complete; next: {called('merge')} -o {standing.name}.db {folder}/stores/*.db"
    at_work = standing.counts["running"] + standing.counts["queued"]
    parts = []
    if standing.seconds_left is not None:
        parts.append(f"running jobs have at most {duration_text(standing.seconds_left)} left")
    parts.append(f"cells that are not done need at most {standing.node_hours_left:.2f} node-hours")
    idle = standing.counts["failed"] + standing.counts["lacking"]
    if not (standing.submitted or at_work):
        parts.append(f"nothing was submitted yet: {called('campaign')} submit {folder}")
    elif idle:
        parts.append(f"nothing is at work on {idle} of them: {called('campaign')} resume {folder}")
    elif at_work:
        parts.append("all of them are queued or running")
    return "; ".join(parts)
