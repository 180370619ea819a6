"""Measures pairs of equal sides, and pairs whose side B is slower by a known fraction, for a given time.

A round has several pairs of each cell with equal sides and one pair for each level of slowdown, so that all pairs of a
round see one state of the machine. A slowdown is a longer update in a recorded step. Nothing overlaps with the update,
because backward and the engine's thread are done before the update begins.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdb import edge, gate, side_command, thresholds, verdict
from hvdb.errors import HvdbError
from hvdb.gate_plan import Plan, order
from hvdb.thresholds import Thresholds

LEVELS = (0.01, 0.02, 0.03, 0.05, 0.10)
PAIRS = 12
TIMEOUT_SECONDS = 120.0
# Pairs of equal sides per round: for the replayed cell, and for the cell that really computes, which takes longer.
REPLAYED, COMPUTED = 6, 1
REPLAY_FILE = "step.txt"
REPLAY = f"--replay {REPLAY_FILE} --model resnet101 --ranks 2 --replay-shrink 16 --num-warmup-batches 2 --num-iters 14"
SMALL = "--model resnet50 --image-size 32 --batch-size 1 --classes 10 --threads 1 --num-warmup-batches 2 --num-iters 12"


@dataclass(frozen=True)
class Source:
    """Pairs with one plan. pairs: cell -> number of its pairs in one round."""

    plan: Plan
    store: Path
    pairs: Mapping[str, int]


def slow_replay(level: float) -> str:
    """Returns the file name of the recorded step with a slowdown of `level`."""
    return f"step-plus-{100 * level:.0f}.txt"


def slow_store(level: float) -> str:
    """Returns the name of the store for sides that differ by `level`, without its extension."""
    return f"plus-{100 * level:.0f}"


def write_replays(recorded: Path, folder: Path) -> None:
    """Writes the step in `recorded` into `folder`, and a slower copy for each of LEVELS.

    Errors: HvdbError if the file is not a recorded step; OSError.
    """
    lines = recorded.read_text(encoding="utf-8").splitlines()
    try:
        start = lines.index("hvd-replay 1")
        values = dict(line.split(" ", 1) for line in lines[start + 1 :])
        backward, update = float(values["backward_end_seconds"]), float(values["update_seconds"])
    except (ValueError, KeyError) as error:
        raise HvdbError(f"{recorded}: is not a recorded step ({error!r}); see hvd_bench --record-replay") from None
    step = float(values["forward_seconds"]) + backward + update
    for name, longer in ((REPLAY_FILE, 0.0), *((slow_replay(level), level * step) for level in LEVELS)):
        changed = [
            f"update_seconds {update + longer!r}" if line.startswith("update_seconds ") else line
            for line in lines[start:]
        ]
        (folder / name).write_text("\n".join(changed) + "\n", encoding="utf-8")


def sources(folder: Path, slowed: bool) -> list[Source]:
    """Returns the pairs of a round. slowed: include pairs of different sides, besides pairs of equal sides."""

    def source(name: str, b: str, pairs: Mapping[str, int]) -> Source:
        plan = Plan(
            a="",
            b=b,
            launch="",
            cells={cell: {"replay": REPLAY, "small": SMALL}[cell] for cell in pairs},
            thresholds=Thresholds(thresholds.DEFAULT, ()),
            looks=verdict.plan_looks(1, PAIRS),
            seconds=60.0,
            seed=1,
        )
        return Source(plan, folder / f"{name}.db", pairs)

    equal = source("equal", "", {"replay": REPLAYED, "small": COMPUTED})
    slow = [source(slow_store(level), f"--replay {slow_replay(level)}", {"replay": 1}) for level in LEVELS]
    return [equal, *slow] if slowed else [equal]


def collect(
    program: Path, folder: Path, seconds: float, slowed: bool = True, clock: Callable[[], float] = time.monotonic
) -> int:
    """Measures whole rounds in `folder`, where the recorded steps are, for `seconds`. Returns the number of rounds.

    Adds to existing stores. Errors: HvdbError if a run fails or another process uses a store.
    """
    program = program.absolute()
    begun, rounds = clock(), 0
    made = sources(folder, slowed)
    following = {source.store: gate.measured(source.store, source.plan)[1] for source in made}
    programs = dict.fromkeys("ab", program)
    with gate.locked(made[0].store) as lock:
        benches = []
        for source in made:
            parsed = {side: side_command.parse(text, side) for side, text in (("a", ""), ("b", source.plan.b))}
            benches.append(gate.Bench(source.plan, parsed, programs, (), source.store, folder, TIMEOUT_SECONDS, lock))
        while clock() - begun < seconds:
            for source, bench in zip(made, benches, strict=True):
                for turn in range(max(source.pairs.values())):
                    number = following[source.store]
                    for cell in (cell for cell, pairs in source.pairs.items() if turn < pairs):
                        for side in order(source.plan, number):
                            gate.run_side(bench, cell, side, number)
                    following[source.store] += 1
            rounds += 1
            edge.tell("gate_proof", f"{rounds} rounds in {clock() - begun:.0f} of {seconds:.0f} s", sys.stderr)
    return rounds
