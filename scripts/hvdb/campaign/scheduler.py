"""Submits, queries and cancels jobs, by the scheduler's programs or, on a machine without a scheduler, by starting
them in the foreground one after another. Pure functions parse the programs' output.

The name of a submitted job contains the campaign and the job, and this program finds jobs by name. So this program
knows a job as soon as the scheduler has the job, and submits no job twice even if it is killed at any moment.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdb.base.errors import CampaignError
from hvdb.campaign import events
from hvdb.campaign.folder import JobEntry, Manifest
from hvdb.campaign.script import array_text
from hvdb.campaign.site import cluster_of

# Sources: the sections on environment variables in sbatch(1), squeue(1), scancel(1) and srun(1), and IBM's "Environment
# variables" of LSF.
#
# Variables that change what the scheduler's programs do or print (SQUEUE_STATES hides jobs, BSUB_QUIET hides the number
# of a job), and variables that describe a job or step in which the user calls us. srun and MPI would take the latter
# for those of the campaign's job.
_REMOVED = (
    "SLURM_ SBATCH_ SRUN_ SALLOC_ SQUEUE_ SACCT_ SCANCEL_ SCONTROL_ SINFO_ "
    "LSB_ BSUB_ JSM_ PMI_ PMIX_ OMPI_COMM_WORLD_"
).split()
# SLURM_CONF says which Slurm to talk to. PMIX_MCA_* are settings of a user, not facts of a step.
_KEPT = ("SLURM_CONF",)
_KEPT_PREFIX = "PMIX_MCA_"


def for_scheduler(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Returns `environment` without the variables of schedulers, except SLURM_CONF, LSF_* and the names in `keep`."""
    return {
        name: value
        for name, value in environment.items()
        if name in keep or name in _KEPT or name.startswith(_KEPT_PREFIX) or not name.startswith(tuple(_REMOVED))
    }


ANSWER_SECONDS = 120  # a busy controller sometimes takes a minute
# Errors after which the controller may have queued the job. Source: src/common/slurm_errno.c of Slurm 22.05.
_NO_ANSWER = re.compile("timed out|timeout|receive failure|shutdown failure|zero bytes|connection reset", re.IGNORECASE)
MAY_BE_QUEUED = "it may be queued all the same: resume finds it by its name, and submits it only if it is not"
QUEUED, RUNNING = "queued", "running"


@dataclass(frozen=True)
class Active:
    """One repetition of a job that is queued or running. id: the scheduler's id, by which the job can be cancelled.

    seconds_left: the rest of the job's walltime; None if unknown.
    """

    id: str
    state: str
    seconds_left: int | None
    reason: str


Unit = tuple[str, int]  # job name, repetition


class Scheduler(ABC):
    """The interface of Slurm and LSF. Errors of all methods: CampaignError.

    query: the command that lists jobs. kill: the command that cancels jobs. parse: reads what `query` printed.
    """

    query: Sequence[str]
    kill: Sequence[str]
    parse: Callable[[str, str], dict[Unit, Active]]

    def __init__(self, manifest: Manifest, lock: int | None = None) -> None:
        self._manifest = manifest
        self._lock = lock

    @abstractmethod
    def submit(self, job: JobEntry, repetitions: Sequence[int], after: Sequence[str]) -> str:
        """Submits the job's script. Returns the job's id.

        The job starts when all in `after` have succeeded. after: ids of jobs, or of elements of arrays (Active.id).
        """

    def active(self) -> dict[Unit, Active]:
        """Returns the jobs of this campaign that are queued or running."""
        unknown = "what is queued or running is not known"
        done = self._run(self.query, unknown, f"{unknown}, try again later")
        failed = done.returncode != 0 and "No unfinished job found" not in done.stderr + done.stdout  # bjobs says so
        # A site's wrapper may print an error where the list belongs and end with 0. Lines of jobs have a "|".
        if failed or re.search(r"^[^|\n]*\berror\b[^|\n]*$", done.stdout, re.IGNORECASE | re.MULTILINE):
            raise CampaignError(f"{self.query[0]}: {_last_line(done)}; {unknown}, try again later")
        return type(self).parse(done.stdout, self._manifest.job_prefix)

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancels the jobs `ids`. The scheduler warns running jobs before it ends them."""
        see = f"see {self.query[0]} for what still runs"
        done = self._run([*self.kill, *ids], "nothing was cancelled", f"some may be cancelled; {see}")
        if done.returncode != 0:
            raise CampaignError(f"{self.kill[0]}: {_last_line(done)}; {see}")

    def _run(
        self, command: Sequence[str], what: str, unanswered: str, stdin: Path | None = None, lock: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the scheduler. Bytes of its output that are not UTF-8 become \\x escapes.

        what, unanswered: the end of the error's text if the program does not run, and if it does not answer.
        """
        _require(command[0], what)
        try:
            with stdin.open() if stdin else open(os.devnull) as source:  # noqa: PTH123  (os.devnull is a device)
                return subprocess.run(
                    list(command),
                    stdin=source,
                    env=for_scheduler(os.environ, self._manifest.submit.keep_variables),
                    capture_output=True,
                    encoding="utf-8",
                    errors="backslashreplace",
                    timeout=ANSWER_SECONDS,
                    check=False,
                    pass_fds=() if lock is None else (lock,),
                )
        except subprocess.TimeoutExpired:
            raise CampaignError(f"{command[0]}: no answer in {ANSWER_SECONDS} s; {unanswered}") from None
        except OSError as error:
            raise CampaignError(f"{error.filename or command[0]}: {error.strerror}, so {what}") from None

    def _hand_in(self, job: JobEntry, words: Sequence[str]) -> str:
        """Submits the script of `job`, as an argument or on standard input. Returns what the program printed.

        words: options for the scheduler's program, which inherits the lock.
        """
        submit, script = self._manifest.submit, self._manifest.layout.script(job.name)
        by_argument = submit.by == "argument"
        command = [*submit.command, *words, *([str(script)] if by_argument else [])]
        what, stdin = f"job {job.name} was not submitted", None if by_argument else script
        done = self._run(command, what, f"job {job.name}: {MAY_BE_QUEUED}", stdin, self._lock)
        if done.returncode < 0 or (done.returncode != 0 and _NO_ANSWER.search(done.stderr + done.stdout)):
            raise CampaignError(f"job {job.name}: {submit.command[0]}: {_last_line(done)}; {MAY_BE_QUEUED}")
        if done.returncode != 0:
            raise CampaignError(
                f"job {job.name}: {submit.command[0]} rejected it: {_last_line(done)}; correct the site "
                "(generate again with --set submit.partition=... or the like), then resume"
            )
        return done.stdout


def of(manifest: Manifest, lock: int | None = None) -> Scheduler:
    """Returns the scheduler of the campaign's site, which must not be "none" (Local handles such sites).

    lock: the descriptor from folder.locked(), which the scheduler's programs inherit.
    """
    return {"slurm": Slurm, "lsf": Lsf}[manifest.scheduler](manifest, lock)


def _require(program: str, what: str) -> None:
    if shutil.which(program) is None:
        raise CampaignError(
            f"{program}: not on the PATH, so {what}; call this on a login node of the cluster, load the scheduler's "
            "module, or generate for another --site"
        )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the last line that names an error, or else the last line: a site may print advice after an error."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def _unit(name: str, index: str, prefix: str) -> Unit | None:
    """Returns (job, repetition) for a job name and array index in the scheduler's list.

    Returns None for a job of another campaign.
    """
    if not name.startswith(prefix):
        return None
    job = name.removeprefix(prefix)
    alone = re.search(r"-r(\d+)$", job)
    return job, int(alone[1]) if alone else int(index or 1)


def _slurm_seconds(text: str) -> int | None:
    """Converts "1-02:03:04", "02:03:04" or "03:04" to seconds. Returns None for words such as "UNLIMITED"."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_squeue(text: str, prefix: str) -> dict[Unit, Active]:
    """Parses the output of squeue --array --format='%i|%j|%T|%L|%r' for jobs whose names begin with `prefix`. Pure."""
    found = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        number, name, state, left, reason = fields
        unit = _unit(name, number.partition("_")[2], prefix)
        if unit is None or state in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"):
            continue
        running = state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
        why = "" if reason == "None" else reason
        found[unit] = Active(number, RUNNING if running else QUEUED, _slurm_seconds(left) if running else None, why)
    return found


def parse_bjobs(text: str, prefix: str) -> dict[Unit, Active]:
    """Parses the output of bjobs -o "jobid jobindex job_name stat time_left pend_reason". Pure.

    Returns the jobs whose names begin with `prefix`.

    The job_name of an element of an array is name[index]. time_left is "hours:minutes L" or "-".
    """
    found = {}
    for line in text.splitlines():
        fields = [part.strip() for part in line.split("|", 5)]
        if len(fields) != 6:
            continue
        number, index, name, state, left, reason = fields
        unit = _unit(name.partition("[")[0], "" if index in ("0", "-") else index, prefix)
        if unit is None or state in ("DONE", "EXIT", "ZOMBI"):
            continue
        running = state in ("RUN", "USUSP", "SSUSP")
        match = re.match(r"(\d+):(\d+)", left)
        seconds = 60 * (60 * int(match[1]) + int(match[2])) if match and running else None
        array = index not in ("0", "-")
        own = f"{number}[{index}]" if array else number
        found[unit] = Active(own, RUNNING if running else QUEUED, seconds, "" if reason == "-" else reason)
    return found


def _parsed(job: JobEntry, program: str, answer: str, pattern: str) -> tuple[str, ...]:
    """Returns the groups of the only line of `answer` that matches `pattern`. A site's programs may print other lines.

    Errors: CampaignError if no line, or more than one line, matches.
    """
    found = [match for line in answer.splitlines() if (match := re.fullmatch(pattern, line, re.ASCII))]
    if len(found) != 1:
        said = f"{program} answered {answer.strip()[:200]!r}, in which no one line is a job number"
        raise CampaignError(f"job {job.name}: {said}; {MAY_BE_QUEUED}")
    return found[0].groups()


class Slurm(Scheduler):
    """Slurm, by its programs sbatch, squeue and scancel."""

    parse = parse_squeue

    def __init__(self, manifest: Manifest, lock: int | None = None) -> None:
        super().__init__(manifest, lock)
        self._cluster = cluster_of(manifest.submit)
        where = [f"--clusters={self._cluster}"] if self._cluster else []
        self.query = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%j|%T|%L|%r", *where]
        self.kill = ["scancel", *where]

    def submit(self, job: JobEntry, repetitions: Sequence[int], after: Sequence[str]) -> str:
        words = ["--parsable"]
        if self._manifest.submit.array:
            words.append(f"--array={array_text(list(repetitions), self._manifest.submit.array_limit)}")
        if after:
            words += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
        number, cluster = _parsed(job, "sbatch", self._hand_in(job, words), r"\s*(\d+)(?:;([\w.-]+))?\s*")
        if cluster and cluster.lower() != self._cluster.lower():
            raise CampaignError(
                f"job {job.name}: is queued as {number} on the cluster {cluster}, where status does not look; generate "
                f"again with '--clusters={cluster}' in submit.extra of the site, then resume, which finds the job"
            )
        return number


class Lsf(Scheduler):
    """LSF, by its programs bsub, bjobs and bkill."""

    query = ("bjobs", "-noheader", "-o", "jobid jobindex job_name stat time_left pend_reason delimiter='|'")
    kill, parse = ("bkill",), parse_bjobs

    def submit(self, job: JobEntry, repetitions: Sequence[int], after: Sequence[str]) -> str:
        words = []
        if self._manifest.submit.array:
            indices = array_text(list(repetitions), self._manifest.submit.array_limit)
            # LSF expects the limit on running elements behind the bracket: name[1-5]%2.
            span, percent, limit = indices.partition("%")
            words += ["-J", f"{self._manifest.job_prefix}{job.name}[{span}]{percent}{limit}"]
        if after:
            # With -ti, LSF ends this job when the condition of -w can no longer become true.
            words += ["-w", " && ".join(f"done({number})" for number in after), "-ti"]
        return _parsed(job, "bsub", self._hand_in(job, words), r"Job <(\d+)> is submitted.*")[0]


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
    return os.fsencode(script) in words


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
