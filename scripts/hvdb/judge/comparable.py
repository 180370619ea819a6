"""Decides which runs may be compared, and which may be pooled into one figure. Groups runs by system.

Runs on different kinds of machines belong to different systems. Runs of one configuration that differ in another fact
that can change a result (a library, a commit, a variable) also belong to different systems. Runs of different systems
are never pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdb.base.errors import NotComparable
from hvdb.read.runs import Run, by_session, grouped

# Two runs can be points of one scaling curve only if these columns are equal.
CURVE_COLUMNS = (
    "model",
    "batch_size",
    "image_size",
    "auxiliary_head",
    "device",
    "compute_type",
    "allreduce_type",
    "schedule",
    "comm",
    "threads",
    "origin",
    "traced",
)
# Names and beginnings of names of the facts that a person chooses by options and variables. The other facts of the
# fingerprint follow from the machine and its software.
_SETTINGS = ("comm.algorithm", "comm.segment_bytes", "compute.winograd", "data.labels")
_SETTINGS += ("engine.", "env.", "gpu.option.", "option.", "replay.")
# The columns of the fingerprint that are not in CURVE_COLUMNS. Their values follow from the configuration, the program
# and the network.
MADE_COLUMNS = ("data_plane", "batches_per_iter", "parameters", "plan_hash")


@dataclass(frozen=True)
class Difference:
    """One fact or column in which two runs differ. first, second: the runs' values; None if a run has no value."""

    key: str
    first: str | None
    second: str | None
    in_fingerprint: bool


def curve(run: Run) -> dict[str, Any]:
    """Returns what two runs share if they are points of one scaling curve: CURVE_COLUMNS, and "replay": Run.replay."""
    return {name: run.columns[name] for name in CURVE_COLUMNS} | {"replay": run.replay}


def settings(run: Run) -> dict[str, str]:
    """Returns the facts that can change a result and that a person chose: key -> value."""
    return {key: fact.value for key, fact in run.provenance.items() if fact.in_fingerprint and _is_setting(key)}


def _is_setting(key: str) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in _SETTINGS)


def differences(first: Run, second: Run) -> list[Difference]:
    """Returns the differences in provenance facts, sorted by key. Facts that can change the result come first."""
    differing = []
    for key in sorted(first.provenance.keys() | second.provenance.keys()):
        a, b = first.provenance.get(key), second.provenance.get(key)
        if a is None or b is None or a.value != b.value:
            weighty = any(fact.in_fingerprint for fact in (a, b) if fact is not None)
            differing.append(Difference(key, a.value if a else None, b.value if b else None, weighty))
    return sorted(differing, key=lambda difference: not difference.in_fingerprint)


def configuration_differences(first: Run, second: Run) -> list[Difference]:
    """Returns the differences in columns of the configuration. Phase and number of ranks are among the columns."""
    return _column_differences(first, second, (*CURVE_COLUMNS, "phase", "world_size", "nodes"))


def _column_differences(first: Run, second: Run, columns: Sequence[str]) -> list[Difference]:
    return [
        Difference(name, str(first.columns[name]), str(second.columns[name]), True)
        for name in columns
        if first.columns[name] != second.columns[name]
    ]


def fingerprint_differences(first: Run, second: Run) -> list[Difference]:
    """Returns the differences that make two fingerprints unequal: first facts, then columns."""
    facts = [difference for difference in differences(first, second) if difference.in_fingerprint]
    columns = _column_differences(first, second, MADE_COLUMNS)
    return [*facts, *configuration_differences(first, second), *columns]


def require_same_kind(runs: Sequence[Run], what: str) -> None:
    """Raises NotComparable if `runs` mixes traced and untraced runs, or simulated and measured runs."""
    for column, labels in (("traced", "traced and untraced"), ("origin", "simulated and measured")):
        if len({run.columns[column] for run in runs}) > 1:
            listing = ", ".join(f"{run.short_id} ({column} {run.columns[column]})" for run in runs)
            raise NotComparable(f"{what}: {labels} runs cannot be compared: {listing}")


def require_poolable(runs: Sequence[Run], what: str) -> None:
    """Raises NotComparable if `runs` differ in kind or fingerprint. The error's text names what differs."""
    require_same_kind(runs, what)
    for other in runs[1:]:
        if other.fingerprint != runs[0].fingerprint:
            differing = fingerprint_differences(runs[0], other)
            shown = "; ".join(f"{d.key}: '{d.first}' and '{d.second}'" for d in differing[:6])
            more = f" and {len(differing) - 6} more" if len(differing) > 6 else ""
            raise NotComparable(
                f"{what}: runs {runs[0].short_id} and {other.short_id} have different fingerprints "
                f"({shown or 'no fact recorded'}{more}); give the runs of one kind only (--run), "
                "or pool them all the same with --mix-fingerprints"
            )


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


def _point(run: Run) -> tuple[Any, ...]:
    """Returns what two runs share if they are the same phase on the same point of one scaling curve."""
    return (*curve(run).values(), run.phase, run.columns["world_size"])


def _setting_apart(leads: Sequence[Run]) -> list[str]:
    """Returns the names of facts that can change a result and differ between runs of equal configuration and ranks.

    MACHINE_FACTS are left out.
    """
    first: dict[tuple, Run] = {}
    differing: set[str] = set()
    for lead in leads:
        other = first.setdefault(_point(lead), lead)
        if lead.fingerprint != other.fingerprint:
            differing |= {d.key for d in differences(other, lead) if d.in_fingerprint}
    return sorted(differing - set(MACHINE_FACTS))


def systems(runs: Sequence[Run], *, pooled: bool = False) -> list[System]:
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

    for key in (_point, lambda run: (run.columns["model"], run.phase), lambda run: run.phase):
        others = {key(run): run for run in second.runs}
        for run in reversed(first.runs):
            if other := others.get(key(run)):
                return run, other
    return first.runs[-1], second.runs[-1]


def system_differences(first: System, second: System) -> tuple[Run, Run, list[Difference]]:
    """Returns a run of each system, and the differences of the two runs: first the configuration, then facts."""
    run, other = alike(first, second)
    differing = configuration_differences(run, other) + differences(run, other)
    return run, other, differing
