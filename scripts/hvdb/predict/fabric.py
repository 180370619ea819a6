"""Which algorithm reduces a message (docs/algorithms.md), and what it costs, from the stored results of collectives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvdb.base.errors import HvdbError, NotComparable, TooLittle
from hvdb.predict import collective, imported, link
from hvdb.predict.collective import Collective, CollectiveTimes, Drawn
from hvdb.predict.imported import Added
from hvdb.predict.link import Link, LinkChange
from hvdb.predict.schedule import TYPES
from hvdb.predict.steps import BARRIER, World, count_text, nodes_text, title
from hvdb.read.coll_samples import CollSession, SampledCell
from hvdb.read.predictions import ASSUMED, IMPORTED, MEASURED, Label
from hvdb.read.runs import Run

SMALL = "small_"  # begins the name of a table of costs: messages that the engine exchanges without a ring
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


Streams = Callable[..., np.random.Generator]  # names -> the random numbers that a draw has for them


@dataclass
class Fabric:
    """Cells by (operation, algorithm), "" if nobody knows the algorithm.

    forced: the algorithm of the run, "auto" unless a person chose one. stated: the algorithm of imported collectives
    between nodes, which is then taken for that of the run; "" without. link: as a person describes it. change: of the
    link.
    """

    forced: str
    plane: str
    ranks_per_node: int = 1
    cells: dict[tuple[str, str], list[CollectiveTimes]] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    stated: str = ""
    link: Link | None = None
    change: LinkChange = field(default_factory=LinkChange)
    notes: list[str] = field(default_factory=list)
    _known: dict[tuple[str, str], Collective] = field(default_factory=dict)
    _drawn: dict[tuple[str, str, int], Drawn] = field(default_factory=dict)

    def algorithms(self, operation: str, world: World) -> dict[str, str]:
        """Returns which algorithms a run of this kind uses on `world`, by the name of the table of costs: the
        operation, and SMALL + the operation if the engine exchanges small messages in another way. The engine's own
        rule decides which messages are small (engine/base/thresholds.h)."""
        if operation == BARRIER:
            return {operation: ""}
        if self.stated and world.nodes > 1:
            return {operation: name_on(world, operation, self.stated, hierarchical=False)}
        if self.plane.startswith("nccl"):
            return {operation: "nccl"}
        automatic = self.forced in ("auto", "hierarchical")
        if world.nodes == 1:
            return {operation: "shm" if automatic or self.forced == "shm" else self.forced}
        if automatic:
            return {operation: "ring", SMALL + operation: "doubling" if operation == "all_reduce" else "direct"}
        if self.forced == "mpi":
            return {operation: "mpi's own"}
        return {operation: name_on(world, operation, self.forced, hierarchical=False)}

    def tables(self, operation: str, world: World) -> dict[str, Collective]:
        """Returns what is known of each of algorithms(). Small messages that nothing is known of are left out: they
        take what others do. Errors: HvdbError, which is TooLittle if more must be measured."""
        made = {}
        for name, algorithm in self.algorithms(operation, world).items():
            known = self.known(operation, algorithm)
            try:
                known.require(world)
                if world.nodes > 1 and self.change != LinkChange():
                    self._require_change(known, world)
            except TooLittle:
                if not name.startswith(SMALL):
                    raise
                continue
            made[name] = known
        return made

    def _require_change(self, known: Collective, world: World) -> None:
        known.require_steps(world)
        if self.change.link_gbit and not (self.link or self.measured_rate()):
            raise TooLittle("link-gbit: no large collectives tell the present rate of the link: name it by --link-gbit")

    def known(self, operation: str, algorithm: str) -> Collective:
        """Returns what is known of an operation by one algorithm. Errors: HvdbError for cells that do not fit."""
        key = (operation, algorithm)
        if key not in self._known:
            inside: list[CollectiveTimes] = []
            senders = collective.senders(operation, algorithm, self.ranks_per_node)
            if self.ranks_per_node > 1 and (operation == BARRIER or senders > 1):
                inside = self.cells.get((operation, "" if operation == BARRIER else "shm"), [])
            self._known[key] = collective.gather(
                operation,
                algorithm,
                self.cells.get(key, []),
                [cell for cell in self.cells.get((operation, ""), []) if cell.imported],
                [cell for cell in inside if cell.world == World(1, self.ranks_per_node)],
                self.link,
                self.ranks_per_node,
            )
        return self._known[key]

    def changed(self, change: LinkChange) -> Fabric:
        """Returns the same fabric with another link between nodes. Errors come with tables()."""
        return replace(self, change=change, _drawn={})

    def drawn(self, known: Collective, number: int, streams: Streams) -> Drawn:
        """Returns the time of a collective in draw `number`; -1: in the middle of all draws."""
        key = (known.operation, known.algorithm, number)
        if key not in self._drawn:
            quality = link.quality(streams("link") if number >= 0 else None)
            made = known.middle
            if number >= 0:
                made = known.draw(streams("collectives", known.operation, known.algorithm), quality)
            if self.change != LinkChange():
                made = made.on(self.change, self.link, self.measured_rate(), quality)
            self._drawn[key] = made
        return self._drawn[key]

    def measured_rate(self) -> float:
        """Returns what large collectives get of the link between nodes, in bytes per second; 0 if none was measured."""
        largest = (0.0, 0.0)
        for operation, algorithm in sorted(self.cells):
            known = self.known(operation, algorithm)
            if known.times:
                largest = max(largest, collective.measured_rate(known))
        return largest[1]

    def labels(self, operations: Collection[str], worlds: Collection[World]) -> list[Label]:
        """Returns where the costs of `operations` on `worlds` come from."""
        made = []
        for (operation, algorithm), cells in sorted(self.cells.items()):
            for kind, others in ((MEASURED, False), (IMPORTED, True)):
                mine = [cell for cell in cells if cell.imported == others]
                if mine and operation in operations:
                    source = f"{count_text(len(mine), 'cell')} on {nodes_text(c.world for c in mine)}"
                    made.append(Label(title(operation, algorithm), kind, source))
        if self.stated:
            source = f"'{self.stated}' on all worlds of several nodes, as --algorithm says"
            made.append(Label("algorithm of imported collectives", ASSUMED, source))
        if self.link and self.is_described(operations, worlds):
            made += self.link.labels()
        return made + link.change_labels(self.change, self.link, self.measured_rate())

    def is_described(self, operations: Collection[str], worlds: Collection[World]) -> bool:
        """Returns True if the time of one of `operations` on one of `worlds` comes from the described link alone."""
        return any(
            self.known(operation, algorithm).is_described(world)
            for world in worlds
            for operation in operations
            for name, algorithm in self.algorithms(operation, world).items()
            if not name.startswith(SMALL)
        )

    def largest(self) -> int:
        """Returns the largest number of nodes on which anything was measured."""
        return max((cell.world.nodes for cell in self.every_cell()), default=1)

    def every_cell(self) -> Iterator[CollectiveTimes]:
        """Yields all cells."""
        return itertools.chain.from_iterable(self.cells.values())


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
    if not run.on_gpus and allreduce_type != "fp32":
        raise TooLittle(
            f"the schedule rounds messages to {allreduce_type} between nodes, and hvd_bench coll measures no such "
            "messages on CPUs"
        )
    forced = run.fact("comm.algorithm") or "auto"
    fabric = Fabric(forced, run.data_plane, ranks_per_node, stated=added.algorithm, link=added.link)
    device = "cuda" if run.on_gpus else "cpu"
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
        for operation, cells in found.items():
            world = cells[0].world
            stated = fabric.stated if world.nodes > 1 else ""
            algorithm = name_on(world, operation, stated, hierarchical=False)
            fabric.cells.setdefault((operation, algorithm), []).extend(cells)
        fabric.notes += imported.note(one, found)
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
        made = CollectiveTimes(world, columns["bytes"], cell.samples, columns["session_uuid"])
        fabric.cells.setdefault((columns["operation"], algorithm), []).append(made)
