"""Returns the paths of a campaign's files and the names of its jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvdb.campaign.canonical import digest
from hvdb.campaign.plan import Job
from hvdb.campaign.site import Site


@dataclass(frozen=True)
class Layout:
    """folder: the campaign's folder, absolute."""

    folder: Path

    @property
    def spec(self) -> Path:
        return self.folder / "spec.toml"

    @property
    def manifest(self) -> Path:
        return self.folder / "campaign.json"

    @property
    def submissions(self) -> Path:
        return self.folder / "submissions.jsonl"

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    @property
    def stores(self) -> Path:
        return self.folder / "stores"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def events(self) -> Path:
        return self.folder / "events"

    def script(self, job_name: str) -> Path:
        return self.jobs / f"{job_name}.sh"

    @property
    def job_prefix(self) -> str:
        """The beginning of the names of this campaign's jobs. The query of the scheduler selects jobs by it."""
        return f"hvd-{digest(str(self.folder), 8)}-"

    def job_name(self, job: Job) -> str:
        return self.job_prefix + job.name

    def log_pattern(self, site: Site, job: Job) -> str:
        """Returns the path of the log of standard output and error, with the scheduler's place-holders."""
        number = {"slurm": "%A.%a" if site.submit.array else "%j", "lsf": "%J.%I" if site.submit.array else "%J"}
        return f"{self.logs}/{job.name}.{number[site.scheduler]}.out"
