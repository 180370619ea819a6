"""Measures the engine's collectives beside the collectives of MPIs, oneCCL and Gloo: docs/peers.md.

`run` launches every library in turn, in random order, and stores all samples in FILE. A second `run` with the same
arguments continues. `report` judges a file.
Exit code: 0 done, 1 the engine gave wrong results or failed, 2 usage, input or output, 7 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import cells, libraries, machine, page, record
from .record import Launch, Plan
from .samples import Malformed
from hvdb import edge, process, progress, whole_file
from hvdb.errors import EXIT_CHECK_FAILED, EXIT_GOOD, HvdbError

ENGINE = libraries.ROOT / "build" / "release" / "bin" / "engine_collectives"
MOST_MINUTES = 100_000
ROUND_RESERVE = 1.1  # a round is expected to take at most this many times the longest earlier round


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argparse.ArgumentParser(prog="coll_peers", description=__doc__.partition("\n")[0])
    commands = made.add_subparsers(dest="command", required=True, metavar="run | report")
    running = commands.add_parser("run", help="measure, or go on measuring")
    running.add_argument("--out", type=Path, required=True, metavar="FILE", help="takes all samples; is gone on with")
    running.add_argument("--cells", nargs="+", default=["all"], help=f"{', '.join(cells.SETS)} or cells (default: all)")
    running.add_argument("--rounds", type=int, default=24, help="launches of each library (default: 24, at least 12)")
    running.add_argument("--samples", type=int, default=9, help="per cell and launch (default: 9)")
    running.add_argument("--cell-seconds", type=int, default=3, help="no sample begins later (default: 3)")
    running.add_argument(
        "--launch-seconds",
        type=int,
        default=0,
        metavar="N",
        help="end a launch after N seconds, and keep the cells that it had measured (default: by the cells)",
    )
    running.add_argument("--minutes", type=float, help="begin no round that is not expected to end in this time")
    running.add_argument("--seed", type=int, default=1, help="of all orders (default: 1)")
    running.add_argument("--classes", nargs="+", choices=(libraries.CORES, libraries.OVERSUBSCRIBED))
    running.add_argument("--libraries", nargs="+", metavar="NAME", help="(default: all that are installed)")
    running.add_argument("--engine", type=Path, default=ENGINE, help="engine_collectives (default: of build/release)")
    for command in (running, commands.add_parser("report", help="judge what was measured")):
        if command is not running:
            command.add_argument("file", type=Path, help="that run wrote")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the judgements there, too")
    return made


def require_memory(plan: Plan) -> None:
    """Errors: HvdbError if the ranks' pools of buffers could take more than half of the available memory."""
    need = cells.pool_bytes(plan.cells, plan.pool_bytes) * max(plan.classes.values())
    free = machine.available_bytes()
    if 2 * need > free:
        raise HvdbError(
            f"the buffers need {need >> 20} MiB, more than half of the {free >> 20} MiB that are available; "
            "name smaller cells, or one class"
        )


def require_writable(file: Path) -> None:
    """Checks that `file` can be written at the end. Errors: OSError if it cannot."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(file))
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(file)) from error


def chosen_cells(arguments: argparse.Namespace, most_ranks: int) -> list[str]:
    """Returns the cells to measure. Leaves out the largest cell of set broad if it would take too much memory.

    Errors: HvdbError.
    """
    found = cells.chosen(arguments.cells, most_ranks)
    need = cells.pool_bytes([cells.BROADEST], 2 * machine.cache_bytes()) * most_ranks
    if "broad" in arguments.cells and cells.BROADEST not in arguments.cells and 2 * need > machine.available_bytes():
        found.remove(cells.BROADEST)
        edge.tell("coll_peers", f"left out: {cells.BROADEST}: its buffers need {need >> 20} MiB")
    return found


def planned(arguments: argparse.Namespace) -> tuple[Plan, dict[str, libraries.Library]]:
    """Returns the plan and the libraries that take part. Errors: HvdbError."""
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
    cores = len(machine.cores())
    ranks = {libraries.CORES: cores, libraries.OVERSUBSCRIBED: 2 * cores}
    kinds = arguments.classes or list(ranks)
    if cores < 2 and libraries.CORES in kinds:
        raise HvdbError("there is one core, and a comparison needs two ranks: --classes oversubscribed")
    plan = Plan(
        machine.described(cores),
        {kind: ranks[kind] for kind in ranks if kind in kinds},
        {name: libraries.version(library) for name, library in used.items()},
        chosen_cells(arguments, max(ranks[kind] for kind in kinds)),
        arguments.rounds,
        arguments.samples,
        arguments.cell_seconds,
        2 * machine.cache_bytes(),
        arguments.seed,
        arguments.launch_seconds,
    )
    try:
        record.plan_of({"format": record.FORMAT, **vars(plan)})
    except Malformed as error:
        raise HvdbError(f"this cannot be measured: {error}") from error
    require_memory(plan)
    return plan, used


def measure(
    plan: Plan, used: dict[str, libraries.Library], file: Path, end_seconds: float | None = None
) -> list[Launch]:
    """Makes the launches that are not yet in the file. Returns all launches. Errors: HvdbError, OSError.

    end_seconds: a time of time.monotonic(). A round begins only if it should end before that time, judging by the
    longest round of this run so far. The first round always begins.
    """
    options = ["--samples", str(plan.samples), "--cell-seconds", str(plan.cell_seconds)]
    options += ["--pool-bytes", str(plan.pool_bytes)]
    seconds = record.limit_seconds(plan)
    at_most = None if end_seconds is None else end_seconds - time.monotonic()
    with record.locked(file):
        launches = record.begin(file, plan)
        done = {(one.round, one.kind, one.library) for one in launches}
        todo = [turn for turn in record.turns(plan) if (turn.round, turn.kind, turn.library) not in done]
        clock = Rounds(end_seconds)
        with progress.shown("measuring collectives", at_most) as step:
            for number, turn in enumerate(todo):
                if not clock.may_begin(turn.round, time.monotonic()):
                    break
                step(number, len(todo))
                words = [*options, "--seed", str(turn.seed)]
                ranks = plan.classes[turn.kind]
                results, failure = libraries.launch(used[turn.library], turn.kind, ranks, words, plan.cells, seconds)
                launches.append(Launch(turn.round, turn.kind, turn.library, failure, results))
                record.append(file, launches[-1])
    return launches


class Rounds:
    """Decides whether another round may begin. Pure."""

    def __init__(self, end_seconds: float | None) -> None:
        self._end = end_seconds
        self._round: int | None = None
        self._begun = self._longest = 0.0

    def may_begin(self, number: int, now: float) -> bool:
        """Returns True if a launch of round `number` may begin. A round that has begun is always completed."""
        if number == self._round:
            return True
        if self._round is not None:
            self._longest = max(self._longest, now - self._begun)
        first, self._round, self._begun = self._round is None, number, now
        return first or self._end is None or now + ROUND_RESERVE * self._longest <= self._end


def exit_code(launches: Sequence[Launch]) -> int:
    """Returns 1 if the engine failed or gave wrong results in any launch, else 0."""
    bad = any(
        one.failure is not None or any(result.wrong for result in one.results.values())
        for one in launches
        if one.library in libraries.OURS
    )
    return EXIT_CHECK_FAILED if bad else EXIT_GOOD


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command. Errors: HvdbError, OSError."""
    if arguments.command == "run":
        process.end_in_order_when_told()
        end_seconds = None
        if arguments.minutes is not None:
            if not 0 < arguments.minutes < MOST_MINUTES:
                raise HvdbError(f"--minutes is not a number above 0 and below {MOST_MINUTES}")
            end_seconds = time.monotonic() + 60 * arguments.minutes
        if arguments.json:
            require_writable(arguments.json)
        plan, used = planned(arguments)
        launches = measure(plan, used, arguments.out, end_seconds)
    else:
        plan, launches = record.read(arguments.file)
    for line in page.text(plan, launches).splitlines():
        edge.tell("coll_peers", line)
    if arguments.json:
        whole_file.write_text(arguments.json, json.dumps(page.document(plan, launches), indent=1) + "\n")
    return exit_code(launches)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the program. Returns the exit code."""
    arguments = parser().parse_args(words)
    return edge.run("coll_peers", lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
