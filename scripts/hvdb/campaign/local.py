"""Runs jobs on a machine without a scheduler, one after another, in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hvdb.campaign import events
from hvdb.campaign.errors import CampaignError
from hvdb.campaign.folder import JobEntry, Manifest
from hvdb.campaign.scheduler import RUNNING, Active, Unit

PATIENCE_SECONDS = 90  # the time that cancelled jobs get to store their results


def _lives(pid: int, script: Path) -> bool:
    """Returns True if process `pid` is a shell that runs `script`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        try:
            os.kill(pid, 0)  # without /proc, assume that any process with this number is the shell
        except OSError:
            return False
        return not Path("/proc/self/cmdline").exists()
    return str(script).encode() in words


class Local:
    """The jobs of one campaign on this host."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def active(self) -> dict[Unit, Active]:
        """Returns the jobs that are running on this host, according to the jobs' own logs."""
        found = {}
        for unit, attempt in events.latest(events.read(self._manifest.layout.events)).items():
            script = self._manifest.layout.script(attempt.job)
            here = attempt.finished is None and attempt.host == socket.gethostname()
            if here and attempt.pid > 0 and _lives(attempt.pid, script):
                found[unit] = Active(str(attempt.pid), RUNNING, None, "")
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        """Tells the running jobs to store their results and end, and waits until they have ended."""
        for pid in map(int, ids):
            try:
                os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise CampaignError(f"process {pid}: {error.strerror}; it was not stopped") from None
        end = time.monotonic() + PATIENCE_SECONDS
        while any(active.id in ids for active in self.active().values()):
            if time.monotonic() > end:
                raise CampaignError(f"process {', '.join(ids)} has not ended in {PATIENCE_SECONDS} s; kill -9 ends it")
            time.sleep(0.1)

    def run(self, job: JobEntry) -> tuple[int, bool]:
        """Runs one job to its end. Returns the job's exit code, and True if this program passed a signal to the job."""
        script = self._manifest.layout.script(job.name)
        log = self._manifest.layout.logs / f"{job.name}.out"
        with log.open("ab") as output:
            child = subprocess.Popen(
                ["bash", str(script)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            with _passing_on(child) as seen:
                return child.wait(), bool(seen)


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Passes signals to the child. The first signal (such as Ctrl-C) is sent as SIGUSR1, a scheduler's warning.

    Later signals are sent unchanged. Yields the list of the signals received so far.
    """
    seen: list[int] = []

    def tell(number: int, _frame: object) -> None:
        seen.append(number)
        child.send_signal(signal.SIGUSR1 if len(seen) == 1 else number)

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
