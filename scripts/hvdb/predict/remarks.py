"""What is said about a prediction: where its inputs come from, and what lies outside of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.predict import noise
from hvdb.predict.collective import ODD, Collective
from hvdb.predict.draws import ALONE_SPREAD, EFFICIENCY_SPREAD, Calibration, Outcome
from hvdb.predict.fabric import SMALL
from hvdb.predict.imported import File
from hvdb.predict.inputs import Inputs
from hvdb.predict.steps import World, count_text, nodes_text, title
from hvdb.read.predictions import ASSUMED, MEASURED, Label


def warnings(made: Inputs, row: Outcome) -> tuple[str, ...]:
    """Returns a line for each value of a row that lies outside of what was measured."""
    world, said = row.world, []
    if world.ranks == 1:
        return ()
    for operation in made.schedule.operations():
        for name, known in made.fabric.tables(operation, world).items():
            said += _outside(known, world, row.messages[name.startswith(SMALL)])
    steps = sum(len(session.solo_step) * len(session.hosts) for session in made.sessions)
    if world.ranks > steps / 10:
        said.append(f"the slowest rank lies beyond what {steps} recorded steps show; their tail goes on as a line does")
    return tuple(said)


def _outside(known: Collective, world: World, messages: tuple[int, int]) -> list[str]:
    """messages: bytes of the smallest and of the largest one in the simulated steps."""
    what, said = title(known.operation, known.algorithm), []
    if not messages[1]:
        return []
    if known.is_described(world):
        return [f"{what} between nodes comes from the described link alone"]
    for size in dict.fromkeys(messages):
        if not known.covers(world, size):
            said.append(f"{what} of {size} bytes lies outside of the measured sizes")
    if known.spread and world.nodes > known.largest:
        said.append(f"beyond the {known.largest} nodes on which {known.operation} was measured")
    if known.spread and known.has_odd_worlds and known.steps(world).odd and not known.spread.worlds[1]:
        said.append(
            f"{what} was not measured on a number of nodes that is no power of two, whose steps may take {ODD[0]:g} to "
            f"{ODD[1]:g} times as long"
        )
    if world.ranks_per_node > 1 and known.times and not known.inside and known.algorithm in ("ring", "doubling"):
        said.append(f"{what} has no cells that tell how much of its time is spent inside a node")
    return said


def labels(variants: Sequence[Inputs], worlds: Sequence[World], calibration: Calibration) -> tuple[Label, ...]:
    """Returns where the inputs of all variants come from, the first as the run was."""
    made = list(variants[0].labels)
    largest = max(worlds)
    for inputs in variants:
        made += inputs.labels
        made += inputs.fabric.labels(inputs.operations, [world for world in worlds if world.ranks > 1])
        for operation in inputs.schedule.operations() if largest.nodes > 1 else ():
            known = inputs.fabric.tables(operation, largest)[operation]
            if known.spread and largest.nodes > known.largest:
                error = known.spread.drift.error
                source = f"as over the measured nodes, by as much a doubling, +- {error:.2g}"
                drift = round(known.spread.drift.all, 4)
                made.append(Label(f"drift of {title(operation, known.algorithm)}", ASSUMED, source, drift))
    made += _of_sessions(variants, worlds, calibration)
    return tuple(dict.fromkeys(made))


def _of_sessions(variants: Sequence[Inputs], worlds: Sequence[World], calibration: Calibration) -> list[Label]:
    inputs = variants[0]
    made = [_of_noise(inputs)]
    known = sum(1 for seconds in calibration.alone if seconds)
    counted = count_text(known, "session")
    if known:
        measured = {s.world for s, seconds in zip(inputs.sessions, calibration.alone, strict=True) if seconds}
        described = inputs.fabric.is_described(inputs.schedule.operations(), measured)
        than = "what the described link promises" if described else "the same collectives alone"
        made.append(Label("reductions beside compute", MEASURED, f"{counted}, over {than}", calibration.load))
        missed = float(np.median([missed for missed in calibration.missed if missed]))
        source = f"{counted}; on other worlds and for what-ifs nothing of it, or twice it"
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
        source = "on other worlds and for what-ifs from its root to its power of 1.5"
        if max(worlds).nodes > 1 == min(session.world.nodes for session in inputs.sessions):
            source += "; from one node to several: from as fast as alone to that"
        made.append(Label("reductions beside compute elsewhere", ASSUMED, source))
    return made


def _of_noise(inputs: Inputs) -> Label:
    nodes = [node for session in inputs.sessions for node in session.noise()]
    spread = noise.level_spread(nodes)
    source = (
        f"levels of hosts lie {100 * spread:.2g} % apart; a step's slowest tenth goes on as a generalised Pareto "
        f"distribution, of shape 0 +- {noise.SHAPE:g}"
    )
    return Label("tail of hosts and steps", ASSUMED, source)


def few_sessions(made: Inputs, calibration: Calibration) -> list[str]:
    """Returns a line if too few sessions tell how far sessions of this machine lie apart."""
    if calibration.spreads != (ALONE_SPREAD, EFFICIENCY_SPREAD) or made.base.device == "replay":
        return []
    return [
        f"{count_text(len(made.sessions), 'session')}: how far sessions of this machine lie apart is assumed (0.85 and "
        "0.7 %); where it is four times as much, such bands hold less than half of the runs: measure "
        f"{MIN_SESSIONS} sessions"
    ]


def unused(made: Inputs, worlds: Sequence[World], changes_link: bool) -> list[str]:
    """Returns a line for each input that a person has given and that the prediction does not use."""
    fabric, said = made.fabric, []
    several = [world for world in worlds if world.nodes > 1]
    if fabric.link and not changes_link and not fabric.is_described(made.operations, several):
        said.append(
            "--link-gbit and --latency-us are not used: collectives were measured; they serve worlds without "
            "measurements, and what-ifs of the link"
        )
    return said + [line for file in made.added.files for line in _unused_file(made, file, several)]


def _unused_file(made: Inputs, file: File, worlds: Sequence[World]) -> list[str]:
    if made.fabric.stated:
        return []
    ranks = file.ranks or file.contents.ranks or 0
    mine = [world for world in worlds if world.ranks == ranks]
    if not mine:
        return [f"{file.file} is not used: it counts for its {ranks} ranks alone, unless --algorithm says its steps"]
    if all(mine[0] in made.fabric.tables(operation, mine[0])[operation].times for operation in made.operations):
        return [f"{file.file} is not used: hvd_bench coll measured {nodes_text(mine)}, too"]
    return []


def above_one(row: Outcome) -> str:
    """Returns why an efficiency above 100 % is predicted; "" if it is none."""
    if np.median(row.efficiency) <= 1:
        return ""
    if row.parts["interference"] < 0:
        return f"ranks among others compute {100 * -row.parts['interference']:.1f} % faster than one rank alone"
    return "the sessions measured shorter steps than their own figures give"
