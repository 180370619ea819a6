"""Pure functions that compute the effect of jsrun's options: resource sets, ranks, cores and GPUs, or a refusal.

It knows the options that hvdb.campaign.script writes, as -n4. Source: IBM Spectrum LSF/JSM, "Job Step Manager: jsrun"
(-n -r -a -c -g -b -d), and OLCF's Summit user guide for the examples in test_lsf.py. No real jsrun was at hand to
compare with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

COUNTS = {"-n": "nrs", "-r": "rs_per_host", "-a": "tasks_per_rs", "-c": "cpu_per_rs", "-g": "gpu_per_rs"}
WORDS = {"-b": "bind", "-d": "launch_distribution", "--smpiargs=": "smpiargs"}


class Refused(Exception):
    """jsrun refuses the options and launches nothing."""


@dataclass(frozen=True)
class Machine:
    """The allocation: how many compute nodes it has, and how many usable cores and GPUs each node has."""

    nodes: int
    cores: int
    gpus: int


@dataclass(frozen=True)
class Rank:
    """The node and resource set of one rank, and the cores and GPUs that the rank sees."""

    node: int
    local_rank: int
    resource_set: int
    cores: tuple[int, ...]
    gpus: tuple[int, ...]


@dataclass
class Request:
    """The options of one jsrun, and the program with its arguments."""

    counts: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)


def parse(arguments: list[str]) -> Request:
    """Parses jsrun's arguments. An option and its value are one word. Errors: Refused."""
    request = Request()
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if name := COUNTS.get(word[:2]):
            if not word[2:].isdigit() or (int(word[2:]) == 0 and name != "gpu_per_rs"):
                raise Refused(f"jsrun: invalid value {word[2:]} for {word[:2]}")
            request.counts[name] = int(word[2:])
            continue
        option = next((option for option in WORDS if word.startswith(option)), None)
        if option is None:
            raise Refused(f"jsrun: invalid option {word}")
        request.words[WORDS[option]] = word.removeprefix(option)
    request.command = rest
    if not request.command:
        raise Refused("jsrun: no program to launch")
    return request


def _packed_cores(request: Request, tasks: int, cores: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the cores of each rank of a set. With -b packed:N each rank gets N cores, otherwise all of the set."""
    bind = request.words.get("bind", "packed:1")
    match = re.fullmatch(r"packed:(\d+)", bind)
    if not match:
        if bind not in ("none", "rs", "packed"):
            raise Refused(f"jsrun: invalid binding {bind}")
        return [cores] * tasks
    each = int(match[1])
    if each * tasks > len(cores):
        raise Refused(f"Error: cannot bind {tasks} tasks of {each} cores in a resource set of {len(cores)} cores")
    return [cores[i * each : (i + 1) * each] for i in range(tasks)]


def place(request: Request, machine: Machine) -> list[Rank]:
    """Returns each rank's place. Sets fill one node after another, ranks one set after another. Errors: Refused."""
    counts = request.counts
    tasks, cores, gpus = (counts.get(n, d) for n, d in (("tasks_per_rs", 1), ("cpu_per_rs", 1), ("gpu_per_rs", 0)))
    fit = machine.cores // cores if gpus == 0 else min(machine.cores // cores, machine.gpus // gpus)
    if fit == 0:
        raise Refused(
            f"Error: a resource set of {cores} cores and {gpus} GPUs does not fit on a node of {machine.cores} cores "
            f"and {machine.gpus} GPUs"
        )
    per_host = counts.get("rs_per_host", fit)
    if per_host > fit:
        raise Refused(f"Error: {per_host} resource sets per host were asked for, but {fit} fit")
    sets = counts.get("nrs", per_host * machine.nodes)
    if sets > per_host * machine.nodes:
        raise Refused(
            f"Error: {sets} resource sets were asked for, but {machine.nodes} hosts hold {per_host * machine.nodes}"
        )
    distribution = request.words.get("launch_distribution", "packed")
    if distribution not in ("packed", "cyclic"):
        raise Refused(f"jsrun: invalid launch distribution {distribution}")
    ranks = []
    local = [0] * machine.nodes
    for number in range(sets):
        node, slot = divmod(number, per_host)
        own_cores = tuple(range(slot * cores, (slot + 1) * cores))
        own_gpus = tuple(range(slot * gpus, (slot + 1) * gpus))
        for bound in _packed_cores(request, tasks, own_cores):
            ranks.append(Rank(node, local[node], number, bound, own_gpus))
            local[node] += 1
    return ranks
