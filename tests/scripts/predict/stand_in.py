"""A program that speaks the interface of `hvd_bench simulate`, with a step that can be computed by hand:

    step = compute x the profile's step x mean of the noise + largest message + cycle

The largest message takes its mean time, and is copied in and out.

It reads the text of costs strictly, so that a test fails where predict writes another one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")
SMALL = tuple(f"small_{operation}" for operation in OPERATIONS)
SINGLE = ("cycle", "copy", "slowdown", "compute", "common", "shift")


class Lines:
    """Lines of words, taken from the front."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.rest = [line.split(" ") for line in text[:-1].split("\n")]

    def take(self, key: str) -> list[str]:
        words = self.rest.pop(0)
        assert words[0] == key, f"{words[0]} in place of {key}"
        return words[1:]

    def at(self, *keys: str) -> bool:
        return self.rest[0][0] in keys


def simulate(text: str, alone: float, plan_hash: str) -> list[dict]:
    """Returns the results of all draws."""
    lines = Lines(text)
    assert lines.take("hvd-costs") == ["2"]
    for key in ("seed", "steps", "block"):
        assert int(lines.take(key)[0]) > 0
    assert lines.take("device")[0] in ("host", "stream")
    assert int(lines.take("align")[0]) in (1, 32)
    noise, shortest = [], 1 << 16
    while lines.at("node"):
        lines.take("node")
        ranks = []
        while lines.at("rank"):
            ranks.append([float(word) for word in lines.take("rank")])
        assert len({len(series) for series in ranks}) == 1
        shortest = min(shortest, len(ranks))
        noise += [factor for series in ranks for factor in series]
    mean = sum(noise) / len(noise) if noise else 1.0
    results, worlds = [], 0
    while lines.at("world"):
        ranks, per_node = map(int, lines.take("world"))
        assert ranks > 1 and min(ranks, per_node) <= shortest
        worlds += 1
        draw = 0
        while lines.at("draw"):
            lines.take("draw")
            reductions = largest = 0.0
            for operation in (*OPERATIONS, *SMALL):
                last, seconds, factors = 0, 0.0, []
                while lines.at(operation):
                    size, seconds, *factors = map(float, lines.take(operation))
                    assert size > last and seconds >= 0 and all(factor > 0 for factor in factors)
                    last = size
                largest = max(largest, last)
                reductions += 0.0 if operation in SMALL else seconds * (sum(factors) / len(factors) if factors else 1.0)
            single = {key: float(lines.take(key)[0]) for key in SINGLE if lines.at(key)}
            assert 0 <= single.get("slowdown", 0) <= 1 and single.get("common", 0) in (0, 1)
            reductions += 2 * largest * single.get("copy", 0.0)
            step = single.get("compute", 1.0) * alone * mean + reductions + single.get("cycle", 0.0)
            figures = {"step": step, "exposed": reductions, "control": single.get("cycle", 0.0)}
            figures["messages"] = [[int(largest), int(largest)], [0, 0]]
            rest = dict.fromkeys(("stragglers", "slowed", "overlapped", "update"), 0.0)
            results.append({"ranks": ranks, "draw": draw, **figures, **rest, "plan_hash": plan_hash})
            draw += 1
    assert lines.take("end") == [str(worlds)] and not lines.rest
    return results


def main(words: list[str]) -> None:
    assert words[0] == "simulate" and words[words.index("--costs") + 1] == "-"
    profile = Path(words[words.index("--replay") + 1]).read_text(encoding="utf-8")
    header = dict(line.split(" ", 1) for line in profile.splitlines() if " " in line)
    if header["model"] == "refused":
        sys.exit("hvd_bench: refused: this is the last line")
    alone = float(header["backward_end_seconds"]) + float(header["update_seconds"])
    text = sys.stdin.read()
    if kept := os.environ.get("STAND_IN_COSTS"):
        Path(kept).write_text(text, encoding="utf-8")
    for result in simulate(text, alone, os.environ.get("STAND_IN_PLAN", "") if "negotiated" not in words else ""):
        print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
