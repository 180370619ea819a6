"""A campaign's folder on disk: `campaign generate` writes its files, and the other commands of `campaign` read them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import locks, record, whole_file
from hvdb.base.data import called
from hvdb.base.errors import CampaignError
from hvdb.base.record import From, Malformed
from hvdb.campaign import script, spec
from hvdb.campaign.cell import Cell
from hvdb.campaign.plan import Plan
from hvdb.campaign.script import Layout
from hvdb.campaign.site import Submit

FORMAT = 1
PROGRAM = called("campaign")


@dataclass(frozen=True)
class CellEntry:
    """One cell. seconds: the longest time that the cell may take. The manifest has the values alone, as a list."""

    hash: str
    role: str
    ranks: int
    what: str  # "vgg16 batch 64 fp32 static", for a person
    seconds: float


def _cells(given: dict[str, list[list[object]]]) -> dict[int, tuple[CellEntry, ...]]:
    names = [one.name for one in dataclasses.fields(CellEntry)]
    return {
        int(repetition): tuple(record.read(CellEntry, dict(zip(names, cell, strict=True))) for cell in cells)
        for repetition, cells in given.items()
    }


@dataclass(frozen=True)
class JobEntry:
    """One job script. cells: repetition -> its cells. gate: True if all other jobs wait for this job."""

    name: str
    nodes: int
    walltime_seconds: int
    gate: bool
    cells: Annotated[dict[int, tuple[CellEntry, ...]], From(dict[str, list[list[object]]], _cells)]


@dataclass(frozen=True)
class Manifest:
    """The facts about a campaign that the commands submit, status, resume and cancel need.

    replays: absolute path of a recorded step -> its hash when the campaign was generated.
    """

    name: str
    site: str
    scheduler: str
    submit: Submit
    spec_hash: str
    job_prefix: str
    folder: str
    layout: Layout
    replays: dict[str, str]
    jobs: tuple[JobEntry, ...]

    def units(self) -> Iterator[tuple[JobEntry, int]]:
        """Yields every (job, repetition). The scheduler runs each repetition of a job as one unit."""
        for job in self.jobs:
            for repetition in job.cells:
                yield job, repetition


def _entry(plan: Plan, cell: Cell) -> CellEntry:
    what = f"{cell.model} batch {cell.batch_size} {cell.dtype} {cell.schedule}"
    what += f" profile {cell.profile}" if cell.profile else ""
    return CellEntry(cell.hash, cell.role, cell.shape.ranks, what, round(plan.cell_seconds[cell.hash], 1))


def _manifest_data(plan: Plan, layout: Layout, hvd_bench: Path) -> dict[str, Any]:
    smallest = plan.jobs[0].nodes
    first = plan.jobs[0].name.split("-r")[0]
    recorded = spec.replays(plan.spec).items()
    jobs = []
    for job in plan.jobs:
        gates = plan.spec.first_job_gates and job.nodes == smallest and job.name.split("-r")[0] == first
        cells = {str(r): [dataclasses.astuple(_entry(plan, c)) for c in order] for r, order in job.cells.items()}
        fields = {"name": job.name, "nodes": job.nodes, "walltime_seconds": job.walltime_seconds}
        jobs.append({**fields, "gate": gates, "cells": cells})
    return {
        "format": FORMAT,
        "name": plan.spec.name,
        "site": plan.site.name,
        "scheduler": plan.site.scheduler,
        "submit": dataclasses.asdict(plan.site.submit),
        "spec_hash": plan.spec.hash,
        "site_hash": plan.site.hash,
        "job_prefix": layout.job_prefix,
        "folder": str(layout.folder),
        "hvd_bench": str(hvd_bench),
        "spec": dataclasses.asdict(plan.spec),
        "profile": dataclasses.asdict(plan.site),
        "left_out": list(plan.left_out),
        "replays": {str(file.absolute()): plan.profiles[model] for model, file in recorded if model in plan.profiles},
        "jobs": jobs,
    }


def files(plan: Plan, layout: Layout, hvd_bench: Path) -> dict[Path, str]:
    """Returns all files to write. The manifest is last, because it makes the folder a campaign. Pure."""
    found = {layout.script(job.name): script.text(plan, job, layout, hvd_bench) for job in plan.jobs}
    found[layout.manifest] = json.dumps(_manifest_data(plan, layout, hvd_bench), indent=1) + "\n"
    return found


def resolved(folder: Path) -> Path:
    """Returns the resolved path of `folder`. Unlike folder.resolve(), raises no error for a link to itself."""
    return Path(os.path.realpath(folder))


def write(plan: Plan, layout: Layout, hvd_bench: Path, spec_text: str, *, replace: bool) -> None:
    """Writes the folder. Each file is written completely or not at all. hvd_bench: absolute path of the jobs' program.

    Errors: CampaignError if the folder contains another campaign and `replace` is false, or if a file cannot be
    written.
    """
    try:
        contents = {
            path: text.encode() for path, text in {layout.spec: spec_text, **files(plan, layout, hvd_bench)}.items()
        }
    except UnicodeEncodeError as error:  # a path whose bytes are not UTF-8
        raise CampaignError(
            f"{layout.folder}: cannot be written: job scripts are UTF-8, and {error.object[error.start]!r} in a path "
            "or a --set is not; use another one"
        ) from None
    if layout.manifest.exists() and not replace:
        there = _load(layout.manifest)
        if (there.get("spec_hash"), there.get("site_hash")) != (plan.spec.hash, plan.site.hash):
            raise CampaignError(
                f"{layout.folder}: holds a campaign of another spec or site ({there.get('name')} on {there.get('site')}"
                f", spec {there.get('spec_hash')}); use another --out, or --replace: what its stores hold stays, and "
                "counts for cells that are the same"
            )
    try:
        for folder in (layout.folder, layout.jobs, layout.stores, layout.logs, layout.events):
            folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            whole_file.write_bytes(path, content, 0o755 if path.suffix == ".sh" else None)
        for path in layout.jobs.glob("*.sh"):
            if path not in contents:
                path.unlink()
    except OSError as error:
        raise CampaignError(f"{error.filename or layout.folder}: cannot be written: {error.strerror}") from None


def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CampaignError(
            f"{path.parent}: is not a campaign's folder ({path.name}: {error.strerror}); "
            f"make one with {PROGRAM} generate SPEC --site SITE --out FOLDER"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CampaignError(f"{path}: damaged ({error}); run {PROGRAM} generate again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CampaignError(f"{path}: of another version of {PROGRAM}; run {PROGRAM} generate again")
    return data


def read(folder: Path) -> Manifest:
    """Returns the campaign in `folder`. Errors: CampaignError if the folder has none, is damaged or was moved."""
    folder = resolved(folder)
    path = folder / "campaign.json"
    data = _load(path)
    if isinstance(submit := data.get("submit"), dict):
        submit.setdefault("keep_variables", [])  # older folders have no such field
    data.setdefault("replays", {})  # nor this one
    try:
        made = record.read(Manifest, data, others=True, layout=Layout(folder))
    except Malformed as fault:
        raise CampaignError(f"{path}: damaged ({fault}); run {PROGRAM} generate again") from None
    if made.folder != str(folder):
        raise CampaignError(
            f"{folder}: was generated as {made.folder}, and its scripts write there; generate it again here "
            "(what its stores hold counts)"
        )
    return made


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[int]:
    """Holds a lock so that only one submit or resume of a campaign runs at a time.

    Yields the descriptor that holds the lock. The scheduler's program, a child process, inherits the descriptor and
    therefore the lock. If this process is killed, the lock is held until the scheduler's program ends.
    Errors: CampaignError if another process holds the lock.
    """
    path = layout.folder / "lock"
    taken = CampaignError(f"{layout.folder}: another {PROGRAM} is submitting here, or running jobs; wait for its end")
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(locks.held(path, taken))
        except OSError as error:
            raise CampaignError(f"{path}: cannot be written: {error.strerror}") from None
        yield lock  # on a file system without locks, the names of the jobs still prevent double submission
