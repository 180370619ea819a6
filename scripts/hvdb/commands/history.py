"""hvdb history: compares the newest session of each series with the series' earlier sessions, and finds changes."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import edge, whole_file
from hvdb.base.errors import EXIT_GOOD, HvdbError
from hvdb.commands import add_several, judging, new_parser
from hvdb.judge import expected, history, sides
from hvdb.judge.expected import Expected
from hvdb.judge.history import SeriesOutcome
from hvdb.judge.thresholds import COST, METRICS
from hvdb.read.runs import Run
from hvdb.show import history_report
from hvdb.show.history_report import Report

EXIT_CODES = (
    "exit codes: 0 every series that is judged passes (and always after --accept), 1 a session is slower than its "
    "series and its threshold allow, 2 usage or I/O, 3 inconclusive, 4 not comparable"
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "history",
        "Judges the newest session of each series against the earlier ones by a prediction interval, and finds where "
        "the level of a series changed. A series has one configuration and one fingerprint, so that a change of a "
        "driver or a library opens another one. For one series, a verdict needs 19 earlier sessions.",
        EXIT_CODES,
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="stores with the sessions so far")
    made.add_argument(
        "--new",
        metavar="STORE|ID",
        help="what to judge: the sessions of this store, or the session whose UUID, or that of one of its runs, starts "
        "so (default: the newest session of each series)",
    )
    add_several(made, "--model", "only this network")
    add_several(made, "--ranks", "only this number of ranks", type=int)
    made.add_argument(
        "--metric",
        choices=METRICS,
        default=COST,
        help="cost: time per image (default); efficiency: that over the time of one rank alone, where it is stored",
    )
    judging.add_thresholds(made, "slowdown")
    made.add_argument(
        "--annotations", type=Path, metavar="FILE", help="expected changes, with their reasons (TOML, docs/history.md)"
    )
    made.add_argument(
        "--accept",
        metavar="REASON",
        help="add to --annotations that the change to the sessions judged is expected: later ones are judged by them",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all as JSON")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the series (.png or .svg)")
    return made


def _require_sense(arguments: argparse.Namespace) -> None:
    """Checks the options. Errors: HvdbError if an option is wrong or missing, or if a file cannot be written."""
    outputs = [file for file in (arguments.json, arguments.plot) if file]
    inputs = [file for file in (*arguments.stores, arguments.annotations, arguments.thresholds) if file]
    judging.require_free_outputs(outputs, inputs)
    if arguments.plot and arguments.plot.suffix not in (".png", ".svg"):
        raise HvdbError(f"--plot {arguments.plot}: is neither .png nor .svg")
    if arguments.accept is not None:
        if not arguments.annotations:
            raise HvdbError("--accept: name the file that keeps the reason: --annotations FILE")
        if not arguments.accept.strip() or not arguments.accept.isprintable():
            raise HvdbError(
                "--accept: the reason is empty, or holds characters that do not print; give one line of text"
            )


def _sessions(stored: Sequence[Run], arguments: argparse.Namespace) -> list[Run]:
    """Returns the main run of each session that the options select. Prints how many runs are left out.

    Errors: HvdbError, NotComparable.
    """

    def leave_out(kept: list[Run], before: Sequence[Run], what: str) -> list[Run]:
        if lost := len(before) - len(kept):
            edge.tell("history", f"left out: {lost} {what}")
        return kept

    single = leave_out(
        [run for run in stored if sides.CELL not in run.provenance], stored, "of gates (compare judges them)"
    )
    wanted = [
        run
        for run in sides.sessions(single)
        if (not arguments.model or run.model in arguments.model)
        and (not arguments.ranks or run.world_size in arguments.ranks)
    ]
    usable = [run for run in wanted if history.log_cost(run, arguments.metric) is not None]
    leave_out(usable, wanted, "sessions without a stored efficiency (hvd_bench --efficiency stores it)")
    if not usable:
        raise HvdbError(f"{', '.join(map(str, arguments.stores))}: nothing to show: no session is left")
    return usable


def _named(arguments: argparse.Namespace, store: Path | None, sessions: Sequence[Run]) -> set[str] | None:
    """Returns the UUIDs of the sessions that --new names; None without --new.

    Errors: HvdbError if no session or several sessions match.
    """
    if arguments.new is None:
        return None
    if store:
        named = {run.session_uuid for run in sessions if run.source == store}
        if not named:
            raise HvdbError(f"--new {store}: holds no session of the series shown")
        return named
    named = {run.session_uuid for run in sessions if expected.is_named(run, arguments.new)}
    if len(named) != 1:
        count = "no session" if not named else f"{len(named)} sessions"
        raise HvdbError(f"--new {arguments.new}: is not a file, and {count} of the series shown start so")
    return named


def _accept(outcomes: Sequence[SeriesOutcome], reason: str, file: Path) -> None:
    """Adds to `file`, for each judged network and number of ranks, a change expected since its first judged session."""
    judged = [outcome.series.runs[outcome.judged] for outcome in outcomes if outcome.judged is not None]
    first: dict[tuple[str, int], Run] = {}
    for run in sorted(judged, key=expected.moment):
        first.setdefault((run.model, run.world_size), run)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    entries = [Expected(run.session_uuid, False, reason, model, ranks, today) for (model, ranks), run in first.items()]
    expected.append(file, entries)
    for entry in entries:
        edge.tell("history", f"accepted in {file}: {entry.model}, ranks {entry.ranks}, since session {entry.since}")


def run(arguments: argparse.Namespace) -> int:
    """Prints a report on all series and returns the exit code. Errors: HvdbError."""
    _require_sense(arguments)
    tolerances = judging.tolerances(arguments, arguments.metric)
    entries: tuple[Expected, ...] = ()
    if arguments.annotations and (arguments.annotations.exists() or arguments.accept is None):
        entries = expected.read(arguments.annotations)
    store = Path(arguments.new) if arguments.new and Path(arguments.new).is_file() else None
    # The store of --new comes first: if several stores hold one run, the first store counts as the run's source.
    stored = judging.load([*([store] if store else []), *arguments.stores], "history")
    begins = [(entry, entry.begin(stored)) for entry in entries]
    sessions = _sessions(stored, arguments)
    series = history.group(sessions, arguments.metric, [(entry, begin) for entry, begin in begins if begin])
    outcomes = history.judge(series, tolerances, _named(arguments, store, sessions))
    missing = [history_report.expectation(entry) for entry, begin in begins if not begin]
    report = Report(arguments.metric, outcomes, tuple(f"{line}: no session here starts so" for line in missing))
    for line in history_report.text(report).splitlines():
        edge.tell("history", line)
    if arguments.json:
        whole_file.write_text(arguments.json, history_report.json_text(report))
    if arguments.plot:
        from hvdb.show import plot_history  # matplotlib is slow to import

        plot_history.draw(outcomes, arguments.plot)
    if arguments.accept is not None:
        _accept(outcomes, arguments.accept, arguments.annotations)
        return EXIT_GOOD
    return report.exit_code
