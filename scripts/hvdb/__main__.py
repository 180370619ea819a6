"""Entry point of scripts/{efficiency,plot,merge,ranks,rerun,report,reproduce}: `python -m hvdb COMMAND ...`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from hvdb import (
    compare,
    edge,
    efficiency,
    gate,
    merge,
    printable,
    process,
    published,
    ranks,
    report,
    reproduce,
    rerun,
    runs,
    store,
    tables,
    whole_file,
)
from hvdb.errors import EXIT_GOOD, EXIT_NOT_COMPARABLE, EXIT_USAGE, HvdbError

EXIT_CODES = "exit codes: 0 good, 2 usage or I/O, 4 not comparable"


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"scripts/{command}", description=description, epilog=EXIT_CODES)


def _say(line: object, stream: TextIO | None = None) -> None:
    """Prints a line that may hold text of a store or the name of a file."""
    print(printable.terminal(line), file=stream)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e8:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of seconds")
    return value


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db, or .partial)")
    parser.add_argument("--traced", action="store_true", help="take traced and profiled runs, and only those")
    parser.add_argument("--origin", choices=("measured", "simulated"), default="measured")
    parser.add_argument("--incomplete", action="store_true", help="take runs that were cut short as well")
    parser.add_argument("--model", action="append", help="only this network (may be given several times)")
    parser.add_argument(
        "--run",
        action="append",
        metavar="ID",
        help="exactly these runs (start of the UUID); nothing is filtered, so kinds must not mix",
    )
    parser.add_argument(
        "--mix-fingerprints",
        action="store_true",
        help="pool runs although something that can change the result differs",
    )


def _select(arguments: argparse.Namespace) -> tuple[list[runs.Run], efficiency.Selection, list[efficiency.Cell]]:
    found = runs.load(arguments.stores)
    models = sorted({run.model for run in found})
    for model in arguments.model or []:
        if model not in models:
            raise HvdbError(f"--model {model}: the stores hold no such runs, but of {', '.join(models) or 'no model'}")
    if arguments.run:
        selection = efficiency.Selection([runs.find(found, prefix) for prefix in arguments.run], [])
        efficiency.comparable.require_same_kind(selection.runs, "--run")
    else:
        wanted = [run for run in found if not arguments.model or run.model in arguments.model]
        selection = efficiency.select(
            wanted, traced=arguments.traced, origin=arguments.origin, incomplete=arguments.incomplete
        )
    return found, selection, efficiency.cells(selection.runs, mix_fingerprints=arguments.mix_fingerprints)


def _require_cells(cells: Sequence[efficiency.Cell], selection: efficiency.Selection) -> None:
    if not cells:
        reasons = "; ".join(selection.left_out) or "the stores hold no runs"
        raise HvdbError(f"nothing to show: left out {reasons}" if selection.left_out else f"nothing to show: {reasons}")


def run_efficiency(argv: Sequence[str]) -> int:
    """Prints the efficiency table, or JSON; returns the exit code."""
    parser = _parser("efficiency", "Weak-scaling efficiency with bootstrap intervals, beside the published points.")
    _add_selection(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document: rates in images/s, efficiencies 0..1")
    arguments = parser.parse_args(argv)
    _, selection, cells = _select(arguments)
    _require_cells(cells, selection)
    models = list(dict.fromkeys(cell.model for cell in cells))
    points = [point for point in published.load() if point.model in models]
    if arguments.json:
        document = {
            "cells": [dataclasses.asdict(cell) for cell in cells],
            "cautions": efficiency.cautions(selection.runs),
            "left_out": selection.left_out,
            "published": [dataclasses.asdict(point) for point in points],
        }
        print(json.dumps(document, indent=2))
        return EXIT_GOOD
    print(tables.text_table(tables.EFFICIENCY_HEADER, tables.efficiency_rows(cells)))
    print()
    for note in tables.EFFICIENCY_NOTES:
        print(note)
    for line in efficiency.notes(cells, selection.runs):
        _say(f"note: {line}")
    for line in selection.left_out:
        _say(f"left out: {line}")
    beside = tables.published_rows(points, models)
    if beside:
        print("\npublished (other hardware; sources in results/published.csv):")
        print(tables.text_table(tables.PUBLISHED_HEADER, beside))
    return EXIT_GOOD


def run_plot(argv: Sequence[str]) -> int:
    """Draws the plots and prints their paths; returns the exit code."""
    parser = _parser("plot", "Draws scaling, loss waterfall and per-layer profiles of one or more stores.")
    _add_selection(parser)
    parser.add_argument("--out", type=Path, default=Path("plots"), help="folder to write to (default: plots)")
    parser.add_argument("--format", choices=("png", "svg"), action="append", help="png (default), svg or both")
    parser.add_argument("--no-published", action="store_true", help="leave the published points out")
    arguments = parser.parse_args(argv)
    from hvdb import plot_profile, plot_scaling, plot_waterfall  # matplotlib is slow to import

    found, selection, cells = _select(arguments)
    traced = [run for run in found if run.operations and (not arguments.model or run.model in arguments.model)]
    profiled = [run for run in traced if plot_profile.takes_time(run)]
    explained = [run for run in selection.runs if "efficiency" in run.decomposition]
    if not profiled:
        _require_cells(cells, selection)
    points = [] if arguments.no_published else published.load()
    for form in arguments.format or ["png"]:
        drawn = []
        if cells:
            drawn.append(plot_scaling.draw(cells, points, arguments.out / f"scaling.{form}"))
        if explained:
            drawn.append(plot_waterfall.draw(explained, arguments.out / f"waterfall.{form}"))
        # the newest profile of each network
        for model, run in {run.model: run for run in profiled}.items():
            file = printable.file_in(arguments.out, "profile_", model, f".{form}")
            drawn.append(plot_profile.draw(run, file))
        for path in drawn:
            _say(path)
    for line in selection.left_out:
        _say(f"left out of scaling and waterfall: {line}", sys.stderr)
    for run in traced:
        if not plot_profile.takes_time(run):
            _say(f"left out: the profile of run {run.short_id}: its operations take no time", sys.stderr)
    return EXIT_GOOD


def _show_progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} files", end=end, file=sys.stderr, flush=True)


def run_merge(argv: Sequence[str]) -> int:
    """Merges stores; returns the exit code."""
    parser = _parser("merge", "Merges stores, and what killed jobs left beside them, into one. Inputs are only read.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="store to add to; made if it is not there")
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="a store, or a folder of them (*.db)")
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out what is damaged, half-written, foreign or in use, and say so (default: merge nothing then); "
        "two contents of one UUID are refused all the same",
    )
    arguments = parser.parse_args(argv)
    outcome = merge.merge(
        arguments.output,
        arguments.stores,
        skip_damaged=arguments.skip_damaged,
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    for note in outcome.notes:
        _say(note)
    for line in outcome.left_out:
        _say(f"left out: {line}")
    extras = [f"{outcome.incomplete} incomplete"] if outcome.incomplete else []
    extras += [f"{outcome.superseded} completed"] if outcome.superseded else []
    cut = f" ({', '.join(extras)})" if extras else ""
    _say(f"{arguments.output}: {outcome.added} runs added{cut}, {outcome.present} were there already")
    return EXIT_GOOD


def _print_comparison(first: runs.Run, second: runs.Run, result: rerun.Comparison) -> None:
    rates = [tables.number(efficiency.images_per_second(run)) for run in (first, second)]
    print(f"images/s: {rates[0]} then, {rates[1]} now")
    print(
        f"ratio now / then: {tables.estimate(result.ratio, 1.0, lambda v: f'{v:.3f}')} "
        "(95 % interval over the steps of one run each; it holds no run-to-run variation)"
    )
    if result.same_answer is not None:
        print(f"reduced gradients: {'bit-identical' if result.same_answer else 'differ'}")
    elif result.steps[0] != result.steps[1]:
        _say(
            f"reduced gradients: not compared, after other numbers of steps ({result.steps[0]} then, "
            f"{result.steps[1]} now); --num-warmup-batches and --num-iters fix them"
        )
    for difference in (*result.configuration, *result.provenance):
        mark = "can change the result" if difference.in_fingerprint else "not in the fingerprint"
        _say(f"differs ({mark}): {difference.key}: '{difference.first}' then, '{difference.second}' now")
    if not result.comparable:
        print("not comparable: something that can change the result differs (above)")


def run_rerun(argv: Sequence[str]) -> int:
    """Shows, or runs again and compares; returns the exit code."""
    parser = _parser(
        "rerun",
        "Shows how a stored run was made; with --execute, runs it again and compares. Of the recorded command line, "
        "known options of hvd_bench, mpirun, srun and jsrun are taken, and known variables that name no file. "
        "The program and all files are yours; no shell reads the record.",
    )
    parser.add_argument("run", metavar="RUN_ID", help="start of the run's UUID")
    parser.add_argument("stores", nargs="+", type=Path, metavar="STORE")
    parser.add_argument("--execute", action="store_true", help="run it again and compare")
    parser.add_argument("--db", type=Path, help="keep the new run in this store (it must not exist)")
    parser.add_argument("--directory", type=Path, help="run it there (default: here)")
    parser.add_argument(
        "--program",
        type=Path,
        help="run this hvd_bench (default: HVD_BENCH, build/release/bin/hvd_bench of this checkout, or of the PATH)",
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="for a run that replays: the recorded step")
    parser.add_argument("--tuning-folder", type=Path, metavar="FOLDER", help="for a run that had one: yours")
    parser.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS")
    arguments = parser.parse_args(argv)
    stored = runs.load(arguments.stores)
    first = runs.find(stored, arguments.run)
    _say(f"run {first.uuid} ({first.phase}, {first.status}), session of {first.session['started_utc']}")
    _say(f"command: {first.session['command_line']}")
    place = rerun.Place(arguments.directory, arguments.program, arguments.replay, arguments.tuning_folder)
    if not arguments.execute:
        _say(rerun.built_from(first))
        try:
            _show_command(rerun.command_at(place, first, arguments.db or Path("rerun.db")))
            print("--execute runs it again and compares")
        except HvdbError as error:
            if place != rerun.Place():
                raise
            _say(f"--execute does not run it: {error}")
        return EXIT_GOOD
    process.end_in_order_when_told()
    with tempfile.TemporaryDirectory(prefix="hvdb-rerun-") as scratch:
        store_file = arguments.db or Path(scratch) / "rerun.db"
        if store_file.exists():
            raise HvdbError(f"{store_file}: exists already; --db takes a new file")
        command = rerun.command_at(place, first, store_file)
        _show_command(command)
        process.run(command.words, command.variables, arguments.timeout, arguments.directory)
        made = runs.load([store_file])
        second = rerun.counterpart(first, made)
        result = rerun.compare(first, stored, second, made)
        _print_comparison(first, second, result)
    return EXIT_GOOD if result.comparable else EXIT_NOT_COMPARABLE


def _show_command(command: rerun.Command) -> None:
    _say(f"runs: {command}")
    for line in command.left_out:
        _say(f"left out: {line}")
    sys.stdout.flush()


def run_report(argv: Sequence[str]) -> int:
    """Prints or writes the report; returns the exit code."""
    parser = _parser("report", "One or more stores as a Markdown page.")
    _add_selection(parser)
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: standard output)")
    arguments = parser.parse_args(argv)
    found, selection, cells = _select(arguments)
    page = report.markdown(selection, cells, found)
    if arguments.output:
        if store.is_database(arguments.output):
            raise HvdbError(f"{arguments.output}: is a database, which -o would replace; name another file")
        whole_file.write_text(arguments.output, page)
        _say(arguments.output)
    else:
        print(page, end="")
    return EXIT_GOOD


COMMANDS = {
    "efficiency": run_efficiency,
    "plot": run_plot,
    "merge": run_merge,
    "ranks": ranks.main,
    "rerun": run_rerun,
    "report": run_report,
    "reproduce": reproduce.main,
    "compare": compare.main,
    "gate": gate.main,
}


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns its exit code. A fault is one line on standard error."""
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m hvdb {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return EXIT_USAGE
    return edge.run(f"scripts/{argv[0]}", lambda: COMMANDS[argv[0]](argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
