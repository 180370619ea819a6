"""hvdb predict: how fast training would be on numbers of ranks that were not measured, with a band."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import data, edge, printable, progress, whole_file
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, HvdbError
from hvdb.commands import judging, new_parser, number
from hvdb.predict import draws, imported, inputs, judge, link, prediction, report, what_if
from hvdb.predict.imported import Added
from hvdb.predict.inputs import Inputs
from hvdb.predict.steps import World, count_text
from hvdb.read import predictions, replay_profile, runs
from hvdb.show import tables

MAX_RANKS, MAX_WORLDS, MAX_WHAT_IFS = 1 << 16, 64, 32
COLUMNS = 100
_USAGE = f"is not a list such as 2,4,8 or 1..512, of whole numbers from 1 to {MAX_RANKS}"


def _ranks(text: str) -> list[int]:
    """Parses a list of numbers and of ranges, which are the powers of two in them. Errors: ArgumentTypeError."""
    found: set[int] = set()
    for word in text.split(","):
        low, dots, high = word.partition("..")
        ends = [int(end) for end in (low, high if dots else low) if end.isascii() and end.isdigit() and len(end) < 7]
        if len(ends) != 2 or not 1 <= ends[0] <= ends[1] <= MAX_RANKS:
            raise argparse.ArgumentTypeError(f"'{text}' {_USAGE}")
        powers = [1 << k for k in range(MAX_RANKS.bit_length()) if ends[0] <= 1 << k <= ends[1]]
        found.update(powers if dots else ends)
    if not 0 < len(found) <= MAX_WORLDS:
        raise argparse.ArgumentTypeError(
            f"'{text}' names {len(found)} numbers of ranks, and 1 to {MAX_WORLDS} are possible"
        )
    return sorted(found)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "predict",
        "Predicts step time and efficiency on numbers of ranks that were not measured, with a 90 % band, from sessions "
        "of training (hvd_bench --efficiency --record-replay) and results of collectives (hvd_bench coll). The "
        "schedule of hvd_bench itself is simulated (docs/prediction.md).",
        "exit codes: 0 good, 1 with --judge: a measured value lies outside its band, 2 usage or I/O, 3 too little was "
        "measured, 4 software or hardware of the inputs differ",
    )
    made.add_argument("stores", nargs="+", type=Path, metavar="STORE", help="result store (.db) with either or both")
    made.add_argument("--profile", metavar="FILE", help="what --record-replay wrote, or gpt2 or llama, which ship")
    made.add_argument("--ranks", type=_ranks, metavar="LIST", help="such as 2,4,8; 1..512: powers of two")
    made.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="TEXT",
        help="predict this, too: other options of the schedule, such as '--bucket-mb 64' (may be given several times)",
    )
    made.add_argument(
        "--imported",
        action="append",
        default=[],
        metavar="FILE[=RANKS]",
        help="results of nccl-tests (table or JSON) or the OSU micro-benchmarks; RANKS: on how many, if FILE does not "
        "tell (may be given several times)",
    )
    made.add_argument(
        "--algorithm",
        choices=imported.ALGORITHMS,
        help="what the imported collectives used on all numbers of nodes (NCCL_ALGO), so that others can be predicted",
    )
    made.add_argument("--link-gbit", metavar="GBIT", help="line rate of a node's link, for nodes without measurements")
    made.add_argument("--latency-us", metavar="US", help="latency of a message over this link")
    made.add_argument("--why", action="store_true", help="say where inputs come from, and what narrows the band")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the prediction as JSON")
    made.add_argument(
        "--judge",
        type=Path,
        metavar="FILE",
        help="compare this prediction (of --json) with what was measured later; STORE has runs that carry its hash",
    )
    made.add_argument("--program", type=Path, metavar="FILE", help="the hvd_bench that simulates (default: this one's)")
    made.add_argument("--seed", type=number(lambda n: 0 <= n < 1 << 32, "{} is no seed", int), default=1)
    made.add_argument(
        "--draws",
        type=number(
            lambda n: 20 <= n <= draws.MAX_DRAWS, f"{{}} is not a number of draws from 20 to {draws.MAX_DRAWS}", int
        ),
        default=draws.DRAWS,
        help=f"draws of all inputs (default: {draws.DRAWS})",
    )
    return made


def _worlds(wanted: Sequence[int], made: Inputs) -> list[World]:
    """Returns the worlds to predict, and notes those of a part of a node. Errors: HvdbError if there are no others."""
    share = made.ranks_per_node
    whole = [ranks for ranks in wanted if ranks == 1 or ranks % share == 0]
    left_out = sorted(set(wanted) - set(whole))
    if left_out:
        why = f"nodes had {share} ranks each, and {', '.join(map(str, left_out))} ranks are no such nodes"
        if not whole:
            raise HvdbError(f"--ranks: {why}")
        made.notes.append(f"not predicted: {why}")
    return [World(1) if ranks == 1 else World(ranks // share, share) for ranks in whole]


def run(arguments: argparse.Namespace) -> int:
    """Prints the prediction, or how it is judged, and returns the exit code."""
    if arguments.judge:
        return _judge(arguments)
    if not arguments.profile or not arguments.ranks:
        raise HvdbError("name --profile and --ranks, or a prediction to --judge")
    if arguments.algorithm and not arguments.imported:
        raise HvdbError("--algorithm says what --imported files hold: name them, too")
    recorded = data.step(arguments.profile)
    files = tuple(map(imported.read, arguments.imported))
    added = Added(link.declared(arguments.link_gbit, arguments.latency_us), files, arguments.algorithm or "")
    program = data.find_program(arguments.program)
    if arguments.json:
        given = [*arguments.stores, recorded, program, *(one.file for one in added.files)]
        judging.require_free_outputs([arguments.json], given)
    asked = list(dict.fromkeys(" ".join(text.split()) for text in arguments.what_if))
    if len(asked) > MAX_WHAT_IFS:
        raise HvdbError(f"{len(asked)} what-ifs, and at most {MAX_WHAT_IFS} are possible")
    parsed = list(map(what_if.parse, asked))
    recording = replay_profile.read(recorded)
    with progress.shown("reading the stores") as step:
        stored = runs.load(arguments.stores, step)
    made = inputs.gather(recording, arguments.stores, stored, added)
    worlds = _worlds(arguments.ranks, made)
    with progress.shown(f"simulating {len(worlds)} worlds") as step:
        predictor = draws.Predictor(made, program, arguments.seed, arguments.draws)
        found = prediction.make(made, predictor, worlds, parsed, tables.efficiency_text, step)
    _show(found, made, arguments.why)
    if arguments.json:
        _write(arguments.json, found.prediction)
    return EXIT_GOOD


def _show(found: prediction.Made, made: Inputs, why: bool) -> None:
    shown = found.prediction
    for sentence in report.sentences(shown, made, found.reason):
        for line in textwrap.wrap(sentence, COLUMNS):
            printable.say(line)
    print()
    print(tables.text_table(report.HEADER, report.rows(shown)))
    if len(shown.what_ifs) > 1:
        print()
        print(tables.text_table(report.WHAT_IFS, report.what_if_rows(shown, found.gains)))
    for note in shown.notes:
        printable.say(f"note: {note}")
    if why:
        for line in report.why(shown):
            printable.say(line)
    else:
        count = count_text(len(report.warnings(shown)), "warning")
        print(
            f"--why: where the inputs come from, {count} of values outside of what was measured, what narrows the band"
        )


def _write(file: Path, made: predictions.Prediction) -> None:
    """Errors: HvdbError if `file` has another prediction, whose hash runs may carry, or if this one is unreadable."""
    text = predictions.text(made)
    if file.is_file() and (before := file.read_bytes()).strip() and before != text.encode():
        raise HvdbError(f"{file} exists and differs; runs may carry its hash: name another file")
    whole_file.write_text(file, text)
    printable.say(f"written: {file}", sys.stderr)


def _judge(arguments: argparse.Namespace) -> int:
    sources = arguments.imported or arguments.algorithm or arguments.link_gbit or arguments.latency_us
    if arguments.profile or arguments.ranks or arguments.what_if or arguments.json or sources:
        raise HvdbError("--judge takes a prediction as it is, without the options that make one")
    judged = predictions.read(arguments.judge)
    with progress.shown("reading the stores") as step:
        found, notes = judge.judge(judged, runs.load(arguments.stores, step))
    for line in tables.text_table(report.JUDGED, report.judged_rows(found)).splitlines():
        edge.tell("predict", line)  # the exit code does not change if nobody reads the table
    outside = sum(not one.inside for one in found)
    steps = sum(one.step_inside for one in found)
    known = [one.efficiency_inside for one in found if one.efficiency_inside is not None]
    said = f"steps: {steps} of {len(found)} in their band"
    said += f"; efficiencies: {sum(known)} of {len(known)}" if known else ""
    edge.tell("predict", f"{said}; of each, 9 of 10 are expected")
    for note in notes:
        edge.tell("predict", f"note: {note}")
    return EXIT_CHECK_FAILED if outside else EXIT_GOOD
