"""Site profiles as plain data. A profile says where to measure. The profiles of this project are in slurm/sites."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hvdb.base import record
from hvdb.base.data import SITES
from hvdb.base.errors import CampaignError
from hvdb.base.record import LINE, SEVERAL, From, Malformed, Range, Text, Words
from hvdb.campaign import bench_options
from hvdb.campaign.bench_options import Scalar
from hvdb.campaign.cell import digest

SCHEDULERS = ("slurm", "lsf", "none")
MAX_BASES = 8
# Variables in which sbatch, squeue and scancel look for the cluster. A later command may have another value.
CLUSTER_VARIABLES = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")
TRACES = "would trace every cell, and no table takes traced runs; leave it out"
Line = Annotated[str, LINE]
Lines = tuple[Line, ...]
Variable = Annotated[str, Text(pattern=r"[A-Za-z_][A-Za-z0-9_]*", means="the name of an environment variable")]
Seconds = Annotated[float, Range(0, 1e6)]


def _environment(variables: dict[str, Scalar]) -> dict[str, str]:
    if bench_options.TRACE_VARIABLE in variables:
        raise Malformed(TRACES, bench_options.TRACE_VARIABLE)
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in variables.items()}


def _duration(text: str) -> int:
    """Returns the seconds of a text HH:MM:SS. Errors: ValueError."""
    match = re.fullmatch(r"(\d{1,3}):([0-5]\d):([0-5]\d)", text)
    if not match or not (seconds := 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3])):
        raise record.refused(text, "a time of the form HH:MM:SS")
    return seconds


@dataclass(frozen=True)
class Node:
    """One node. A number of 0 means unknown or none: this property is neither requested nor checked."""

    cores: int
    gpus: int
    ranks_per_node: Annotated[tuple[Annotated[int, Range(1, 4096)], ...], SEVERAL]  # allowed; the first is the default
    limit: int  # maximum nodes of one job; 0: no limit

    def __post_init__(self) -> None:
        for ranks in self.ranks_per_node:
            if self.gpus and ranks > self.gpus:
                raise Malformed(f"{ranks} ranks, but a node has {self.gpus} GPUs, one per rank", "ranks_per_node")
            if self.cores and ranks > self.cores:
                raise Malformed(f"{ranks} ranks, but a node has {self.cores} cores", "ranks_per_node")


@dataclass(frozen=True)
class Program:
    """The program to run, and the environment that it needs."""

    hvd_bench: Annotated[str, Text(pattern=".+", means="the path of the program")]
    device: Annotated[str, Words(bench_options.DEVICES)]
    modules: Lines
    setup: Lines
    environment: Annotated[dict[str, str], From(dict[Variable, Scalar], _environment)]


@dataclass(frozen=True)
class Submit:
    """How to submit a job, and what the job requests. Fields with empty texts give no directive."""

    command: Lines
    by: Annotated[str, Words(("argument", "stdin"))]  # how the script is passed
    account: Line
    partition: Line
    qos: Line
    constraint: Line
    reservation: Line
    exclusive: bool
    array: bool
    array_limit: int
    requeue: bool
    extra: Lines
    keep_variables: tuple[Variable, ...]

    def __post_init__(self) -> None:
        if bench_options.TRACE_VARIABLE in self.keep_variables:
            raise Malformed(f"{bench_options.TRACE_VARIABLE} {TRACES}", "keep_variables")
        for name in CLUSTER_VARIABLES:
            if name in self.keep_variables:
                raise Malformed(f"{name}: name the cluster in extra instead, as --clusters=NAME", "keep_variables")


def cluster_of(submit: Submit) -> str:
    """Returns the cluster that the options of sbatch name, or "". Errors: Malformed if they name several."""
    words = [word for line in submit.extra for word in re.sub(r"(^|\s)#.*", "", line).replace("=", " ").split()]
    words += [part for word in submit.command[1:] for part in word.split("=")]
    named = [after for word, after in itertools.pairwise(words) if word in ("--clusters", "--cluster", "-M")]
    named += [word[2:] for word in words if re.match("-M.", word)]
    if len(set(named)) > 1 or any("," in name or name == "all" for name in named):
        raise Malformed(f"{' '.join(named)}: a campaign's jobs wait for one another; name one cluster", "submit.extra")
    return named[0].strip("'\"") if named else ""


@dataclass(frozen=True)
class Launch:
    """How to start ranks inside a job."""

    command: Lines
    options: Lines
    binding: Lines
    cores_per_rank: int
    resource_sets: Annotated[str, Words(("node", "rank"))]  # for jsrun: what has a resource set of its own

    def __post_init__(self) -> None:
        if not self.command:
            raise Malformed("is empty; name the program that starts ranks, say srun, jsrun or mpirun", "command")


@dataclass(frozen=True)
class Walltime:
    """Limits and estimates of walltimes, in seconds. `margin` is a factor on the estimated time."""

    maximum: Annotated[int, From(str, _duration)]
    warning_seconds: int
    startup_seconds: Seconds
    startup_seconds_per_rank: Seconds
    margin: Annotated[float, Range(1, 1e6)]


@dataclass(frozen=True)
class Site:
    """One machine. The fields match the site's TOML file (docs/campaigns.md) after its bases were merged into it."""

    name: Annotated[str, Text(pattern=r"[\w.-]{1,60}", means="a name of letters, digits, dots and hyphens")]
    scheduler: Annotated[str, Words(SCHEDULERS)]
    node: Node
    program: Program
    submit: Submit
    launch: Launch
    walltime: Walltime

    def __post_init__(self) -> None:
        """Checks what tables say of one another."""
        node, submit, per_rank = self.node, self.submit, self.launch.cores_per_rank
        if self.scheduler == "lsf" and submit.qos:
            raise Malformed("LSF has no such thing; leave it empty, and use partition (a queue) or extra", "submit.qos")
        if self.scheduler == "slurm":
            cluster_of(submit)
        if self.scheduler == "none" and submit.array:
            raise Malformed("needs a scheduler; give false", "submit.array")
        if self.scheduler != "none" and not submit.command:
            raise Malformed("is empty; name the program that submits, say sbatch or bsub", "submit.command")
        for ranks in node.ranks_per_node:
            if node.cores and ranks * per_rank > node.cores:
                what = f"{ranks} ranks of {per_rank} cores do not fit on {node.cores} cores"
                raise Malformed(what, "launch.cores_per_rank")
        if self.scheduler == "lsf" and node.cores == 0:
            raise Malformed("is 0, but jsrun's resource sets need the number of cores of a node", "node.cores")
        if self.scheduler == "lsf" and per_rank == 0:
            raise Malformed("is 0, but jsrun's resource sets need it", "launch.cores_per_rank")

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


def from_data(data: dict[str, Any], source: str) -> Site:
    """Returns the site of the TOML document `data`, into which the site's bases were merged. Errors: CampaignError."""
    with record.faults_of(source, CampaignError):
        return record.read(Site, {key: value for key, value in data.items() if key != "base"})


def known() -> list[str]:
    """Returns the names of the sites that are part of this project."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def merged(over: dict[str, Any], under: dict[str, Any]) -> dict[str, Any]:
    """Returns `under` with the values of `over` put in. Merges tables, such as program.environment, key by key.

    Errors: CampaignError.
    """
    result = dict(under)
    try:
        for key, value in over.items():
            beneath = result.get(key)
            result[key] = merged(value, beneath) if isinstance(value, dict) and isinstance(beneath, dict) else value
    except RecursionError:
        raise CampaignError("a site and its base nest tables too deeply") from None
    return result


def _path(name: str, beside: Path | None) -> Path:
    """Returns the file of a site. name: a site of this project, or a path; a base's path is relative to `beside`."""
    if name in known():
        return SITES / f"{name}.toml"
    path = Path(name) if beside is None else beside / os.fsdecode(name.encode())  # TOML is UTF-8 in every locale
    if path.suffix == ".toml" or "/" in name:
        return path
    near, all_known = record.nearest(name, known()), ", ".join(known())
    raise CampaignError(f"site '{name}': there is no such site{near}; known: {all_known}, or a .toml file")


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
        value = record.toml(f"value = {text}")["value"]
    except Malformed:
        value = text
    if isinstance(there, str) and not isinstance(value, str):  # for example a duration, or an account named by digits
        value = text
    over: Any = value
    for part in reversed(parts):
        over = {part: over}
    return merged(over, data)


def read(name: str, assignments: Sequence[str] = ()) -> Site:
    """Returns the site with the name or file `name`, changed by the `assignments` of --set. Errors: HvdbError."""
    data, source = _with_base(name, record.document)
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
