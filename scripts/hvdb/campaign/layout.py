"""Returns the paths of a campaign's files and the names of its jobs. Pure."""

from __future__ import annotations

from pathlib import Path

from hvdb.campaign.canonical import digest
from hvdb.campaign.plan import Job


class Layout:
    """job_prefix: the beginning of the names of this campaign's jobs. Queries of the scheduler select jobs by it."""

    def __init__(self, folder: Path) -> None:
        """folder: the campaign's folder, absolute."""
        self.folder = folder
        self.spec = folder / "spec.toml"
        self.manifest = folder / "campaign.json"
        self.submissions = folder / "submissions.jsonl"
        self.jobs, self.stores, self.logs, self.events = (folder / n for n in ("jobs", "stores", "logs", "events"))
        self.job_prefix = f"hvd-{digest(str(folder), 8)}-"

    def script(self, job_name: str) -> Path:
        return self.jobs / f"{job_name}.sh"

    def job_name(self, job: Job) -> str:
        return self.job_prefix + job.name
