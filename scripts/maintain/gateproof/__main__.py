"""Measures how often gates are wrong, and how small a slowdown gates find: docs/gate.md, "Error rates".

`collect` measures pairs of equal sides, and pairs of sides that differ by a known fraction. `pack` makes copies of
the stores that are small enough to keep. `evaluate` draws gates from the pairs.
Exit code: 0 done, 2 usage, input or output, 7 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

from . import collect, evaluate, load, packed
from hvdb import edge, process, rerun, whole_file
from hvdb.commands import judging
from hvdb.errors import EXIT_GOOD

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "results/recorded/2026-11-22-h200-second/replay/resnet101-fp16.txt"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argparse.ArgumentParser(prog="gate_proof", description=__doc__.partition("\n")[0])
    commands = made.add_subparsers(dest="command", required=True, metavar="collect | pack | evaluate")
    collecting = commands.add_parser("collect", help="measure pairs")
    collecting.add_argument("folder", type=Path, help="where the pairs go; a folder with pairs is added to")
    collecting.add_argument("--minutes", type=float, default=20.0, help="(default: 20)")
    collecting.add_argument("--load", action="store_true", help="disturb the machine meanwhile")
    collecting.add_argument("--equal-only", action="store_true", help="no pairs whose side B is slower")
    collecting.add_argument("--program", type=Path, help="hvd_bench (default: $HVD_BENCH, else this checkout's)")
    collecting.add_argument("--recorded", type=Path, default=RECORDED, help="recorded step that the pairs replay")
    packing = commands.add_parser("pack", help="make measured pairs small enough to keep")
    packing.add_argument("folder", type=Path, help="folder that collect filled")
    packing.add_argument("out", type=Path, help="folder to write to")
    evaluating = commands.add_parser("evaluate", help="draw gates from measured pairs")
    evaluating.add_argument("folders", type=Path, nargs="+", help="folders that collect filled, or pack")
    evaluating.add_argument("--output", type=Path, metavar="FILE", help="write the tables there (default: print them)")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command. Errors: HvdbError, OSError."""
    if arguments.command == "evaluate":
        if arguments.output:
            stores = [store for folder in arguments.folders for store in packed.stores(folder).values()]
            judging.require_free_outputs([arguments.output], stores)
        page = evaluate.page(arguments.folders)
        if arguments.output:
            whole_file.write_text(arguments.output, page)
        else:
            for line in page.splitlines():
                edge.tell("gate_proof", line)
        return EXIT_GOOD
    if arguments.command == "pack":
        packed.pack(arguments.folder, arguments.out)
        return EXIT_GOOD
    process.end_in_order_when_told()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    collect.write_replays(arguments.recorded, arguments.folder)
    with load.running() if arguments.load else contextlib.nullcontext():
        program = rerun.find_program(arguments.program)
        collect.collect(program, arguments.folder, 60 * arguments.minutes, not arguments.equal_only)
    return EXIT_GOOD


def main(words: Sequence[str] | None = None) -> int:
    """Runs the program. Returns the exit code."""
    arguments = parser().parse_args(words)
    return edge.run("gate_proof", lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
