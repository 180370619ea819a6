"""Drives the training processes of a comparison: both ends of the protocol, turns, and the ratio with its interval.

A training process writes one line "ready TEXT", then answers each line of its standard input with one line:

    N         the seconds per step of N training steps: one number per step, or one mean
    loss      the loss of the last step
    batch N   "ready TEXT" once it trains batches of N images, or "no REASON" (no memory)

A process ends when its input ends. bench/micro/train_step_bench.cpp implements the protocol in C++.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Protocol

# The lowest and highest of five values contain the median in 94 % of cases, so a 95 % interval needs six turns.
FEWEST_TURNS = 6
START_SECONDS = 600.0
ANSWER_SECONDS = 600.0


class PeerError(RuntimeError):
    """A training process ended or did not answer in time. code: its exit code; None if the process was late."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class Server:
    """A training process that this program drives. One thread.

    Errors: PeerError if the process ends, or if it is late and therefore killed. log: takes the process's standard
    error; the error's text contains the last line of the log.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
        log: IO[bytes] | None = None,
    ) -> None:
        self.name = name
        self._received = b""
        self._log = log
        self._log_start = os.fstat(log.fileno()).st_size if log else 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env={**os.environ, **(environment or {})},
            preexec_fn=end_with_parent,
        )
        self.description = self._line(start_seconds).removeprefix("ready ")

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                raise PeerError(f"{self.name} gave no answer in {seconds:.0f} s")
            block = self._process.stdout.read(1 << 16)
            if not block:
                raise self._ended()
            self._received += block
        line, self._received = self._received.split(b"\n", 1)
        return line.decode(errors="replace").strip()

    def _ask(self, question: str, seconds: float = ANSWER_SECONDS) -> str:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{question}\n".encode())
        except (BrokenPipeError, ValueError):  # the process has ended
            raise self._ended() from None
        return self._line(seconds)

    def steps(self, count: int) -> list[float]:
        """Returns the seconds per step of `count` steps: `count` numbers, or only their mean."""
        return [float(word) for word in self._ask(str(count)).split()]

    def loss(self) -> float:
        """Returns the loss of the last step."""
        return float(self._ask("loss"))

    def batch(self, images: int, seconds: float = START_SECONDS) -> str | None:
        """Makes the process train batches of `images` images from now on. Returns None, or the reason why it cannot."""
        answer = self._ask(f"batch {images}", seconds)
        if answer.startswith("no "):
            return answer.removeprefix("no ")
        self.description = answer.removeprefix("ready ")
        return None

    def _ended(self) -> PeerError:
        code, words = self._end(), self._last_words()
        return PeerError(f"{self.name} ended with exit code {code}{f': {words}' if words else ''}", code)

    def _last_words(self) -> str:
        """Returns the last line of the process's log; "" if there is no log."""
        if self._log is None:
            return ""
        with open(self._log.name, "rb") as log:  # noqa: PTH123  (the name is what it was opened with)
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _end(self) -> int:
        """Closes the process's input. Kills the process if it does not end within a minute. Returns its exit code."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            return self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Ends the process, at once if the process is not busy."""
        self._end()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the process may be busy for minutes
            self.kill()


def end_with_parent() -> None:
    """Makes the kernel send SIGTERM to the calling child if the comparison is killed (Linux). The end of its input
    alone would end the child only minutes later."""
    pr_set_pdeathsig = 1  # linux/prctl.h
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


class Trainer(Protocol):
    """The interface of a training process in Python that answer() uses."""

    description: str

    def steps(self, count: int) -> list[float]: ...
    def loss(self) -> float: ...
    def batch(self, images: int) -> str | None: ...


def answer(trainer: Trainer, questions: Iterable[str], out: IO[str]) -> None:
    """Answers the questions of the protocol in a training process until the questions end."""

    def say(text: str) -> None:
        out.write(text + "\n")
        out.flush()

    say(f"ready {trainer.description}")
    for line in questions:
        match line.split():
            case ["loss"]:
                say(repr(trainer.loss()))
            case ["batch", images]:
                refusal = trainer.batch(int(images))
                say(f"ready {trainer.description}" if refusal is None else f"no {' '.join(refusal.split())}")
            case [count]:
                say(" ".join(f"{seconds:.6f}" for seconds in trainer.steps(int(count))))
            case _:
                raise ValueError(f"not a question: {line!r}")


def take_turns(
    servers: list[Server],
    turns: int,
    steps: list[int],
    around: Callable[[str], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[list[float]]:
    """Returns the seconds per step of each server, in the order of the turns: A B, B A, A B, ... steps: how many
    steps a server runs in a turn. around: makes a context manager for each turn, from the name of the turn's server."""
    seconds: list[list[float]] = [[] for _ in servers]
    order = list(range(len(servers)))
    for turn in range(turns):
        for i in order if turn % 2 == 0 else reversed(order):
            with around(servers[i].name):
                seconds[i] += servers[i].steps(steps[i])
    return seconds


@dataclass
class Ratio:
    """ratio: speed of ours / speed of the peer. low, high: 95 % interval; None with too few turns."""

    ratio: float
    low: float | None
    high: float | None

    def interval_text(self) -> str:
        return "too few turns" if self.low is None else f"[{self.low:.2f}, {self.high:.2f}]"


def ratio_interval(
    ours: list[float], peer: list[float], turns: int, draws: int = 4000, seed: int = 1
) -> tuple[float | None, float | None]:
    """Returns the 95 % bootstrap interval of median(peer) / median(ours). ours, peer: seconds, in order of the turns.

    Resamples whole turns, both sides together, so that disturbances of a turn cancel. Returns (None, None) for fewer
    than FEWEST_TURNS turns.
    """
    if turns < FEWEST_TURNS:
        return None, None
    rng = random.Random(seed)

    def of_turns(seconds: list[float], drawn: list[int]) -> float:
        per_turn = len(seconds) // turns
        return statistics.median(s for turn in drawn for s in seconds[turn * per_turn : (turn + 1) * per_turn])

    ratios = []
    for _ in range(draws):
        drawn = rng.choices(range(turns), k=turns)
        ratios.append(of_turns(peer, drawn) / of_turns(ours, drawn))
    ratios.sort()
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def ratio_of(ours: list[float], peer: list[float], turns: int) -> Ratio:
    """Returns the ratio of the medians of two lists of seconds, with the ratio's interval."""
    return Ratio(statistics.median(peer) / statistics.median(ours), *ratio_interval(ours, peer, turns))
