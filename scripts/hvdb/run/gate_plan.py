"""The plan of a gate: what the gate measures and how it judges. The plan is fixed before the first pair.

The plan is kept with the pairs, so that a gate can be continued only with an equal plan. The verdict depends only on
the plan and the pairs, so it can be computed again from what a gate kept.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import numpy as np

from hvdb.base import record
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import FINITE, Malformed, Range
from hvdb.judge import reasons, verdict
from hvdb.judge.outcomes import Failures, Report
from hvdb.judge.sides import Outcome
from hvdb.judge.thresholds import Thresholds
from hvdb.judge.verdict import Replayed

# Maximum characters of a plan. hvd_bench gets the plan as one argument, and Linux limits an argument to 128 KiB.
MAX_TEXT_LENGTH = 100_000
# Maximum pairs of a cell. Additional pairs would add little information, and the exact tests would take long.
MAX_PAIRS = 100
_Pairs = Annotated[int, Range(1, MAX_PAIRS)]


@dataclass(frozen=True)
class Plan:
    """The plan of a gate. a, b: text of each side, with commits as hashes. launch: text of the option --launch.

    cells: name of a cell -> its options of hvd_bench; of another program, one cell without options. seconds: limit on
    the measuring time of each run (of `hvd_bench coll`: of each row). pairs: how many at most.
    tool: a key of others.TOOLS, or "" for hvd_bench. rows: names or patterns of rows; empty: all. metrics: texts of the
    options --metric; higher: the names of those of which more is better. resolved: side -> the command with the path of
    its program. directory: where both sides of a tool run.
    looks: the numbers of pairs after which the cells are judged, ascending; empty in plans made since 2026-11-29, which
    compute them from the number of rows and count failures.
    """

    a: str
    b: str
    launch: str
    cells: dict[str, str]
    thresholds: Thresholds
    looks: tuple[_Pairs, ...]
    seconds: float
    seed: Annotated[int, FINITE]
    pairs: Annotated[int, Range(0, MAX_PAIRS)] = 0
    tool: str = ""
    rows: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    resolved: dict[str, str] = field(default_factory=dict)
    directory: str = ""

    def __post_init__(self) -> None:
        planned = list(self.looks) == sorted(set(self.looks))
        if not self.cells or not planned or bool(self.looks) == bool(self.pairs):
            raise Malformed("values that no gate plans")

    def document(self) -> dict[str, Any]:
        """Returns the plan for JSON. A field that older plans do not have is there only if it says something."""
        first = [one.name for one in fields(self)].index("pairs")
        return {key: value for place, (key, value) in enumerate(asdict(self).items()) if place < first or value}

    def text(self) -> str:
        """Returns the plan as text; equal plans give equal texts."""
        return json.dumps(self.document(), separators=(",", ":"))

    def looks_for(self, rows: int) -> tuple[int, ...]:
        """Returns the numbers of pairs after which `rows` rows are judged. Errors: HvdbError if pairs are too few."""
        return self.looks or verdict.plan_looks(rows, self.pairs, more=1)

    @property
    def most(self) -> int:
        """The largest number of pairs."""
        return self.pairs or self.looks[-1]


def read(text: str) -> Plan:
    """Parses a plan from a label in a store. Errors: NotComparable if Plan.text() cannot have written `text`."""
    with record.faults_of("label gate.plan is not a plan of a gate", NotComparable):
        plan = record.read(Plan, record.json_object(text, MAX_TEXT_LENGTH))
        if plan.text() != text:
            raise Malformed("values that no gate plans")
    return plan


def order(seed: int, pair: int) -> tuple[str, str]:
    """Returns the two sides in the order in which they run in pair number `pair` (1, 2, ...). seed: the plan's.

    Two pairs form a block. The sides run in random order in the first pair of a block, and in the reverse order in the
    second pair.
    """
    block, second = divmod(pair - 1, 2)
    flipped = random.Random(f"{seed} {block}").random() < 0.5
    return ("b", "a") if flipped != bool(second) else ("a", "b")


def cells_in_turn(names: Sequence[str], plan: Plan, pair: int) -> list[str]:
    """Returns `names` in an order that differs from pair to pair, so that no cell always follows the same cell."""
    return random.Random(f"{plan.seed} cells {pair}").sample(list(names), len(names))


@dataclass(frozen=True)
class Row:
    """What the pairs say of one row, which gets one verdict. cell: the cell of the plan that the row belongs to.

    ratios: log(cost of B / cost of A) of each pair of the cell, (pairs,); NaN for a pair without a figure of this row.
    threshold: the tolerated slowdown.
    """

    cell: str
    ratios: np.ndarray
    threshold: float


@dataclass(frozen=True)
class Pairs:
    """What a gate has measured. rows: by name; a cell that has no row yet is one row with the cell's name.

    failed: cell -> for each pair the sides that failed ("", "a", "b" or "ab"). said: the newest failure, or "".
    missing: a line for each row that only one side has. ended: the time limit ended the gate.
    outcome: makes the result for a row from its judgement. following: the number of the next pair.
    notes: what cannot act, or is not there to be compared.
    """

    rows: Mapping[str, Row]
    failed: Mapping[str, Sequence[str]]
    said: str
    missing: Sequence[str]
    ended: bool
    outcome: Callable[[str, verdict.Judgement], Outcome]
    following: int
    notes: Sequence[str] = ()

    def only(self, side: str, pairs: int | None = None) -> int:
        """Returns in how many of the first `pairs` pairs of each cell only `side` failed."""
        return sum(sum(sides == side for sides in cell[:pairs]) for cell in self.failed.values())


def judge(plan: Plan, pairs: Pairs) -> Replayed:
    """Judges the pairs at the plan's looks. Replayed.lacking has names of rows.

    Errors: HvdbError if the plan allows too few pairs for so many rows.
    """
    ratios = {name: row.ratios for name, row in pairs.rows.items()}
    tolerated = {name: row.threshold for name, row in pairs.rows.items()}
    looks = plan.looks_for(len(ratios))
    if plan.looks:  # such a gate counted whole pairs, and no failures
        whole = {name: some[np.isfinite(some)] for name, some in ratios.items()}
        return verdict.replay(whole, tolerated, looks)

    def failed(first: int) -> tuple[int, int]:
        return pairs.only("a", first), pairs.only("b", first)

    return verdict.replay(ratios, tolerated, looks, failed, ended=pairs.ended)


def report(plan: Plan, pairs: Pairs, title: str, pair_seconds: float | None = None) -> Report:
    """Returns the verdict on every row. title: the command. pair_seconds: how long a pair of all cells takes, if known.

    Errors: HvdbError if there are too few pairs for any verdict.
    """
    replayed = judge(plan, pairs)
    judged = replayed.judged
    if not judged and not replayed.b_fails:
        raise HvdbError(_too_few(plan, pairs))
    missing = [*pairs.missing]
    missing += [f"{name}: no whole pair" for name in pairs.rows if name not in judged and not replayed.b_fails]
    outcomes = [pairs.outcome(name, judgement) for name, judgement in judged.items()]
    longest = max(map(len, pairs.failed.values()), default=0)
    failures = Failures(pairs.only("a"), pairs.only("b"), longest, replayed.b_fails, pairs.said)
    ended = "its time limit ended the gate" if pairs.ended else ""
    explained = reasons.explained(outcomes, replayed.level, pair_seconds, ended)
    return Report(
        title, outcomes, tuple(missing), None if plan.looks else failures, tuple(pairs.notes), tuple(explained)
    )


def _too_few(plan: Plan, pairs: Pairs) -> str:
    counts = {name: int(np.isfinite(row.ratios).sum()) for name, row in pairs.rows.items()}
    name, count = min(counts.items(), key=lambda item: item[1])
    first = plan.looks_for(len(counts))[0]
    again = ": give the gate's command again, it goes on where it stopped"
    onwards = "; begin anew with another --db" if pairs.ended else again
    about = f"{pairs.rows[name].cell} has {count} whole pairs" if count else f"{name} has no whole pair"
    failed = f"; the newest failure: {pairs.said}" if pairs.said else ""
    return f"cell {about}; the first verdict needs {first}{onwards}{failed}"
