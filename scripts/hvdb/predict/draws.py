"""Draws all inputs of a prediction, lets `hvd_bench simulate` simulate each draw, and takes percentiles.

Same inputs and same seed: same draws, same bytes. Every group of inputs has a random stream of its own for each draw,
so a group can be held at its middle while the others keep their draws; how much narrower the band becomes is the
group's part of it. What-ifs have the same draws, so that a difference between two of them has a band of its own.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base.errors import TooLittle
from hvdb.base.interval import Interval
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import MIN_SESSIONS
from hvdb.predict import noise
from hvdb.predict.fabric import MIN_TABLE_BYTES, SMALL
from hvdb.predict.inputs import SLOT_ELEMENTS, Figures, Inputs, Training
from hvdb.predict.noise import BLOCK
from hvdb.predict.schedule import NEGOTIATED, PARTS, require_plan, simulated
from hvdb.predict.steps import BARRIER, World
from hvdb.read.runs import grouped

DRAWS, MAX_DRAWS = 200, 2000
OF_A_POOL = 20  # draws that share a pool of hosts
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
# Standard deviations of the logarithm over sessions of one machine: of the time of one rank, and of the efficiency.
# Source: 20 sessions of real compute, results/recorded/2026-11-23-2cores/coverage.db.
ALONE_SPREAD, EFFICIENCY_SPREAD = 0.0085, 0.007


@dataclass(frozen=True)
class Calibration:
    """What the sessions tell about the model. Of each session: alone, what its reductions would take alone (seconds),
    missed, its measured step over the simulated one, and hidden, the measured share of exposed communication less the
    simulated one; None if unknown. load: median over sessions of the time of reductions beside compute over that alone.
    spreads: standard deviations between sessions, of the logarithms of the time of one rank and of the efficiency."""

    alone: Sequence[float | None]
    missed: Sequence[float | None]
    hidden: Sequence[float | None]
    load: float
    spreads: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """session: its index. measured: its world. figures: of compute and of overlap. load: time of a reduction beside
    compute over that of `coll`. slowdown_scales: with the bytes that reductions move in a second, from those of
    `measured`. missed: the measured step of the session over the simulated one; None if that is not known."""

    number: int
    session: int = 0
    measured: World
    missed: float | None = None
    compute: Figures
    overlap: Figures
    load: float
    slowdown_scales: bool = False
    common_steps: bool = False


@dataclass(frozen=True)
class Outcome:
    """The draws of one world. step: seconds. alone: seconds of the step of one rank alone. parts: medians, fractions of
    the step. steps: simulated in each draw. messages: bytes of the smallest and the largest message, [0] of the usual
    ones and [1] of small ones (fabric.SMALL); zeros: none."""

    world: World
    step: np.ndarray
    alone: np.ndarray
    parts: dict[str, float]
    steps: int = 0
    messages: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    @property
    def efficiency(self) -> np.ndarray:
        return np.ones(len(self.step)) if self.world.ranks == 1 else self.alone / self.step


def band(values: np.ndarray) -> Interval:
    """Returns the percentiles BAND of `values`."""
    low, middle, high = map(float, np.percentile(values, BAND))
    return Interval(middle, low, high)


class Predictor:
    """Predicts worlds from one set of inputs. program: hvd_bench. Parameters `made` of methods: the inputs of this
    object, or inputs that a what-if made of them."""

    def __init__(self, inputs: Inputs, program: Path, seed: int, draws: int = DRAWS) -> None:
        self.inputs, self.program, self.seed, self.draws = inputs, program, seed, draws
        self._middle, self._together = inputs.middle(), inputs.together()
        self._nodes = [node for session in inputs.sessions for node in session.noise()]
        by_world = {world: self._expected_reductions(world) for world in {s.world for s in inputs.sessions}}
        alone = [by_world[session.world] for session in inputs.sessions]
        pairs = list(zip(inputs.sessions, alone, strict=True))
        known = [session.figures().reduce / expected for session, expected in pairs if expected]
        again = [self._simulated_again(session, expected) if expected else (None, None) for session, expected in pairs]
        missed, hidden = zip(*again, strict=True)
        self.calibration = Calibration(alone, missed, hidden, float(np.median(known)) if known else 1.0, self._spread())

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

    def require(self, made: Inputs, world: World) -> None:
        """Errors: TooLittle if a world cannot be predicted from these inputs."""
        fabric = made.fabric
        if world.ranks == 1:
            return
        if world.nodes > 1 and fabric.largest() == 1 and not fabric.link:
            raise TooLittle(
                f"{world.ranks} ranks are {world.nodes} nodes, and these stores hold collectives of one node only, "
                "which say nothing about a network: run hvd_bench coll --db on 2, 3 and 4 nodes, or describe the link "
                "by --link-gbit and --latency-us"
            )
        for operation in made.operations:
            fabric.tables(operation, world)

    def outcome(self, made: Inputs, world: World, fixed: Collection[str] = ()) -> Outcome:
        """Returns the draws of `world`, with the groups of inputs `fixed` at their middle. Errors: HvdbError;
        NotComparable for another plan of buckets."""
        draws = [self._draw(number, fixed) for number in range(self.draws)]
        of_step, of_alone = self._beyond_the_model(made, world, draws)
        if "model" in fixed:
            of_step, of_alone = np.median(of_step), np.median(of_alone)
        alone = np.array([draw.compute.alone for draw in draws])
        if world.ranks == 1:
            return Outcome(world, alone * of_alone, alone * of_alone, dict.fromkeys((*PARTS, "interference"), 0.0))
        found = self._simulate(made, world, draws, fixed)
        step = np.array([result["step"] for result in found])
        parts = {name: float(np.median(np.array([result[name] for result in found]) / step)) for name in PARTS}
        compute = np.array([draw.compute.compute for draw in draws])
        parts["interference"] = float(np.median((compute - alone) / step))
        steps = self._steps(made, world, self.draws)
        return Outcome(world, step * of_step, alone * of_alone, parts, steps, _messages(found))

    def narrower(self, row: Outcome) -> dict[str, float]:
        """Returns group -> by how much the band of the efficiency of a row, as the run was, is narrower without it."""
        if row.world.ranks == 1:
            return {}
        wide = band(row.efficiency).width
        return {group: wide - band(self.outcome(self.inputs, row.world, {group}).efficiency).width for group in GROUPS}

    def _stream(self, draw: int, *names: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, draw, zlib.crc32(" ".join(names).encode())])

    def _draw(self, number: int, fixed: Collection[str]) -> _Draw:
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
            number=number,
            session=chosen,
            measured=session.world,
            missed=self.calibration.missed[chosen],
            compute=compute,
            overlap=overlap,
            load=self.calibration.load if "overlap" in fixed or not expected else overlap.reduce / expected,
            slowdown_scales=bool("overlap" not in fixed and expected and forms[0] < 0.5),
            common_steps=bool(forms[1] < self._together),
        )

    def _seconds(self, made: Inputs, operation: str, size: float, world: World, number: int = -1) -> float:
        """Returns the time of a large collective alone in draw `number`; -1: in the middle of all draws."""
        known = made.fabric.tables(operation, world)[operation]
        return made.fabric.drawn(known, number, partial(self._stream, number)).seconds(world, size)

    def _tables(self, made: Inputs, world: World, draw: _Draw, load: float, fixed: Collection[str]) -> list[str]:
        """Returns the lines of the costs of all operations."""
        lines = []
        number, total = -1 if "collectives" in fixed else draw.number, made.gradient_bytes
        for operation in made.schedule.operations():
            random = None if "steps" in fixed else self._stream(draw.number, "jitter", operation, str(world))
            for name, known in made.fabric.tables(operation, world).items():
                drawn = made.fabric.drawn(known, number, partial(self._stream, number))
                sizes = {1 << k for k in range(MIN_TABLE_BYTES.bit_length() - 1, 60) if 1 << k < total} | {total}
                if name.startswith(SMALL):
                    cells = (*known.times.values(), *known.opaque.values())
                    most = max((max(sizes_there) for sizes_there in cells), default=total)
                    sizes = {size for size in sizes if size <= most} or {min(sizes)}
                for size in sorted(sizes):
                    factors = " ".join(f"{x:.4g}" for x in known.jitter(world, size, random))
                    lines.append(f"{name} {size} {load * drawn.seconds(world, size):.6g} {factors}")
        return sorted(lines, key=lambda line: line.startswith(SMALL))  # stable: the order of costs_text.h

    def _costs(self, made: Inputs, world: World, draw: _Draw, fixed: Collection[str]) -> list[str]:
        """Returns the lines of one draw."""
        number = -1 if "collectives" in fixed else draw.number
        load = draw.load
        uncertain = 0.5 if "overlap" in fixed else self._stream(draw.number, "load").random()
        if draw.measured.nodes == 1 < world.nodes:  # shared memory and a network do not suffer alike
            load **= uncertain
        else:
            if world != draw.measured or made is not self.inputs:  # messages of other sizes suffer less or more
                load **= 0.5 + uncertain
            if number >= 0 and self.calibration.alone[draw.session]:
                load *= self._middle_over_drawn(draw)
        lines = ["draw", *self._tables(made, world, draw, load, fixed)]
        if made.schedule.name == NEGOTIATED:
            low, high = made.copy
            copy = low * (high / low) ** self._stream(draw.number, "copy").random() if low > 0 else 0.0
            lines += [f"cycle {self._seconds(made, BARRIER, 0, world, number):.6g}", f"copy {copy:.6g}"]
        slowdown = draw.overlap.slowdown
        if draw.slowdown_scales and (world != draw.measured or made is not self.inputs):
            here, there = self._rate(made, world), self._rate(self.inputs, draw.measured)
            slowdown = min(1.0, slowdown * here / there)
        lines += [f"slowdown {slowdown:.6g}", f"compute {draw.compute.compute / made.recorded:.6g}"]
        return [*lines, f"common {int(draw.common_steps)}", f"shift {made.late:.6g}"]

    def _middle_over_drawn(self, draw: _Draw) -> float:
        """Returns by how much the collectives of the session's world are faster in their middle than in this draw: the
        training has measured its reductions, whatever collectives alone are drawn to take."""
        size = self.inputs.schedule.message(self.inputs.gradient_bytes)
        middle = drawn = 0.0
        for operation in self.inputs.schedule.operations():
            known = self.inputs.fabric.tables(operation, draw.measured)[operation]
            made = self.inputs.fabric.drawn(known, draw.number, partial(self._stream, draw.number))
            drawn += made.same_launch().seconds(draw.measured, size)
            middle += self._seconds(self.inputs, operation, size, draw.measured)
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
        self, made: Inputs, world: World, draws: Sequence[_Draw], fixed: Collection[str]
    ) -> list[dict[str, Any]]:
        """Returns what the program prints for each draw. Errors: HvdbError; NotComparable for another plan."""
        groups = max(1, len(draws) // OF_A_POOL)
        found = []
        for group in range(groups):
            mine = draws[group * len(draws) // groups : (group + 1) * len(draws) // groups]
            nodes = [] if "steps" in fixed else noise.pool(self._nodes, self._stream(group, "hosts"))
            found += self._simulate_on(made, world, mine, fixed, nodes, self._steps(made, world, len(draws)))
        if made.schedule == self.inputs.schedule:
            require_plan(made.base, found[0].get("plan_hash"))
        return found

    def _simulate_on(
        self,
        made: Inputs,
        world: World,
        draws: Sequence[_Draw],
        fixed: Collection[str],
        nodes: Sequence[noise.Node],
        steps: int,
    ) -> list[dict[str, Any]]:
        run = made.base
        device, align = "stream" if run.on_gpus else "host", SLOT_ELEMENTS if run.device == "cpu" else 1
        # Draw k simulates with the seed + k, so seeds that lie apart by MAX_DRAWS share no sequence.
        lines = ["hvd-costs 2", f"seed {self.seed * MAX_DRAWS + draws[0].number}", f"steps {steps}", f"block {BLOCK}"]
        lines += [f"device {device}", f"align {align}"]
        for node in nodes:
            factors = (np.clip(series, *noise.FACTORS) for series in node)
            lines += ["node", *(" ".join(["rank", *(f"{x:.5g}" for x in series)]) for series in factors)]
        lines.append(f"world {world.ranks} {world.ranks_per_node}")
        lines += [line for draw in draws for line in self._costs(made, world, draw, fixed)]
        options = ["--replay", str(made.profile.file.absolute()), *made.schedule.options()]
        return simulated(self.program, options, "\n".join([*lines, "end 1", ""]), len(draws))

    def _expected_reductions(self, world: World) -> float | None:
        """Returns the mean seconds of the reductions of a step, by the collectives of `world` alone and their jitter;
        None if these were not measured."""
        if world.ranks == 1:
            return None
        try:
            self.require(self.inputs, world)
        except TooLittle:
            return None
        without_copies = replace(self.inputs, copy=(0.0, 0.0))
        found = self._simulate_middle(without_copies, world, self._middle, 1.0)
        return float(np.mean([result["overlapped"] + result["exposed"] for result in found]))

    def _simulated_again(self, session: Training, expected: float) -> tuple[float, float]:
        """Returns the measured step of a session over the one that is simulated from its own figures, and the measured
        share of exposed communication less the simulated one."""
        own = session.figures()
        found = self._simulate_middle(self.inputs, session.world, own, own.reduce / expected)
        step, exposed = (float(np.median([result[name] for result in found])) for name in ("step", "exposed"))
        measured = efficiency.step_time(session.full).value
        return measured / step, float(np.median(session.exposed)) / measured - exposed / step

    def _simulate_middle(self, made: Inputs, world: World, figures: Figures, load: float) -> list[dict[str, Any]]:
        """Returns what the program prints for draws of steps alone: everything else is at its middle."""
        together = [number % 10 < 10 * self._together for number in range(EXPECTING)]
        one = _Draw(number=0, measured=world, compute=figures, overlap=figures, load=load)
        draws = [replace(one, number=number, common_steps=common) for number, common in enumerate(together)]
        return self._simulate(made, world, draws, {"collectives"})

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


def _messages(found: Sequence[dict[str, Any]]) -> tuple[tuple[int, int], tuple[int, int]]:
    ends = np.array([result["messages"] for result in found])  # (draws, 2, 2)
    least, most = np.where(ends[..., 1] > 0, ends[..., 0], np.iinfo(np.int64).max).min(axis=0), ends[..., 1].max(axis=0)
    return tuple((int(low), int(high)) if high else (0, 0) for low, high in zip(least, most, strict=True))  # type: ignore[return-value]
