"""The systems that runs were measured on, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb import comparable
from hvdb.comparable import CURVE_COLUMNS, Difference
from hvdb.errors import HvdbError
from hvdb.runs import Run

# Facts that make a machine: runs that differ in one of them are of two systems, and are never pooled.
MACHINE_FACTS = ("cpu.model", "cpu.sockets", "cpu.cores", "gpu.name", "os.machine")
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class System:
    """Runs of one kind of machine. letter: names it beside others."""

    letter: str
    runs: list[Run]

    @property
    def machine(self) -> str:
        """Its processor and its GPU, as far as the store says."""
        run = self.runs[0]
        cores = run.fact("cpu.cores")
        words = [run.fact("cpu.model"), f"{cores} cores" if cores else "", run.fact("gpu.name")]
        return ", ".join(word for word in words if word) or "a machine that the store does not describe"


def of(runs: Sequence[Run]) -> list[System]:
    """The systems of `runs`, by first appearance. Errors: HvdbError if they are more than a report can name."""
    by_machine: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_machine.setdefault(tuple(run.fact(key) for key in MACHINE_FACTS), []).append(run)
    if len(by_machine) > len(LETTERS):
        raise HvdbError(
            f"the runs are of {len(by_machine)} systems, and {len(LETTERS)} is the most: report fewer runs at a time"
            " (--model, --run)"
        )
    return [System(letter, members) for letter, members in zip(LETTERS, by_machine.values(), strict=False)]


def alike(first: System, second: System) -> tuple[Run, Run]:
    """A run of each, as alike as there are: of one configuration, phase and number of ranks if both have one."""

    def key(run: Run, columns: Sequence[str]) -> tuple:
        return tuple(run.columns[name] for name in columns)

    for columns in ((*CURVE_COLUMNS, "phase", "world_size"), ("model", "phase"), ("phase",)):
        others = {key(run, columns): run for run in second.runs}
        for run in first.runs:
            if other := others.get(key(run, columns)):
                return run, other
    return first.runs[0], second.runs[0]


def differences(first: System, second: System) -> tuple[Run, Run, list[Difference]]:
    """The two runs that are compared, and what they do not share: configuration, then facts."""
    one, other = alike(first, second)
    found = comparable.configuration_differences(one, other) + comparable.differences(one, other)
    return one, other, found
