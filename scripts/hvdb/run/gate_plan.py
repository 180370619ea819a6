"""The plan of a gate: what the gate measures and how it judges. The plan is fixed before the first pair.

Every run has the plan as a label, so that a gate can be continued only with an equal plan. The verdict depends only on
the plan and the pairs, and both are in the store, so the verdict can be recomputed from the store alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from hvdb.base import record
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import FINITE, SEVERAL, Malformed, Range
from hvdb.judge import sides, verdict
from hvdb.judge.sides import BothSides, Outcome
from hvdb.judge.thresholds import Thresholds
from hvdb.judge.verdict import Judgement

# Maximum characters of a plan. hvd_bench gets the plan as one argument, and Linux limits an argument to 128 KiB.
MAX_TEXT_LENGTH = 100_000
# Maximum pairs of a cell. Additional pairs would add little information, and the exact tests would take long.
MAX_PAIRS = 100


@dataclass(frozen=True)
class GatePlan:
    """The plan of a gate. a, b: Side.text of each side, with commits as hashes. launch: text of the option --launch.

    cells: name of a cell -> its options. looks: the numbers of pairs after which the cells are judged, ascending.
    seconds: limit on the measuring time of each run.
    """

    a: str
    b: str
    launch: str
    cells: dict[str, str]
    thresholds: Thresholds
    looks: Annotated[tuple[Annotated[int, Range(1, MAX_PAIRS)], ...], SEVERAL]
    seconds: float
    seed: Annotated[int, FINITE]

    def text(self) -> str:
        """Returns the plan as text; equal plans give equal texts."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read(text: str) -> GatePlan:
    """Parses a plan from a label in a store. Errors: NotComparable if GatePlan.text() cannot have written `text`."""
    with record.faults_of("label gate.plan is not a plan of a gate", NotComparable):
        plan = record.read(GatePlan, record.json_object(text, MAX_TEXT_LENGTH))
        if not (plan.cells and list(plan.looks) == sorted(plan.looks) and plan.text() == text):
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


def cells_in_turn(names: Sequence[str], plan: GatePlan, pair: int) -> list[str]:
    """Returns `names` in an order that differs from pair to pair, so that no cell always follows the same cell."""
    return random.Random(f"{plan.seed} cells {pair}").sample(list(names), len(names))


def replay(plan: GatePlan, cells: Sequence[BothSides]) -> tuple[dict[str, Judgement], list[str]]:
    """Judges the pairs of `cells` at the plan's looks. Returns the results of verdict.replay()."""
    ratios = dict.fromkeys(plan.cells, np.empty(0)) | {cell.name: sides.log_ratios(cell) for cell in cells}
    tolerated = {cell.name: plan.thresholds.rule(cell.a[0]).slowdown for cell in cells if cell.a}
    return verdict.replay(ratios, dict.fromkeys(plan.cells, plan.thresholds.default) | tolerated, plan.looks)


def outcomes(plan: GatePlan, cells: Sequence[BothSides]) -> list[Outcome]:
    """Returns the verdict on every cell of the plan.

    Errors: HvdbError if there are too few pairs for any verdict; NotComparable for a cell that the plan does not have.
    """
    for cell in cells:
        if cell.name not in plan.cells:
            raise NotComparable(f"the store holds pairs of cell {cell.name}, which its plan does not have")
    judged, lacking = replay(plan, cells)
    by_name = {cell.name: cell for cell in cells}
    if not judged:
        count = len(by_name[lacking[0]].a) if lacking[0] in by_name else 0
        raise HvdbError(
            f"cell {lacking[0]} has {count} whole pairs; the first verdict needs {plan.looks[0]}: give the gate's "
            "command again, it goes on where it stopped"
        )
    used = {name: sides.first(by_name[name], judged[name].observations[0]) for name in plan.cells}
    return [sides.outcome_of(cell, judged[name], plan.thresholds.rule(cell.a[0]).reason) for name, cell in used.items()]
