"""Which algorithm reduces a message (docs/algorithms.md), and what it costs, from the stored results of collectives."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.predict import cost, imported, link
from hvdb.predict.cost import CollectiveTimes, Cost, OneWorldCost, World
from hvdb.predict.imported import Added
from hvdb.predict.labels import ASSUMED, IMPORTED, MEASURED, Label
from hvdb.predict.link import ChangedCost, DeclaredCost, Link, LinkChange
from hvdb.predict.schedule import TYPES
from hvdb.read.coll_samples import CollSession, SampledCell
from hvdb.read.runs import Run

# Thresholds::doubling_bytes and direct_bytes (engine/comm/communicator.h), for messages of whole worlds.
SMALL_BYTES = 32 << 10
BARRIER = "barrier"
JITTER = 12  # samples of a cell in one draw
MIN_TABLE_BYTES = 1024
# What the stored data_plane names: "ring over mpi", "hierarchical(shm+doubling) over mpi", "shm", "nccl 2.27.3, ...".
_ALGORITHM = re.compile(r"\b(?:hierarchical\(shm\+)?(ring|doubling|rabenseifner|halving|pairwise|shm|nccl|mpi's own)\b")


def name_on(world: World, operation: str, algorithm: str, hierarchical: bool) -> str:
    """Returns the name of an algorithm on `world`. Nodes with several ranks reduce hierarchically: only their carriers
    meet. A ring that a person forced is flat, over all ranks, which is another algorithm."""
    several = operation == "all_reduce" and world.nodes > 1 and world.ranks_per_node > 1
    return f"flat {algorithm}" if several and not hierarchical and algorithm in ("ring", "doubling") else algorithm


def algorithm_that_ran(data_plane: str) -> str:
    """Returns the one algorithm that a cell's data plane names. Between nodes that have several ranks, it is the one of
    their carriers. Returns "" if there are several, or none that is known."""
    text = data_plane.replace(" over mpi", "").replace(" over threads", "")
    names = set(_ALGORITHM.findall(text))
    return names.pop() if len(names) == 1 else ""


@dataclass
class Fabric:
    """Cells by (operation, algorithm). forced: the algorithm of the run, "auto" unless a person chose one.

    imported: by operation, of which nobody knows the algorithm. stated: the algorithm of imported collectives between
    nodes, which is then taken for that of the run; "" without. link: as a person describes it. change: of the link.
    """

    forced: str
    plane: str
    cells: dict[tuple[str, str], list[CollectiveTimes]] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    imported: dict[str, list[CollectiveTimes]] = field(default_factory=dict)
    stated: str = ""
    link: Link | None = None
    change: LinkChange = field(default_factory=LinkChange)
    notes: list[str] = field(default_factory=list)
    _fitted_costs: dict[tuple[str, str], Cost | HvdbError] = field(default_factory=dict)
    _others: dict[tuple[str, str, World], OneWorldCost | DeclaredCost] = field(default_factory=dict)
    _changed_costs: dict[int, ChangedCost | DeclaredCost] = field(default_factory=dict)  # by id of the present cost

    def algorithm(self, operation: str, size: float, world: World) -> str:
        """Returns what a run of this kind takes for a message of `size` bytes."""
        if operation == BARRIER:
            return ""
        if self.stated and world.nodes > 1:
            return name_on(world, operation, self.stated, hierarchical=False)
        if self.plane.startswith("nccl"):
            return "nccl"
        automatic = self.forced in ("auto", "hierarchical")
        if world.nodes == 1:
            return "shm" if automatic or self.forced == "shm" else self.forced
        if not automatic:
            return "mpi's own" if self.forced == "mpi" else name_on(world, operation, self.forced, hierarchical=False)
        if size > SMALL_BYTES:
            return "ring"
        return "doubling" if operation == "all_reduce" else "direct"

    def changed(self, change: LinkChange) -> Fabric:
        """Returns the same fabric with another link between nodes. Errors come with cost()."""
        return replace(self, change=change, _changed_costs={})

    def cost(self, operation: str, algorithm: str, world: World) -> Cost | OneWorldCost | DeclaredCost | ChangedCost:
        """Returns the cost on `world`: of all worlds of several nodes together, or of this world alone if it was
        measured or imported and the others are too few, or of the declared link. One node is never derived from another
        world, nor others from it. Errors: HvdbError, which is TooLittle if more must be measured."""
        present = self.present(operation, algorithm, world)
        if world.nodes == 1 or self.change == LinkChange():
            return present
        if id(present) not in self._changed_costs:
            inner = self._inner(operation, algorithm, world)
            changed = link.changed_cost(present, self.change, self.link, self._measured_rate(), inner)
            self._changed_costs[id(present)] = changed
        return self._changed_costs[id(present)]

    def present(self, operation: str, algorithm: str, world: World) -> Cost | OneWorldCost | DeclaredCost:
        """Returns the cost on the link as it is."""
        fitted = self._fitted(operation, algorithm, world) if world.nodes > 1 else None
        if isinstance(fitted, Cost):
            return fitted
        key = (operation, algorithm, world)
        if key not in self._others:
            self._others[key] = self._other(operation, algorithm, world, fitted)
        return self._others[key]

    def _other(
        self, operation: str, algorithm: str, world: World, fault: HvdbError | None
    ) -> OneWorldCost | DeclaredCost:
        """fault: why several nodes have no cost together."""
        measured = [cell for cell in self.cells.get((operation, algorithm), []) if cell.world == world]
        also = [cell for cell in self.imported.get(operation, []) if cell.world == world]
        try:
            if also and not measured:
                return cost.one_world(operation, "", world, also)
            if measured or not fault:
                return cost.one_world(operation, algorithm, world, measured)
        except TooLittle as error:
            fault = error
        if world.nodes > 1 and self.link:
            return link.declared_cost(operation, algorithm, world, self.link, self._inner(operation, algorithm, world))
        raise fault

    def _inner(self, operation: str, algorithm: str, world: World) -> OneWorldCost | None:
        """Returns the cost of the part inside a node, None if the collective has none or it was not measured."""
        if world.ranks_per_node == 1 or not (operation == BARRIER or link.senders(operation, algorithm, world) > 1):
            return None
        node = World(1, world.ranks_per_node)
        inside = "" if operation == BARRIER else "shm"
        try:
            return cost.one_world(operation, inside, node, self.cells.get((operation, inside), []))
        except TooLittle:
            return None

    def _measured_rate(self) -> float:
        """Returns what large collectives get of the link between nodes, in bytes per second; 0 if none was measured."""
        largest = (0.0, 0.0)
        for (operation, algorithm), cells in sorted(self.cells.items()):
            world = max(cell.world for cell in cells)
            try:
                present = self.present(operation, algorithm, world)
                if world.nodes > 1 and not isinstance(present, DeclaredCost):
                    largest = max(largest, link.measured_rate(present, world, self._inner(operation, algorithm, world)))
            except HvdbError:  # too few sizes, or unknown steps
                continue
        return largest[1]

    def labels(self, operations: Collection[str]) -> list[Label]:
        """Returns where the costs of `operations` come from."""
        made = []
        named = [(*key, cells) for key, cells in sorted(self.cells.items())]
        named += [(operation, "", cells) for operation, cells in sorted(self.imported.items())]
        for operation, algorithm, cells in named:
            for kind, others in ((MEASURED, False), (IMPORTED, True)):
                mine = [cell for cell in cells if cell.imported == others]
                if mine and operation in operations:
                    source = f"{len(mine)} cell{'s' * (len(mine) > 1)} on {cost.nodes_text(c.world for c in mine)}"
                    made.append(Label(cost.title(operation, algorithm), kind, source))
        if self.stated:
            source = f"'{self.stated}' on all worlds of several nodes, as --algorithm says"
            made.append(Label("algorithm of imported collectives", ASSUMED, source))
        if self.link and any(isinstance(one, DeclaredCost) for one in self._others.values()):
            made += self.link.labels()
        return made

    def change_labels(self) -> list[Label]:
        """Returns how the costs on the changed link come from those on the present one."""
        if self.change == LinkChange():
            return []
        return link.change_labels(self.change, self.link, self._measured_rate())

    def _fitted(self, operation: str, algorithm: str, world: World) -> Cost | HvdbError:
        key = (operation, algorithm)
        if key not in self._fitted_costs:
            try:
                cost.steps(operation, algorithm, world)
                inner = self._inner(operation, algorithm, world)
                self._fitted_costs[key] = cost.fit(operation, algorithm, self.cells.get(key, []), inner)
            except HvdbError as error:
                self._fitted_costs[key] = error
        return self._fitted_costs[key]

    def sizes(self, operation: str, world: World, largest: int) -> list[int]:
        """Returns ascending sizes at which a table tells the cost of an operation on `world`, up to `largest` bytes.

        Where `auto` changes the algorithm, the table has two points side by side.
        """
        grid = {1 << k for k in range(MIN_TABLE_BYTES.bit_length() - 1, 60) if 1 << k < largest} | {largest}
        grid |= {size for size in (SMALL_BYTES, SMALL_BYTES + 1) if size < largest}
        known = []
        for size in sorted(grid):
            try:
                self.cost(operation, self.algorithm(operation, size, world), world)
                known.append(size)
            except HvdbError:
                if size > SMALL_BYTES or size == largest:
                    raise
        return known

    def largest(self) -> int:
        """Returns the largest number of nodes on which anything was measured."""
        every = (*self.cells.values(), *self.imported.values())
        return max((cell.world.nodes for cells in every for cell in cells), default=1)

    def jitter(self, operation: str, world: World, size: float, random: np.random.Generator | None) -> np.ndarray:
        """Returns samples / median of a cell that is like this collective: of this world or else of the largest one,
        and of the nearest size by ratio; JITTER of them, drawn with replacement, or without `random` their mean. No
        cell, no jitter."""
        algorithm = self.algorithm(operation, size, world)
        present = self.present(operation, algorithm, world)
        if isinstance(present, OneWorldCost):
            there = [cell for same in present.cells.values() for cell in same]
        else:
            cells = [cell for cell in self.cells.get((operation, algorithm), []) if cell.world.nodes > 1]
            there = [cell for cell in cells if cell.world == world]
            there = there or [cell for cell in cells if cell.world == max(other.world for other in cells)]
        if not there:
            return np.ones(1)
        nearest = min(there, key=lambda cell: abs(math.log(max(cell.size, 1) / size)))
        drawn = random.choice(nearest.samples, JITTER) if random else np.mean(nearest.samples, keepdims=True)
        return drawn / np.median(nearest.samples)


def _fits(cell: SampledCell, kind: str) -> bool:
    columns = cell.columns
    if columns["operation"] == BARRIER:
        return bool(len(cell.samples))
    return bool(
        columns["type"] == kind
        and columns["reduction"] in ("sum", "none")
        and columns["in_place"]
        and columns["registered"]
        and not columns["ragged"]
        and len(cell.samples)
        and np.median(cell.samples) > 0
    )


def gather(sessions: Sequence[CollSession], run: Run, ranks_per_node: int, allreduce_type: str, added: Added) -> Fabric:
    """Returns the cells that are like the reductions of `run`, a run of phase full, in messages of `allreduce_type`.

    Errors: NotComparable if collectives were measured with other software or hardware; HvdbError for a wrong result, or
    for a file that does not fit.
    """
    if run.fact("comm.crossovers"):
        raise HvdbError(f"run {run.short_id} used crossovers of its own (comm.crossovers), which predict does not know")
    if run.device != "cuda" and allreduce_type != "fp32":
        raise TooLittle(
            f"the schedule rounds messages to {allreduce_type} between nodes, and hvd_bench coll measures no such "
            "messages on CPUs"
        )
    fabric = Fabric(run.fact("comm.algorithm") or "auto", run.data_plane, stated=added.algorithm, link=added.link)
    device = "cuda" if run.device == "cuda" else "cpu"
    for session in sessions:
        columns = session.columns
        short = columns["uuid"][:8]
        why = ""
        if columns["status"] != "complete":
            why = "not complete"
        elif (columns["device"], columns["comm"]) != (device, run.comm):
            why = f"on {columns['device']} over {columns['comm']}, not {device} over {run.comm}"
        elif columns["oversubscribed"]:
            why = "more ranks than processors"
        elif columns["warm"]:
            why = "with warm buffers"
        elif columns["ranks"] != columns["nodes"] * ranks_per_node:
            why = f"not {ranks_per_node} ranks on each node"
        if why:
            fabric.left_out.append(f"collectives {short}: {why}")
            continue
        mine, theirs = (
            {k: f.value for k, f in facts.items() if f.in_fingerprint} for facts in (run.provenance, session.provenance)
        )
        if differing := [key for key in sorted(mine.keys() & theirs.keys()) if mine[key] != theirs[key]]:
            shown = "; ".join(f"{key}: '{theirs[key][:200]}' and '{mine[key][:200]}'" for key in differing[:6])
            raise NotComparable(
                f"collectives {short} and run {run.short_id} differ ({shown}): name stores of one machine"
            )
        _add(fabric, session, World(columns["nodes"], ranks_per_node), TYPES.get(allreduce_type, ""))
        fabric.sessions.append(columns["uuid"])
        if not session.from_last_arrival:
            fabric.notes.append(f"collectives {short}: clocks do not tell when ranks came, so times hold their waits")
    for one in added.files:
        found = imported.cells(one, TYPES.get(allreduce_type, ""), ranks_per_node)
        _import(fabric, found)
        fabric.notes += imported.note(one, found)
    return fabric


def _import(fabric: Fabric, found: dict[str, list[CollectiveTimes]]) -> None:
    for operation, cells in found.items():
        world = cells[0].world
        if fabric.stated and world.nodes > 1:
            key = (operation, name_on(world, operation, fabric.stated, hierarchical=False))
            fabric.cells.setdefault(key, []).extend(cells)
        else:
            fabric.imported.setdefault(operation, []).extend(cells)


def _add(fabric: Fabric, session: CollSession, world: World, kind: str) -> None:
    for cell in session.cells:
        columns = cell.columns
        if not _fits(cell, kind):
            continue
        if columns["wrong"]:
            raise HvdbError(
                f"collectives {columns['session_uuid'][:8]}: {columns['operation']} of {columns['bytes']} bytes had "
                f"{columns['wrong']} wrong elements: repair this first"
            )
        ran = "nccl" if fabric.plane.startswith("nccl") else algorithm_that_ran(columns["data_plane"])
        hierarchical = columns["data_plane"].startswith("hierarchical")
        algorithm = "" if columns["operation"] == BARRIER else name_on(world, columns["operation"], ran, hierarchical)
        made = CollectiveTimes(world, columns["bytes"], cell.samples, columns["session_uuid"])
        fabric.cells.setdefault((columns["operation"], algorithm), []).append(made)
