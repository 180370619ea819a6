"""Reads the logs that jobs write while they run: events/<job>.r<repetition>.<attempt>.log, one line per event.

slurm/job_body.sh writes each line by one system call. After a kill, at most the last line of a log is cut off. The
reader ignores a line that is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NAME = re.compile(r"(?P<job>n\d+(?:-p\d+)?(?:-r\d+)?)\.r(?P<repetition>\d+)\.(?P<attempt>.+)\.log")


@dataclass
class Attempt:
    """One attempt to run a repetition of a job. A rerun is another attempt.

    codes: cell -> exit code of its last launch in this attempt. running: the cell that has begun but not ended.
    finished: the fields of the log's last line; None while the attempt runs, and if the attempt was killed.
    """

    job: str
    repetition: int
    attempt: str
    path: Path
    started: str = ""
    host: str = ""
    pid: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    running: str | None = None
    signals: list[str] = field(default_factory=list)
    finished: dict[str, str] | None = None
    words: str = ""  # the text of the last line without its fields

    def how_it_ended(self) -> str:
        """Returns in words how the attempt ended. Call this only if the scheduler no longer lists the attempt."""
        if self.finished is None:
            during = f" during cell {self.running}" if self.running else ""
            warned = f" after {self.signals[-1]}" if self.signals else ""
            return f"was killed{warned}{during} (walltime, memory, node failure, or by hand)"
        if self.words:
            return self.words
        stopped = self.finished.get("stopped")
        if stopped == "USR1":
            return "was stopped by the warning before its end"
        if stopped == "lost-rank":
            return "stopped because a rank was lost"
        if stopped:
            return f"was stopped by {stopped}"
        if self.finished.get("failed", "0") != "0":
            return f"ended with {self.finished['failed']} failed cells"
        if self.late:
            return f"ended with too little time left for {len(self.late)} cells"
        return "ended"


def _fields(words: list[str]) -> tuple[dict[str, str], str]:
    pairs = {word.split("=", 1)[0]: word.split("=", 1)[1] for word in words if re.match(r"[a-z_]+=", word)}
    return pairs, " ".join(word for word in words if not re.match(r"[a-z_]+=", word))


def _take(attempt: Attempt, line: str) -> None:
    time, kind, *words = line.split()
    fields, rest = _fields(words)
    if kind == "start":
        attempt.started, attempt.host, attempt.pid = time, fields.get("host", ""), int(fields.get("pid", 0))
    elif kind == "begin":
        attempt.running = words[0]
    elif kind == "end":
        attempt.codes[words[0]] = int(fields["code"])
        attempt.running = None
    elif kind == "late":
        attempt.late.add(words[0])
    elif kind == "signal":
        attempt.signals.append(words[0])
    elif kind == "finish":
        attempt.finished, attempt.words = fields, rest


def parse(path: Path, text: str) -> Attempt | None:
    """Returns the attempt that `text`, the content of `path`, describes. Pure.

    Returns None if the name of `path` does not match the pattern NAME.
    """
    match = NAME.fullmatch(path.name)
    if not match:
        return None
    attempt = Attempt(match["job"], int(match["repetition"]), match["attempt"], path)
    for line in text.splitlines():
        try:
            _take(attempt, line)
        except (ValueError, IndexError, KeyError):
            continue  # this line was cut off by a kill
    return attempt


def read(folder: Path) -> list[Attempt]:
    """Returns all attempts in `folder`, oldest first. Ignores pipes, because reading a pipe could block."""
    found: list[Attempt] = []
    for path in sorted(filter(Path.is_file, folder.glob("*.log"))):
        attempt = parse(path, path.read_text(encoding="utf-8", errors="replace"))
        if attempt is not None:
            found.append(attempt)
    return sorted(found, key=lambda attempt: attempt.started)


def latest(attempts: Iterable[Attempt]) -> dict[tuple[str, int], Attempt]:
    """Returns the last attempt of each (job, repetition)."""
    return {(attempt.job, attempt.repetition): attempt for attempt in attempts}
