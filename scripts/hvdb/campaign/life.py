"""Does the work of the commands submit, resume and cancel. Gives each missing cell to the scheduler exactly once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hvdb.base import identity, progress
from hvdb.base.errors import CampaignError, SubmissionStopped
from hvdb.campaign import scheduler, stores
from hvdb.campaign.folder import JobEntry, Manifest
from hvdb.campaign.scheduler import Active, Local, Unit


@dataclass(frozen=True)
class Order:
    """One submission: a job, and those of its repetitions that lack a result and are neither queued nor running."""

    job: JobEntry
    repetitions: tuple[int, ...]
    lacking: int  # number of cells without a result
    after_gate: bool


def lacking_orders(manifest: Manifest, held: set[str], active: dict[Unit, Active], only: Sequence[str]) -> list[Order]:
    """Returns the orders to submit, smallest jobs first. Pure.

    only: names of the jobs to submit; empty: all jobs. As long as the gating job lacks results, all other jobs are
    submitted to start after the gating job.
    """
    gate_open = not any(
        job.gate and (_lacks(job, repetition, held) or (job.name, repetition) in active)
        for job, repetition in manifest.units()
    )
    orders = []
    for job in manifest.jobs:
        if only and job.name not in only:
            continue
        wanted = tuple(r for r in job.cells if (job.name, r) not in active and _lacks(job, r, held))
        if wanted:
            cells = sum(cell.hash not in held for r in wanted for cell in job.cells[r])
            orders.append(Order(job, wanted, cells, after_gate=not (job.gate or gate_open or only)))
    return orders


def _lacks(job: JobEntry, repetition: int, held: set[str]) -> bool:
    return any(cell.hash not in held for cell in job.cells[repetition])


def require_jobs(manifest: Manifest, only: Iterable[str]) -> None:
    """Checks the names in `only`. Errors: CampaignError for a name that is not a job."""
    names = [job.name for job in manifest.jobs]
    for name in only:
        if name not in names:
            raise CampaignError(f"--only {name}: there is no such job; jobs: {', '.join(names)}")


def require_recordings(manifest: Manifest) -> None:
    """Errors: CampaignError if a recorded step is not the one for which the cells were planned; HvdbError."""
    for file, profile in manifest.replays.items():
        if (now := identity.of_file(Path(file))) != profile:
            raise CampaignError(
                f"{file}: was recorded anew: it is profile {now}, and the campaign was generated for {profile}; "
                "generate it again: the cells of the new recording are new ones, and the stores keep those of the old"
            )


def held_cells(
    manifest: Manifest, more: Sequence[Path], step: progress.Step = progress.silent
) -> tuple[set[str], list[str]]:
    """Returns the hashes of the done cells in the campaign's own stores and in `more`, and a line per unreadable store.

    step: called with the progress of reading the campaign's own stores.
    Errors: CampaignError if one of `more` cannot be read.
    """
    held, notes = stores.held(stores.of_campaign(manifest.layout.stores), step)
    for path in more:
        found, faults = stores.held([path])
        if faults or not path.exists():
            raise CampaignError(f"--store {faults[0] if faults else f'{path}: no such file'}")
        held |= found
    return held, notes


class Journal:
    """The file submissions.jsonl: a line per submission, read by people and by the command status.

    The last line of the file may be damaged.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._path = manifest.layout.submissions

    def add(self, job: str, repetitions: Sequence[int], number: str) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "job": job,
            "repetitions": list(repetitions),
            "id": number,
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SubmissionStopped(
                f"{self._path}: cannot be written ({error.strerror}) after job {job} was submitted as {number}; make "
                "room, then resume: what is queued is found by its name"
            ) from None

    def submitted(self) -> set[Unit]:
        """Returns every (job, repetition) that was ever submitted."""
        if not self._path.exists():
            return set()
        found = set()
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                found |= {(entry["job"], repetition) for repetition in entry["repetitions"]}
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # this line was cut off by a kill, or is damaged for another reason
        return found


def submit(
    manifest: Manifest, orders: Sequence[Order], active: dict[Unit, Active], lock: int, tell: Callable[[str], None]
) -> None:
    """Submits `orders` to the scheduler. If the site has no scheduler, runs the jobs on this machine.

    lock: the descriptor from folder.locked(). tell: called with a line about each order as soon as it is submitted.
    Errors: CampaignError if the scheduler refuses the first order; SubmissionStopped if it refuses a later order.
    """
    if manifest.scheduler == "none":
        _run_here(manifest, orders, tell)
        return
    machine, journal = scheduler.of(manifest, lock), Journal(manifest)
    # Elements of an array, not the whole array: an element that has failed already would block the dependency for ever.
    gates = [
        active[unit].id
        for job, repetition in manifest.units()
        if job.gate and (unit := (job.name, repetition)) in active
    ]
    for accepted, order in enumerate(orders):
        after = list(dict.fromkeys(gates)) if order.after_gate else []
        try:
            with progress.shown(f"handing in job {accepted + 1} of {len(orders)}"):
                number = machine.submit(order.job, order.repetitions, after)
        except CampaignError as error:
            if accepted == 0:
                raise
            raise SubmissionStopped(f"{error} (submitted before it: {accepted} jobs, which stay)") from None
        journal.add(order.job.name, order.repetitions, number)
        if order.job.gate:
            gates.append(number)
        waits = f", after {' '.join(after)} has succeeded" if after else ""
        tell(f"{order.job.name}: job {number}, {counted(order)}{waits}")


def counted(order: Order) -> str:
    """Returns a text such as "3 cells in repetitions 1, 2"."""
    repetitions = ", ".join(map(str, order.repetitions))
    return f"{order.lacking} cells in repetition{'s' if len(order.repetitions) > 1 else ''} {repetitions}"


def _run_here(manifest: Manifest, orders: Sequence[Order], tell: Callable[[str], None]) -> None:
    machine, journal = Local(manifest), Journal(manifest)
    for number, order in enumerate(orders):
        tell(f"{order.job.name}: {counted(order)}, at most {order.job.walltime_seconds // 60} min")
        journal.add(order.job.name, order.repetitions, "here")
        rest = sum(later.job.walltime_seconds for later in orders[number:])
        with progress.shown(f"job {number + 1} of {len(orders)}", rest):
            code, interrupted = machine.run(order.job)
        log = manifest.layout.logs / f"{order.job.name}.out"
        if interrupted:
            raise SubmissionStopped(f"stopped during job {order.job.name}; what was measured is stored, resume goes on")
        if code == 2 or (code != 0 and order.job.gate):
            raise SubmissionStopped(f"job {order.job.name} ended with {code}, the others were not started; see {log}")
        tell(f"{order.job.name}: {'done' if code == 0 else f'cells are lacking, see {log}'}")


def active_units(manifest: Manifest) -> dict[Unit, Active]:
    """Returns the jobs of the campaign that are queued or running. Errors: CampaignError if the query fails."""
    with progress.shown("asking what is queued or running"):
        return Local(manifest).active() if manifest.scheduler == "none" else scheduler.of(manifest).active()


def cancel(manifest: Manifest, active: dict[Unit, Active], only: Sequence[str]) -> list[str]:
    """Cancels the queued and running jobs, or only the jobs named in `only`. Returns a line for each cancelled job."""
    chosen = {unit: job for unit, job in active.items() if not only or unit[0] in only}
    if chosen:
        machine = Local(manifest) if manifest.scheduler == "none" else scheduler.of(manifest)
        with progress.shown("waiting for what was told to end"):
            machine.cancel(list(dict.fromkeys(job.id for job in chosen.values())))
    return [f"{name} repetition {r}: {job.state}, cancelled ({job.id})" for (name, r), job in sorted(chosen.items())]
