"""Arranges runs as the two sides of a comparison. An observation comes from one run or from a pair of runs.

A gate gives its runs the labels label.gate.cell, label.gate.side (a or b) and label.gate.pair (a number). Runs without
these labels are compared as two groups of runs. The two groups were not measured in turn, so any drift of the machine
from one group to the other is part of the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvdb.base.errors import NotComparable
from hvdb.base.interval import Interval
from hvdb.judge import comparable, efficiency
from hvdb.judge.exact import paired_effect, unpaired_effect
from hvdb.judge.verdict import CONFIDENCE, Judgement
from hvdb.read.runs import IMAGES, OPERATIONS, UNKNOWN, Run, by_session, grouped

CELL, SIDE, PAIR, PLAN = "label.gate.cell", "label.gate.side", "label.gate.pair", "label.gate.plan"
# Names of facts with these beginnings are left out of differences, because such facts differ between any two runs.
VOLATILE = ("label.", "command.", "measurement.", "os.load", "memory.available_bytes")
# Columns that must be equal on both sides of a cell. If they differ, the ratio of the costs per image means nothing.
WORK_COLUMNS = ("model", "image_size", "auxiliary_head", "world_size", "phase", "origin", "traced")


@dataclass(frozen=True)
class BothSides:
    """The runs of one configuration on both sides. a, b: runs of sides A and B. left_out: lines about unused runs.

    paired: True if a[i] and b[i] were measured in turn. If False, `a` and `b` may have different lengths.
    """

    name: str
    a: list[Run]
    b: list[Run]
    paired: bool
    left_out: list[str] = field(default_factory=list)


def log_cost(run: Run) -> float:
    """Returns the log of a rank's seconds per image (median step time / batch size). Errors: HvdbError."""
    return math.log(efficiency.step_time(run).value / run.columns["batch_size"])


def log_ratios(cell: BothSides) -> np.ndarray:
    """Returns log(cost per image of b / cost per image of a) for each pair of a paired cell, (pairs,).

    A positive value means that b is slower.
    """
    return np.array([log_cost(b) - log_cost(a) for a, b in zip(cell.a, cell.b, strict=True)])


def sessions(runs: Iterable[Run]) -> list[Run]:
    """Returns the main run of each session, in the order of time.

    The main run is the run of phase full. In a session without phase full, it is the session's only run.
    Errors: NotComparable if several runs of a session could be its main run.
    """
    main_runs = []
    for session, group in by_session(runs).items():
        speaking = [run for run in group if run.phase == "full"] or group
        if len(speaking) > 1:
            raise NotComparable(f"session {session} holds {len(speaking)} runs of phase {speaking[0].phase}; give one")
        main_runs.append(speaking[0])
    return sorted(main_runs, key=lambda run: (run.started_utc, run.uuid))


def cell_name(run: Run) -> str:
    """Returns the name of the run's cell. A row of `hvd_bench coll` is a cell of its own."""
    name = run.fact(CELL)
    return f"{name} {run.model}" if run.unit == OPERATIONS else name


def labelled(stored: Iterable[Run]) -> list[BothSides]:
    """Returns the paired cells of the runs that have a gate's labels. The cell that was measured first comes first.

    A pair is used if each of its sides was measured exactly once and completely. left_out has the number of unused
    pairs. Errors: NotComparable if the two sides of a cell did different work, or if runs of one side differ in
    fingerprint.
    """
    made = [run for run in stored if CELL in run.provenance]
    usable = {run.uuid for run in efficiency.select(made).runs}
    by_cell: dict[str, dict[int, dict[str, list[Run]]]] = {}
    for run in made:
        cell, side = cell_name(run), run.fact(SIDE)
        if side not in ("a", "b"):
            raise NotComparable(f"run {run.short_id}: {SIDE} '{side}' is neither a nor b")
        pair = by_cell.setdefault(cell, {}).setdefault(pair_number(run), {"a": [], "b": []})
        if run.uuid in usable:
            pair[side].append(run)
    return [_paired(cell, pairs) for cell, pairs in by_cell.items()]


def _paired(name: str, pairs: dict[int, dict[str, list[Run]]]) -> BothSides:
    measured = [{side: sessions(kept) for side, kept in pairs[number].items()} for number in sorted(pairs)]
    whole = [pair for pair in measured if len(pair["a"]) == len(pair["b"]) == 1]
    cell = BothSides(name, [pair["a"][0] for pair in whole], [pair["b"][0] for pair in whole], paired=True)
    if lost := len(measured) - len(whole):
        missing, twice = ({side: 0 for side in "ab"} for _ in range(2))
        for pair in measured:
            for side, kept in pair.items():
                missing[side] += not kept
                twice[side] += len(kept) > 1
        cell.left_out.append(
            f"{lost} of {len(measured)} pairs: not complete: side a {missing['a']}, side b {missing['b']}; "
            f"measured twice: side a {twice['a']}, side b {twice['b']}"
        )
    if whole:
        _require_same_work(cell)
        _require_poolable_sides(cell)
    return cell


def pair_number(run: Run) -> int:
    """Returns the number of the run's pair. Errors: NotComparable if the run's label is not a number."""
    if not re.fullmatch("[0-9]{1,6}", run.fact(PAIR)):
        raise NotComparable(f"run {run.short_id}: {PAIR} '{run.fact(PAIR)}' is not a number of a pair")
    return int(run.fact(PAIR))


def by_configuration(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[BothSides], list[str]]:
    """Returns an unpaired cell for each configuration that both sides have.

    Also returns a line for each configuration that only one side has.

    Errors: NotComparable if the runs of one side of a cell differ in fingerprint.
    """
    sides = [configurations(runs) for runs in (a, b)]
    if shared := {run.uuid for run in a} & {run.uuid for run in b}:
        raise NotComparable(f"both sides hold run {min(shared)[:8]}; give each run to one side")
    named = names([*sides[0], *(key for key in sides[1] if key not in sides[0])])
    cells = []
    for key in sides[0]:
        if key in sides[1]:
            cell = BothSides(named[key], sides[0][key], sides[1][key], paired=False)
            _require_poolable_sides(cell)
            cells.append(cell)
    missing = [
        f"{name}: side {'B' if key in sides[0] else 'A'} has no runs of it"
        for key, name in named.items()
        if (key in sides[0]) != (key in sides[1])
    ]
    return cells, missing


_KEY = (*comparable.CURVE_COLUMNS, "world_size", "nodes", "phase")
# Columns whose values every name contains -> the words around the value. A name contains other columns only if the
# configurations differ in them.
_NAMED = {
    "model": "{}",
    "batch_size": "batch {}",
    "image_size": "{} px",
    "compute_type": "{}",
    "schedule": "{}",
    "world_size": "ranks {}",
    "nodes": "nodes {}",
}
_OF_ROWS = ("model", "world_size", "nodes")


def configurations(runs: Sequence[Run]) -> dict[tuple, list[Run]]:
    """Returns configuration (values of the columns _KEY) -> the main runs of its sessions, in the order of time.

    Errors: those of sessions().
    """
    return grouped(sessions(runs), lambda run: tuple(run.columns[name] for name in _KEY))


def names(keys: Sequence[tuple]) -> dict[tuple, str]:
    """Returns a unique name for each of `keys`, which come from configurations()."""
    differing = [name for index, name in enumerate(_KEY) if len({key[index] for key in keys}) > 1]
    named = {}
    for key in keys:
        values = dict(zip(_KEY, key, strict=True))
        shown = _NAMED if values["schedule"] else _OF_ROWS  # a row of `hvd_bench coll` has no schedule
        words = [_NAMED[name].format(values[name]) for name in shown]
        words += [f"{name} {values[name]}" for name in differing if name not in _NAMED]
        named[key] = ", ".join(words)
    return named


def _require_poolable_sides(cell: BothSides) -> None:
    for side, runs in (("A", cell.a), ("B", cell.b)):
        comparable.require_poolable(runs, f"side {side} of cell {cell.name}")


def _require_same_work(cell: BothSides) -> None:
    """Raises NotComparable if the runs of the cell differ in WORK_COLUMNS, or in the recording that they replay.

    A side whose hvd_bench did not store the recording is taken: two versions may be compared.
    """
    replays = {run.replay: run.short_id for run in (*cell.a, *cell.b) if run.replay not in ("", UNKNOWN)}
    if len(replays) > 1:
        said = " and ".join(f"'{profile}' in run {run}" for profile, run in list(replays.items())[:2])
        raise NotComparable(f"cell {cell.name}: replay.profile is {said}; both sides must do the same work")
    for run in (*cell.a, *cell.b):
        for column in WORK_COLUMNS:
            first = cell.a[0]
            if run.columns[column] != first.columns[column]:
                raise NotComparable(
                    f"cell {cell.name}: {column} is '{first.columns[column]}' in run {first.short_id} and "
                    f"'{run.columns[column]}' in run {run.short_id}; both sides must do the same work"
                )


def moved(cell: BothSides, confidence: float) -> dict[str, Interval]:
    """Returns term of the decomposition -> its growth from A to B, as a fraction of A's median step time.

    The term with the largest growth comes first. The term 'alone' is the step time of one rank alone. The result is
    empty if a run was measured without --efficiency.
    """
    terms = {run.uuid: _seconds(run) for run in (*cell.a, *cell.b)}
    shared = set.intersection(*(set(parts) for parts in terms.values())) if terms else set()
    scale = float(np.median([efficiency.step_time(run).value for run in cell.a])) if cell.a else 1.0
    effects = {}
    for term in shared:
        a, b = (np.array([terms[run.uuid][term] / scale for run in runs]) for runs in (cell.a, cell.b))
        effects[term] = paired_effect(b - a, confidence) if cell.paired else unpaired_effect(a, b, confidence)
    return dict(sorted(effects.items(), key=lambda item: -item[1].value))


def _seconds(run: Run) -> dict[str, float]:
    parts = {name: part.seconds for name, part in run.decomposition.items()}
    if "efficiency" in parts:
        parts["alone"] = parts.pop("efficiency")
    return parts


def differences(cell: BothSides) -> list[comparable.Difference]:
    """Returns the facts and columns in which the first run of A and the first run of B differ.

    Facts and columns of the fingerprint come first. VOLATILE facts are left out.
    """
    a, b = cell.a[0], cell.b[0]
    differing = [*comparable.configuration_differences(a, b), *comparable.differences(a, b)]
    return [difference for difference in differing if not difference.key.startswith(VOLATILE)]


def first(cell: BothSides, pairs: int) -> BothSides:
    """Returns a paired cell with only its first pairs. pairs: the number of pairs that a verdict used."""
    return replace(cell, a=cell.a[:pairs], b=cell.b[:pairs])


def newest(cell: BothSides, most: int) -> BothSides:
    """Returns an unpaired cell with the newest `most` runs of each side. left_out says how many runs were dropped."""
    left_out = [
        f"{len(side_runs) - most} older runs of {name}"
        for name, side_runs in (("A", cell.a), ("B", cell.b))
        if len(side_runs) > most
    ]
    return replace(cell, a=cell.a[-most:], b=cell.b[-most:], left_out=[*cell.left_out, *left_out])


@dataclass(frozen=True)
class Outcome:
    """The result for one cell, with all that explains it.

    rates: images per second of A and of B, medians. unit: what is counted in place of images. paired: True if A and B
    were measured in turn. terms: from moved(). differences: from differences(). reason: why the cell's threshold has
    its value; "" if no reason was given. runs: the UUIDs of A's and of B's runs.
    foreign: True for a row of another program or of `hvd_bench coll`. Its rates are operations per second, and it has
    no terms.
    notes: lines that say what a verdict on samples of another program does not cover. metric: for a metric of a
    command, its unit and True if more of it is better; None for times.
    """

    name: str
    judgement: Judgement
    rates: tuple[float, float]
    paired: bool
    unit: str = IMAGES
    terms: dict[str, Interval] = field(default_factory=dict)
    differences: Sequence[comparable.Difference] = ()
    reason: str = ""
    left_out: Sequence[str] = ()
    runs: tuple[Sequence[str], Sequence[str]] = ((), ())
    foreign: bool = False
    notes: Sequence[str] = ()
    metric: tuple[str, bool] | None = None

    @property
    def values(self) -> tuple[float, float]:
        """The medians of A and of B of a metric: costs, or rates where more is better."""
        more_is_better = self.metric is not None and self.metric[1]
        return self.rates if more_is_better else (1 / self.rates[0], 1 / self.rates[1])


def outcome_of(cell: BothSides, judgement: Judgement, reason: str) -> Outcome:
    """Returns the result for `cell`: its judgement, the moved terms and the differences of its sides."""
    return Outcome(
        cell.name,
        judgement,
        (_rate(cell.a), _rate(cell.b)),
        cell.paired,
        cell.a[0].unit,
        moved(cell, CONFIDENCE),
        differences(cell),
        reason,
        cell.left_out,
        ([run.uuid for run in cell.a], [run.uuid for run in cell.b]),
        foreign=cell.a[0].unit == OPERATIONS,
    )


def _rate(runs: Sequence[Run]) -> float:
    return float(np.median([efficiency.images_per_second(run) for run in runs]))
