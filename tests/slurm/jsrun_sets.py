"""Pure functions that compute the effect of jsrun's options: resource sets, ranks, cores and GPUs, or a refusal.

Source: IBM Spectrum LSF/JSM, "Job Step Manager: jsrun" (-n -r -a -c -g -p -b -d), and OLCF's Summit user guide for the
examples in test_lsf.py. No real jsrun was at hand to compare with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SHORT = {
    "-n": "nrs",
    "-r": "rs_per_host",
    "-a": "tasks_per_rs",
    "-c": "cpu_per_rs",
    "-g": "gpu_per_rs",
    "-p": "np",
    "-b": "bind",
    "-d": "launch_distribution",
    "-l": "latency_priority",
    "-M": "smpiargs",
    "-E": "env",
    "-o": "stdio_stdout",
    "-k": "stdio_stderr",
}
COUNTS = ("nrs", "rs_per_host", "tasks_per_rs", "cpu_per_rs", "gpu_per_rs", "np")
WORDS = ("bind", "launch_distribution", "latency_priority", "smpiargs", "env", "stdio_stdout", "stdio_stderr")


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
    """Parses jsrun's arguments. -n4, -n 4, --nrs 4 and --nrs=4 mean the same. Errors: Refused."""
    request = Request()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--" or not word.startswith("-"):
            request.command = rest if word == "--" else [word, *rest]
            break
        name, value = word, None
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            value = text if equals else None
        elif word[:2] in SHORT:
            name, value = SHORT[word[:2]], word[2:] or None
        if name not in COUNTS + WORDS:
            raise Refused(f"jsrun: invalid option {word}")
        if value is None:
            if not rest:
                raise Refused(f"jsrun: option {word} requires an argument")
            value = rest.pop(0)
        if name in COUNTS:
            if not value.isdigit() or (int(value) == 0 and name != "gpu_per_rs"):
                raise Refused(f"jsrun: invalid value {value} for {word}")
            request.counts[name] = int(value)
        else:
            request.words[name] = value
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
    if "np" in counts:
        if "nrs" in counts and counts["np"] != counts["nrs"] * tasks:
            raise Refused(f"jsrun: -p {counts['np']} contradicts {counts['nrs']} resource sets of {tasks} tasks")
        counts.setdefault("nrs", -(-counts["np"] // tasks))
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
