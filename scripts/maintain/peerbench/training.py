"""Drives training processes that take turns, and keeps what was measured.

A training process writes one line "ready TEXT", then answers each line of its standard input with one line:

    N      the seconds per step of N training steps: one number per step, or one mean
    loss   the loss of the last step

A process ends when its input ends. bench/micro/train_step_bench.cpp implements the protocol in C++, torch_trainer.py in
Python. Uses numpy only for intervals, because the Python of a GPU host may not have numpy.
"""

from __future__ import annotations

import json
import math
import os
import select
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from hvdb.base import whole_file
from hvdb.base.errors import HvdbError
from hvdb.base.process import end_with_parent

try:
    import numpy as np

    from hvdb.judge import exact
except ModuleNotFoundError:
    exact = None

ANSWER_SECONDS = 600.0
COLLAPSED = 1e-3  # fraction of the first loss; below it gradients vanish, and a GPU may run faster


class PeerError(RuntimeError):
    """A training process could not start, ended, or did not answer in time."""


class Server:
    """A training process that this program drives. A context manager, used by one thread.

    Errors: PeerError if the process cannot start or ends, or if it is late. log: takes the process's standard error;
    the error's text contains the last line that the process wrote there.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], start_seconds: float, log: Path
    ) -> None:
        self.name = name
        variables = {**os.environ, **environment}
        try:
            with log.open("ab") as errors:
                self._log, self._log_start = log, errors.tell()
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "bufsize": 0}
                self._process = subprocess.Popen(command, env=variables, preexec_fn=end_with_parent, **pipes)
        except OSError as error:
            raise PeerError(f"{name} cannot be started: {error}") from error
        self.description = self._line(start_seconds).removeprefix("ready ")

    def _line(self, seconds: float) -> str:
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self._end(kill=True)
            raise PeerError(f"{self.name} gave no answer in {seconds:.0f} s")
        line = self._process.stdout.readline()  # each answer is written as a whole
        if not line.endswith(b"\n"):
            raise self._ended()
        return line.decode(errors="replace").strip()

    def _ask(self, question: object) -> list[float]:
        try:
            self._process.stdin.write(f"{question}\n".encode())
        except (BrokenPipeError, ValueError):  # the process has ended
            raise self._ended() from None
        return [float(word) for word in self._line(ANSWER_SECONDS).split()]

    def steps(self, count: int) -> float:
        """Trains `count` steps. Returns the mean seconds per step."""
        return statistics.fmean(self._ask(count))

    def run_alone(self, seconds: float) -> None:
        """Trains for about `seconds`. Sets `first_loss` and `seconds_per_step`."""
        self.first_loss = self.loss()
        self.seconds_per_step = self.steps(steps_for(seconds, self.steps(2)))

    def loss(self) -> float | None:
        """Returns the loss of the last step; None if it is not finite."""
        loss = self._ask("loss")[0]
        return loss if math.isfinite(loss) else None

    def _ended(self) -> PeerError:
        code = self._end(kill=False)
        text = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return PeerError(f"{self.name} ended with exit code {code}{''.join(f': {s[:300]}' for s in lines[-1:])}")

    def _end(self, kill: bool) -> int:
        """Closes the process's input. Kills the process at once, or if it does not end within a minute. Returns its
        exit code."""
        if kill:
            self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            return self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kill=kind is not None)  # after an error, the process may be busy for minutes


@dataclass
class Side:
    """One side of the turns. seconds_per_step: a mean per turn. begins: of the turns, in Unix time."""

    name: str
    description: str
    batch: int
    first_loss: float | None
    last_loss: float | None
    seconds_per_step: list[float]
    begins: list[float] = field(default_factory=list)

    def images_per_second(self) -> float:
        """Returns the images per second, from the median of the turns."""
        return self.batch / statistics.median(self.seconds_per_step)

    def trouble(self) -> str:
        """Returns why these turns do not count: a loss is not finite or has collapsed. "" if they count."""
        first, last = self.first_loss, self.last_loss
        if first is None or last is None:
            return f"{self.name}: the {'first' if first is None else 'last'} loss is not finite"
        if abs(last) < COLLAPSED * abs(first):
            return f"{self.name}: the loss collapsed from {first:.3g} to {last:.3g}: its steps are no longer comparable"
        return ""


def steps_for(seconds: float, per_step: float) -> int:
    """Returns how many steps take about `seconds`."""
    return max(1, min(1000, round(seconds / per_step)))


def take_turns(servers: Sequence[Server], turns: int, seconds: float, batch: int) -> list[Side]:
    """Takes turns A B, B A, A B, ... of about `seconds` each. Returns the servers' sides. Call after run_alone()."""
    sides = [Side(server.name, server.description, batch, server.first_loss, None, []) for server in servers]
    steps = [steps_for(seconds, server.seconds_per_step) for server in servers]
    for turn in range(turns):
        for i in range(len(servers)) if turn % 2 == 0 else reversed(range(len(servers))):
            sides[i].begins.append(time.time())
            sides[i].seconds_per_step.append(servers[i].steps(steps[i]))
    for side, server in zip(sides, servers, strict=True):
        side.last_loss = server.loss()
    return sides


class Estimate(NamedTuple):
    """A value and its 95 % interval. low, high: None with too few values for an interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def named(self, name: str) -> dict[str, float | None]:
        """Returns the fields for JSON, the value as `name`."""
        return {name: self.value, "low": self.low, "high": self.high}

    def text(self) -> str:
        """Returns the value and its interval as text."""
        interval = "(no interval)" if self.low is None else f"[{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f} {interval}"


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the Hodges-Lehmann estimate of values above 0, with its exact interval from six values on
    (hvdb.judge.exact). Needs numpy."""
    effect = exact.paired_effect(np.log(np.asarray(values)), 0.95)
    ends = (math.exp(effect.low), math.exp(effect.high)) if math.isfinite(effect.low) else (None, None)
    return Estimate(math.exp(effect.value), *ends)


def ratio_of(ours: Side, peer: Side) -> Estimate:
    """Returns speed of ours / speed of the peer over turns.

    The two sides' times of a turn form a pair, so that a disturbance of the machine hits both. Without numpy, returns
    the ratio of the medians, without an interval.
    """
    if exact is None:
        return Estimate(ours.images_per_second() / peer.images_per_second())
    pairs = zip(peer.seconds_per_step, ours.seconds_per_step, strict=True)
    return estimate([theirs / mine * ours.batch / peer.batch for theirs, mine in pairs])


@dataclass
class Row:
    """One network in one type. sides: ours, the peer, then other forms of ours; empty if it was not measured.

    variants: variant of the peer that ran -> images/s alone. missing: why others did not run. troubles: why the
    comparison broke off, or does not count.
    """

    model: str
    dtype: str
    threads: int = 0
    sides: list[Side] = field(default_factory=list)
    variants: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def ratio(self, side: int = 0) -> Estimate:
        """Returns the ratio of a side to the peer."""
        return ratio_of(self.sides[side], self.sides[1])

    def judge_losses(self) -> None:
        """Adds faults of the losses to `troubles`."""
        self.troubles += [text for side in self.sides if (text := side.trouble()) and text not in self.troubles]


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Replaces the file in one step. Errors: OSError."""
    plain = [{**asdict(row), "ratio": row.ratio().named("ratio") if row.sides else None} for row in rows]
    whole_file.write_text(file, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def read_rows(file: Path) -> list[Row]:
    """Reads the rows of a file. Errors: HvdbError if write_rows() did not write `file`; OSError."""
    try:
        rows = []
        for data in json.loads(file.read_text(encoding="utf-8")):
            if "best" in data:  # files from before 2026-11-26 have two sides and a list of variants
                sides = [data["best"][name] for name in ("ours", "peer")] if data["best"] else []
                ran = {variant["name"]: variant["img_s"] for variant in data["variants"] if variant["img_s"]}
                data = {**data, "sides": sides, "variants": ran, "missing": data["missing_variants"]}
            known = {key: data[key] for key in Row.__dataclass_fields__ if key in data}
            sides = [{key: side[key] for key in Side.__dataclass_fields__ if key in side} for side in data["sides"]]
            row = Row(**{**known, "sides": [Side(**side) for side in sides]})
            row.judge_losses()
            if row.sides:
                row.ratio()
            rows.append(row)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise HvdbError(f"{file}: was not written by 'peers torch-gpu' or 'peers torch': {error}") from error
    return rows
