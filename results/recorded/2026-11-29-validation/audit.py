"""Recomputes every figure that the project quotes about this validation, from the files of this folder alone.

python3 audit.py prints audit.txt. It needs the standard library only, and of the project the audit of the validation
before, ../2026-11-26-prediction/audit.py, whose definitions it shares: an error is that of the predicted step over the
measured one, a width that of the band over the predicted step. Intervals hold 90 %, and come from 4000 draws of whole
blocks, because the cells of a block share a prediction.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SPEC = importlib.util.spec_from_file_location("before", HERE.parent / "2026-11-26-prediction/audit.py")
assert _SPEC and _SPEC.loader
before = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(before)
Cell, measured, predicted, is_inside = before.Cell, before.measured, before.predicted, before.is_inside
EVEN_BLOCKS = 24  # the blocks behind them have runs on 5 and 7 nodes
COVERED, NARROW, NARROW_TENTHS, UNBIASED = 90.0, 7.0, 25.0, 0.5


def interval(cells: Sequence[Cell], value: Callable[[Cell], float]) -> tuple[float, float]:
    """Returns the 90 % bootstrap interval of the mean of a value of cells."""
    blocks: dict[Path, list[float]] = {}
    for cell in cells:
        blocks.setdefault(cell["folder"], []).append(value(cell))
    sums = [(sum(mine), len(mine)) for _, mine in sorted(blocks.items())]
    source, found = random.Random(1), []
    for _ in range(4000):
        drawn = [sums[int(source.random() * len(sums))] for _ in sums]
        found.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    return before.percentile(found, 5), before.percentile(found, 95)


def held(cell: Cell) -> float:
    """Returns 100 if the cell lies inside its band, else 0."""
    return 100.0 * is_inside(cell)


def error(cell: Cell) -> float:
    """Returns the error in %; below 0 the run was slower than predicted."""
    return 100 * (predicted(cell) / measured(cell) - 1)


def width(cell: Cell) -> float:
    """Returns the width of the band over the predicted step."""
    return (cell["predicted"]["high"] - cell["predicted"]["low"]) / predicted(cell)


def reached(good: bool) -> str:
    """Returns what is said of a demand."""
    return "reached" if good else "NOT REACHED"


def coverage(cells: Sequence[Cell], what: str) -> Iterator[str]:
    """Says what the bands hold, how wide they are, and how far their middles are off."""
    low, high = interval(cells, held)
    inside = sum(map(is_inside, cells))
    slower = sum(measured(cell) > cell["predicted"]["high"] for cell in cells)
    widths = [width(cell) for cell in cells]
    mean, (least, most) = statistics.fmean(map(error, cells)), interval(cells, error)
    yield (
        f"{what}: {inside} of {len(cells)} inside ({100 * inside / len(cells):.1f} % [{low:.1f}, {high:.1f}]); slower "
        f"than the band {slower}, faster {len(cells) - inside - slower}"
    )
    yield f"  error of the step: {before.spread(before.errors(cells))}"
    yield f"  mean error {mean:+.2f} % [{least:+.2f}, {most:+.2f}]"
    yield f"  width of the band: {before.spread(widths)}, most {100 * max(widths):.1f} %"


def demands(cells: Sequence[Cell], what: str) -> Iterator[str]:
    """Says which demands of the plan these cells reach."""
    low, high = interval(cells, held)
    widths = [100 * width(cell) for cell in cells]
    least, most = interval(cells, error)
    yield f"{what}, interval of the coverage holds {COVERED:g} %: {reached(low <= COVERED <= high)}"
    yield f"{what}, median width at most {NARROW:g} %: {reached(before.percentile(widths, 50) <= NARROW)}"
    yield (
        f"{what}, nine tenths of the widths at most {NARROW_TENTHS:g} %: "
        f"{reached(before.percentile(widths, 90) <= NARROW_TENTHS)}"
    )
    unbiased = least <= UNBIASED and most >= -UNBIASED
    yield f"{what}, interval of the mean error reaches +-{UNBIASED:g} %: {reached(unbiased)}"


def is_of_session(cell: Cell) -> bool:
    """Returns True if the cell has the schedule of the session that predict had."""
    words = cell["options"].split()
    is_static = words[:3] == ["--schedule", "static", "--bucket-mb"]
    return is_static and abs(float(words[3]) * 400 / cell["rate_mbit"] - 1) < 0.01


def is_odd(cell: Cell) -> bool:
    """Returns True if a world is no power of two."""
    return cell["ranks"] & (cell["ranks"] - 1) != 0


def beside(cells: Sequence[Cell], what: str, guess: before.Guesses) -> Iterator[str]:
    """Says how far simpler predictors are off, and whether predict is worse than the best of them."""
    simple = {
        "line in log2 N through one rank alone and the schedule's own run on 4 nodes": guess.own_line,
        "queue of buckets with the formula of the ring": guess.queue,
        "the queue, scaled by the schedule's own run on 4 nodes": guess.scaled_queue,
    }
    for name in ("as on 4 nodes", "straight line in log2 N", "ring formula"):
        simple[f"recorded, {name}"] = lambda cell, name=name: cell["trivial"][name]
    yield f"{what} ({len(cells)} cells), error of the step"
    own = before.errors(cells)
    yield f"  predict: {before.spread(own)}, mean {100 * statistics.fmean(own):.2f} %"
    errors = {name: before.errors(cells, predictor) for name, predictor in simple.items()}
    for name, found in errors.items():
        yield f"  {name}: {before.spread(found)}, mean {100 * statistics.fmean(found):.2f} %"
    best = min(errors, key=lambda name: statistics.fmean(errors[name]))
    worse = {id(cell): 100 * (mine - its) for cell, mine, its in zip(cells, own, errors[best], strict=True)}
    low, high = interval(cells, lambda cell: worse[id(cell)])
    mean = statistics.fmean(worse.values())
    yield f"  predict less the best in the mean ({best}): {mean:+.2f} points [{low:+.2f}, {high:+.2f}]"
    yield f"  not worse: {reached(low <= 0)}"


def main() -> None:
    """Prints all figures."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(HERE / "blocks.tar.xz") as packed:
            for member in filter(tarfile.TarInfo.isfile, packed):
                block, name = Path(member.name).parts
                content = packed.extractfile(member)
                assert content
                Path(folder, block).mkdir(exist_ok=True)
                Path(folder, block, name).write_bytes(content.read())
        cells = [{**cell, "folder": Path(folder) / cell["folder"].name} for cell in before.read_cells(HERE)]
        print("\n".join(lines(cells)))


def lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Returns all figures."""
    yield "FILES"
    yield from before.files(cells)
    commits = {before.program_of(block) for block in {cell["folder"] for cell in cells}}
    yield f"commits of the program: {', '.join(sorted(commits))}"
    near = [cell for cell in cells if cell["kind"] == "calibrated"]
    beyond = [cell for cell in cells if cell["kind"] == "beyond"]
    whole = ((cells, "all"), (near, "4 nodes"), (beyond, "5 to 8 nodes"))
    yield "\nDEMANDS"
    for mine, what in whole:
        yield from demands(mine, what)
    yield "\nCOVERAGE"
    for mine, what in whole:
        yield from coverage(mine, what)
        for latency in (0, 1000):
            yield from coverage([c for c in mine if c["latency_us"] == latency], f"{what}, {latency} us added")
    for rate in sorted({cell["rate_mbit"] for cell in cells}):
        yield from coverage([c for c in beyond if c["rate_mbit"] == rate], f"5 to 8 nodes, {rate:g} Mbit/s")
    for ranks in sorted({cell["ranks"] for cell in beyond}):
        yield from coverage([c for c in beyond if c["ranks"] == ranks], f"{ranks} nodes")
    yield from coverage(list(filter(before.is_unfused, cells)), "unfused negotiation")
    yield from coverage([c for c in cells if not before.is_unfused(c)], "all but unfused negotiation")
    yield "\nBESIDE SIMPLER PREDICTORS, 5 to 8 nodes"
    guess = before.Guesses(cells)
    yield from beside(beyond, "all", guess)
    yield from beside(list(filter(is_of_session, beyond)), "own schedule", guess)
    yield from beside([c for c in beyond if not is_of_session(c)], "other schedules", guess)
    yield from beside(list(filter(before.is_unfused, beyond)), "unfused", guess)
    yield from beside(list(filter(is_odd, beyond)), "worlds that are no power of two", guess)


if __name__ == "__main__":
    main()
