"""Repeats a stored run from its record, and compares the second run with the stored run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hvdb.base import data, identity, printable, process
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.interval import Interval
from hvdb.judge import comparable
from hvdb.judge.bootstrap import pool, ratio
from hvdb.judge.comparable import Difference
from hvdb.judge.efficiency import step_time
from hvdb.read import recorded_command
from hvdb.read.runs import UNKNOWN, Run


@dataclass(frozen=True)
class Comparison:
    """The second run compared with the first run. ratio: images/s of the second run / images/s of the first run."""

    ratio: Interval
    configuration: list[Difference]
    provenance: list[Difference]
    same_answer: bool | None  # True if the gradient checksums are equal; None if they cannot be compared
    steps: tuple[str, str]  # numbers of training steps by phase, in the first and in the second session

    @property
    def comparable(self) -> bool:
        return not self.configuration and not any(d.in_fingerprint for d in self.provenance)


@dataclass(frozen=True)
class Place:
    """Where, how and with which files to repeat a run. The person who repeats it names them; none is from the record.

    launch: the words of the launcher; a run of one process needs none. program: the hvd_bench to run; None: that of
    data.find_program(). replay: needed if the record has --replay with another step than one that ships. tuning_folder:
    needed if the record has --tuning-folder.
    """

    directory: Path | None = None
    launch: tuple[str, ...] = ()
    program: Path | None = None
    replay: Path | None = None
    tuning_folder: Path | None = None


@dataclass(frozen=True)
class Command:
    """The command to run: its words, and the variables to set. left_out: a line for each unused part of the record."""

    words: list[str]
    variables: Mapping[str, str]
    left_out: list[str]

    def __str__(self) -> str:
        return process.shown(self.words, self.variables)


def built_from(run: Run) -> str:
    """Returns one line about the sources from which the run's hvd_bench was built."""
    commit, state = run.fact("git.commit"), run.fact("git.state")
    if not re.fullmatch("[0-9a-f]{7,64}", commit):  # a person may copy this text, so it must be a plain hash
        return "built from: no commit is recorded"
    how = f"git checkout {commit} && scripts/build release" if state == "clean" else "files of it had been changed"
    return f"built from: commit {commit}, {state or 'unknown state'} ({how})"


def command_at(place: Place, run: Run, store_file: Path) -> Command:
    """Returns the command that repeats `run` at `place` and writes its results to `store_file`.

    Errors: HvdbError if a part of the record is not known to be safe, or if `place` lacks a file that the run needs;
    NotComparable if `place` names another recording than the run replayed.
    """
    line = run.session["command_line"]
    try:
        recorded = recorded_command.parse(line)
    except recorded_command.Unknown as error:
        raise HvdbError(
            f"the command line of run {run.short_id} is not run again: {error}; "
            f"if you trust it, run it by hand: {printable.terminal(line)}"
        ) from error
    replay = place.replay or _shipped(run, recorded)
    given = {"replay": replay, "tuning-folder": place.tuning_folder}
    files = {name: path.absolute() for name, path in given.items() if path}
    if replay and run.replay not in ("", UNKNOWN) and (here := identity.of_file(replay)) != run.replay:
        raise NotComparable(
            f"--replay {replay}: is profile {here}, and run {run.short_id} replayed profile {run.replay}: name a "
            "copy of that recording"
        )
    left_out = [*recorded.left_out, *_without_launcher(run, recorded, place)]
    if "tuning-folder" in recorded.files and not place.tuning_folder:
        left_out.append(f"--tuning-folder {recorded.files['tuning-folder']}: name yours with --tuning-folder")
    program = data.find_program(place.program)
    if "--fit" in recorded.options:
        recorded, unknown = _with_fitted_size(run, recorded)
        left_out += unknown
    words = [*place.launch, *recorded_command.command(recorded, program, store_file.absolute(), files)]
    if _labels_cycled(run, recorded):
        if _has_option(program, "--labels"):
            words.append("--labels=cycled")
        else:
            left_out.append(f"labels cycled then; {program} does not show --labels: add --labels=cycled if it knows it")
    return Command(words, recorded.variables, left_out)


def _shipped(run: Run, recorded: recorded_command.Recorded) -> Path | None:
    """Returns the file of the step that ships if the record names it and the run replayed this recording; else None.

    Programs of other versions may have had another recording, or taken a file of this name.
    """
    file = data.shipped_steps().get(recorded.files.get("replay", ""))
    return file if file and identity.of_file(file) == run.replay else None


def _without_launcher(run: Run, recorded: recorded_command.Recorded, place: Place) -> list[str]:
    """Returns a line if a launcher is recorded and one process can repeat the run without it.

    Errors: HvdbError if `place` names no launcher for a run of several processes. The text shows the recorded launcher.
    """
    if place.launch:
        return []
    words = "--launch " + shlex.quote(printable.terminal(shlex.join(recorded.launcher)))
    ranks = run.columns["allocation_size"]  # not world_size, which is 1 for the phase solo
    if ranks == 1 or any(option.startswith("--ranks=") for option in recorded.options):
        return [f"the launcher: {words} if you trust it"] if recorded.launcher else []
    known = f"has {words} (copy it only if you trust it)" if recorded.launcher else "has none"
    raise HvdbError(
        f"a launcher must start the {ranks} ranks of run {run.short_id}: name yours with --launch; the record {known}"
    )


def _with_fitted_size(run: Run, recorded: recorded_command.Recorded) -> tuple[recorded_command.Recorded, list[str]]:
    """Returns the command with what --fit chose in the run instead of --fit, which could choose another size now.

    Also returns a line if the record does not say at which learning rate.
    """
    chosen = {"--batch-size": run.columns["batch_size"], "--image-size": run.columns["image_size"]}
    rate, left_out = run.fact("sgd.learning_rate"), []
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?", rate, re.ASCII):
        chosen["--learning-rate"] = rate
    else:
        left_out = ["the learning rate that --fit chose: the record has none that is a number; set --learning-rate"]
    kept = [option for option in recorded.options if option.partition("=")[0] not in {*chosen, "--fit"}]
    fitted = [f"{name}={value}" for name, value in chosen.items()]
    return replace(recorded, options=(*kept, *fitted)), left_out


def _labels_cycled(run: Run, recorded: recorded_command.Recorded) -> bool:
    """Returns True for a run of an hvd_bench without the option --labels. Such a run used cycled labels."""
    said = run.fact("data.labels") or any(option.startswith("--labels=") for option in recorded.options)
    return not said and run.columns["device"] != "replay"


def _has_option(program: Path, option: str) -> bool:
    """Returns True if the file `program` contains the text `option`. An old hvd_bench may lack an option.

    Does not run the program.
    """
    try:
        return option.encode() in program.read_bytes()
    except OSError:
        return False


def counterpart(run: Run, candidates: list[Run]) -> Run:
    """Returns that one of `candidates` whose phase, model and number of ranks are those of `run`.

    Errors: HvdbError if there is no such candidate.
    """
    for other in candidates:
        if (other.phase, other.model, other.world_size) == (run.phase, run.model, run.world_size):
            return other
    have = ", ".join(f"{o.phase} {o.model} on {o.world_size}" for o in candidates) or "nothing"
    raise HvdbError(
        f"the new session holds no run of phase {run.phase}, {run.model} on {run.world_size} ranks (it holds {have}); "
        "--launch names the launcher that starts the ranks"
    )


def _steps(run: Run, session: list[Run]) -> str:
    """Returns the number of steps of every phase of the run's session, as text.

    The gradients of a run depend on the steps of all phases, because the phases of a session share weights.
    """
    phases = sorted((other for other in session if other.session_uuid == run.session_uuid), key=lambda r: r.phase)
    return ", ".join(f"{other.phase} {other.warmup_steps + other.measured_steps}" for other in phases)


def compare(first: Run, first_store: list[Run], second: Run, second_store: list[Run]) -> Comparison:
    """Compares `second` with `first`. first_store, second_store: all runs of the stores of `first` and `second`.

    Errors: NotComparable if only one of the two runs is traced, or if only one of them is simulated.
    """
    comparable.require_same_kind([first, second], "rerun")
    # The batch sizes may differ (`configuration` then reports it), and images/s is batch size / step time.
    images = second.columns["batch_size"] / first.columns["batch_size"]
    faster = pool([ratio(step_time(first), step_time(second))]).scaled(images)
    steps = (_steps(first, first_store), _steps(second, second_store))
    sums = [[rank["gradient_checksum"] for rank in run.ranks] for run in (first, second)]
    known = steps[0] == steps[1] and all(sums[0]) and all(sums[1])
    return Comparison(
        ratio=faster,
        configuration=comparable.configuration_differences(first, second),
        provenance=comparable.differences(first, second),
        same_answer=(sums[0] == sums[1]) if known else None,
        steps=steps,
    )
