"""Draws all inputs of a prediction, lets `hvd_bench simulate` simulate each draw, and takes percentiles.

Same inputs and same seed: same draws, same bytes. Every group of inputs has a random stream of its own for each draw,
so a group can be held at its middle while the others keep their draws; how much narrower the band becomes is the
group's part of it.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base import progress
from hvdb.base.errors import HvdbError, TooLittle
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.predict import remarks
from hvdb.predict.cost import World
from hvdb.predict.fabric import BARRIER
from hvdb.predict.inputs import BLOCK, MAX_NODES, MAX_STEPS, SLOT_ELEMENTS, Inputs, Training
from hvdb.predict.labels import Label
from hvdb.predict.link import LinkCost, quality
from hvdb.predict.remarks import ALONE_SPREAD, EFFICIENCY_SPREAD, Calibration
from hvdb.predict.schedule import NEGOTIATED, PARTS, require_plan, simulated
from hvdb.read.runs import grouped

DRAWS, MAX_DRAWS = 200, 2000
# Simulated steps of a draw. Fewer let chance widen the band; large worlds get fewer, for they would take minutes.
STEPS, FEW_STEPS = 200, 20
# ranks x steps x collectives of all draws: of some 2 to 5 s, and half of what hvd_bench simulate takes.
WORK, MAX_WORK = 5e8, 1e10
EXPECTING = 40  # draws of what reductions would take alone
BAND = (5.0, 50.0, 95.0)  # percentiles
# Group of inputs that is drawn together -> what makes its part of the band smaller.
GROUPS = {
    "collectives": "results of hvd_bench coll from more worlds, or with more samples",
    "compute": "a longer session, or several (interference, and the time of one rank)",
    "overlap": "a longer session, or several (slowdown by overlap, and reductions beside compute)",
    "model": "more sessions (what is not simulated, and what changes from session to session)",
    "steps": "more steps of each session, on more nodes (noise)",
}
FACTORS = (1e-3, 1e3)  # the smallest and the largest that hvd_bench simulate takes


@dataclass(frozen=True)
class PredictedWorld:
    """The prediction for one world. step: seconds. efficiency, parts: fractions; parts are medians, of the step.
    steps: simulated in each draw."""

    world: World
    step: Interval
    efficiency: Interval
    parts: dict[str, float]
    steps: int = 0
    notes: tuple[str, ...] = ()


@dataclass
class Variant:
    """The same training as the run had it (text ""), or as a what-if changes it. rows: one for each world."""

    text: str
    inputs: Inputs
    rows: list[PredictedWorld] = field(default_factory=list)


@dataclass
class Prediction:
    """variants: the first is as the run was. narrower: group -> by how much the band of its last row is narrower
    without it, in efficiency."""

    variants: list[Variant]
    narrower: dict[str, float]
    labels: list[Label] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def band(values: np.ndarray) -> Interval:
    """Returns the percentiles BAND of `values`."""
    low, middle, high = map(float, np.percentile(values, BAND))
    return Interval(middle, low, high)


@dataclass(frozen=True)
class _Draw:
    """session: its index, and `measured` its world. compute, alone: seconds of a step among others, and of one rank
    alone. load: time of a reduction beside compute over that of `coll`. slowdown_scales: with the bytes that reductions
    move in a second, from those of `measured`. missed: the measured step of the session over the simulated one; None if
    that is not known."""

    number: int
    session: int
    measured: World
    missed: float | None
    compute: float
    alone: float
    slowdown: float
    load: float
    slowdown_scales: bool
    common_steps: bool


class Predictor:
    """Predicts worlds from one set of inputs. program: hvd_bench. Parameters `made` of methods: the inputs of this
    object, or inputs that a what-if made of them."""

    def __init__(self, inputs: Inputs, program: Path, seed: int, draws: int = DRAWS) -> None:
        self.inputs, self.program, self.seed, self.draws = inputs, program, seed, draws
        self._middle, self._together = inputs.middle(), inputs.together()
        self._drawn: dict[tuple[int, int], Any] = {}  # (id of a cost, draw or -1): the cost in this draw
        by_world = {world: self._expected_reductions(world) for world in {s.world for s in inputs.sessions}}
        alone = [by_world[session.world] for session in inputs.sessions]
        pairs = list(zip(inputs.sessions, alone, strict=True))
        known = [session.figures().reduce / expected for session, expected in pairs if expected]
        missed = [self._missed_by(session, expected) if expected else None for session, expected in pairs]
        self.calibration = Calibration(alone, missed, float(np.median(known)) if known else 1.0, self._spread())

    def _spread(self) -> tuple[float, float]:
        """Returns standard deviations between sessions: of the logarithms of the time of one rank, and of the
        efficiency of one world."""
        alone = [math.log(session.figures().alone) for session in self.inputs.sessions]
        aside: list[float] = []
        groups = 0
        for members in grouped(zip(self.inputs.sessions, alone, strict=True), lambda pair: pair[0].world).values():
            reached = [one - math.log(efficiency.step_time(session.full).value) for session, one in members]
            if len(reached) >= MIN_SESSIONS:
                aside += (np.array(reached) - np.mean(reached)).tolist()
                groups += 1
        if not aside:
            return ALONE_SPREAD, EFFICIENCY_SPREAD
        return float(np.std(alone, ddof=1)), math.sqrt(sum(np.square(aside)) / (len(aside) - groups))

    def predict(
        self, worlds: Sequence[World], variants: Sequence[Variant], step: progress.Step = progress.silent
    ) -> Prediction:
        """Fills the rows of the variants, in the order of `worlds`, and says what would narrow the band of the last row
        of the first one.

        Errors: TooLittle if a world cannot be predicted from these inputs; NotComparable for another plan of buckets.
        """
        for variant in variants:
            for world in worlds:
                self._require(variant.inputs, world)
        groups = GROUPS if worlds[-1].ranks > 1 else {}
        done, work = 0, len(worlds) * len(variants) + len(groups)
        for variant in variants:
            for world in worlds:
                variant.rows.append(self._row(variant.inputs, world, frozenset()))
                step(done := done + 1, work)
        narrower = {}
        for group in groups:
            without = self._row(variants[0].inputs, worlds[-1], frozenset([group]))
            narrower[group] = variants[0].rows[-1].efficiency.width - without.efficiency.width
            step(done := done + 1, work)
        return Prediction(
            list(variants),
            narrower,
            *remarks.labels([variant.inputs for variant in variants], worlds, self.calibration),
        )

    def _require(self, made: Inputs, world: World) -> None:
        fabric = made.fabric
        if world.ranks == 1:
            return
        if world.nodes > 1 and fabric.largest() == 1 and not fabric.link:
            raise TooLittle(
                f"{world.ranks} ranks are {world.nodes} nodes, and these stores hold collectives of one node only, "
                "which say nothing about a network: run hvd_bench coll --db on 2, 3 and 4 nodes, or describe the link "
                "by --link-gbit and --latency-us"
            )
        for operation in made.schedule.operations():
            fabric.sizes(operation, world, made.gradient_bytes)
        if made.schedule.name == NEGOTIATED:
            fabric.cost(BARRIER, "", world)

    def _stream(self, draw: int, *names: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, draw, zlib.crc32(" ".join(names).encode())])

    def _draw(self, number: int, fixed: AbstractSet[str]) -> _Draw:
        """Returns the figures of a session that is drawn, each group from blocks of its own."""
        chosen = int(self._stream(number, "session").integers(len(self.inputs.sessions)))
        session, expected = self.inputs.sessions[chosen], self.calibration.alone[chosen]
        compute = overlap = self._middle
        if "compute" not in fixed:
            compute = session.figures(self._stream(number, "compute"))
        if "overlap" not in fixed:
            overlap = session.figures(self._stream(number, "overlap"))
        forms = self._stream(number, "forms").random(2)
        return _Draw(
            number,
            chosen,
            session.world,
            self.calibration.missed[chosen],
            compute=compute.compute,
            alone=compute.alone,
            slowdown=overlap.slowdown,
            load=self.calibration.load if "overlap" in fixed or not expected else overlap.reduce / expected,
            slowdown_scales=bool("overlap" not in fixed and expected and forms[0] < 0.5),
            common_steps=bool(forms[1] < self._together),
        )

    def _seconds(self, made: Inputs, operation: str, size: float, world: World, number: int = -1) -> float:
        """Returns the time of a collective alone in draw `number`; -1: in the middle of all draws."""
        fabric = made.fabric
        algorithm = "" if operation == BARRIER else fabric.algorithm(operation, size, world)
        source = fabric.cost(operation, algorithm, world)
        key = (id(source), number)
        if key not in self._drawn:
            names = ("collectives", operation, algorithm, str(world.nodes == 1))
            if number < 0:
                self._drawn[key] = source.middle()
            elif isinstance(source, LinkCost):
                link = quality(self._stream(number, "link"))
                self._drawn[key] = source.draw(self._stream(number, *names), link)
            else:
                self._drawn[key] = source.draw(self._stream(number, *names))
        return self._drawn[key].seconds(world, size)

    def _costs(self, made: Inputs, world: World, draw: _Draw, fixed: AbstractSet[str]) -> list[str]:
        """Returns the lines of one draw."""
        total = made.gradient_bytes
        number = -1 if "collectives" in fixed else draw.number
        load = draw.load
        if draw.measured.nodes == 1 < world.nodes:  # shared memory and a network do not suffer alike
            load **= 0.5 if "overlap" in fixed else self._stream(draw.number, "load").random()
        elif number >= 0 and self.calibration.alone[draw.session]:
            load *= self._middle_over_drawn(draw)
        lines = ["draw"]
        for operation in made.schedule.operations():
            random = None if "steps" in fixed else self._stream(draw.number, "jitter", operation, str(world))
            for size in made.fabric.sizes(operation, world, total):
                seconds = load * self._seconds(made, operation, size, world, number)
                factors = made.fabric.jitter(operation, world, size, random)
                lines.append(" ".join([operation, str(size), f"{seconds:.6g}", *(f"{x:.4g}" for x in factors)]))
        if made.schedule.name == NEGOTIATED:
            low, high = made.copy
            copy = low * (high / low) ** self._stream(draw.number, "copy").random() if low > 0 else 0.0
            lines += [f"cycle {self._seconds(made, BARRIER, 0, world, number):.6g}", f"copy {copy:.6g}"]
        slowdown = draw.slowdown
        if draw.slowdown_scales and (world != draw.measured or made is not self.inputs):
            here, there = self._rate(made, world), self._rate(self.inputs, draw.measured)
            slowdown = min(1.0, slowdown * here / there)
        lines += [f"slowdown {slowdown:.6g}", f"compute {draw.compute / made.recorded:.6g}"]
        return [*lines, f"common {int(draw.common_steps)}", f"shift {made.late:.6g}"]

    def _middle_over_drawn(self, draw: _Draw) -> float:
        """Returns by how much the collectives of the session's world are faster in their middle than in this draw: the
        training has measured its reductions, whatever collectives alone are drawn to take."""
        size = self.inputs.schedule.message(self.inputs.gradient_bytes)
        drawn, middle = (
            sum(
                self._seconds(self.inputs, operation, size, draw.measured, number)
                for operation in self.inputs.schedule.operations()
            )
            for number in (draw.number, -1)
        )
        return middle / drawn

    def _rate(self, made: Inputs, world: World) -> float:
        """Returns how many bytes of gradients a second of reductions takes, if all are reduced at once."""
        total = made.gradient_bytes
        return total / sum(self._seconds(made, operation, total, world) for operation in made.schedule.operations())

    def _steps(self, made: Inputs, world: World, draws: int) -> int:
        """Returns how many steps to simulate in each draw."""
        collectives, bucket = 1 + made.profile.gradients, made.schedule.bucket_bytes
        if made.schedule.name != NEGOTIATED:  # two successive buckets hold more than one may
            collectives = min(collectives, 3 + int(2 * made.gradient_bytes / bucket))
        a_step = draws * world.ranks * collectives
        return max(1, int(min(STEPS, max(FEW_STEPS, WORK / a_step), MAX_WORK / a_step)))

    def _simulate(
        self, made: Inputs, world: World, draws: Sequence[_Draw], fixed: AbstractSet[str]
    ) -> list[dict[str, Any]]:
        """Returns what the program prints for each draw.

        Errors: HvdbError; NotComparable for another plan.
        """
        run = made.base
        device, align = "stream" if run.device == "cuda" else "host", SLOT_ELEMENTS if run.device == "cpu" else 1
        # Draw k simulates with the seed + k, so seeds that lie apart by MAX_DRAWS share no sequence.
        lines = [
            "hvd-costs 1",
            f"seed {self.seed * MAX_DRAWS}",
            f"steps {self._steps(made, world, len(draws))}",
            f"block {BLOCK}",
        ]
        lines += [f"device {device}", "pacing demand", f"align {align}"]
        nodes = [node for session in made.sessions for node in session.noise()]
        for node in [] if "steps" in fixed else nodes[:MAX_NODES]:
            factors = (np.clip(series[:MAX_STEPS], *FACTORS) for series in node)
            lines += ["node", *(" ".join(["rank", *(f"{x:.5g}" for x in series)]) for series in factors)]
        lines.append(f"world {world.ranks} {world.ranks_per_node}")
        lines += [line for draw in draws for line in self._costs(made, world, draw, fixed)]
        text = "\n".join([*lines, "end 1", ""])
        options = ["--replay", str(made.profile.file.absolute()), *made.schedule.options()]
        found = simulated(self.program, options, text, len(draws))
        if made.schedule == self.inputs.schedule:
            require_plan(run, found[0].get("plan_hash"))
        return found

    def _expected_reductions(self, world: World) -> float | None:
        """Returns the mean seconds of the reductions of a step, by the collectives of `world` alone and their jitter;
        None if these were not measured."""
        if world.ranks == 1:
            return None
        try:
            self._require(self.inputs, world)
        except HvdbError:
            return None
        middle = self._middle
        one = _Draw(0, 0, world, None, middle.compute, middle.alone, middle.slowdown, 1.0, False, False)
        draws = [replace(one, number=number) for number in range(EXPECTING)]
        without_copies = replace(self.inputs, copy=(0.0, 0.0))
        found = self._simulate(without_copies, world, draws, frozenset(["collectives"]))
        return float(np.mean([result["overlapped"] + result["exposed"] for result in found]))

    def _missed_by(self, session: Training, expected: float) -> float:
        """Returns the measured step of a session over the one that is simulated from its own figures."""
        own = session.figures()
        load = own.reduce / expected
        one = _Draw(0, 0, session.world, None, own.compute, own.alone, own.slowdown, load, False, False)
        draws = [
            replace(one, number=number, common_steps=number < EXPECTING * self._together) for number in range(EXPECTING)
        ]
        found = self._simulate(self.inputs, session.world, draws, frozenset(["collectives"]))
        simulated = float(np.median([result["step"] for result in found]))
        return efficiency.step_time(session.full).value / simulated

    def _beyond_the_model(self, made: Inputs, world: World, draws: Sequence[_Draw]) -> tuple[np.ndarray, np.ndarray]:
        """Returns factors for the step, and for the time of one rank, of each draw: by how much the simulation missed
        its session, which may be nothing or twice as much elsewhere, and what another session would measure."""
        random = self._stream(0, "beyond the model")
        places = (np.arange(self.draws) + 0.5) / self.draws  # evenly, so that the middle does not depend on chance
        known = [missed for missed in self.calibration.missed if missed] or [1.0]
        unknown = random.choice(known, self.draws)
        missed = np.array([draw.missed or other for draw, other in zip(draws, unknown, strict=True)])
        there = np.array([draw.missed is not None and draw.measured == world for draw in draws])
        elsewhere = 2 * random.permutation(places)
        step = missed ** np.where(there & (made is self.inputs), 1.0, elsewhere)
        # From the mean of n sessions another one differs by 1 + 1 / n variances. Drawing one of n shows 1 - 1 / n.
        apart = math.sqrt(2 / len(self.inputs.sessions))
        normal = apart * np.array(list(map(statistics.NormalDist().inv_cdf, places)))
        of_alone, of_efficiency = self.calibration.spreads
        alone = np.exp(of_alone * random.permutation(normal))
        return step * alone * np.exp(of_efficiency * random.permutation(normal)), alone

    def _row(self, made: Inputs, world: World, fixed: AbstractSet[str]) -> PredictedWorld:
        draws = [self._draw(number, fixed) for number in range(self.draws)]
        of_step, of_alone = self._beyond_the_model(made, world, draws)
        if "model" in fixed:
            of_step, of_alone = np.median(of_step), np.median(of_alone)
        alone = np.array([draw.alone for draw in draws])
        if world.ranks == 1:
            return PredictedWorld(
                world, band(alone * of_alone), Interval(1, 1, 1), dict.fromkeys((*PARTS, "interference"), 0.0)
            )
        found = self._simulate(made, world, draws, fixed)
        step = np.array([result["step"] for result in found])
        parts = {name: float(np.median(np.array([result[name] for result in found]) / step)) for name in PARTS}
        compute = np.array([draw.compute for draw in draws])
        parts["interference"] = float(np.median((compute - alone) / step))
        step, alone, steps = step * of_step, alone * of_alone, self._steps(made, world, self.draws)
        return PredictedWorld(world, band(step), band(alone / step), parts, steps, remarks.notes(made, world))
