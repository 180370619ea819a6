"""Makes a prediction from its inputs: the rows of every what-if, what would gain most, and all that is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hvdb.base import progress
from hvdb.base.errors import HvdbError
from hvdb.base.interval import Interval
from hvdb.predict import contradictions, judge, remarks, what_if
from hvdb.predict.draws import Outcome, Predictor, band
from hvdb.predict.inputs import Inputs
from hvdb.predict.link import LinkChange
from hvdb.predict.report import measured
from hvdb.predict.schedule import NEGOTIATED, SHARDED, STATIC
from hvdb.predict.steps import World, count_text
from hvdb.predict.what_if import WhatIf
from hvdb.read import predictions
from hvdb.read.predictions import Gain, PredictedRow, Prediction

TIMES = 4.0  # buckets and thresholds are tried at so many times their size, and at this part of it
MIN_GAIN = 0.0005  # of the efficiency; less is not named


@dataclass(frozen=True)
class Made:
    """gains: (index of the what-if, ranks) -> difference of its efficiency and that of the run as it was. reason: why
    the last efficiency is above 100 %, or ""."""

    prediction: Prediction
    gains: dict[tuple[int, int], Interval]
    reason: str


def make(
    inputs: Inputs,
    predictor: Predictor,
    worlds: Sequence[World],
    asked: Sequence[WhatIf],
    answer: Callable[[Interval], str],
    step: progress.Step = progress.silent,
) -> Made:
    """Returns the prediction of `worlds`. answer: an efficiency as text.

    Errors: HvdbError for inputs that contradict each other; TooLittle if a world cannot be predicted from them;
    NotComparable for another plan of buckets.
    """
    contradictions.require(inputs)
    variants = [inputs, *(what_if.apply(inputs, one) for one in asked)]
    for variant in variants:
        for world in worlds:
            predictor.require(variant, world)
    candidates = list(_candidates(predictor, worlds[-1])) if worlds[-1].ranks > 1 else []
    done, work = 0, len(worlds) * len(variants) + len(candidates) + 1
    outcomes: list[list[Outcome]] = []
    for variant in variants:
        outcomes.append([])
        for world in worlds:
            outcomes[-1].append(predictor.outcome(variant, world))
            step(done := done + 1, work)
    last = outcomes[0][-1]
    gains = []
    for text, asked_of, candidate, world in candidates:
        gained = _gained(asked_of.outcome(candidate, world), last)
        step(done := done + 1, work)
        if gained.low > 0 and gained.value >= MIN_GAIN:
            gains.append(Gain(text, last.world.ranks, gained))
    narrower = predictor.narrower(last)
    step(work, work)
    there = measured(inputs, answer)
    changes_link = any(one.hardware for one in asked)
    notes = [
        *contradictions.told(inputs, predictor.calibration),
        *remarks.few_sessions(inputs, predictor.calibration),
        *remarks.unused(inputs, worlds, changes_link),
    ]
    profile = inputs.profile
    prediction = Prediction(
        seed=predictor.seed,
        draws=predictor.draws,
        profile=predictions.Profile(
            profile.model, profile.unit, profile.units_per_step, profile.compute_type, profile.source_run
        ),
        device=inputs.base.device,
        ranks_per_node=inputs.ranks_per_node,
        sessions=tuple(session.full.session_uuid for session in inputs.sessions),
        collectives=tuple(inputs.fabric.sessions),
        inputs=tuple(predictions.Input(file, digest) for file, digest in inputs.files.items()),
        latest_input=inputs.latest,
        training=judge.training_facts(inputs.base),
        what_ifs=tuple(map(_what_if, ["", *(one.text for one in asked)], variants)),
        rows=tuple(
            _row(place, variant, outcome, there)
            for place, variant in enumerate(variants)
            for outcome in outcomes[place]
        ),
        gains=tuple(gains),
        labels=remarks.labels(variants, worlds, predictor.calibration),
        notes=tuple(dict.fromkeys([*inputs.notes, *notes])),
        narrower=narrower,
    )
    differences = {
        (place, one.world.ranks): _gained(one, outcomes[0][column])
        for place in range(1, len(variants))
        for column, one in enumerate(outcomes[place])
    }
    return Made(prediction, differences, remarks.above_one(last))


def _gained(changed: Outcome, before: Outcome) -> Interval:
    """Returns the difference of the efficiencies, whose draws are paired."""
    return band(changed.efficiency - before.efficiency)


def _what_if(text: str, variant: Inputs) -> predictions.WhatIf:
    plan = variant.schedule
    return predictions.WhatIf(text, plan.name, tuple(plan.options()), variant.fabric.change.values())


def _row(place: int, variant: Inputs, outcome: Outcome, there: dict[int, predictions.Measured]) -> PredictedRow:
    world = outcome.world
    return PredictedRow(
        what_if=place,
        ranks=world.ranks,
        nodes=world.nodes,
        step_seconds=band(outcome.step),
        efficiency=band(outcome.efficiency),
        parts=outcome.parts,
        steps=outcome.steps,
        measured=there.get(world.ranks) if place == 0 else None,
        warnings=remarks.warnings(variant, outcome),
    )


def _candidates(predictor: Predictor, world: World) -> Iterator[tuple[str, Predictor, Inputs, World]]:
    """Yields what a person could change, and what to ask then: who predicts, from which inputs, which world of as many
    ranks. What cannot be predicted is left out."""
    made = predictor.inputs
    plan = made.schedule
    options = [f"--schedule {name}" for name in (STATIC, SHARDED, NEGOTIATED) if name != plan.name]
    option, size = ("--bucket-mb", plan.bucket_bytes)
    if plan.name == NEGOTIATED:
        option, size = "--fusion-threshold-mb", plan.fusion_threshold_bytes
    for other in (size * TIMES, size / TIMES):
        if other >= 1 and min(other, size) < made.gradient_bytes:
            options.append(f"{option} {other / (1 << 20):.4g}")
    if made.base.on_gpus and plan.allreduce_type == "fp32":
        options.append("--allreduce-dtype bf16")
    for text in options:
        try:
            candidate = what_if.apply(made, what_if.parse(text))
            predictor.require(candidate, world)
        except HvdbError:
            continue
        yield text, predictor, candidate, world
    for per_node in (share for share in sorted(made.layouts) if world.ranks % share == 0):
        there = World(world.ranks // per_node, per_node)
        try:
            other = what_if.on_nodes_of(made, per_node)
            own = Predictor(other, predictor.program, predictor.seed, predictor.draws)
            own.require(other, there)
        except HvdbError:
            continue
        yield f"{count_text(per_node, 'rank')} on each node", own, other, there
    if world.nodes > 1:
        twice = what_if.on_link(made, LinkChange(oversubscription=0.5))
        try:
            predictor.require(twice, world)
        except HvdbError:
            return
        yield "a link of twice the rate", predictor, twice, world
