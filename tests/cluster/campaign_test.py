"""A campaign on a test's Slurm. Some tests run the campaign to its end, and others interrupt it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster_test import scripts
from slurm_cluster import Cluster

from program import HANG, PROGRAM, query

SITE = f"""
base = "slurm"
name = "test"
[node]
ranks_per_node = [2]
[program]
hvd_bench = "{PROGRAM}"
[submit]
extra = ["--mem=2000"]
[launch]
binding = []
[walltime]
maximum = "00:30:00"
startup_seconds = 15
warning_seconds = 30
"""


class Campaign:
    """One campaign in its own folder, which all nodes see. Every fault raises AssertionError with the jobs' output.

    Only one thread may use the object. Several campaigns may run on one cluster.
    """

    def __init__(self, cluster: Cluster, folder: Path, spec: str, *, where: str = "") -> None:
        """Generates the campaign. where: an option of sbatch that says on which nodes its jobs may run."""
        self._cluster = cluster
        self.folder = folder / "campaign"
        (folder / "spec.toml").write_text(spec)
        (folder / "site.toml").write_text(SITE)
        words = [str(folder / "spec.toml"), "--site", str(folder / "site.toml"), "--out", str(self.folder)]
        if where:
            words += ["--set", f'submit.extra=["--mem=2000", "{where}"]']
        self._call("generate", *words)

    def _call(self, command: str, *arguments: str, env: dict[str, str] | None = None) -> str:
        result = self._cluster.run(scripts("campaign"), command, *arguments, env=env)
        assert result.code == 0, result
        return result.out

    def submit(self, env: dict[str, str] | None = None) -> None:
        self._call("submit", str(self.folder), env=env)

    def resume(self, env: dict[str, str] | None = None) -> str:
        return self._call("resume", str(self.folder), env=env)

    def cancel(self) -> None:
        self._call("cancel", str(self.folder))

    def cells_in(self, state: str) -> int:
        """Returns how many cells `scripts/campaign status` reports in `state`. The exit code may be any."""
        shown = self._cluster.run(scripts("campaign"), "status", str(self.folder), "--json")
        return json.loads(shown.out)["counts"][state]

    def numbers(self) -> list[str]:
        """Returns Slurm's numbers of the submitted jobs, in the order of submission."""
        lines = (self.folder / "submissions.jsonl").read_text().splitlines()
        return [json.loads(line)["id"] for line in lines]

    @property
    def stores(self) -> list[Path]:
        return sorted((self.folder / "stores").glob("*.db"))

    def event_logs(self) -> list[str]:
        """Returns the logs of all starts of all jobs."""
        return [file.read_text() for file in sorted((self.folder / "events").glob("*.log"))]

    def events(self) -> str:
        return "".join(self.event_logs())

    def finished_cells(self) -> int:
        """Returns how many cells have ended well so far, according to the jobs' event logs."""
        return sum(" end " in line and line.endswith("code=0") for line in self.events().splitlines())

    def complete_sessions(self) -> Counter[str]:
        """Maps each cell to the number of its sessions, in all stores, whose runs are all complete."""
        sql = (
            "SELECT p.value FROM session s JOIN run r ON r.session_uuid = s.uuid JOIN provenance p "
            "ON p.run_uuid = r.uuid AND p.key = 'label.cell' GROUP BY s.uuid HAVING min(r.status = 'complete')"
        )
        return Counter(cell for store in self.stores for (cell,) in query(sql, store))

    def wait_until(self, ready: Callable[[], object], what: str, seconds: float = HANG) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                logs = "".join(file.read_text() for file in sorted((self.folder / "logs").glob("*.out")))
                queue = self._cluster.run("squeue", "-a").out
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{self.events()}\n{logs}\n{queue}")
            time.sleep(0.3)

    def wait_until_idle(self, seconds: float = HANG) -> None:
        """Waits until Slurm lists no job of the campaign any more."""
        ours = set(self.numbers())

        def idle() -> bool:
            return ours.isdisjoint(self._cluster.run("squeue", "-h", "-o", "%F").out.split())

        self.wait_until(idle, "an empty queue", seconds)

    def wait_until_done(self, cells: int, seconds: float = HANG) -> None:
        """Waits until all `cells` are done, and asserts that each cell has exactly one complete session."""
        self.wait_until(lambda: self.finished_cells() >= cells, f"{cells} cells done", seconds)
        self.wait_until_idle()
        assert self.cells_in("done") == cells, self.events()
        sessions = self.complete_sessions()
        assert len(sessions) == cells, self.events()
        assert set(sessions.values()) == {1}, f"a cell was repeated\n{self.events()}"
