"""Measures the engine's collectives beside those of MPIs, oneCCL and Gloo: docs/peers.md.

`run` launches every library in turn, in random order, and stores all samples in FILE; started again with the same
words, it goes on where it was. `report` judges a file.
Exit code: 0 done, 1 ours gave wrong results or failed, 2 usage, input or output, 7 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from . import cells, libraries, page, record
from .record import Launch, Plan
from .samples import Malformed
from hvdb import edge, process, progress, whole_file
from hvdb.errors import EXIT_CHECK_FAILED, EXIT_GOOD, HvdbError

ENGINE = libraries.ROOT / "build" / "release" / "bin" / "engine_collectives"
CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
CACHE_BYTES = 32 << 20  # where the system does not say
LAUNCH_SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="coll_peers", description=__doc__.partition("\n")[0])
    commands = made.add_subparsers(dest="command", required=True, metavar="run | report")
    running = commands.add_parser("run", help="measure, or go on measuring")
    running.add_argument("--out", type=Path, required=True, metavar="FILE", help="takes all samples; is gone on with")
    running.add_argument("--cells", nargs="+", default=["all"], help=f"{', '.join(cells.SETS)} or cells (default: all)")
    running.add_argument("--rounds", type=int, default=24, help="launches of each library (default: 24, at least 12)")
    running.add_argument("--samples", type=int, default=9, help="per cell and launch (default: 9)")
    running.add_argument("--cell-seconds", type=int, default=3, help="no sample begins later (default: 3)")
    running.add_argument("--seed", type=int, default=1, help="of all orders (default: 1)")
    running.add_argument("--classes", nargs="+", choices=(libraries.CORES, libraries.OVERSUBSCRIBED))
    running.add_argument("--libraries", nargs="+", metavar="NAME", help="(default: all that are installed)")
    running.add_argument("--engine", type=Path, default=ENGINE, help="engine_collectives (default: of build/release)")
    for command in (running, commands.add_parser("report", help="judge what was measured")):
        if command is not running:
            command.add_argument("file", type=Path, help="that run wrote")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the judgements there, too")
    return made


def cache_bytes() -> int:
    """Of the last-level cache."""
    try:
        text = CACHE.read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return CACHE_BYTES


def machine(cores: int) -> str:
    """The processor, its cores and its cache, in words."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, platform.machine())[:100]}, {cores} cores, {cache_bytes() >> 20} MiB of last-level cache"


def require_memory(plan: Plan) -> None:
    """Errors: HvdbError if the ranks' two pools of buffers could take more than half of the memory that is free."""
    parsed = [cells.parse(cell) for cell in plan.cells]
    largest = max([plan.pool_bytes, *(one[2] * one[4] for one in parsed if one)])
    need = 2 * largest * max(plan.classes.values())
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * need > free:
        raise HvdbError(
            f"the buffers need {need >> 20} MiB of {free >> 20} MiB that are free; name smaller cells, or one class"
        )


def planned(arguments: argparse.Namespace) -> tuple[Plan, dict[str, libraries.Library]]:
    """Errors: HvdbError."""
    there, missing = libraries.found(arguments.engine.resolve())
    wanted = arguments.libraries or [*there, *missing]
    for name in wanted:
        if name not in there and name not in missing:
            raise HvdbError(f"no library '{name}': {', '.join([*there, *missing])}")
    used = {}
    for name in wanted:
        reason = missing.get(name)
        if reason is None:
            try:
                libraries.build(there[name])
                used[name] = there[name]
            except HvdbError as error:
                if name in libraries.OURS:
                    raise
                reason = str(error)
        if reason is not None:
            edge.tell("coll_peers", f"left out: {name}: {reason}")
    cores = len(os.sched_getaffinity(0))
    ranks = {libraries.CORES: cores, libraries.OVERSUBSCRIBED: 2 * cores}
    kinds = arguments.classes or list(ranks)
    if cores < 2 and libraries.CORES in kinds:
        raise HvdbError("there is one core, and a comparison needs two ranks: --classes oversubscribed")
    plan = Plan(
        machine(cores),
        {kind: ranks[kind] for kind in ranks if kind in kinds},
        {name: library.version for name, library in used.items()},
        cells.chosen(arguments.cells),
        arguments.rounds,
        arguments.samples,
        arguments.cell_seconds,
        2 * cache_bytes(),
        arguments.seed,
    )
    try:
        record.plan_of({"format": record.FORMAT, **vars(plan)})
    except Malformed as error:
        raise HvdbError(f"this cannot be measured: {error}") from error
    require_memory(plan)
    return plan, used


def measure(plan: Plan, used: dict[str, libraries.Library], file: Path) -> list[Launch]:
    """Makes the launches that the file does not hold yet; returns all. Errors: HvdbError, OSError."""
    launches = record.begin(file, plan)
    done = {(one.round, one.kind, one.library) for one in launches}
    todo = [turn for turn in record.turns(plan) if (turn.round, turn.kind, turn.library) not in done]
    options = ["--samples", str(plan.samples), "--cell-seconds", str(plan.cell_seconds)]
    options += ["--pool-bytes", str(plan.pool_bytes)]
    # A sample that began in time, its checks, and filling the pool before it may take as long again.
    seconds = LAUNCH_SECONDS + 2 * (plan.cell_seconds + 5) * len(plan.cells)
    with progress.shown("measuring collectives") as step:
        for number, turn in enumerate(todo):
            step(number, len(todo))
            words = [*options, "--seed", str(turn.seed)]
            ranks = plan.classes[turn.kind]
            results, failure = libraries.launch(used[turn.library], turn.kind, ranks, words, plan.cells, seconds)
            launches.append(Launch(turn.round, turn.kind, turn.library, failure, results))
            record.append(file, launches[-1])
    return launches


def exit_code(launches: Sequence[Launch]) -> int:
    """1 if ours failed or was wrong anywhere."""
    bad = any(
        one.failure is not None or any(result.wrong for result in one.results.values())
        for one in launches
        if one.library in libraries.OURS
    )
    return EXIT_CHECK_FAILED if bad else EXIT_GOOD


def run(arguments: argparse.Namespace) -> int:
    """Errors: HvdbError, OSError."""
    if arguments.command == "run":
        process.end_in_order_when_told()
        plan, used = planned(arguments)
        launches = measure(plan, used, arguments.out)
    else:
        plan, launches = record.read(arguments.file)
    for line in page.text(plan, launches).splitlines():
        edge.tell("coll_peers", line)
    if arguments.json:
        whole_file.write_text(arguments.json, json.dumps(page.document(plan, launches), indent=1) + "\n")
    return exit_code(launches)


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = parser().parse_args(words)
    return edge.run("coll_peers", lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
