"""Expected changes. A session after an expected change is judged without the sessions before the change.

A team keeps its expected changes in a TOML file beside its code. To accept a new baseline, the team adds an entry:

    [[expected]]
    model = "vgg16"         # optional: only this network
    ranks = 2               # optional: only this number of ranks
    since = "2026-11-23"    # first session that counts: its UTC date (and time), or the start of its UUID or its run's
    reason = "oneDNN 3.6"   # why the figures change
    accepted = 2026-11-24   # optional: the date of this decision
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hvdb.base import record, whole_file
from hvdb.base.errors import HvdbError
from hvdb.base.record import From, Malformed, Text
from hvdb.read.runs import Run

NAME = "expected"
MAX_ENTRIES = 1000
Moment = tuple[str, str]
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ID = re.compile(r"[0-9A-Za-z-]{4,64}")


@dataclass(frozen=True)
class Expected:
    """One expected change. model: None for any network. ranks: None for any number of ranks. accepted: a date, or "".

    since: the beginning of the UUID of a session or of one of its runs, or of a date and time as stores write them.
    """

    since: str
    dated: bool
    reason: str
    model: str | None = None
    ranks: int | None = None
    accepted: str = ""

    def fits(self, run: Run) -> bool:
        return self.model in (None, run.model) and self.ranks in (None, run.world_size)

    def begin(self, runs: Sequence[Run]) -> Moment | None:
        """Returns the moment of the first run that counts. Returns None if `runs` do not contain the named session.

        Errors: HvdbError if several sessions match `since`.
        """
        if self.dated:
            return self.since, ""
        named = {run.session_uuid for run in runs if is_named(run, self.since)}
        if len(named) > 1:
            raise HvdbError(f"expected since '{self.since}': {len(named)} sessions begin so; write more of the UUID")
        return min((moment(run) for run in runs if run.session_uuid in named), default=None)


def moment(run: Run) -> Moment:
    """Returns the key by which runs are sorted by time. The UUID decides the order of runs with equal times."""
    return run.started_utc, run.uuid


def is_named(run: Run, prefix: str) -> bool:
    """Returns True if the UUID of `run` or of its session starts with `prefix`."""
    return any(uuid.lower().startswith(prefix.lower()) for uuid in (run.session_uuid, run.uuid))


def _moment(value: str | datetime.date) -> tuple[str, bool]:
    """Returns `value` in the form of Expected.since, and True if it is a date. Errors: ValueError."""
    if isinstance(value, str) and not _DATE.match(value):
        if not _ID.fullmatch(value):
            raise ValueError(f"'{value}' is neither a date nor four or more characters of a UUID")
        return value, False
    try:
        if isinstance(value, str):
            value = (datetime.datetime if len(value) > 10 else datetime.date).fromisoformat(value)
    except ValueError:
        raise record.refused(value, "a date") from None
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return value.isoformat(), True


@dataclass(frozen=True)
class _Entry:
    """A table of the TOML file. since: as (Expected.since, Expected.dated)."""

    since: Annotated[tuple[str, bool], From(str | datetime.date, _moment)]
    reason: Annotated[str, Text(pattern=r"(?s:.*\S.*)", means="a reason")]
    model: str | None = None
    ranks: int | None = None
    accepted: str | datetime.date = ""


def parse(text: str) -> tuple[Expected, ...]:
    """Returns the entries of a TOML document. Errors: Malformed."""
    found = record.entries(_Entry, text, NAME, MAX_ENTRIES)
    return tuple(Expected(*one.since, one.reason, one.model, one.ranks, str(one.accepted)) for one in found)


def read(file: Path) -> tuple[Expected, ...]:
    """Returns the entries of `file`. Errors: HvdbError."""
    with record.faults_of(file):
        return parse(record.content(file))


def _quoted(text: str) -> str:
    """Returns `text` as a basic string of TOML. TOML escapes the characters that JSON escapes, and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _text(entry: Expected) -> str:
    lines = [f"[[{NAME}]]"]
    lines += [f"model = {_quoted(entry.model)}"] if entry.model is not None else []
    lines += [f"ranks = {entry.ranks}"] if entry.ranks is not None else []
    lines += [f"since = {_quoted(entry.since)}", f"reason = {_quoted(entry.reason)}"]
    lines += [f"accepted = {entry.accepted}"] if entry.accepted else []
    return "\n".join(lines) + "\n"


def append(file: Path, entries: Sequence[Expected]) -> None:
    """Adds `entries` at the end of `file`, which is created if needed. The existing text of the file stays unchanged.

    Errors: HvdbError if the file cannot be parsed before or after the change; OSError.
    """
    with record.faults_of(file):
        before = record.content(file) if file.exists() else ""
        begin = before if not before or before.endswith("\n") else f"{before}\n"
        after = "\n".join(([begin] if begin else []) + list(map(_text, entries)))
        if parse(after) != (*parse(before), *entries):
            raise Malformed("the new entry would not be read back as it is; write it by hand")
        if len(after.encode()) > record.MAX_FILE_BYTES:
            raise Malformed(f"would have more than {record.MAX_FILE_BYTES} bytes; move old entries elsewhere")
    whole_file.write_text(file, after)
