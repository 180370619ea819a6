"""What is said below a prediction: where its inputs come from, and what lies outside of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.predict.cost import Cost, OneWorldCost, World, title
from hvdb.predict.fabric import BARRIER, MIN_TABLE_BYTES
from hvdb.predict.inputs import Inputs
from hvdb.predict.labels import ASSUMED, MEASURED, Label
from hvdb.predict.link import DeclaredCost, senders
from hvdb.predict.schedule import NEGOTIATED

MAX_MISSED = 0.1  # a larger logarithm gets a note
MAX_LOAD = 3.0  # a larger change by the compute beside it gets a note
# Standard deviations of the logarithm over 20 sessions of one machine (results/recorded/2026-11-23-2cores/coverage.db):
# of the time of one rank, and of the efficiency.
ALONE_SPREAD, EFFICIENCY_SPREAD = 0.0085, 0.007


@dataclass(frozen=True)
class Calibration:
    """What the sessions tell about the model. Of each session: alone, what its reductions would take alone (seconds),
    and missed, its measured step over the simulated one; None if unknown. load: median over sessions of the time of
    reductions beside compute over that alone. spreads: standard deviations between sessions, of the logarithms of the
    time of one rank and of the efficiency."""

    alone: Sequence[float | None]
    missed: Sequence[float | None]
    load: float
    spreads: tuple[float, float]


def _sessions(count: int) -> str:
    return f"{count} session{'s' * (count > 1)}"


def notes(made: Inputs, world: World) -> tuple[str, ...]:
    """Returns a line for each value of this world that lies outside of what was measured."""
    said = []
    fabric, total, plan = made.fabric, made.gradient_bytes, made.schedule
    element = total // made.profile.elements
    for operation in plan.operations():
        size = max(plan.message(total), element * made.profile.largest)
        algorithm = fabric.algorithm(operation, size, world)
        present = fabric.present(operation, algorithm, world)
        if isinstance(present, DeclaredCost):
            said.append(f"{operation} between nodes comes from the described link alone")
        split = world.nodes > 1 and senders(operation, algorithm, world) > 1
        if split and not isinstance(present, OneWorldCost) and not present.inner:
            said.append(f"{operation} has no cells that tell how much of its time is spent inside a node")
        if not present.covers(world, size):
            said.append(f"{operation} of {size} bytes by '{algorithm}' lies outside of the measured sizes")
        if isinstance(present, Cost) and world.nodes > present.largest():
            said.append(f"beyond the {present.largest()} nodes on which {operation} was measured")
        smallest = fabric.sizes(operation, world, total)[0]
        if smallest > MIN_TABLE_BYTES:
            said.append(f"{operation} of less than {smallest} bytes takes as long here as of {smallest}")
        elif plan.name == NEGOTIATED and plan.fusion_threshold_bytes < total:
            single = max(MIN_TABLE_BYTES, element * made.profile.smallest)
            algorithm = fabric.algorithm(operation, single, world)
            if not fabric.present(operation, algorithm, world).covers(world, single):
                said.append(f"{operation} of {single} bytes by '{algorithm}' lies outside of the measured sizes")
    steps = sum(len(session.solo_step) * len(session.hosts) for session in made.sessions)
    if world.ranks > steps / 10:
        said.append(f"the slowest rank lies beyond what {steps} recorded steps show")
    return tuple(said)


def labels(
    variants: Sequence[Inputs], worlds: Sequence[World], calibration: Calibration
) -> tuple[list[Label], list[str]]:
    """Returns where the inputs of all variants come from, the first as the run was, and notes on what is strange."""
    made = list(variants[0].labels)

    def add(others: Sequence[Label]) -> None:
        made.extend(label for label in dict.fromkeys(others) if label not in made)

    largest = max(worlds)
    for inputs in variants:
        add(inputs.labels)
        add(inputs.fabric.labels({*inputs.schedule.operations(), BARRIER}))
        add(inputs.fabric.change_labels())
        for operation in inputs.schedule.operations() if largest.nodes > 1 else ():
            algorithm = inputs.fabric.algorithm(operation, inputs.gradient_bytes, largest)
            fitted = inputs.fabric.present(operation, algorithm, largest)
            if isinstance(fitted, Cost) and largest.nodes > fitted.largest():
                spread = fitted.spread
                source = f"as over the measured nodes, by as much a doubling, +- {spread.drift_error:.2g}"
                add([Label(f"drift of {title(operation, algorithm)}", ASSUMED, source, round(spread.drift, 4))])
    add(_of_sessions(variants, worlds, calibration))
    return made, _strange(calibration)


def _of_sessions(variants: Sequence[Inputs], worlds: Sequence[World], calibration: Calibration) -> list[Label]:
    inputs = variants[0]
    made = []
    known = sum(1 for seconds in calibration.alone if seconds)
    if known:
        operation = inputs.schedule.operations()[0]
        described = any(
            isinstance(inputs.fabric.present(operation, algorithm, session.world), DeclaredCost)
            for session, seconds in zip(inputs.sessions, calibration.alone, strict=True)
            if seconds and (algorithm := inputs.fabric.algorithm(operation, inputs.gradient_bytes, session.world))
        )
        than = "what the described link promises" if described else "the same collectives alone"
        made.append(Label("reductions beside compute", MEASURED, f"{_sessions(known)}, over {than}", calibration.load))
        missed = float(np.median([missed for missed in calibration.missed if missed]))
        source = f"{_sessions(known)}; on other worlds and for what-ifs nothing of it, or twice it"
        made.append(Label("measured step over the simulated one", MEASURED, source, missed))
    else:
        source = "as fast as alone: no collectives were measured on the ranks of the session"
        made.append(Label("reductions beside compute", ASSUMED, source, 1.0))
    assumed = calibration.spreads == (ALONE_SPREAD, EFFICIENCY_SPREAD)
    of_alone, of_efficiency = (f"{100 * spread:.2g}" for spread in calibration.spreads)
    source = f"{of_alone} % of the step of one rank, {of_efficiency} % of the efficiency"
    made.append(Label("spread between sessions", ASSUMED if assumed else MEASURED, source))
    others = {world for world in worlds if world.ranks > 1} - {session.world for session in inputs.sessions}
    if known and (others or len(variants) > 1):
        source = "half of the draws: as measured; half: in proportion to the rate of the reductions"
        made.append(Label("slowdown by overlap elsewhere", ASSUMED, f"on other worlds and for what-ifs, {source}"))
        source = "on other worlds and for what-ifs as in the sessions"
        if max(worlds).nodes > 1 == min(session.world.nodes for session in inputs.sessions):
            source += "; from one node to several: from as fast as alone to that"
        made.append(Label("reductions beside compute elsewhere", ASSUMED, source))
    return made


def _strange(calibration: Calibration) -> list[str]:
    said = []
    if any(abs(math.log(missed)) > MAX_MISSED for missed in calibration.missed if missed):
        said.append(
            "a measured step is far from the simulation of its own figures: something that is not simulated takes much "
            "of it, so do not trust this prediction"
        )
    if not 1 / MAX_LOAD <= calibration.load <= MAX_LOAD:
        said.append(
            f"reductions took {calibration.load:.2g} times as long in the training as hvd_bench coll promises: were "
            "both measured on the same machine, as busy as before?"
        )
    return said
