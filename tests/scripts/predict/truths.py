"""Clusters whose truth is known, what 2, 3 and 4 of their nodes would have measured, and how often the bands of predict
hold the true step.

    a truth ──► simulated with its true costs ──► the true median step on 4, 8 and 64 nodes ──┐
       └──────► samples of coll and of training on at most 4 nodes ──► predict ──► bands ─────┴──► inside or not

Both sides use `hvd_bench simulate`, so this tests what predict derives from samples, and not whether the simulator is
like a real network. Run it for the figures of many truths:

    PYTHONPATH=tests/scripts HVD_BENCH=.../hvd_bench python tests/scripts/predict/truths.py --truths 300
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import synthetic_store  # noqa: F401 (finds hvdb)

from hvdb.base.interval import Interval
from hvdb.predict import draws
from hvdb.predict.collective import DRIFT, CollectiveTimes
from hvdb.predict.draws import Predictor
from hvdb.predict.fabric import Fabric
from hvdb.predict.inputs import Inputs, Training
from hvdb.predict.schedule import MIB, NEGOTIATED, SHARDED, STATIC, Schedule
from hvdb.predict.steps import BARRIER, World, steps
from hvdb.read import replay_profile
from hvdb.read.runs import Fact, Run

PROGRAM = os.environ.get("HVD_BENCH", "hvd_bench")
MEASURED = (2, 3, 4)  # nodes with one rank each; training is on the last
PREDICTED = (4, 8, 64)
SMALL_BYTES = 32 << 10  # Thresholds of engine/base/thresholds.h
SIZES = [1 << k for k in range(10, 28)]
TRUE_STEPS = 2000
FAR = (4 * draws.ALONE_SPREAD, 4 * draws.EFFICIENCY_SPREAD)
ORDER = (STATIC, SHARDED, NEGOTIATED)


@dataclass(frozen=True)
class Errors:
    """How large the errors of the truths are: standard deviations of logarithms.

    drift: of a step between nodes, for each doubling of the nodes. spread: the largest one between worlds. nodes: the
    largest one between the speeds of nodes. sessions: from session to session, of the time of one rank, and of the
    efficiency and the collectives.
    """

    drift: float = DRIFT
    spread: float = 0.04
    nodes: float = 0.01
    sessions: tuple[float, float] = (draws.ALONE_SPREAD, draws.EFFICIENCY_SPREAD)
    count: tuple[int, ...] = (1, 2)  # sessions, of training and of collectives
    samples: tuple[int, ...] = (10, 20, 40)  # of a collective in a session
    steps: tuple[int, int] = (40, 100)  # of a session, from and below


# The first kind has only errors that the band knows.
KINDS = {
    "known": Errors(),
    "drift twice that of the prior": Errors(drift=2 * DRIFT),
    "nodes up to 3 % apart": Errors(nodes=0.03),
    "one sample of each collective": Errors(count=(1,), samples=(1,)),
    "one session, sessions 4 times as far apart": Errors(sessions=FAR, count=(1,)),
    "six sessions, sessions 4 times as far apart": Errors(sessions=FAR, count=(6,)),
}


@dataclass
class Truth:
    """A cluster and a training on it. Times in seconds."""

    random: np.random.Generator
    errors: Errors
    schedule: Schedule
    folder: Path
    factors: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = self.random.uniform
        elements = np.exp(draw(math.log(4e3), math.log(1e6), self.random.integers(8, 30))).astype(int)
        self.total = int(4 * elements.sum())
        self.backward, self.update = draw(0.05, 1.0), draw(0.001, 0.05)
        times = np.sort(draw(0.3, 1.0, len(elements))) * self.backward
        times[-1] = self.backward
        header = "model truth\nunit images\nunits_per_step 8\ndevice a test\ncompute_type fp32\nsource_run none\n"
        header += f"backward_end_seconds {self.backward:.9g}\nupdate_seconds {self.update:.9g}"
        lines = [f"gradient {n} {t:.9g} {t:.9g} g{k}" for k, (n, t) in enumerate(zip(elements, times, strict=True))]
        self.profile = self.folder / "truth.replay"
        text = "\n".join(["hvd-replay 2", header, *lines, f"end {len(lines)}", ""])
        self.profile.write_text(text, encoding="utf-8")
        # h: a latency, a rate with which 4 nodes reduce all in 0.1 to 1.5 of backward, and a bump over some sizes.
        self.latency = math.exp(draw(math.log(5e-6), math.log(1e-3)))
        self.a_byte = self.backward * math.exp(draw(math.log(0.1), math.log(1.5))) / (1.5 * self.total)
        self.bump, self.bump_at = draw(0, 0.3), draw(math.log(1e3), math.log(4e6))
        self.drift = self.random.normal(0, self.errors.drift)
        self.spread = draw(0, self.errors.spread)
        self.jitter, self.stalls = draw(0.01, 0.1), self.random.choice([0.0, 0.03])
        self.load, self.interference, self.slowdown = draw(1, 1.3), draw(1, 1.15), draw(0, 0.15)
        self.scales, self.common = self.random.random(2) < 0.5
        self.noise, self.correlation, self.spells = draw(0.003, 0.03), draw(0, 0.9), draw(0, 0.01)
        self.levels = np.exp(self.random.normal(0, draw(0, self.errors.nodes), max(PREDICTED)))
        self.sessions = int(self.random.choice(self.errors.count))

    def session_factors(self) -> np.ndarray:
        """Returns those of a new session: of the time of one rank, and of everything that needs others."""
        return np.exp(self.random.normal(0, self.errors.sessions))

    def correlated(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        """Returns series along the last axis whose values have this deviation and hang together."""
        steps = self.random.standard_normal(shape)
        for k in range(1, shape[-1]):
            innovation = math.sqrt(1 - self.correlation**2) * steps[..., k]
            steps[..., k] = self.correlation * steps[..., k - 1] + innovation
        return deviation * steps

    def pace(self, nodes: int, steps: int) -> np.ndarray:
        """Returns compute times over the typical one, (nodes, steps)."""
        series = self.correlated((1 if self.common else nodes, steps), self.noise)
        return self.levels[:nodes, None] * np.exp(series)

    def seconds(self, operation: str, algorithm: str, nodes: int, size: float) -> float:
        """Returns the time of a collective alone."""
        form = steps(operation, algorithm, World(nodes))
        key = (operation, algorithm, nodes)
        if key not in self.factors:
            self.factors[key] = math.exp(self.drift * math.log2(nodes) + self.random.normal(0, self.spread))
        at = size * form.share
        bump = 1 + self.bump * math.exp(-((math.log(max(at, 1.0)) - self.bump_at) ** 2) / 4)
        hidden = form.hidden * self.latency
        return (form.count * (self.latency + self.a_byte * at * bump) - hidden) * self.factors[key]

    def jitters(self, count: int) -> np.ndarray:
        stalled = self.random.random(count) < self.stalls
        return np.exp(self.random.normal(0, self.jitter, count)) + stalled * self.random.exponential(1.0, count)

    def costs(self, nodes: int, factor: float = 1.0) -> list[str]:
        """Returns the true costs of a draw."""
        lines = ["draw"]
        factors = " ".join(f"{x:.4g}" for x in self.jitters(200))
        for operation in self.schedule.operations():
            for size in sorted({s for s in SIZES if s < self.total} | {SMALL_BYTES + 1, self.total}):
                small = size <= SMALL_BYTES and operation == "all_reduce"
                alone = self.seconds(operation, "doubling" if small else "ring", nodes, size)
                lines.append(f"{operation} {size} {self.load * factor * alone:.6g} {factors}")
        if self.schedule.name == NEGOTIATED:
            lines.append(f"cycle {self.seconds(BARRIER, '', nodes, 0):.6g}")
        return [*lines, f"slowdown {self.slowdown_on(nodes):.6g}"]

    def slowdown_on(self, nodes: int) -> float:
        whole = [
            sum(self.seconds(operation, "ring", n, self.total) for operation in self.schedule.operations())
            for n in (MEASURED[-1], nodes)
        ]
        return min(1.0, self.slowdown * whole[0] / whole[1]) if self.scales else self.slowdown

    def simulate(self, nodes: int, pace: np.ndarray, steps: int, each: list[list[str]]) -> list[dict]:
        """Returns the result of each draw. All nodes play `pace` together, from any step on."""
        lines = ["hvd-costs 2", f"seed {self.random.integers(1 << 30)}", f"steps {steps}", f"block {pace.shape[1]}"]
        lines += ["device host", f"align {draws.SLOT_ELEMENTS}", "node"]
        lines += [" ".join(["rank", *(f"{x:.5g}" for x in series)]) for series in pace]
        lines += [f"world {nodes} {nodes}", *(line for one in each for line in one), "end 1", ""]
        words = [PROGRAM, "simulate", "--replay", str(self.profile), "--costs", "-", *self.schedule.options()]
        done = subprocess.run(words, input="\n".join(lines), capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def step(self, nodes: int) -> float:
        """Returns the true median step in a new session."""
        draw = [*self.costs(nodes), f"compute {self.interference:.6g}"]
        found = self.simulate(nodes, self.pace(nodes, TRUE_STEPS), TRUE_STEPS, [draw])[0]["step"]
        return found * float(np.prod(self.session_factors()))

    def training(self) -> Training:
        """Returns what a session on the largest of the measured worlds would have stored."""
        nodes, steps = MEASURED[-1], int(self.random.integers(*self.errors.steps))
        compute, together = self.session_factors()
        spell = np.exp(self.correlated((steps,), self.spells)) * compute
        alone = self.pace(1, steps)[0] * spell
        none, full = (self.pace(nodes, steps) for _ in range(2))
        costs, crowd = self.costs(nodes, compute * together), self.interference * together * spell
        found = self.simulate(nodes, full, 1, [[*costs, f"compute {x:.6g}"] for x in crowd])
        none, full = none * crowd, full * crowd
        overlapped, exposed = (np.array([result[key] for result in found]) for key in ("overlapped", "exposed"))
        facts = {"engine.bucket_bytes": Fact(str(self.schedule.bucket_bytes), True)}
        columns = {"uuid": "0" * 32, "device": "cpu", "schedule": self.schedule.name, "plan_hash": ""}
        columns |= {"allreduce_type": "fp32", "step_seconds": float(np.median([result["step"] for result in found]))}
        columns |= dict.fromkeys(("step_seconds_low", "step_seconds_high"))
        run = Run(columns, {}, Path("truth.db"), facts)
        return Training(
            solo=run,
            full=run,
            world=World(nodes),
            hosts=tuple((rank,) for rank in range(nodes)),
            solo_step=(self.backward + self.update) * alone,
            solo_compute=self.backward * alone,
            none_step=(self.backward + self.update) * none,
            none_compute=self.backward * none,
            full_compute=self.backward * full + self.slowdown * overlapped,
            reduce=overlapped + exposed,
            busy=overlapped + exposed,
            exposed=exposed,
        )

    def fabric(self) -> Fabric:
        """Returns what `hvd_bench coll` would have measured."""
        made = Fabric("auto", "ring over mpi")
        count = int(self.random.choice(self.errors.samples))
        measured = [(operation, "ring", SIZES) for operation in self.schedule.operations()]
        if self.schedule.name != SHARDED:
            small = [size for size in SIZES if size <= SMALL_BYTES]
            measured = [("all_reduce", "ring", SIZES[len(small) :]), ("all_reduce", "doubling", small)]
        measured.append((BARRIER, "", [0]))
        for session in range(self.sessions):
            for nodes in MEASURED:
                factor = self.session_factors()[1]
                for operation, algorithm, sizes in measured:
                    for size in sizes:
                        true = factor * self.seconds(operation, algorithm, nodes, size)
                        cell = CollectiveTimes(World(nodes), size, true * self.jitters(count), f"{session} {nodes}")
                        made.cells.setdefault((operation, algorithm), []).append(cell)
        return made

    def inputs(self) -> Inputs:
        sessions = [self.training() for _ in range(self.sessions)]
        fabric = self.fabric()
        return Inputs(replay_profile.read(self.profile), sessions, [], fabric, self.schedule, 0.0, (0.0, 0.0), [], [])


def truth(seed: int, number: int, errors: Errors, folder: Path) -> Truth:
    """Returns one of any number of truths. Equal arguments, equal truth."""
    random = np.random.default_rng([seed, number])
    bucket, threshold = (int(2 ** random.uniform(-2, 5) * MIB) for _ in range(2))
    return Truth(random, errors, Schedule(ORDER[number % 3], "fp32", bucket, threshold, 1024), folder)


def bands(one: Truth, count: int, steps: int) -> list[Interval]:
    """Returns the predicted bands of PREDICTED, from `count` draws of `steps` steps."""
    with mock.patch.object(draws, "STEPS", steps):
        made = one.inputs()
        predictor = Predictor(made, Path(PROGRAM), 1, count)
        return [draws.band(predictor.outcome(made, World(nodes)).step) for nodes in PREDICTED]


@dataclass
class Outcome:
    """true: steps, [truth, world of PREDICTED]. low, middle, high: of the bands, likewise."""

    true: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray

    @property
    def side(self) -> np.ndarray:
        """-1: the truth lies below the band, 0: inside, 1: above."""
        return (self.true > self.high).astype(int) - (self.true < self.low)

    @property
    def width(self) -> np.ndarray:
        return (self.high - self.low) / self.true

    @property
    def error(self) -> np.ndarray:
        return self.middle / self.true - 1

    def halved(self) -> Outcome:
        """Returns what bands of half the width would have done."""
        return Outcome(self.true, (self.low + self.middle) / 2, self.middle, (self.middle + self.high) / 2)


def outcome(seed: int, numbers: Sequence[int], errors: Errors, count: int, steps: int) -> Outcome:
    """Returns how the bands of these truths do."""
    found = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            one = truth(seed, number, errors, Path(folder))
            made = bands(one, count, steps)
            true = [one.step(nodes) for nodes in PREDICTED]
        found.append([(t, b.low, b.value, b.high) for t, b in zip(true, made, strict=True)])
    return Outcome(*np.moveaxis(np.array(found), 2, 0))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--truths", type=int, default=300)
    made.add_argument("--seed", type=int, default=20261126)
    made.add_argument("--draws", type=int, default=100)
    made.add_argument("--steps", type=int, default=60)
    made.add_argument("--kind", choices=KINDS, action="append")
    given = made.parse_args()
    print(f"{given.truths} truths of each kind, seed {given.seed}, {given.draws} draws of {given.steps} steps")
    for kind in given.kind or KINDS:
        found = outcome(given.seed, range(given.truths), KINDS[kind], given.draws, given.steps)
        for name, rows in (("all", slice(None)), *((name, slice(k, None, 3)) for k, name in enumerate(ORDER))):
            for column, nodes in enumerate(PREDICTED):
                side, width, error = (part[rows, column] for part in (found.side, found.width, found.error))
                print(
                    f"{kind}; {name}; {nodes} nodes: inside {np.mean(side == 0):.1%}, below {np.mean(side < 0):.1%}, "
                    f"above {np.mean(side > 0):.1%}; width median {np.median(width):.1%}, 9 of 10 "
                    f"{np.quantile(width, 0.9):.1%}; error median {np.median(np.abs(error)):.1%}, 9 of 10 "
                    f"{np.quantile(np.abs(error), 0.9):.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
