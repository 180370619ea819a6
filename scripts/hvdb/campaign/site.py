"""Site profiles as plain data. A profile says where to measure. The profiles of this project are in slurm/sites."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdb.base.data import SITES
from hvdb.campaign import bench_options
from hvdb.campaign.canonical import digest
from hvdb.campaign.errors import CampaignError
from hvdb.campaign.fields import Table, document, load, nearest

SCHEDULERS = ("slurm", "lsf", "none")
MAX_BASES = 8
TRACES = "would trace every cell, and no table takes traced runs; leave it out"


@dataclass(frozen=True)
class Node:
    """One node. A number of 0 means unknown or none: this property is neither requested nor checked."""

    cores: int
    gpus: int
    ranks_per_node: tuple[int, ...]  # allowed values; the first value is the default
    limit: int  # maximum nodes of one job; 0: no limit


@dataclass(frozen=True)
class Program:
    """The program to run, and the environment that it needs."""

    hvd_bench: str
    device: str
    modules: tuple[str, ...]
    setup: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True)
class Submit:
    """How to submit a job, and what the job requests. Fields with empty texts give no directive."""

    command: tuple[str, ...]
    by: str  # how the script is passed: argument or stdin
    account: str
    partition: str
    qos: str
    constraint: str
    reservation: str
    exclusive: bool
    array: bool
    array_limit: int
    requeue: bool
    extra: tuple[str, ...]
    keep_variables: tuple[str, ...] = ()  # the default is for folders that were generated without this field


@dataclass(frozen=True)
class Launch:
    """How to start ranks inside a job."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    binding: tuple[str, ...]
    cores_per_rank: int
    resource_sets: str  # for jsrun: one resource set per node, or one resource set per rank


@dataclass(frozen=True)
class Walltime:
    """Limits and estimates of walltimes, in seconds. `margin` is a factor on the estimated time."""

    maximum: int
    warning_seconds: int
    startup_seconds: float
    startup_seconds_per_rank: float
    margin: float


@dataclass(frozen=True)
class Site:
    """One machine. The fields match the site's TOML file (docs/campaigns.md) after its bases were merged into it."""

    name: str
    scheduler: str
    node: Node
    program: Program
    submit: Submit
    launch: Launch
    walltime: Walltime

    @property
    def hash(self) -> str:
        """16 hexadecimal digits, a digest of all fields of the site."""
        return digest(dataclasses.asdict(self))

    @property
    def surroundings(self) -> str:
        """8 hexadecimal digits, a digest of the commands that start and bind ranks, and of the environment variables.

        The digits depend neither on requests to the scheduler nor on modules. The fingerprint that hvd_bench stores
        covers the libraries that modules load.
        """
        return digest([dataclasses.asdict(self.launch), self.program.environment], 8)


def _node(table: Table) -> Node:
    node = table.record(Node, ranks_per_node=table.integers("ranks_per_node", low=1, high=4096))
    for ranks in node.ranks_per_node:
        if node.gpus and ranks > node.gpus:
            raise table.fail("ranks_per_node", f"{ranks} ranks, but a node has {node.gpus} GPUs, one per rank")
        if node.cores and ranks > node.cores:
            raise table.fail("ranks_per_node", f"{ranks} ranks, but a node has {node.cores} cores")
    table.close()
    return node


def _is_variable(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def _program(table: Table) -> Program:
    variables = table.table("environment", required=True)
    environment = {}
    for key, value in variables.scalars().items():
        if not _is_variable(key):
            raise variables.fail(key, "is not the name of an environment variable")
        if key == bench_options.TRACE_VARIABLE:
            raise variables.fail(key, TRACES)
        environment[key] = str(int(value)) if isinstance(value, bool) else str(value)
    path = table.text("hvd_bench", pattern=".+", means="the path of the program")
    device = table.word("device", bench_options.DEVICES)
    program = table.record(Program, hvd_bench=path, device=device, environment=environment)
    table.close()
    return program


def _submit(table: Table, scheduler: str) -> Submit:
    submit = table.record(Submit, by=table.word("by", ("argument", "stdin")))
    for name in submit.keep_variables:
        if not _is_variable(name):
            raise table.fail("keep_variables", f"'{name}' is not the name of an environment variable")
        if name == bench_options.TRACE_VARIABLE:
            raise table.fail("keep_variables", f"{name} {TRACES}")
    if scheduler == "lsf" and submit.qos:
        raise table.fail("qos", "LSF has no such thing; leave it empty, and use partition (a queue) or extra")
    if scheduler == "none" and submit.array:
        raise table.fail("array", "needs a scheduler; give false")
    if scheduler != "none" and not submit.command:
        raise table.fail("command", "is empty; name the program that submits, say sbatch or bsub")
    table.close()
    return submit


def _launch(table: Table, node: Node) -> Launch:
    launch = table.record(Launch, resource_sets=table.word("resource_sets", ("node", "rank")))
    if not launch.command:
        raise table.fail("command", "is empty; name the program that starts ranks, say srun, jsrun or mpirun")
    for ranks in node.ranks_per_node:
        if node.cores and ranks * launch.cores_per_rank > node.cores:
            raise table.fail(
                "cores_per_rank", f"{ranks} ranks of {launch.cores_per_rank} cores do not fit on {node.cores} cores"
            )
    table.close()
    return launch


def _walltime(table: Table) -> Walltime:
    maximum, margin = table.duration("maximum"), table.number("margin", low=1.0)
    walltime = table.record(Walltime, maximum=maximum, margin=margin)
    table.close()
    return walltime


def from_data(data: dict[str, Any], source: str) -> Site:
    """Returns the site of the TOML document `data`, into which the site's bases were merged. Errors: CampaignError."""
    table = Table(data, source)
    table.text("base", "")
    scheduler = table.word("scheduler", SCHEDULERS)
    node = _node(table.table("node", required=True))
    site = Site(
        name=table.text("name", pattern=r"[\w.-]{1,60}", means="a name of letters, digits, dots and hyphens"),
        scheduler=scheduler,
        node=node,
        program=_program(table.table("program", required=True)),
        submit=_submit(table.table("submit", required=True), scheduler),
        launch=_launch(table.table("launch", required=True), node),
        walltime=_walltime(table.table("walltime", required=True)),
    )
    table.close()
    if scheduler == "lsf" and node.cores == 0:
        raise table.fail("node.cores", "is 0, but jsrun's resource sets need the number of cores of a node")
    if scheduler == "lsf" and site.launch.cores_per_rank == 0:
        raise table.fail("launch.cores_per_rank", "is 0, but jsrun's resource sets need it")
    return site


def known() -> list[str]:
    """Returns the names of the sites that are part of this project."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def merged(over: dict[str, Any], under: dict[str, Any]) -> dict[str, Any]:
    """Returns `under` with the values of `over` put in. Merges tables, such as program.environment, key by key."""
    result = dict(under)
    for key, value in over.items():
        beneath = result.get(key)
        result[key] = merged(value, beneath) if isinstance(value, dict) and isinstance(beneath, dict) else value
    return result


def _path(name: str, beside: Path | None) -> Path:
    """Returns the file of a site. name: a site of this project, or a path; a base's path is relative to `beside`."""
    if name in known():
        return SITES / f"{name}.toml"
    path = Path(name) if beside is None else beside / name
    if path.suffix == ".toml" or "/" in name:
        return path
    raise CampaignError(
        f"site '{name}': there is no such site{nearest(name, known())}; known: {', '.join(known())}, or a .toml file"
    )


def _with_base(name: str, read: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], str]:
    path = _path(name, None)
    data, source = read(path), str(path)
    under = data
    for _ in range(MAX_BASES):
        base = under.get("base")
        if base is None:
            return data, source
        if not isinstance(base, str):
            raise CampaignError(f"{path}: base: {base!r} is not a string")
        path = _path(base, path.parent)
        under = read(path)
        data = merged(data, under)
    raise CampaignError(f"{source}: base: more than {MAX_BASES} levels; does a site name itself as its base?")


def assigned(data: dict[str, Any], assignment: str) -> dict[str, Any]:
    """Applies one `KEY=VALUE` of --set to `data`. KEY is written with dots between the names of tables.

    VALUE is TOML, or any text if the key's value in `data` is text.
    """
    key, equals, text = assignment.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(part.replace("_", "a").isalnum() for part in parts):
        raise CampaignError(f"--set {assignment}: is not KEY=VALUE, say submit.account=abc123")
    there: Any = data
    for part in parts:
        there = there.get(part) if isinstance(there, dict) else None
    try:
        value = document(f"value = {text}")["value"]
    except ValueError:
        value = text
    if isinstance(there, str) and not isinstance(value, str):  # for example a duration, or an account named by digits
        value = text
    over: Any = value
    for part in reversed(parts):
        over = {part: over}
    return merged(over, data)


def read(name: str, assignments: Sequence[str] = ()) -> Site:
    """Returns the site with the name or file `name`, changed by the `assignments` of --set. Errors: CampaignError."""
    data, source = _with_base(name, load)
    changed = data
    for assignment in assignments:
        changed = assigned(changed, assignment)
    try:
        return from_data(changed, source)
    except CampaignError as error:
        raise _blamed(data, source, assignments, error) from None


def _problem(data: dict[str, Any], source: str) -> str:
    """Returns the text of from_data's error, or "" if `data` is a site."""
    try:
        from_data(data, source)
    except CampaignError as error:
        return str(error)
    return ""


def _blamed(data: dict[str, Any], source: str, assignments: Sequence[str], error: CampaignError) -> CampaignError:
    """Returns the error to raise for a site that its `assignments` may have spoiled.

    data: the site before the assignments. If `error` appears only with one of the assignments, its text names this
    assignment in place of the file.
    """
    if _problem(data, source) == str(error):
        return error
    for assignment in assignments:
        data = assigned(data, assignment)
        if _problem(data, source) == str(error):
            key = assignment.partition("=")[0].strip()
            what = str(error).removeprefix(f"{source}: ")
            return CampaignError(f"--set {what if what.startswith(f'{key}: ') else f'{key}: {what}'}")
    return error
