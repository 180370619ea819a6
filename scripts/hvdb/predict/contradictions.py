"""Says which inputs of a prediction disagree with one another. Each line names both, and what to do.

What cannot be true together is refused (require()). What may be true, but is strange, becomes a note (told()).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hvdb.base.errors import HvdbError
from hvdb.judge.efficiency import CAUTION
from hvdb.predict.collective import Collective, median_seconds
from hvdb.predict.draws import Calibration
from hvdb.predict.fabric import Fabric
from hvdb.predict.inputs import Inputs, Training
from hvdb.predict.steps import nodes_text, title
from hvdb.read.replay_profile import NOISY, Profile

# Measured rate of large collectives over that of the described link: possible, and not strange.
POSSIBLE_SHARE, USUAL_SHARE = (0.1, 1.1), (0.5, 1.0)
POSSIBLE_STEP, USUAL_STEP = 2.0, 1.1  # of the profile over that of the sessions, or the other way round
APART = 1.3  # of a step of large messages, between two numbers of nodes
FASTER = 1.5  # a size over a larger one of the same collective
LOAD = 1.5  # reductions beside compute over the same alone, or the other way round
EXPOSED = 0.03  # of the step: measured share of exposed communication, and the simulated one
ASIDE = 0.1  # of a session, from the median of the others
MISSED = 0.1  # logarithm of the measured step over the simulated one
NEGATIVE = -0.02  # interference
EARLY = 0.01  # of backward: when the last gradient is ready


def require(made: Inputs) -> None:
    """Errors: HvdbError for inputs that cannot be true together."""
    profile, session = made.profile, made.middle().alone
    ratio = made.recorded / session
    if not 1 / POSSIBLE_STEP <= ratio <= POSSIBLE_STEP:
        raise HvdbError(
            f"{profile.file}: the profile's step takes {made.recorded:.4g} s, and one rank alone took {session:.4g} s "
            f"in {_sessions(made)}: they are not of one training; record the profile again (--record-replay)"
        )
    if outside := _outside_of(made.fabric, POSSIBLE_SHARE):
        worlds = (cell.world for cell in made.fabric.every_cell() if cell.world.nodes > 1)
        raise HvdbError(f"{outside[0]} on {nodes_text(worlds)}: one of the two is of another network")


def told(made: Inputs, calibration: Calibration) -> list[str]:
    """Returns a line for each strange thing."""
    return [
        *_of_profile(made.profile, made),
        *_of_sessions(made),
        *_of_link(made.fabric),
        *(line for known in _used(made) for line in _of_collective(known)),
        *_of_calibration(made, calibration),
    ]


def _sessions(made: Inputs) -> str:
    return f"the sessions {', '.join(session.full.session_uuid[:8] for session in made.sessions[:3])}"


def _outside_of(fabric: Fabric, usual: tuple[float, float]) -> tuple[str, float] | None:
    """Returns what collectives got of the described link, as text and as a share of it; None if that share is usual or
    not known."""
    rate = fabric.measured_rate() if fabric.link else 0.0
    if not fabric.link or not rate:
        return None
    gbit, described = 8e-9 * rate, fabric.link.gbit
    low, high = usual
    if low * described <= gbit <= high * described:
        return None
    return f"--link-gbit {described:g}: collectives got {gbit:.3g} Gbit/s of the link", gbit / described


def _used(made: Inputs) -> Iterator[Collective]:
    """Yields what is known of collectives between nodes that the training uses."""
    for operation, algorithm in sorted(made.fabric.cells):
        if operation in made.operations:
            yield made.fabric.known(operation, algorithm)


def _of_profile(profile: Profile, made: Inputs) -> Iterator[str]:
    ratio = made.recorded / made.middle().alone
    if not 1 / USUAL_STEP <= ratio <= USUAL_STEP:
        yield (
            f"the profile's step takes {made.recorded:.4g} s, and one rank alone {made.middle().alone:.4g} s in "
            f"{_sessions(made)}; the sessions' time is used"
        )
    if profile.ready < EARLY * profile.backward_end and profile.gradients > 1:
        yield f"{profile.file}: all gradients are ready as the step begins, so all reductions are taken for hidden"
    if profile.spread > NOISY:
        yield (
            f"{profile.file}: a tenth of the recorded steps took {100 * profile.spread:.0f} % longer than others; "
            "record where nothing else runs"
        )


def _of_sessions(made: Inputs) -> Iterator[str]:
    figures = [session.figures() for session in made.sessions]
    for session, own in zip(made.sessions, figures, strict=True):
        short = session.full.session_uuid[:8]
        if own.compute / own.alone - 1 < NEGATIVE:
            yield (
                f"session {short}: ranks among others were {100 * (1 - own.compute / own.alone):.1f} % faster than one "
                "alone, so efficiencies above 100 % are possible; was the machine busy while one rank ran alone?"
            )
        for run in (session.solo, session.full):
            cautions = [fact.value for key, fact in sorted(run.provenance.items()) if key.startswith(CAUTION)]
            yield from (f"session {short}: {text}" for text in dict.fromkeys(cautions))
    if len(figures) < 3:
        return
    for what, values in (
        ("one rank alone", [one.alone for one in figures]),
        ("ranks without reductions", [one.compute for one in figures]),
        ("reductions of a step", [one.reduce for one in figures]),
    ):
        yield from _outliers(made.sessions, what, values)


def _outliers(sessions: Sequence[Training], what: str, values: Sequence[float]) -> Iterator[str]:
    for place, session in enumerate(sessions):
        alike = [values[k] for k, other in enumerate(sessions) if k != place and other.world == session.world]
        others = float(np.median(alike)) if len(alike) >= 2 else 0.0
        if others > 0 and abs(values[place] / others - 1) > ASIDE:
            yield (
                f"session {session.full.session_uuid[:8]}: {what} took {1e3 * values[place]:.4g} ms, and "
                f"{1e3 * others:.4g} ms in the others; leave its store out if the machine was busy"
            )


def _of_link(fabric: Fabric) -> Iterator[str]:
    if outside := _outside_of(fabric, USUAL_SHARE):
        said, share = outside
        yield f"{said}, {100 * share:.0f} % of it"


def _of_collective(known: Collective) -> Iterator[str]:
    what = title(known.operation, known.algorithm)
    for world, cells in known.times.items():
        sizes = [*cells]
        medians = [*map(median_seconds, cells.values())]
        for place, median in enumerate(medians[:-1]):
            if median > FASTER * min(medians[place + 1 :]):
                fastest = min(medians[place + 1 :])
                larger = sizes[medians.index(fastest)]
                yield (
                    f"{what} on {world.nodes} nodes: {sizes[place]} bytes took {1e3 * median:.4g} ms, longer than "
                    f"{larger} bytes ({1e3 * fastest:.4g} ms): measure it again where nothing else runs"
                )
                break
    if len(known.times) > 1 and known.operation != "barrier":
        curves = known.step_curves()
        largest = min(float(curve.bytes[-1]) for curve in curves.values())  # step that all worlds may have measured
        seconds = {world: curve.at(largest) for world, curve in curves.items() if curve.covers(largest)}
        fast, slow = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
        ratio = seconds[slow] / seconds[fast]
        if len(seconds) == len(curves) and ratio > APART:
            yield (
                f"{what}: a large step takes {ratio:.2g} times as long on {slow.nodes} nodes as on {fast.nodes}: are "
                "both of one network?"
            )


def _of_calibration(made: Inputs, calibration: Calibration) -> Iterator[str]:
    if any(abs(math.log(missed)) > MISSED for missed in calibration.missed if missed):
        yield (
            "a measured step is far from the simulation of its own figures: something that is not simulated takes much "
            "of it, so do not trust this prediction"
        )
    if not 1 / LOAD <= calibration.load <= LOAD:
        yield (
            f"reductions took {calibration.load:.2g} times as long in the training as hvd_bench coll promises: were "
            "both measured on the same machine, as busy as before?"
        )
    hidden = float(np.median([share for share in calibration.hidden if share is not None] or [0.0]))
    if abs(hidden) > EXPOSED:
        yield (
            f"{_sessions(made)} had {100 * abs(hidden):.1f} % of their step {'more' if hidden > 0 else 'less'} exposed "
            "communication than the profile's gradients let expect: are they of one training?"
        )
