"""Groups runs by the systems on which they were measured, and finds the differences between two systems.

Runs on different kinds of machines belong to different systems. Runs of one configuration that differ in another fact
that can change a result (a library, a commit, a variable) also belong to different systems. Runs of different systems
are never pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.base.errors import NotComparable
from hvdb.judge import comparable
from hvdb.judge.comparable import CURVE_COLUMNS, Difference
from hvdb.read.runs import Run, by_session, grouped

MACHINE_FACTS = ("cpu.model", "cpu.sockets", "cpu.cores", "gpu.name", "os.machine")
LETTERS = "ABCDEFGH"
# A session belongs to the system of its run with the latest phase, in this order of phases.
PHASES = ("solo", "none", "full")
SHOWN_FACTS = 3


@dataclass(frozen=True)
class System:
    """letter: the system's name. besides: names of the facts that distinguish systems, without MACHINE_FACTS."""

    letter: str
    runs: list[Run]
    besides: Sequence[str] = ()

    @property
    def description(self) -> str:
        """One line with the system's processor, GPU and distinguishing facts, as far as the store has them."""
        run = self.runs[-1]
        cores = run.fact("cpu.cores")
        machine = [run.fact("cpu.model"), f"{cores} cores" if cores else "", run.fact("gpu.name")]
        words = [word for word in machine if word] or ["a machine that the store does not describe"]
        words += [f"{key} {run.fact(key) or '(none)'}" for key in self.besides[:SHOWN_FACTS]]
        more = len(self.besides) - SHOWN_FACTS
        return ", ".join([*words, *([f"and {more} more"] if more > 0 else [])])


def _setting_apart(leads: Sequence[Run]) -> list[str]:
    """Returns the names of facts that can change a result and differ between runs of equal configuration and ranks.

    MACHINE_FACTS are left out.
    """
    first: dict[tuple, Run] = {}
    differing: set[str] = set()
    for lead in leads:
        other = first.setdefault(tuple(lead.columns[name] for name in (*CURVE_COLUMNS, "phase", "world_size")), lead)
        if lead.fingerprint != other.fingerprint:
            differing |= {d.key for d in comparable.differences(other, lead) if d.in_fingerprint}
    return sorted(differing - set(MACHINE_FACTS))


def of(runs: Sequence[Run], *, pooled: bool = False) -> list[System]:
    """Returns the systems of `runs` in the order of their first runs. If `pooled`, returns one system with all runs.

    Errors: NotComparable if there are more systems than a report can name.
    """
    leads = {uuid: max(own, key=lambda run: PHASES.index(run.phase)) for uuid, own in by_session(runs).items()}
    besides = [] if pooled else _setting_apart(list(leads.values()))
    keys = [] if pooled else [*MACHINE_FACTS, *besides]
    by_system = grouped(runs, lambda run: tuple(map(leads[run.session_uuid].fact, keys)))
    if len(by_system) > len(LETTERS):
        raise NotComparable(
            f"the runs are of {len(by_system)} systems that differ in {', '.join(besides[:6]) or 'their machines'}, "
            f"and {len(LETTERS)} is the most: report fewer runs at a time (--model, --run), or pool them all the same "
            "with --mix-fingerprints"
        )
    return [System(letter, members, besides) for letter, members in zip(LETTERS, by_system.values(), strict=False)]


def alike(first: System, second: System) -> tuple[Run, Run]:
    """Returns one run of each system. The two runs are as similar as possible in configuration, phase and ranks."""

    def key(run: Run, columns: Sequence[str]) -> tuple:
        return tuple(run.columns[name] for name in columns)

    for columns in ((*CURVE_COLUMNS, "phase", "world_size"), ("model", "phase"), ("phase",)):
        others = {key(run, columns): run for run in second.runs}
        for run in reversed(first.runs):
            if other := others.get(key(run, columns)):
                return run, other
    return first.runs[-1], second.runs[-1]


def differences(first: System, second: System) -> tuple[Run, Run, list[Difference]]:
    """Returns a run of each system, and the differences of the two runs: first the configuration, then facts."""
    run, other = alike(first, second)
    differing = comparable.configuration_differences(run, other) + comparable.differences(run, other)
    return run, other, differing
