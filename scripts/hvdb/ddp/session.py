"""The rounds of a session: rank 0 leads, the others follow."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from hvdb.base import progress
from hvdb.base.errors import HvdbError
from hvdb.ddp.ranks import Ranks, line, listed
from hvdb.ddp.steps import FULL, NONE, SOLO, State, Steps

MIN_ROUNDS, ROUNDS = 5, 30  # fewer give intervals that nobody should believe; more gain little
VISIT_SECONDS = {"cpu": 0.25, "cuda": 1.0}  # short, so that a slow spell of a host covers a whole round and cancels
MAX_VISIT = 100  # steps


class Told(BaseException):
    """SIGTERM came. torchrun sends it to all ranks when one of them ended."""


@dataclass
class Session:
    """Rank 0's side. hellos: what each rank said first. rounds: phase -> rank -> series -> values, of whole rounds."""

    ranks: Ranks
    steps: Steps
    state: State
    seconds: float
    hellos: list[dict[str, Any]]
    rounds: list[dict[str, list[dict[str, list[float]]]]] = field(default_factory=list)
    _begun: float = field(default_factory=time.monotonic)

    def visit(self, phase: str, steps: int, expected: float) -> list[dict[str, list[float]]]:
        """Returns the samples of the ranks that took part. Errors: HvdbError; Told."""
        about, key = f"in phase {phase}", f"visit/{self.ranks.orders}"
        others = [] if phase == SOLO else list(range(1, self.ranks.size))
        discard = 1 + self.steps.feed.queue
        patience = self.ranks.deadline + 10 * expected
        self.ranks.order(phase=phase, discard=discard, steps=steps, patience=patience)
        try:
            mine = _visit(self.steps, self.state, phase, discard, steps)
        except HvdbError:
            raise
        except Exception as error:
            # A peer that is lost makes the reduction of the others fail, too: who says nothing is the one.
            self.ranks.deadline = min(self.ranks.deadline, 10.0)
            self.ranks.all(key, others, about)
            raise HvdbError(f"rank 0 {about}: {line(error)}") from error
        return [mine, *(said["samples"] for said in self.ranks.all(key, others, about))]

    def run(self) -> None:
        """Measures rounds until enough are there, or the time is up. Errors: HvdbError; Told."""
        begun = time.monotonic()
        for phase in (FULL, NONE, SOLO):  # a first round warms up, and tells how long steps take
            self.visit(phase, 2, self.ranks.deadline)
        step = statistics.median(self.visit(FULL, 2, time.monotonic() - begun)[0]["step_seconds"])
        steps = max(1, min(MAX_VISIT, round(VISIT_SECONDS[self.steps.device.type] / step)))
        expected = step * (steps + 1 + self.steps.feed.queue)
        if (fit := int((self.seconds - (time.monotonic() - self._begun)) / (3 * expected))) < MIN_ROUNDS:
            steps, expected = 1, step * (2 + self.steps.feed.queue)
            fit = int((self.seconds - (time.monotonic() - self._begun)) / (3 * expected))
        if fit < 2:
            raise HvdbError(
                f"a step takes {step:.3g} s, so that two rounds do not fit into seconds={self.seconds:g}; give "
                f"seconds={math.ceil(6 * expected * MIN_ROUNDS):d} or more"
            )
        planned = min(ROUNDS, fit)
        with progress.shown(f"measuring {planned} rounds of {steps} steps", stream=sys.stderr) as shown:
            for number in range(planned):
                if number >= 2 and time.monotonic() - self._begun > self.seconds:
                    break
                self.rounds.append({phase: self.visit(phase, steps, expected) for phase in (SOLO, NONE, FULL)})
                shown(number + 1, planned)

    def ended(self) -> str:
        """Returns which ranks of this host have ended, after a SIGTERM: torchrun sends it when one of them has."""
        mine, gone = self.hellos[0]["host"], []
        for rank, one in enumerate(self.hellos):
            try:
                if one["host"] == mine:
                    os.kill(one["pid"], 0)
            except ProcessLookupError:
                gone.append(rank)
        return f"SIGTERM; {listed(gone)} had ended" if gone else "SIGTERM; no rank of rank 0's host had ended"


def _visit(steps: Steps, state: State, phase: str, discard: int, count: int) -> dict[str, list[float]]:
    state.weights()
    return steps.visit(phase, discard, count)


def follow(ranks: Ranks, steps: Steps, state: State) -> None:
    """The other ranks' side. Errors: HvdbError; whatever the user's code raises, which rank 0 is told."""
    patience = 5 * ranks.deadline
    while (order := ranks.next_order(patience)).get("end") != "":
        patience = order["patience"]
        if order["phase"] == SOLO:
            continue
        key = f"visit/{ranks.orders - 1}"
        try:
            samples = _visit(steps, state, order["phase"], order["discard"], order["steps"])
        except Exception as error:
            ranks.say(key, fault=line(error))
            raise
        ranks.say(key, samples=samples)
