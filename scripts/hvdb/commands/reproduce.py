"""hvdb reproduce: compares a published claim with measured results."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from hvdb.base import data
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError, NotComparable
from hvdb.commands import add_several, new_parser, number, selection
from hvdb.judge import claims, efficiency
from hvdb.judge.claims import Options
from hvdb.read import predictions, published
from hvdb.read.runs import Run, by_session, grouped
from hvdb.show import claim_report

EXITS = {
    claims.REPRODUCED: EXIT_GOOD,
    claims.NOT_REPRODUCED: EXIT_CHECK_FAILED,
    claims.INCONCLUSIVE: EXIT_INCONCLUSIVE,
    claims.NOT_MEASURED: EXIT_INCONCLUSIVE,
}


def _rate(words: str) -> tuple[str, float]:
    name, _, value = words.partition("=")
    if name not in claims.PARAMETERS:
        raise argparse.ArgumentTypeError(
            f"'{words}': expected MODEL=IMAGES_PER_SECOND, MODEL one of {', '.join(claims.PARAMETERS)}"
        )
    return name, _positive(value)


_positive = number(lambda value: 0.0 < value < math.inf, "{}: expected a number above 0")
_count = number(lambda value: 2 <= value <= 1_000_000, "{}: expected a whole number of GPUs, at least 2", int)
_percent = number(lambda value: 0.0 < value <= 100.0, "{}: expected a percentage above 0 and up to 100, as 90%")
_share = number(lambda value: 0.0 < value < 1.0, "{}: expected a share between 0 and 1")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "reproduce",
        "Holds a published claim against what was measured here.",
        "exit codes: 0 reproduced, 1 not reproduced, 2 usage or I/O, 3 inconclusive or not measured here, "
        "4 not comparable",
    )
    made.add_argument("claim", metavar="CLAIM", help=f"one of: {', '.join(claims.CLAIMS)}")
    add_several(made, "--db", "result store; by default the runs in results/recorded", type=Path, metavar="STORE")
    selection.add_predicted(made)
    made.add_argument("--json", action="store_true", help="one JSON document: efficiencies 0..1, seconds")
    rule = made.add_argument_group("the rule (decide before you measure)")
    rule.add_argument(
        "--margin",
        type=_positive,
        metavar="POINTS",
        help=f"percentage points beside the claim that are still the claim (default {100 * claims.DEFAULT_MARGIN:g}; "
        "with --target 0)",
    )
    rule.add_argument("--at-least", action="store_true", help="a higher efficiency reproduces the claim as well")
    rule.add_argument(
        "--target",
        type=lambda words: _percent(words.removesuffix("%")) / 100,
        metavar="PERCENT",
        help="the least efficiency of each network on --gpus GPUs, in place of the published ones: a contract's 90%%",
    )
    rule.add_argument("--gpus", type=_count, metavar="N", help="the number of GPUs that --target is about")
    rule.add_argument("--device", choices=claims.DEVICES, default="cuda", help="what training must have run on")
    selection.add_mix_fingerprints(rule, "jobs")
    model = made.add_argument_group("inputs of the model (default: those of the published set-up)")
    model.add_argument("--gbit", type=_positive, metavar="RATE", help="line rate of one node's link in Gbit/s")
    alone = "images/s of one GPU alone"
    add_several(model, "--one-gpu-rate", alone, type=_rate, default=[], metavar="MODEL=RATE")
    model.add_argument(
        "--backward-share",
        type=_share,
        default=efficiency.BACKWARD_SHARE,
        metavar="SHARE",
        help="part of a step that is backward (default %(default).3f)",
    )
    return made


def _kinds(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups `runs` by the fingerprints of their sessions. Used for runs that are listed but have no verdict."""
    kinds = grouped(by_session(runs).values(), lambda session: frozenset(run.fingerprint for run in session))
    return [[run for session in sessions for run in session] for sessions in kinds.values()]


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdict as text or JSON and returns the exit code.

    Without a store the verdict is "not measured here".
    """
    claim = claims.find(arguments.claim)
    if (arguments.target is None) != (arguments.gpus is None):
        raise HvdbError("--target and --gpus belong together: --target 90% --gpus 256")
    stores = arguments.db or data.recorded_stores()
    own = arguments.target is not None
    margin = arguments.margin / 100 if arguments.margin is not None else 0 if own else claims.DEFAULT_MARGIN
    options = Options(
        device=arguments.device,
        margin=margin,
        at_least=arguments.at_least or own,
        gbit_per_second=arguments.gbit,
        one_gpu_rates=tuple(arguments.one_gpu_rate),
        backward_share=arguments.backward_share,
    )
    points = published.load()
    if own:
        claim, points = claims.with_target(claim, points, arguments.target, arguments.gpus)
    predicted = list(map(predictions.read, arguments.predicted))
    trained, left_out = claims.real_training(selection.load(stores, may_be_none=True))
    if not stores:
        left_out.append("recorded runs: there are none here; give your stores with --db")
    chosen = efficiency.select([run for run in trained if run.model in claim.models])
    on_device = [run for run in chosen.runs if run.device == options.device]
    cells = efficiency.cells(on_device, mix_fingerprints=arguments.mix_fingerprints)
    for kind in _kinds([run for run in chosen.runs if run.device != options.device]):
        try:
            cells += efficiency.cells(kind)
        except NotComparable as error:
            left_out.append(f"{len(kind)} on another device: {error}")
    lines = claims.lines(claim, points, cells, options)
    notes = claim_report.others(claim, cells, lines, options.device)
    left_out += chosen.left_out
    if arguments.json:
        print(json.dumps(claim_report.document(claim, lines, notes, left_out, options, stores, predicted), indent=2))
    else:
        print(claim_report.text(claim, lines, notes, left_out, options, predicted))
    return EXITS[claims.overall(lines, claim.gpus)]
