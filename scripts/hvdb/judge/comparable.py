"""Decides which runs may be compared, and which may be pooled into one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.base.errors import NotComparable
from hvdb.read.runs import Run

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
