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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdb.base import strict_json
from hvdb.base.errors import HvdbError, TooLittle
from hvdb.predict.cost import World, nodes_text
from hvdb.predict.fabric import BARRIER
from hvdb.predict.inputs import ASSUMED, BLOCK, MAX_NODES, MAX_STEPS, MEASURED, Figures, Inputs, Label, require_plan

DRAWS, STEPS = 200, 20
BAND = (5.0, 50.0, 95.0)  # percentiles
PARTS = ("exposed", "stragglers", "control", "slowed")
# Group of inputs that is drawn together -> what makes its part of the band smaller.
GROUPS = {
    "collectives": "results of hvd_bench coll from more worlds, or with more samples",
    "compute": "a longer session, or several (interference, and the time of one rank)",
    "overlap": "a longer session, or several (slowdown by overlap, and reductions beside compute)",
    "steps": "more steps of each session, on more nodes (noise)",
}
_TIMEOUT_SECONDS = 1800.0
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
    """The prediction for one world. step: seconds. efficiency, parts: fractions; parts are medians, of the step."""

    world: World
    step: Band
    efficiency: Band
    parts: dict[str, float]
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


@dataclass(frozen=True)
class _Draw:
    number: int
    figures: Figures
    load: float
    slowdown_scales: bool  # with the bytes that reductions move in a second
    common_steps: bool


class Predictor:
    """Predicts worlds from one set of inputs. `program`: hvd_bench."""

    def __init__(self, inputs: Inputs, program: Path, seed: int, draws: int = DRAWS, steps: int = STEPS) -> None:
        self.inputs, self.program = inputs, program
        self.seed, self.draws, self.steps = seed, draws, steps
        self._middle = inputs.middle()
        self._loads = self._expected_reductions()
        known = [s.figures().reduce / e for s, e in zip(inputs.sessions, self._loads, strict=True) if e]
        self._load = float(np.median(known)) if known else 1.0

    def predict(self, worlds: Sequence[World], explain: bool = True) -> Prediction:
        """Returns rows in the order of `worlds`. explain: also find out what would narrow the band of the last one.

        Errors: TooLittle if a world cannot be predicted from these inputs; NotComparable for another plan of buckets.
        """
        for world in worlds:
            self._require(world)
        many = [world for world in worlds if world.ranks > 1]
        rows = {world: row for world, (row, _) in zip(many, self._rows(many, frozenset()), strict=True)} if many else {}
        rows |= {world: self._alone(world) for world in worlds if world.ranks == 1}
        narrower = {}
        if explain and many:
            last = rows[many[-1]]
            for group in GROUPS:
                ((fixed, _),) = self._rows(many[-1:], frozenset([group]))
                narrower[group] = last.efficiency.width - fixed.efficiency.width
        return Prediction([rows[world] for world in worlds], narrower, self._labels(many))

    def _require(self, world: World) -> None:
        if world.ranks == 1:
            return
        if world.nodes > 1 and not any(
            cell.world.nodes > 1 for cells in self.inputs.fabric.cells.values() for cell in cells
        ):
            raise TooLittle(
                f"{world.ranks} ranks are {world.nodes} nodes, and these stores hold collectives of one node only, "
                "which say nothing about a network: run hvd_bench coll --db on 2, 3 and 4 nodes"
            )
        for operation in self.inputs.operations():
            self.inputs.fabric.sizes(operation, world, self.inputs.gradient_bytes)
        if self.inputs.base.schedule == "negotiated":
            self.inputs.fabric.cost(BARRIER, "", world)

    def _stream(self, draw: int, *names: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, draw, zlib.crc32(" ".join(names).encode())])

    def _draw(self, number: int, fixed: AbstractSet[str]) -> _Draw:
        """Returns the figures of a session that is drawn, each group from blocks of its own."""
        chosen = int(self._stream(number, "session").integers(len(self.inputs.sessions)))
        session, expected = self.inputs.sessions[chosen], self._loads[chosen]
        compute = self._middle if "compute" in fixed else session.figures(self._stream(number, "compute"))
        overlap = self._middle if "overlap" in fixed else session.figures(self._stream(number, "overlap"))
        load = self._load if "overlap" in fixed or not expected else overlap.reduce / expected
        forms = self._stream(number, "forms").random(2)
        return _Draw(
            number,
            Figures(compute.compute, compute.alone, overlap.slowdown, overlap.reduce),
            load,
            slowdown_scales="overlap" not in fixed and forms[0] < 0.5,
            common_steps=forms[1] < 0.5,
        )

    def _seconds(self, operation: str, size: float, world: World, draw: _Draw | None, fixed: AbstractSet[str]) -> float:
        """Returns the time of a collective alone in this draw, or in the middle of all draws."""
        fabric = self.inputs.fabric
        algorithm = "" if operation == BARRIER else fabric.algorithm(operation, size, world)
        source = fabric.cost(operation, algorithm, world)
        number = -1 if draw is None or "collectives" in fixed else draw.number
        key = (id(source), number)
        if key not in self._drawn:
            if number < 0:
                self._drawn[key] = source.middle()
            else:
                where = str(world) if world.nodes == 1 else ""
                self._drawn[key] = source.draw(self._stream(number, "collectives", operation, algorithm, where))
        return self._drawn[key].seconds(world, size)

    def _costs_of(self, world: World, draw: _Draw | None, fixed: AbstractSet[str]) -> list[str]:
        """Returns the lines of one draw. Without `draw`: of the middle, without noise."""
        inputs = self.inputs
        total = inputs.gradient_bytes
        load = draw.load if draw else 1.0
        lines = ["draw"]
        for operation in inputs.operations():
            random = self._stream(draw.number, "jitter", operation, str(world)) if draw else None
            for size in inputs.fabric.sizes(operation, world, total):
                seconds = load * self._seconds(operation, size, world, draw, fixed)
                factors = []
                if random is not None and "steps" not in fixed:
                    factors = inputs.fabric.jitter(operation, world, size, random)
                lines.append(" ".join([operation, str(size), f"{seconds:.6g}", *(f"{x:.4g}" for x in factors)]))
        if inputs.base.schedule == "negotiated":
            lines.append(f"cycle {self._seconds(BARRIER, 0, world, draw, fixed):.6g}")
            lines.append(f"copy {inputs.copy:.6g}")
        figures = draw.figures if draw else self._middle
        slowdown = figures.slowdown
        if draw and draw.slowdown_scales and world != inputs.sessions[0].world and self._loads[0]:
            first, *_ = inputs.operations()
            base = self._seconds(first, total, inputs.sessions[0].world, None, fixed)
            slowdown = min(1.0, slowdown * base / self._seconds(first, total, world, None, fixed))
        lines += [f"slowdown {slowdown:.6g}", f"compute {figures.compute:.6g}"]
        lines += [f"common {int(bool(draw and draw.common_steps))}", f"shift {inputs.late:.6g}"]
        return lines

    def _text(
        self, worlds: Sequence[World], draws: Sequence[_Draw | None], fixed: AbstractSet[str], noise: bool
    ) -> str:
        self._drawn: dict[tuple[int, int], Any] = {}
        device = "stream" if self.inputs.base.device == "cuda" else "host"
        lines = ["hvd-costs 1", f"seed {self.seed}", f"steps {self.steps}", f"block {BLOCK}", f"device {device}"]
        lines += ["pacing demand", f"align {SLOT_ELEMENTS if self.inputs.base.device == 'cpu' else 1}"]
        nodes = [node for session in self.inputs.sessions for node in session.noise()] if noise else []
        for node in nodes[:MAX_NODES]:
            lines.append("node")
            lines += [
                " ".join(["rank", *(f"{x:.5g}" for x in np.clip(series[:MAX_STEPS], *FACTORS))])
                for series in _even(node)
            ]
        for world in worlds:
            lines.append(f"world {world.ranks} {world.ranks_per_node}")
            for draw in draws:
                lines += self._costs_of(world, draw, fixed)
        return "\n".join([*lines, f"end {len(worlds)}", ""])

    def _simulate(self, text: str, expected: int) -> list[dict[str, Any]]:
        """Returns what the program prints for each draw. Errors: HvdbError."""
        words = [str(self.program), "simulate", "--replay", str(self.inputs.profile.file), "--costs", "-"]
        words += self.inputs.options
        try:
            done = subprocess.run(
                words, input=text.encode(), capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise HvdbError(f"{self.program} simulate took longer than {_TIMEOUT_SECONDS:.0f} s") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
            raise HvdbError(f"{self.program} simulate ended with exit code {done.returncode}: {said[-1]}")
        lines = done.stdout.decode(errors="replace").splitlines()
        try:
            if len(lines) != expected:
                raise strict_json.Malformed(f"{len(lines)} lines in place of {expected}")
            found = [strict_json.load(line, _MAX_LINE) for line in lines]
            for result in found:
                strict_json.above_zero(result.get("step"), math.inf, "step")
                for name in (*PARTS, "overlapped"):
                    if result.get(name) != 0:
                        strict_json.above_zero(result.get(name), math.inf, name)
        except strict_json.Malformed as error:
            raise HvdbError(f"{self.program} simulate printed something else than results: {error}") from error
        return found

    def _expected_reductions(self) -> list[float | None]:
        """Returns for each session the seconds that its reductions would take alone, by the collectives of its world;
        None if these were not measured."""
        known = []
        for session in self.inputs.sessions:
            try:
                self._require(session.world)
                known.append(session.world)
            except HvdbError:
                continue
        worlds = list(dict.fromkeys(known))
        if not worlds:
            return [None] * len(self.inputs.sessions)
        found = self._simulate(self._text(worlds, [None], frozenset(), noise=False), len(worlds))
        require_plan(self.inputs.base, found[0].get("plan_hash"))
        by_world = {w: r["overlapped"] + r["exposed"] for w, r in zip(worlds, found, strict=True)}
        return [by_world.get(session.world) for session in self.inputs.sessions]

    def _rows(self, worlds: Sequence[World], fixed: AbstractSet[str]) -> list[tuple[Row, np.ndarray]]:
        """Returns the row of each world, and the efficiency of its draws."""
        draws = [self._draw(number, fixed) for number in range(self.draws)]
        text = self._text(worlds, draws, fixed, noise="steps" not in fixed)
        found = self._simulate(text, len(worlds) * self.draws)
        require_plan(self.inputs.base, found[0].get("plan_hash"))
        alone = self.inputs.alone * np.array([draw.figures.alone for draw in draws])
        compute = self.inputs.alone * np.array([draw.figures.compute for draw in draws])
        rows = []
        for place, world in enumerate(worlds):
            own = found[place * self.draws : (place + 1) * self.draws]
            step = np.array([result["step"] for result in own])
            parts = {name: float(np.median(np.array([r[name] for r in own]) / step)) for name in PARTS}
            parts["interference"] = float(np.median((compute - alone) / step))
            rows.append((Row(world, band(step), band(alone / step), parts, self._row_notes(world)), alone / step))
        return rows

    def _alone(self, world: World) -> Row:
        alone = self.inputs.alone * np.array([self._draw(n, frozenset()).figures.alone for n in range(self.draws)])
        return Row(world, band(alone), Band(1.0, 1.0, 1.0), dict.fromkeys((*PARTS, "interference"), 0.0))

    def _row_notes(self, world: World) -> tuple[str, ...]:
        """Returns a line for each value of this world that lies outside of what was measured."""
        notes = []
        fabric, base = self.inputs.fabric, self.inputs.base
        size = min(self.inputs.gradient_bytes, int(base.number("engine.bucket_bytes") or self.inputs.gradient_bytes))
        for operation in self.inputs.operations():
            algorithm = fabric.algorithm(operation, size, world)
            if not fabric.cost(operation, algorithm, world).covers(world, size):
                notes.append(f"{operation} of {size} bytes by '{algorithm}' lies outside of the measured sizes")
        measured = max(cell.world.nodes for cells in fabric.cells.values() for cell in cells)
        if world.nodes > measured:
            notes.append(f"beyond the {measured} nodes on which collectives were measured")
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
                name = f"{operation} by '{algorithm}'" if algorithm else operation
                labels.append(Label(name, MEASURED, f"{len(cells)} cells on {where}"))
        if known := sum(1 for seconds in self._loads if seconds):
            source = f"{known} session{'s' * (known > 1)}, over the same collectives alone"
            labels.append(Label("reductions beside compute", MEASURED, source, self._load))
        else:
            source = "as fast as alone: no collectives were measured on the ranks of the session"
            labels.append(Label("reductions beside compute", ASSUMED, source, 1.0))
        if not 1 / MAX_LOAD <= self._load <= MAX_LOAD:
            self.inputs.notes.append(
                f"reductions took {self._load:.2g} times as long beside compute as alone: are the collectives of the "
                "same place as the training?"
            )
        if any(world not in {session.world for session in self.inputs.sessions} for world in worlds):
            source = "half of the draws: as measured; half: in proportion to the rate of the reductions"
            labels.append(Label("slowdown by overlap on other worlds", ASSUMED, source))
        return labels


def _even(node: Sequence[np.ndarray]) -> list[np.ndarray]:
    fewest = min(map(len, node))
    return [series[:fewest] for series in node]
