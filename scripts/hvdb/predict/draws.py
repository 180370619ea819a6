"""Draws all inputs of a prediction, lets `hvd_bench simulate` simulate each draw, and takes percentiles.

Same inputs and same seed: same draws, same bytes. Every group of inputs has a random stream of its own for each draw,
so a group can be held at its middle while the others keep their draws; how much narrower the band becomes is the
group's part of it.
"""

from __future__ import annotations

import math
import subprocess
import zlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base import progress, strict_json
from hvdb.base.errors import HvdbError, TooLittle
from hvdb.base.strict_json import Malformed
from hvdb.predict.cost import Cost, World, nodes_text, title
from hvdb.predict.fabric import BARRIER, MIN_TABLE_BYTES
from hvdb.predict.inputs import ASSUMED, BLOCK, MAX_NODES, MAX_STEPS, MEASURED, Inputs, Label, require_plan

DRAWS, MAX_DRAWS = 200, 2000
# Simulated steps of a draw. Fewer let chance widen the band; large worlds get fewer, for they would take minutes.
STEPS, FEW_STEPS = 200, 20
# ranks x steps x collectives of all draws: of some 2 to 5 s, and half of what hvd_bench simulate takes.
WORK, MAX_WORK = 5e8, 1e10
EXPECTING = 40  # draws of what reductions would take alone
BAND = (5.0, 50.0, 95.0)  # percentiles
PARTS = ("exposed", "stragglers", "control", "slowed")
# Group of inputs that is drawn together -> what makes its part of the band smaller.
GROUPS = {
    "collectives": "results of hvd_bench coll from more worlds, or with more samples",
    "compute": "a longer session, or several (interference, and the time of one rank)",
    "overlap": "a longer session, or several (slowdown by overlap, and reductions beside compute)",
    "steps": "more steps of each session, on more nodes (noise)",
}
_SECONDS = 1800.0  # that one simulation may take
_MAX_LINE = 2000
FACTORS = (1e-3, 1e3)  # the smallest and the largest that hvd_bench simulate takes
MAX_LOAD = 3.0  # a larger change by the compute beside it gets a note
# Gradients on CPUs begin at multiples of so many elements (kSlotAlign in models/onednn/parameters.cpp).
SLOT_ELEMENTS = 32


@dataclass(frozen=True)
class Band:
    """Percentiles BAND of the draws."""

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class Row:
    """The prediction for one world. step: seconds. efficiency, parts: fractions; parts are medians, of the step.
    steps: simulated in each draw."""

    world: World
    step: Band
    efficiency: Band
    parts: dict[str, float]
    steps: int = 0
    notes: tuple[str, ...] = ()


@dataclass
class Prediction:
    """rows: by ranks. narrower: group -> by how much the band of the last row is narrower without it, in efficiency."""

    rows: list[Row]
    narrower: dict[str, float]
    labels: list[Label] = field(default_factory=list)


def band(values: np.ndarray) -> Band:
    """Returns the percentiles BAND of `values`."""
    return Band(*map(float, np.percentile(values, BAND)))


def simulated(program: Path, options: Sequence[str], text: str, draws: int) -> list[dict[str, Any]]:
    """Returns what `hvd_bench simulate` prints for each of the `draws` in the text of costs. Errors: HvdbError."""
    words = [program, "simulate", *options, "--costs", "-"]
    try:
        done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise HvdbError(f"{program} simulate took longer than {_SECONDS:.0f} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise HvdbError(f"{program} simulate ended with exit code {done.returncode}: {said[-1]}")
    try:
        found = [strict_json.load(line, _MAX_LINE) for line in done.stdout.decode(errors="replace").splitlines()]
        if len(found) != draws:
            raise Malformed(f"{len(found)} lines in place of {draws}")
        for result in found:
            strict_json.above_zero(result.get("step"), math.inf, "step")
            for name in (*PARTS, "overlapped"):
                if result.get(name) != 0:
                    strict_json.above_zero(result.get(name), math.inf, name)
    except Malformed as error:
        raise HvdbError(f"{program} simulate printed something else than results: {error}") from error
    return found


@dataclass(frozen=True)
class _Draw:
    """compute, alone: seconds of a step among others, and of one rank alone. load: time of a reduction
    beside compute over that of `coll`. slowdown_scales: with the bytes that reductions move in a second, from those of
    `measured`, the world of the session."""

    number: int
    measured: World
    compute: float
    alone: float
    slowdown: float
    load: float
    slowdown_scales: bool
    common_steps: bool


class Predictor:
    """Predicts worlds from one set of inputs. `program`: hvd_bench."""

    def __init__(self, inputs: Inputs, program: Path, seed: int, draws: int = DRAWS) -> None:
        self.inputs, self.program, self.seed, self.draws = inputs, program, seed, draws
        self._middle = inputs.middle()
        self._drawn: dict[tuple[int, int], Any] = {}  # (id of a cost, draw or -1): the cost in this draw
        self._alone = [self._expected_reductions(session.world) for session in inputs.sessions]
        known = [s.figures().reduce / e for s, e in zip(inputs.sessions, self._alone, strict=True) if e]
        self._load = float(np.median(known)) if known else 1.0

    def predict(self, worlds: Sequence[World], step: progress.Step = progress.silent) -> Prediction:
        """Returns rows in the order of `worlds`, and what would narrow the band of the last one.

        Errors: TooLittle if a world cannot be predicted from these inputs; NotComparable for another plan of buckets.
        """
        for world in worlds:
            self._require(world)
        rows = []
        for world in worlds:
            rows.append(self._row(world, frozenset()))
            step(len(rows), len(worlds) + len(GROUPS))
        narrower = {}
        if worlds[-1].ranks > 1:
            for group in GROUPS:
                without = self._row(worlds[-1], frozenset([group]))
                narrower[group] = rows[-1].efficiency.width - without.efficiency.width
                step(len(rows) + len(narrower), len(worlds) + len(GROUPS))
        return Prediction(rows, narrower, self._labels(worlds))

    def _require(self, world: World) -> None:
        fabric = self.inputs.fabric
        if world.ranks == 1:
            return
        if world.nodes > 1 and fabric.largest() == 1:
            raise TooLittle(
                f"{world.ranks} ranks are {world.nodes} nodes, and these stores hold collectives of one node only, "
                "which say nothing about a network: run hvd_bench coll --db on 2, 3 and 4 nodes"
            )
        for operation in self.inputs.operations():
            fabric.sizes(operation, world, self.inputs.gradient_bytes)
        if self.inputs.base.schedule == "negotiated":
            fabric.cost(BARRIER, "", world)

    def _stream(self, draw: int, *names: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, draw, zlib.crc32(" ".join(names).encode())])

    def _draw(self, number: int, fixed: AbstractSet[str]) -> _Draw:
        """Returns the figures of a session that is drawn, each group from blocks of its own."""
        chosen = int(self._stream(number, "session").integers(len(self.inputs.sessions)))
        session, expected = self.inputs.sessions[chosen], self._alone[chosen]
        compute = overlap = self._middle
        if "compute" not in fixed:
            compute = session.figures(self._stream(number, "compute"))
        if "overlap" not in fixed:
            overlap = session.figures(self._stream(number, "overlap"))
        forms = self._stream(number, "forms").random(2)
        return _Draw(
            number,
            session.world,
            compute=compute.compute,
            alone=compute.alone,
            slowdown=overlap.slowdown,
            load=self._load if "overlap" in fixed or not expected else overlap.reduce / expected,
            slowdown_scales=bool("overlap" not in fixed and expected and forms[0] < 0.5),
            common_steps=bool(forms[1] < 0.5),
        )

    def _seconds(self, operation: str, size: float, world: World, number: int = -1) -> float:
        """Returns the time of a collective alone in draw `number`; -1: in the middle of all draws."""
        fabric = self.inputs.fabric
        algorithm = "" if operation == BARRIER else fabric.algorithm(operation, size, world)
        source = fabric.cost(operation, algorithm, world)
        key = (id(source), number)
        if key not in self._drawn:
            names = ("collectives", operation, algorithm, str(world.nodes == 1))
            self._drawn[key] = source.draw(self._stream(number, *names)) if number >= 0 else source.middle()
        return self._drawn[key].seconds(world, size)

    def _costs(self, world: World, draw: _Draw, fixed: AbstractSet[str], copy: float) -> list[str]:
        """Returns the lines of one draw. copy: seconds for a byte."""
        inputs, total = self.inputs, self.inputs.gradient_bytes
        number = -1 if "collectives" in fixed else draw.number
        lines = ["draw"]
        for operation in inputs.operations():
            random = None if "steps" in fixed else self._stream(draw.number, "jitter", operation, str(world))
            for size in inputs.fabric.sizes(operation, world, total):
                seconds = draw.load * self._seconds(operation, size, world, number)
                factors = inputs.fabric.jitter(operation, world, size, random)
                lines.append(" ".join([operation, str(size), f"{seconds:.6g}", *(f"{x:.4g}" for x in factors)]))
        if inputs.base.schedule == "negotiated":
            lines += [f"cycle {self._seconds(BARRIER, 0, world, number):.6g}", f"copy {copy:.6g}"]
        slowdown = draw.slowdown
        if draw.slowdown_scales and world != draw.measured:
            there, here = (self._seconds(inputs.operations()[0], total, w) for w in (draw.measured, world))
            slowdown = min(1.0, slowdown * there / here)
        lines += [f"slowdown {slowdown:.6g}", f"compute {draw.compute / inputs.recorded:.6g}"]
        return [*lines, f"common {int(draw.common_steps)}", f"shift {inputs.late:.6g}"]

    def _steps(self, world: World, draws: int) -> int:
        """Returns how many steps to simulate in each draw."""
        inputs, collectives = self.inputs, 1 + self.inputs.profile.gradients
        bucket = inputs.base.number("engine.bucket_bytes")
        if bucket and inputs.base.schedule != "negotiated":  # two successive buckets hold more than one may
            collectives = min(collectives, 3 + int(2 * inputs.gradient_bytes / bucket))
        a_step = draws * world.ranks * collectives
        return max(1, int(min(STEPS, max(FEW_STEPS, WORK / a_step), MAX_WORK / a_step)))

    def _simulate(
        self, world: World, draws: Sequence[_Draw], fixed: AbstractSet[str], copy: float
    ) -> list[dict[str, Any]]:
        """Returns what the program prints for each draw. copy: seconds for a byte.

        Errors: HvdbError; NotComparable for another plan.
        """
        run = self.inputs.base
        device, align = "stream" if run.device == "cuda" else "host", SLOT_ELEMENTS if run.device == "cpu" else 1
        # Draw k simulates with the seed + k, so seeds that lie apart by MAX_DRAWS share no sequence.
        lines = [
            "hvd-costs 1",
            f"seed {self.seed * MAX_DRAWS}",
            f"steps {self._steps(world, len(draws))}",
            f"block {BLOCK}",
        ]
        lines += [f"device {device}", "pacing demand", f"align {align}"]
        nodes = [node for session in self.inputs.sessions for node in session.noise()]
        for node in [] if "steps" in fixed else nodes[:MAX_NODES]:
            factors = (np.clip(series[:MAX_STEPS], *FACTORS) for series in node)
            lines += ["node", *(" ".join(["rank", *(f"{x:.5g}" for x in series)]) for series in factors)]
        lines.append(f"world {world.ranks} {world.ranks_per_node}")
        lines += [line for draw in draws for line in self._costs(world, draw, fixed, copy)]
        text = "\n".join([*lines, "end 1", ""])
        words = ["--replay", str(self.inputs.profile.file), *self.inputs.options]
        found = simulated(self.program, words, text, len(draws))
        require_plan(run, found[0].get("plan_hash"))
        return found

    def _expected_reductions(self, world: World) -> float | None:
        """Returns the mean seconds of the reductions of a step, by the collectives of `world` alone and their jitter;
        None if these were not measured."""
        try:
            self._require(world)
        except HvdbError:
            return None
        middle = self._middle
        one = _Draw(0, world, middle.compute, middle.alone, middle.slowdown, 1.0, False, False)
        draws = [replace(one, number=number) for number in range(EXPECTING)]
        found = self._simulate(world, draws, frozenset(["collectives"]), copy=0.0)
        return float(np.mean([result["overlapped"] + result["exposed"] for result in found]))

    def _row(self, world: World, fixed: AbstractSet[str]) -> Row:
        draws = [self._draw(number, fixed) for number in range(self.draws)]
        alone = np.array([draw.alone for draw in draws])
        if world.ranks == 1:
            return Row(world, band(alone), Band(1.0, 1.0, 1.0), dict.fromkeys((*PARTS, "interference"), 0.0))
        found = self._simulate(world, draws, fixed, self.inputs.copy)
        step = np.array([result["step"] for result in found])
        parts = {name: float(np.median(np.array([result[name] for result in found]) / step)) for name in PARTS}
        compute = np.array([draw.compute for draw in draws])
        parts["interference"] = float(np.median((compute - alone) / step))
        return Row(world, band(step), band(alone / step), parts, self._steps(world, self.draws), self._notes(world))

    def _notes(self, world: World) -> tuple[str, ...]:
        """Returns a line for each value of this world that lies outside of what was measured."""
        notes = []
        fabric, total = self.inputs.fabric, self.inputs.gradient_bytes
        size = min(total, int(self.inputs.base.number("engine.bucket_bytes") or total))
        for operation in self.inputs.operations():
            algorithm = fabric.algorithm(operation, size, world)
            if not fabric.cost(operation, algorithm, world).covers(world, size):
                notes.append(f"{operation} of {size} bytes by '{algorithm}' lies outside of the measured sizes")
            if (smallest := fabric.sizes(operation, world, total)[0]) > MIN_TABLE_BYTES:
                notes.append(f"{operation} of less than {smallest} bytes takes as long here as of {smallest}")
        if world.nodes > fabric.largest():
            notes.append(f"beyond the {fabric.largest()} nodes on which collectives were measured")
        steps = sum(len(session.solo_step) * len(session.hosts) for session in self.inputs.sessions)
        if world.ranks > steps / 10:
            notes.append(f"the slowest rank lies beyond what {steps} recorded steps show")
        return tuple(notes)

    def _labels(self, worlds: Sequence[World]) -> list[Label]:
        labels = list(self.inputs.labels)
        fabric = self.inputs.fabric
        for (operation, algorithm), cells in sorted(fabric.cells.items()):
            if operation in (*self.inputs.operations(), BARRIER):
                where = nodes_text(cell.world for cell in cells)
                labels.append(
                    Label(
                        title(operation, algorithm), MEASURED, f"{len(cells)} cell{'s' * (len(cells) > 1)} on {where}"
                    )
                )
        largest = max(worlds)
        for operation in self.inputs.operations() if largest.nodes > fabric.largest() else ():
            algorithm = fabric.algorithm(operation, self.inputs.gradient_bytes, largest)
            if isinstance(fitted := fabric.cost(operation, algorithm, largest), Cost):
                spread = fitted.spread
                source = f"as over the measured nodes, by as much a doubling, +- {spread.drift_error:.2g}"
                labels.append(Label(f"drift of {title(operation, algorithm)}", ASSUMED, source, round(spread.drift, 4)))
        if known := sum(1 for seconds in self._alone if seconds):
            source = f"{known} session{'s' * (known > 1)}, over the same collectives alone"
            labels.append(Label("reductions beside compute", MEASURED, source, self._load))
        else:
            source = "as fast as alone: no collectives were measured on the ranks of the session"
            labels.append(Label("reductions beside compute", ASSUMED, source, 1.0))
        if not 1 / MAX_LOAD <= self._load <= MAX_LOAD:
            self.inputs.notes.append(
                f"reductions took {self._load:.2g} times as long in the training as hvd_bench coll promises: were both "
                "measured on the same machine, as busy as before?"
            )
        if {world for world in worlds if world.ranks > 1} - {session.world for session in self.inputs.sessions}:
            source = "half of the draws: as measured; half: in proportion to the rate of the reductions"
            labels.append(Label("slowdown by overlap on other worlds", ASSUMED, source))
            labels.append(Label("reductions beside compute on other worlds", ASSUMED, "as on those of the sessions"))
        return labels
