"""The file of a comparison: a line of JSON with the plan, then one line per launch, in the order of launches.

Launches are appended, so a stopped comparison can continue. The file may come from a stranger, so every field is
checked. A writer must hold the file's lock.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import cells, libraries, samples
from .samples import Result
from hvdb import locks, strict_json
from hvdb.errors import HvdbError
from hvdb.strict_json import Malformed, text, whole

FORMAT = "hvd coll_peers 1"
MOST_ROUNDS = 1_000  # with more rounds than this, the exact intervals would take too long
MOST_NAMES = 100
LAUNCH_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """classes: name -> ranks. libraries: name -> version. pool_bytes: buffers rotate through at least this many bytes.

    launch_seconds: time limit of a launch. A launch that reaches it keeps its measured cells. 0: see limit_seconds().
    """

    machine: str
    classes: dict[str, int]
    libraries: dict[str, str]
    cells: list[str]
    rounds: int
    samples: int
    cell_seconds: int
    pool_bytes: int
    seed: int
    launch_seconds: int = 0


@dataclass(frozen=True)
class Turn:
    """A launch to make. seed: determines the order of the launch's cells."""

    round: int
    kind: str
    library: str
    seed: int


@dataclass(frozen=True)
class Launch:
    """A launch that was made. failure: why the launch did not complete; None if it did."""

    round: int
    kind: str
    library: str
    failure: str | None
    results: dict[str, Result] = field(default_factory=dict)


def limit_seconds(plan: Plan) -> float:
    """Returns the longest time of a launch in seconds. By default, twice the time of the samples: checks, filling the
    buffers and a last sample that ends late may together take as long as the samples."""
    return plan.launch_seconds or LAUNCH_SECONDS + 2 * (plan.cell_seconds + 5) * len(plan.cells)


def block_of(plan: Plan) -> list[tuple[str, str]]:
    """Returns (class, library) of each launch of a round. Pure."""
    return [(kind, name) for kind in plan.classes for name in plan.libraries if libraries.is_measured_in(name, kind)]


def turns(plan: Plan) -> list[Turn]:
    """Returns all launches. Each round has every library of every class once, in an order drawn from the seed.

    Pure.
    """
    made = []
    for number in range(plan.rounds):
        drawn = random.Random(f"{plan.seed} {number}")
        block = block_of(plan)
        drawn.shuffle(block)
        made += [Turn(number, kind, library, drawn.getrandbits(32)) for kind, library in block]
    return made


def _named(value: object, what: str, most: int = MOST_NAMES, longest: int = 40) -> dict[str, Any]:
    if not isinstance(value, dict) or not 0 < len(value) <= most:
        raise Malformed(f"{what} is not a table of 1 to {most} names")
    return {text(name, f"a name in {what}", longest): entry for name, entry in value.items()}


def plan_of(row: dict[str, Any]) -> Plan:
    """Reads the first line. Errors: Malformed."""
    if row.pop("format", None) != FORMAT:
        raise Malformed(f"another format than {FORMAT}")
    row.setdefault("launch_seconds", 0)  # records from before 2026-11-24 do not have it
    if set(row) != set(Plan.__dataclass_fields__):
        raise Malformed("other keys than those of a plan")
    texts = row["cells"]
    if not isinstance(texts, list) or not 0 < len(texts) <= samples.MOST_CELLS or not all(map(samples.is_cell, texts)):
        raise Malformed("cells is not a list of cells")
    return Plan(
        text(row["machine"], "machine"),
        {name: whole(n, 1, 1 << 20, "ranks") for name, n in _named(row["classes"], "classes").items()},
        {name: text(v, "a version") for name, v in _named(row["libraries"], "libraries").items()},
        texts,
        whole(row["rounds"], 1, MOST_ROUNDS, "rounds"),
        whole(row["samples"], 1, samples.MOST_SAMPLES, "samples"),
        whole(row["cell_seconds"], 0, 3600, "cell_seconds"),
        whole(row["pool_bytes"], 0, cells.MOST_BYTES, "pool_bytes"),
        whole(row["seed"], 0, 1 << 62, "seed"),
        whole(row["launch_seconds"], 0, 1 << 20, "launch_seconds"),
    )


def launch_of(row: dict[str, Any], plan: Plan) -> Launch:
    """Reads the line of a launch. Errors: Malformed."""
    if set(row) != set(Launch.__dataclass_fields__):
        raise Malformed("other keys than those of a launch")
    number = whole(row["round"], 0, plan.rounds - 1, "round")
    kind, library = text(row["kind"], "kind"), text(row["library"], "library")
    if kind not in plan.classes or library not in plan.libraries:
        raise Malformed("a launch that was not planned")
    failure = None if row["failure"] is None else text(row["failure"], "failure")
    results = {}
    given = _named(row["results"], "results", samples.MOST_CELLS, cells.LONGEST_CELL) if row["results"] else {}
    for cell, found in given.items():
        if cell not in plan.cells or not isinstance(found, dict) or set(found) != {"seconds", "wrong"}:
            raise Malformed("a result that was not planned")
        results[cell] = samples.result(found["seconds"], found["wrong"])
    return Launch(number, kind, library, failure, results)


def read(file: Path) -> tuple[Plan, list[Launch]]:
    """Reads the file. Ignores a last line that a kill cut off. Errors: HvdbError, which names the line; OSError."""
    plan, launches, seen = None, [], set()
    for number, line in enumerate(_lines(file), start=1):
        try:
            row = strict_json.load(line, samples.LONGEST_LINE)
            if plan is None:
                plan = plan_of(row)
                continue
            launch = launch_of(row, plan)
            turn = (launch.round, launch.kind, launch.library)
            if turn in seen:
                raise Malformed("a launch that occurs twice")
            seen.add(turn)
            launches.append(launch)
        except Malformed as error:
            raise HvdbError(f"{file}: line {number} is not of coll_peers: {error}") from error
    if plan is None:
        raise HvdbError(f"{file}: holds no plan of coll_peers; name another file")
    return plan, launches


def _lines(file: Path) -> Iterator[str]:
    with file.open("rb") as opened:
        while line := opened.readline(samples.LONGEST_LINE + 1):
            if not line.endswith(b"\n") and len(line) <= samples.LONGEST_LINE:
                return
            yield line.decode("utf-8", errors="replace")


def _append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def locked(file: Path) -> AbstractContextManager[int]:
    """Locks the file against other writers. Creates a missing file. Errors: HvdbError if it is locked; OSError."""
    return locks.held(file, HvdbError(f"{file}: another run writes it; wait for its end, or name another file"))


def begin(file: Path, plan: Plan) -> list[Launch]:
    """Creates a missing file. In a file that exists, removes a last line that was cut off. Returns the file's launches.

    Errors: HvdbError if the file has another plan; OSError.
    """
    if not file.exists() or file.stat().st_size == 0:
        _append(file, {"format": FORMAT, **asdict(plan)})
        return []
    old, launches = read(file)
    changed = [name for name, value in asdict(plan).items() if value != getattr(old, name)]
    if changed:
        raise HvdbError(f"{file}: holds a comparison with other {', '.join(changed)}; name another file to begin anew")
    content = file.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(file, content.rindex(b"\n") + 1)
    return launches


def append(file: Path, launch: Launch) -> None:
    """Appends a launch to the file. Errors: OSError."""
    _append(file, asdict(launch))
