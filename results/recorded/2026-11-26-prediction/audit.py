"""Recomputes every figure that the project quotes about its predictions, from the files of this folder alone.

python3 audit.py prints audit.txt. It needs the standard library only, and no part of the project. An error is that of
the predicted step over the measured one. A width is that of the band over the predicted step. Percentiles interpolate
linearly.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRUTHS = HERE.parent / "2026-11-26-prediction-truths"
PAYLOAD_SHARE = 1448 / 1514  # of an Ethernet frame, as in scripts/hvnet/formula.py
Cell = dict[str, Any]


def read_cells(folder: Path) -> list[Cell]:
    """Returns the cells of a record. Each names the folder of its block."""
    cells = json.loads((folder / "cells.json").read_text(encoding="utf-8"))["cells"]
    return [{**cell, "folder": folder / f"block-{cell['block']:02}"} for cell in cells]


def measured(cell: Cell) -> float:
    """Returns the measured seconds of a step."""
    return cell["measured"]["step_seconds"]


def predicted(cell: Cell) -> float:
    """Returns the predicted seconds of a step."""
    return cell["predicted"]["middle"]


def is_inside(cell: Cell) -> bool:
    """Returns True if the predicted band holds the measured step."""
    return cell["predicted"]["low"] <= measured(cell) <= cell["predicted"]["high"]


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the percentile as numpy does by default."""
    ordered, place = sorted(values), (len(values) - 1) * percent / 100
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def spread(values: Sequence[float]) -> str:
    """Returns the median and the 90th percentile of fractions, in %."""
    return f"median {100 * percentile(values, 50):.2f} %, nine tenths below {100 * percentile(values, 90):.2f} %"


def errors(cells: Sequence[Cell], predictor: Callable[[Cell], float] = predicted) -> list[float]:
    """Returns the relative error of the predictor in each cell, as a positive fraction."""
    return [abs(predictor(cell) / measured(cell) - 1) for cell in cells]


def coverage_over_blocks(cells: Sequence[Cell]) -> tuple[float, float]:
    """Returns the 90 % bootstrap interval of the coverage in %: whole blocks are drawn, because their cells share a
    prediction."""
    blocks: dict[Path, list[Cell]] = {}
    for cell in cells:
        blocks.setdefault(cell["folder"], []).append(cell)
    held = [(sum(map(is_inside, mine)), len(mine)) for _, mine in sorted(blocks.items())]
    source, shares = random.Random(1), []
    for _ in range(4000):
        drawn = [held[int(source.random() * len(held))] for _ in held]
        shares.append(sum(inside for inside, _ in drawn) / sum(cells for _, cells in drawn))
    return 100 * percentile(shares, 5), 100 * percentile(shares, 95)


def demanded(cells: int, coverage: float) -> int:
    """Returns the least number of cells inside that shows more than this coverage: fewer than 5 in 100 tests of bands
    with exactly this coverage reach it."""
    chance = 0.0
    for inside in range(cells, -1, -1):
        chance += math.comb(cells, inside) * coverage**inside * (1 - coverage) ** (cells - inside)
        if chance > 0.05:
            return inside + 1
    return 0


# --- The files agree with each other ---


def as_json(path: Path) -> Any:
    """Returns the document in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def query(store: Path, text: str) -> list[tuple]:
    """Returns the rows of a query. The store stays as it is."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(text).fetchall()


def files(cells: Sequence[Cell]) -> Iterator[str]:
    """Says whether cells, predictions and stores hold the same numbers, and which programs the stores name."""
    folders = sorted({cell["folder"] for cell in cells})
    same = 0
    for folder in folders:
        made = as_json(folder / "prediction.json")
        bands = {(" ".join(made["what_ifs"][r["what_if"]]["options"]), r["ranks"]): r for r in made["rows"]}
        mine = [cell for cell in cells if cell["folder"] == folder]
        same += sum(cell["predicted"] == bands[cell["options"], cell["ranks"]]["step_seconds"] for cell in mine)
    yield f"cells whose band is that of their block's prediction.json: {same} of {len(cells)}"
    kept = [folder for folder in folders if (folder / "held.db").exists()]
    labels = inputs = steps = of_steps = 0
    for folder in kept:
        rows = query(folder / "held.db", "SELECT DISTINCT value FROM provenance WHERE key = 'label.prediction'")
        labels += rows == [(sha256(folder / "prediction.json"),)]
        hashes = {Path(entry["file"]).name: entry["sha256"] for entry in as_json(folder / "prediction.json")["inputs"]}
        inputs += all(sha256(folder / name) == known for name, known in hashes.items())
        stored = set(query(folder / "held.db", "SELECT world_size, step_seconds FROM run"))
        mine = [(cell["ranks"], measured(cell)) for cell in cells if cell["folder"] == folder]
        steps += sum(pair in stored for pair in mine)
        of_steps += len(mine)
    yield f"kept stores whose runs all carry the SHA-256 of their prediction: {labels} of {len(kept)}"
    yield f"kept predictions whose inputs have the SHA-256 that they name: {inputs} of {len(kept)}"
    yield f"cells of kept stores with the step that their run has: {steps} of {of_steps}"


def program_of(folder: Path) -> str:
    """Returns the commit of the program that measured a block; "unknown" if no store was kept."""
    found = set()
    for store in (folder / "inputs.db", folder / "held.db"):
        if store.exists():
            text = "SELECT run_uuid, key, value FROM provenance WHERE key IN ('git.commit', 'git.state')"
            facts: dict[str, dict[str, str]] = {}
            for run, key, value in query(store, text):
                facts.setdefault(run, {})[key] = value
            found |= {f["git.commit"][:8] + ("-dirty" if f["git.state"] == "dirty" else "") for f in facts.values()}
    return ", ".join(sorted(found)) or "unknown"


def programs() -> Iterator[str]:
    """Says which program measured each block, and whether cells.json says the same."""
    for name in ("", "saturated", "compute"):
        blocks = as_json(HERE / name / "cells.json")["blocks"]
        known = {block["block"]: program_of(HERE / name / f"block-{block['block']:02}") for block in blocks}
        same = sum(block["commit"] == known[block["block"]] for block in blocks)
        named = ", ".join(f"{number} {commit}" for number, commit in known.items() if commit != "unknown") or "none"
        record = f"{name}/cells.json".lstrip("/")
        yield f"blocks of {record} whose commit is that of their stores, else unknown: {same} of {len(blocks)}"
        yield f"  commits that stores of {record} name, by block: {named}"


# --- How good the bands and their middles are ---


def coverage(cells: Sequence[Cell], what: str) -> Iterator[str]:
    """Says how many cells lie in their band, how wide the bands are, and how large the errors are."""
    low, high = coverage_over_blocks(cells)
    inside = sum(map(is_inside, cells))
    slower = sum(measured(cell) > cell["predicted"]["high"] for cell in cells)
    widths = [(cell["predicted"]["high"] - cell["predicted"]["low"]) / predicted(cell) for cell in cells]
    yield (
        f"{what}: {inside} of {len(cells)} inside ({100 * inside / len(cells):.0f} %; blocks drawn anew: {low:.0f} to "
        f"{high:.0f} %); measured slower than the band {slower}, faster {len(cells) - inside - slower}"
    )
    yield f"  error of the step: {spread(errors(cells))}"
    yield f"  width of the band: {spread(widths)}, most {100 * max(widths):.1f} %"


def rated(cells: Sequence[Cell], *rates: float) -> list[Cell]:
    """Returns the cells on links of these rates, in Mbit/s."""
    return [cell for cell in cells if cell["rate_mbit"] in rates]


def is_unfused(cell: Cell) -> bool:
    """Returns True if each gradient is a message of its own."""
    return "--fusion-threshold-mb 0 " in cell["options"]


# --- What simpler predictors say ---


class Guesses:
    """Predictors that need no simulation of the engine.

    Some use what predict had: one session on 4 nodes with one of the six schedules. Others use the run of the cell's
    own schedule on 4 nodes, which predict did not have.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._on_4 = {(c["folder"], c["options"]): measured(c) for c in cells if c["kind"] == "calibrated"}

    def own_on_4(self, cell: Cell) -> float:
        """The measured step of the same schedule on 4 nodes."""
        return self._on_4[cell["folder"], cell["options"]]

    def alone(self, cell: Cell) -> float:
        """The measured step of one rank alone, from the line through it and the session's step on 4 nodes."""
        part, session = math.log2(cell["ranks"]) / 2, cell["trivial"]["as on 4 nodes"]
        return (cell["trivial"]["straight line in log2 N"] - part * session) / (1 - part)

    def own_line(self, cell: Cell) -> float:
        """A straight line in log2 N through one rank alone and the cell's own schedule on 4 nodes."""
        return self.alone(cell) + (self.own_on_4(cell) - self.alone(cell)) * math.log2(cell["ranks"]) / 2

    def queue(self, cell: Cell) -> float:
        """The queue of buckets on the cell's nodes."""
        return queue_seconds(cell, cell["ranks"])

    def scaled_queue(self, cell: Cell) -> float:
        """The queue, times what the run of the same schedule on 4 nodes took over its queue there."""
        return self.queue(cell) * self.own_on_4(cell) / queue_seconds(cell, 4)


def is_of_session(cell: Cell) -> bool:
    """Returns True if the cell has the schedule of the session that predict had."""
    return cell["options"] == f"--schedule static --bucket-mb {cell['rate_mbit'] / 400:g}"


def queue_seconds(cell: Cell, nodes: int) -> float:
    """Returns the seconds of a step in which one server reduces buckets in turn, each by the formula of the ring. The
    slept profile, the options and the described link are known; nothing is measured. Negotiation costs nothing."""
    lines = [line.split() for line in (cell["folder"] / "profile.replay").read_text(encoding="utf-8").splitlines()]
    gradients = [(4 * int(words[1]), float(words[2])) for words in lines if words[0] == "gradient"]
    backward, update = (
        float(next(w[1] for w in lines if w[0] == name)) for name in ("backward_end_seconds", "update_seconds")
    )
    words = cell["options"].split()
    option = dict(zip(words[::2], words[1::2], strict=True))
    negotiated, sharded = (option["--schedule"] == name for name in ("negotiated", "sharded"))
    limit = float(option["--fusion-threshold-mb" if negotiated else "--bucket-mb"]) * (1 << 20)

    def pass_seconds(size: float) -> float:  # a reduce-scatter or an all-gather; an all-reduce is both
        seconds = size / nodes / (cell["rate_mbit"] * 1e6 / 8 * PAYLOAD_SHARE) + cell["latency_us"] / 1e6
        return (nodes - 1) * seconds

    free, size, gathered, bucket_ready = 0.0, 0, 0.0, 0.0
    for number, (more, ready) in enumerate(gradients):
        # Fusion takes what is ready when the server becomes free; a bucket waits for its last gradient.
        if negotiated and size and (size + more > limit or ready > max(free, bucket_ready)):
            free, size = max(free, bucket_ready) + 2 * pass_seconds(size), 0
        size, bucket_ready = size + more, ready
        if number == len(gradients) - 1 or (size >= limit and not negotiated):
            free = max(free, bucket_ready) + (1 if sharded else 2) * pass_seconds(size)
            gathered, size = gathered + pass_seconds(size), 0
    return max(backward, free) + (update / nodes + gathered if sharded else update)


def guesses(cells: Sequence[Cell], what: str, guess: Guesses) -> Iterator[str]:
    """Says how far the predictors are off."""
    yield f"{what} ({len(cells)} cells), error of the step"
    yield f"  predict: {spread(errors(cells))}"
    for name in ("as on 4 nodes", "straight line in log2 N", "ring formula"):
        yield f"  recorded, {name}: {spread(errors(cells, lambda cell, name=name: cell['trivial'][name]))}"
    yield f"  line in log2 N through the own schedule's run on 4 nodes: {spread(errors(cells, guess.own_line))}"
    yield f"  queue of buckets with the formula of the ring: {spread(errors(cells, guess.queue))}"
    yield f"  the queue, scaled by the own schedule's run on 4 nodes: {spread(errors(cells, guess.scaled_queue))}"


# --- Other parts ---


def compute(cells: Sequence[Cell]) -> Iterator[str]:
    """Says how good predictions of real training on two ranks are."""
    yield f"real compute, 2 ranks: {sum(map(is_inside, cells))} of {len(cells)} inside"
    yield f"  error of the step: {spread(errors(cells))}"
    trivial = errors(cells, lambda cell: cell["trivial"]["as in the sessions"])
    yield f"  as in the sessions, error of the step: {spread(trivial)}"
    points = [100 * abs(c["efficiency"]["predicted"]["middle"] - c["efficiency"]["measured"]) for c in cells]
    yield f"  error of the efficiency: median {statistics.median(points):.1f} points, most {max(points):.1f}"
    for number in sorted({cell["block"] for cell in cells}):
        mine = [cell for cell in cells if cell["block"] == number]
        model = (mine[0]["folder"] / "profile.replay").read_text(encoding="utf-8").split("model ", 1)[1].split()[0]
        yield f"  {model}: {sum(map(is_inside, mine))} of {len(mine)} inside"


def truths() -> Iterator[str]:
    """Says how many constructed true steps lay in their band, by kind of truth."""
    line = re.compile(r"(.*); (.*); (\d+) nodes: inside ([\d.]+)%.*; width median ([\d.]+)%")
    found = [line.match(text) for text in (TRUTHS / "truths.txt").read_text(encoding="utf-8").splitlines()]
    rows = [match.groups() for match in found if match]
    for kind in dict.fromkeys(row[0] for row in rows):
        whole = [f"{inside} on {nodes}" for of, part, nodes, inside, _ in rows if (of, part) == (kind, "all")]
        lowest = min((row for row in rows if row[0] == kind and row[1] != "all"), key=lambda row: float(row[3]))
        said = f"lowest of one schedule {lowest[3]} ({lowest[1]}, {lowest[2]} nodes)"
        yield f"constructed, {kind}: % inside {', '.join(whole)} nodes; {said}"
    later = (line.match(text) for text in (TRUTHS / "later.txt").read_text(encoding="utf-8").splitlines())
    known = [match.groups() for match in later if match and match.group(2) == "all"]
    means = {n: statistics.fmean(float(row[3]) for row in known if row[2] == n) for n in ("4", "8", "64")}
    said = ", ".join(f"{mean:.1f} on {nodes}" for nodes, mean in means.items())
    yield f"constructed, known, two later seeds of 150 (later.txt): % inside {said} nodes"


def main() -> None:
    """Prints all figures."""
    kept, replaced = read_cells(HERE), read_cells(HERE / "saturated")
    every, real = kept + replaced, read_cells(HERE / "compute")
    guess = Guesses(every)
    lines = ["FILES", *files(every + real), *programs()]
    least = demanded(144, 0.8)
    lines += ["", "COVERAGE", f"least number inside of 144 that shows a coverage of more than 80 %: {least}"]
    for kind, title in (("calibrated", "4 nodes"), ("beyond", "6 and 8 nodes")):
        mine = [cell for cell in every if cell["kind"] == kind]
        lines += coverage(rated(mine, 50, 100, 200), f"{title}, as designed (50, 100, 200 Mbit/s)")
        lines += coverage(rated(mine, 25, 50, 100), f"{title}, blocks of 200 replaced (25, 50, 100 Mbit/s)")
        lines += coverage(mine, f"{title}, everything measured")
        lines += coverage(rated(mine, 200), f"{title}, 200 Mbit/s")
        lines += coverage(rated(mine, 25), f"{title}, 25 Mbit/s")
        lines += coverage(rated(mine, 50, 100), f"{title}, 50 and 100 Mbit/s")
    beyond = [cell for cell in every if cell["kind"] == "beyond"]
    three = rated(beyond, 25, 50, 100)
    lines += coverage(list(filter(is_unfused, beyond)), "6 and 8 nodes, everything, unfused negotiation")
    lines += coverage(list(filter(is_unfused, three)), "6 and 8 nodes, blocks replaced, unfused negotiation")
    fused = [cell for cell in three if not is_unfused(cell)]
    lines += coverage(fused, "6 and 8 nodes, blocks replaced, all but unfused negotiation")
    lines += ["", "GUESSES"]
    calibrated = [cell for cell in every if cell["kind"] == "calibrated"]
    for cells, title in ((rated(calibrated, 25, 50, 100), "blocks replaced"), (calibrated, "everything")):
        best = min(
            percentile(errors(cells, lambda c, name=name: c["trivial"][name]), 50) for name in cells[0]["trivial"]
        )
        lines.append(f"4 nodes, {title}: best recorded guess, median error {100 * best:.2f} %")
    lines += guesses(rated(beyond, 50, 100, 200), "6 and 8 nodes, as designed", guess)
    lines += guesses(three, "6 and 8 nodes, blocks replaced", guess)
    lines += guesses(beyond, "6 and 8 nodes, everything", guess)
    lines += guesses(list(filter(is_of_session, three)), "those of blocks replaced with the session's schedule", guess)
    lines += ["", "REAL COMPUTE", *compute(real), "", "CONSTRUCTED TRUTHS", *truths()]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
