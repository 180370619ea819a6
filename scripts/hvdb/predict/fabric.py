"""Which algorithm reduces a message (docs/algorithms.md), and what it costs, from the stored results of collectives."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.predict import cost
from hvdb.predict.cost import Cell, World
from hvdb.read.coll_samples import CollSession, SampledCell
from hvdb.read.runs import Run

# Thresholds::doubling_bytes and direct_bytes (engine/comm/communicator.h), for messages of whole worlds.
SMALL_BYTES = 32 << 10
BARRIER = "barrier"
JITTER = 12  # samples of a cell in one draw
MIN_TABLE_BYTES = 1024
_TYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
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
    """Cells by (operation, algorithm). forced: the algorithm of the run, "auto" unless a person chose one."""

    forced: str
    plane: str
    cells: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _fitted_costs: dict[tuple[str, str], cost.Cost | HvdbError] = field(default_factory=dict)
    _one_world: dict[tuple[str, str, World], cost.OneWorldCost] = field(default_factory=dict)

    def algorithm(self, operation: str, size: float, world: World) -> str:
        """Returns what a run of this kind takes for a message of `size` bytes."""
        if operation == BARRIER:
            return ""
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

    def cost(self, operation: str, algorithm: str, world: World) -> cost.Cost | cost.OneWorldCost:
        """Returns the cost on `world`: of all worlds of several nodes together, or of this world alone if it was
        measured and the others are too few. One node is never derived from another world, nor others from it.
        Errors: HvdbError, which is TooLittle if more must be measured."""
        cells = self.cells.get((operation, algorithm), [])
        if world.nodes > 1:
            fitted = self._fitted(operation, algorithm, world)
            if isinstance(fitted, cost.Cost):
                return fitted
            if not any(cell.world == world for cell in cells):
                raise fitted
        key = (operation, algorithm, world)
        if key not in self._one_world:
            self._one_world[key] = cost.one_world(operation, algorithm, world, cells)
        return self._one_world[key]

    def _fitted(self, operation: str, algorithm: str, world: World) -> cost.Cost | HvdbError:
        key = (operation, algorithm)
        if key not in self._fitted_costs:
            try:
                cost.steps(operation, algorithm, world)
                self._fitted_costs[key] = cost.fit(operation, algorithm, self.cells.get(key, []))
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
        return max(cell.world.nodes for cells in self.cells.values() for cell in cells)

    def jitter(self, operation: str, world: World, size: float, random: np.random.Generator | None) -> np.ndarray:
        """Returns samples / median of a cell that is like this collective: of this world or else of the largest one,
        and of the nearest size by ratio; JITTER of them, drawn with replacement, or without `random` their mean."""
        cells = self.cells.get((operation, self.algorithm(operation, size, world)), [])
        if world.nodes > 1:
            cells = [cell for cell in cells if cell.world.nodes > 1]
        there = [cell for cell in cells if cell.world == world]
        if not there:
            most = max(cell.world for cell in cells)
            there = [cell for cell in cells if cell.world == most]
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


def gather(sessions: Sequence[CollSession], run: Run, ranks_per_node: int, allreduce_type: str) -> Fabric:
    """Returns the cells that are like the reductions of `run`, a run of phase full, in messages of `allreduce_type`.

    Errors: NotComparable if collectives were measured with other software or hardware; HvdbError for a wrong result.
    """
    if run.fact("comm.crossovers"):
        raise HvdbError(f"run {run.short_id} used crossovers of its own (comm.crossovers), which predict does not know")
    if run.device != "cuda" and allreduce_type != "fp32":
        raise TooLittle(
            f"the schedule rounds messages to {allreduce_type} between nodes, and hvd_bench coll measures no such "
            "messages on CPUs"
        )
    fabric = Fabric(run.fact("comm.algorithm") or "auto", run.data_plane)
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
            shown = "; ".join(f"{key}: '{theirs[key]}' and '{mine[key]}'" for key in differing[:6])
            raise NotComparable(
                f"collectives {short} and run {run.short_id} differ ({shown}): name stores of one machine"
            )
        _add(fabric, session, World(columns["nodes"], ranks_per_node), _TYPES.get(allreduce_type, ""))
        fabric.sessions.append(columns["uuid"])
    return fabric


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
        made = Cell(world, columns["bytes"], cell.samples, columns["session_uuid"])
        fabric.cells.setdefault((columns["operation"], algorithm), []).append(made)
