"""Turns a spec and a site into jobs and their cells, and estimates their longest times. Pure.

The order of the cells depends only on spec.order_seed. Times come from hvd_bench's time limit, or from the measured
times of a pilot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hvdb.base.errors import CampaignError
from hvdb.campaign.cell import ONE_NODE, ONE_RANK, SCALE, Cell, Shape, shuffled
from hvdb.campaign.site import Site
from hvdb.campaign.spec import Spec

PILOT_SAFETY = 1.5  # factor, because the allocation and the number of nodes differ from those of the pilot
ROUND_TO_SECONDS = 60


@dataclass(frozen=True)
class PilotKey:
    """The properties of a launch on which its estimated time depends. The exact number of ranks is not one of them."""

    model: str
    batch_size: int
    dtype: str
    several_ranks: bool


@dataclass(frozen=True)
class Pilot:
    """Measured times. seconds: key -> longest time of a launch, from its first run's start to its last run's end.

    notes: one line for each launch whose time is not known.
    """

    seconds: dict[PilotKey, float]
    notes: tuple[str, ...] = ()


class CellTime:
    """Computes the seconds of cells and the walltimes of jobs for one spec on one site. Pure."""

    def __init__(self, spec: Spec, site: Site, pilot: Pilot | None) -> None:
        self._cap = spec.max_time_seconds()
        self._site = site.walltime
        self._pilot = pilot

    def seconds(self, cell: Cell) -> float:
        """Returns the longest time, in seconds, that one launch of `cell` may take."""
        measuring = self._cap
        if self._pilot is not None:
            key = PilotKey(cell.model, cell.batch_size, cell.dtype, cell.shape.ranks > 1)
            seen = self._pilot.seconds.get(key)
            if seen is not None:
                measuring = min(self._cap, PILOT_SAFETY * seen)
        startup = self._site.startup_seconds + self._site.startup_seconds_per_rank * cell.shape.ranks
        return startup + measuring

    def walltime(self, seconds: float) -> int:
        """Returns the walltime to request for cells that take `seconds`, rounded up to whole minutes.

        The walltime includes the site's margin and the time between the scheduler's warning and the end.
        """
        wanted = seconds * self._site.margin + self._site.warning_seconds
        return ROUND_TO_SECONDS * math.ceil(wanted / ROUND_TO_SECONDS)


def duration_text(seconds: float) -> str:
    """Returns `seconds` as HH:MM:SS. Hours may have more than two digits."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@dataclass(frozen=True)
class Job:
    """The cells that run in one allocation. Each repetition of the job gets an allocation.

    cells: repetition -> its cells in the order in which they run. seconds: the longest time that all cells of one
    repetition together may take.
    """

    name: str
    nodes: int
    cells: dict[int, tuple[Cell, ...]]
    seconds: float
    walltime_seconds: int

    @property
    def node_hours(self) -> float:
        """The most node hours that all repetitions of the job together may use."""
        return self.nodes * self.walltime_seconds * len(self.cells) / 3600

    def shapes(self) -> list[Shape]:
        """Returns every shape of the job's cells, smallest first."""
        found = {cell.shape for cells in self.cells.values() for cell in cells}
        return sorted(found, key=lambda shape: shape.ranks)


@dataclass(frozen=True)
class Plan:
    """All jobs, smallest allocation first. left_out: a line for each case of the spec that is not in the plan."""

    spec: Spec
    site: Site
    jobs: tuple[Job, ...]
    left_out: tuple[str, ...]
    cell_seconds: dict[str, float]  # hash of a cell -> the most seconds that the cell may take
    profiles: Mapping[str, str]  # model -> Cell.profile

    def cells(self) -> Iterator[tuple[Job, int, Cell]]:
        """Yields every cell with its job and its repetition."""
        for job in self.jobs:
            for repetition, cells in job.cells.items():
                for cell in cells:
                    yield job, repetition, cell


def ranks_per_node(spec: Spec, site: Site) -> int:
    """Returns the number of ranks on a full node. Errors: CampaignError if the site forbids the spec's number."""
    if spec.ranks_per_node == 0:
        return site.node.ranks_per_node[0]
    if spec.ranks_per_node not in site.node.ranks_per_node:
        allowed = ", ".join(map(str, site.node.ranks_per_node))
        raise CampaignError(
            f"campaign {spec.name}: ranks_per_node: {spec.ranks_per_node}, but site {site.name} allows {allowed} "
            "(node.ranks_per_node)"
        )
    return spec.ranks_per_node


def shapes(spec: Spec, site: Site) -> tuple[list[Shape], list[str]]:
    """Returns the shape of each of the spec's rank counts on `site`, and a line for each count that is left out.

    Errors: CampaignError for a listed count that is too large for the site, or ragged although the spec forbids it.
    """
    full = ranks_per_node(spec, site)
    found, left_out = [], []
    for ranks in spec.ranks:
        nodes = -(-ranks // full)
        where = f"campaign {spec.name}: ranks: {ranks}"
        if site.node.limit and nodes > site.node.limit:
            reason = f"{nodes} nodes of {full} ranks, more than the {site.node.limit} of site {site.name} (node.limit)"
            if spec.ranks_given:
                raise CampaignError(f"{where}: needs {reason}; take it out, or use a larger site")
            left_out.append(f"{ranks} ranks: {reason}")
            continue
        if nodes > 1 and ranks % full and not spec.allow_ragged:
            reason = f"does not fill {nodes} nodes of {full} ranks on site {site.name}"
            if spec.ranks_given:
                raise CampaignError(
                    f"{where}: {reason}; use multiples of {full}, another ranks_per_node, or allow_ragged = true"
                )
            left_out.append(f"{ranks} ranks: {reason}")
            continue
        found.append(Shape(ranks, nodes, min(ranks, full)))
    if not found:
        raise CampaignError(f"campaign {spec.name}: ranks: none of them fits site {site.name}: {'; '.join(left_out)}")
    return found, left_out


class _CellMaker:
    """Makes the cells of one spec on one site. Properties in which these cells differ are arguments of the methods."""

    def __init__(self, spec: Spec, site: Site, profiles: Mapping[str, str], allocation_nodes: int) -> None:
        self._spec = spec
        self._profiles = profiles
        self._site = site
        self._nodes = allocation_nodes

    def cell(
        self, role: str, shape: Shape, batch: int, model: str, dtype: str, seed: int, allreduce: str, schedule: str
    ) -> Cell:
        """Returns a cell of repetition 1.

        A cell of one rank reduces nothing, so it always gets the spec's first schedule and first all-reduce type.
        """
        spec = self._spec
        alone = shape.ranks == 1
        return Cell(
            role=role,
            shape=shape,
            model=model,
            batch_size=batch,
            dtype=dtype,
            allreduce_dtype=spec.allreduce_dtypes[0] if alone else allreduce,
            schedule=spec.schedules[0] if alone else schedule,
            seed=seed,
            efficiency=spec.efficiency and role == SCALE and not alone and schedule != "none",
            options=tuple((name, value.replace("{model}", model)) for name, value in spec.options),
            device=self._site.program.device,
            allocation_nodes=self._nodes,
            repetition=1,
            site=self._site.name,
            surroundings=self._site.surroundings,
            profile=self._profiles.get(model, ""),
        )

    def block(self, model: str, dtype: str, seed: int, batches: dict[Shape, int], one_node: Shape) -> list[Cell]:
        """Returns the cells (role SCALE) of `batches` (shape -> images per rank), and their one-node baselines."""
        cells = []
        for shape, batch in batches.items():
            for allreduce in self._spec.allreduce_dtypes:
                for schedule in self._spec.schedules:
                    common = {"model": model, "dtype": dtype, "seed": seed, "allreduce": allreduce}
                    cells.append(self.cell(SCALE, shape, batch, schedule=schedule, **common))
                    if shape.nodes > 1:
                        cells.append(self.cell(ONE_NODE, one_node, batch, schedule=schedule, **common))
        return cells

    def one_rank(self, model: str, dtype: str, seed: int, batch: int) -> Cell:
        first = self._spec.allreduce_dtypes[0], self._spec.schedules[0]
        return self.cell(ONE_RANK, Shape(1, 1, 1), batch, model, dtype, seed, *first)


def _strong_batches(
    spec: Spec, model: str, all_shapes: list[Shape], left_out: dict[str, None]
) -> tuple[dict[Shape, int], int]:
    """Returns the images per rank of strong scaling (by shape), and the images of the one-rank baseline."""
    assert spec.strong is not None
    whole, most = spec.strong.global_batch[model], spec.strong.max_batch_per_rank
    batches = {}
    for shape in all_shapes:
        batch, rest = divmod(whole, shape.ranks)
        if rest:
            left_out[f"strong, {model}, {shape.ranks} ranks: do not divide {whole} images"] = None
        elif most and batch > most:
            left_out[f"strong, {model}, {shape.ranks} ranks: {batch} images per rank, more than {most}"] = None
        else:
            batches[shape] = batch
    return batches, min(whole, most or whole)


def _blocks(
    spec: Spec,
    site: Site,
    profiles: Mapping[str, str],
    nodes: int,
    all_shapes: list[Shape],
    left_out: dict[str, None],
) -> list[list[Cell]]:
    """Returns the blocks of cells to run in an allocation of `nodes` nodes.

    A block has the cells of one scaling, model, type and seed, and their baselines. A cell that several blocks need is
    in the first of them.
    """
    maker = _CellMaker(spec, site, profiles, nodes)
    full = ranks_per_node(spec, site)
    one_node = Shape(full, 1, full)
    here = [shape for shape in all_shapes if shape.nodes == nodes]
    blocks: list[list[Cell]] = []
    seen: set[str] = set()
    for model in spec.models:
        scalings = []
        if spec.weak is not None:
            batch = spec.weak.batch_size[model]
            scalings.append((dict.fromkeys(here, batch), batch))
        if spec.strong is not None:
            batches, alone = _strong_batches(spec, model, all_shapes, left_out)
            scalings.append(({shape: batches[shape] for shape in here if shape in batches}, alone))
        for batches, alone in scalings:
            for dtype in spec.dtypes:
                for seed in spec.seeds:
                    cells = maker.block(model, dtype, seed, batches, one_node)
                    if cells:
                        cells.append(maker.one_rank(model, dtype, seed, alone))
                    blocks.append(_new(cells, seen))
    return [block for block in blocks if block]


def _new(cells: Iterable[Cell], seen: set[str]) -> list[Cell]:
    """Returns those of `cells` whose hash is not in `seen`, and adds their hashes to `seen`."""
    found = []
    for cell in cells:
        if cell.hash not in seen:
            seen.add(cell.hash)
            found.append(cell)
    return found


def _packed(
    spec: Spec, site: Site, nodes: int, blocks: list[list[Cell]], time: CellTime
) -> list[tuple[list[list[Cell]], float]]:
    """Splits `blocks`, in order, into the fewest parts that each fit the longest walltime.

    Returns each part with its seconds.
    """
    parts: list[tuple[list[list[Cell]], float]] = []
    for block in blocks:
        seconds = sum(time.seconds(cell) for cell in block)
        if time.walltime(seconds) > site.walltime.maximum:
            raise CampaignError(
                f"campaign {spec.name}: {block[0].model} in {block[0].dtype} on {nodes} nodes with its baselines may "
                f"take {duration_text(time.walltime(seconds))}, more than walltime.maximum = "
                f"{duration_text(site.walltime.maximum)} of site {site.name}; lower options.max-time, run fewer "
                "schedules or rank counts, or measure how long it takes with --pilot"
            )
        if parts and time.walltime(parts[-1][1] + seconds) <= site.walltime.maximum:
            parts[-1] = ([*parts[-1][0], block], parts[-1][1] + seconds)
        else:
            parts.append(([block], seconds))
    return parts


def _ordered(spec: Spec, name: str, blocks: list[list[Cell]], repetition: int) -> tuple[Cell, ...]:
    """Shuffles the blocks, and the cells within each block, so that a drift of the machine favours no kind of cell.

    The cells of a block stay together, so that a job that is cut short has baselines for the cells that it ran.
    """
    key = (spec.order_seed, name, repetition)
    order: list[Cell] = []
    for index, block in shuffled(list(enumerate(blocks)), *key):
        order += shuffled(block, *key, index)
    return tuple(dataclasses.replace(cell, repetition=repetition) for cell in order)


def make(
    spec: Spec, site: Site, pilot: Pilot | None = None, profiles: Mapping[str, str] = MappingProxyType({})
) -> Plan:
    """Returns the jobs of `spec` on `site`. With `pilot`, walltimes are computed from the pilot's measured times.

    profiles: model -> hash of the recorded step that its cells replay.

    Errors: those of ranks_per_node() and shapes(); CampaignError for a block that does not fit the longest walltime.
    """
    all_shapes, left_out_counts = shapes(spec, site)
    left_out: dict[str, None] = dict.fromkeys(left_out_counts)
    time = CellTime(spec, site, pilot)
    jobs = []
    cell_seconds: dict[str, float] = {}
    for nodes in sorted({shape.nodes for shape in all_shapes}):
        parts = _packed(spec, site, nodes, _blocks(spec, site, profiles, nodes, all_shapes, left_out), time)
        for number, (blocks, seconds) in enumerate(parts, start=1):
            name = f"n{nodes:04d}" + (f"-p{number}" if len(parts) > 1 else "")
            cells = {r: _ordered(spec, name, blocks, r) for r in range(1, spec.repetitions + 1)}
            cell_seconds |= {cell.hash: time.seconds(cell) for order in cells.values() for cell in order}
            groups = [cells] if site.submit.array else [{r: order} for r, order in cells.items()]
            for group in groups:
                own = name if site.submit.array or spec.repetitions == 1 else f"{name}-r{next(iter(group))}"
                jobs.append(Job(own, nodes, group, seconds, time.walltime(seconds)))
    if not jobs:
        raise CampaignError(f"campaign {spec.name}: nothing is left to run: {'; '.join(left_out)}")
    return Plan(spec, site, tuple(jobs), tuple(left_out), cell_seconds, profiles)
