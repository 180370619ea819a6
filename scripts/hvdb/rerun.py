"""Runs a stored run again from its record, and compares."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdb import comparable
from hvdb.bootstrap import Estimate, pooled_ratio
from hvdb.comparable import Difference
from hvdb.efficiency import series
from hvdb.errors import HvdbError
from hvdb.runs import Run

# Options of the recorded command that say where results go, and how many words each takes.
OUTPUT_OPTIONS = {"--db": 1, "--no-db": 0, "--json": 0, "--quiet": 0, "--record-replay": 1}
# A traced run must be traced again, to another file.
TRACE_OPTION, TRACE_VARIABLE = "--timeline-filename", "HOROVOD_TIMELINE"
SHELL_OPERATORS = {"&&", "||", ";", "|"}


@dataclass(frozen=True)
class Comparison:
    """Second run against the first: `ratio` of images per second (1: as fast), and what differs besides."""

    ratio: Estimate
    configuration: list[Difference]
    provenance: list[Difference]
    same_answer: bool | None  # equal gradient checksums; None where the steps differ, so that it says nothing
    steps: tuple[str, str]  # of each phase of either session

    @property
    def comparable(self) -> bool:
        return not self.configuration and not any(d.in_fingerprint for d in self.provenance)


@dataclass(frozen=True)
class Place:
    """Where a run is made again; None: where the record has it."""

    directory: Path | None = None
    program: Path | None = None  # hvd_bench


def built_from(run: Run) -> str:
    """One line on the sources of the run's program."""
    commit, state = run.fact("git.commit"), run.fact("git.state")
    if commit in ("", "unknown"):
        return "built from: no commit is recorded"
    how = f"git checkout {commit} && scripts/build release" if state == "clean" else "files of it had been changed"
    return f"built from: commit {commit}, {state or 'unknown state'} ({how})"


def command_with_store(
    command_line: str, store_file: Path, directory: Path | None = None, moved: Mapping[str, str] | None = None
) -> str:
    """The recorded command line with its output options replaced by `--db store_file`, a trace going beside that.

    Operators stay operators. `directory` takes the place of the recorded one, `moved` has new words for old.
    """
    lexer = shlex.shlex(command_line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    words = list(lexer)
    if directory is not None:
        recorded = 3 if words[:1] == ["cd"] and words[2:3] == ["&&"] else 0
        words = ["cd", str(directory), "&&", *words[recorded:]]
    trace = f"{store_file}.trace"
    kept: list[str] = []
    skip = 0
    for word in words:
        if skip:
            skip -= 1
            continue
        name = word.split("=", 1)[0]
        if name == TRACE_VARIABLE and "=" in word:
            word = f"{TRACE_VARIABLE}={trace}"
        if name.startswith("--"):
            name = name.replace("_", "-")
        if name in OUTPUT_OPTIONS or name == TRACE_OPTION:
            skip = 0 if "=" in word else OUTPUT_OPTIONS.get(name, 1)
            kept += [TRACE_OPTION, _quote(trace)] if name == TRACE_OPTION else []
            continue
        word = (moved or {}).get(word, word)
        kept.append(word if word in SHELL_OPERATORS else _quote(word))
    return " ".join([*kept, "--db", _quote(str(store_file))])


def _quote(word: str) -> str:
    # NAME=value before a command is an assignment only while its name stands unquoted.
    match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", word, re.DOTALL)
    return f"{match[1]}={shlex.quote(match[2])}" if match else shlex.quote(word)


def command_at(place: Place, run: Run, store_file: Path) -> str:
    """The record's command line, to be run at `place`, results into `store_file`.

    Errors: HvdbError if it cannot be read as a command, or `place` has a program that is none or has none to replace.
    """
    line = run.session["command_line"]
    try:
        moved = _moved(place.program, shlex.split(line), run) if place.program else {}
        return command_with_store(line, store_file, place.directory, moved)
    except ValueError as error:
        raise HvdbError(f"the command line of run {run.short_id} is damaged ({error})") from error


def _moved(program: Path, words: list[str], run: Run) -> dict[str, str]:
    """The words that name the program of the record -> `program`."""
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise HvdbError(f"--program: no program at {program}: run scripts/build, or name another")
    recorded, directory = run.fact("build.binary"), run.fact("command.directory")
    names = [w for w in words if w == Path(recorded).name or os.path.normpath(Path(directory, w)) == recorded]
    if not names:
        raise HvdbError(f"--program: the command of run {run.short_id} does not name its program ('{recorded}')")
    return dict.fromkeys(names, str(program.absolute()))


def end_in_order_when_told() -> None:
    """From now on SIGTERM and SIGHUP are an interrupt, which execute() and its caller clean up after."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)


def execute(run: Run, store_file: Path, timeout_seconds: float, place: Place) -> None:
    """Runs the record's command line in a shell at `place`, results into `store_file`; its output goes to the terminal.

    Errors: HvdbError as command_at(), or if it fails or takes longer than `timeout_seconds`.
    """
    command = command_at(place, run, store_file)
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    # A session of its own, so that the launcher and all ranks can be ended together and none is left behind.
    process = subprocess.Popen(["bash", "-c", command], env=environment, start_new_session=True)
    try:
        code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise HvdbError(f"the run took longer than {timeout_seconds:.0f} s and was ended: {command}") from error
    finally:
        _end(process)
    if code != 0:
        unsaid = [name for name in ("directory", "program") if getattr(place, name) is None]
        hints = [f"if its {name} is elsewhere now, say where with --{name}" for name in unsaid]
        raise HvdbError("; ".join([f"the run ended with exit code {code}: {command}", *hints]))


def _end(process: subprocess.Popen) -> None:
    """Ends what still runs of the process's group: in order (the store is closed), or after 15 s anyhow."""
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
            os.killpg(process.pid, number)
            end = time.monotonic() + patience
            while time.monotonic() < end:
                process.poll()  # a zombie is a member of its group
                os.killpg(process.pid, 0)
                time.sleep(0.05)


def counterpart(run: Run, candidates: list[Run]) -> Run:
    """The run of a new session that repeats `run`: same phase, model and world. Errors: HvdbError if none does."""
    for other in candidates:
        if (other.phase, other.model, other.world_size) == (run.phase, run.model, run.world_size):
            return other
    have = ", ".join(f"{o.phase} {o.model} on {o.world_size}" for o in candidates) or "nothing"
    raise HvdbError(
        f"the new session holds no run of phase {run.phase}, {run.model} on {run.world_size} ranks (it holds {have}); "
        "was the launcher of the record (mpirun, srun) available?"
    )


def _steps(run: Run, session: list[Run]) -> str:
    """Of every phase of the run's session: the phases take turns with one set of weights."""
    phases = sorted((other for other in session if other.session_uuid == run.session_uuid), key=lambda r: r.phase)
    return ", ".join(f"{other.phase} {other.warmup_steps + other.measured_steps}" for other in phases)


def compare(first: Run, first_store: list[Run], second: Run, second_store: list[Run]) -> Comparison:
    """`second` against `first`, each with the runs of its store.

    Errors: NotComparable for traced against untraced, or simulated against measured.
    """
    comparable.require_same_kind([first, second], "rerun")
    # images/s goes as 1 / step time; batch sizes that differ show up as a configuration difference
    images = second.columns["batch_size"] / first.columns["batch_size"]
    ratio = pooled_ratio([(series(first), series(second))]).scaled(images)
    steps = (_steps(first, first_store), _steps(second, second_store))
    sums = [[rank["gradient_checksum"] for rank in run.ranks] for run in (first, second)]
    known = steps[0] == steps[1] and all(sums[0]) and all(sums[1])
    return Comparison(
        ratio=ratio,
        configuration=comparable.configuration_differences(first, second),
        provenance=comparable.differences(first, second),
        same_answer=(sums[0] == sums[1]) if known else None,
        steps=steps,
    )
