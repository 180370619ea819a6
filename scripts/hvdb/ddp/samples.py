"""Writes the samples of a training as `hvd_bench analyse` reads them (bench/cli/analyse)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdb.ddp.steps import FULL


def _numbers(values: Sequence[float]) -> str:
    return " ".join(repr(float(value)) for value in values)


def _round_lines(number: int, phases: dict[str, list[dict[str, list[float]]]], estimated: bool) -> list[str]:
    lines = [f"round {number}"]
    for phase, ranks in phases.items():
        lines.append(f"phase {phase}")
        for rank, series in enumerate(ranks):
            tells = phase == FULL and not estimated
            compute = series["compute_seconds"]
            if not tells:  # backward up to its end
                compute = [a + b for a, b in zip(compute, series["exposed_seconds"], strict=True)]
            lines += [
                f"rank {rank}",
                f"step_seconds {_numbers(series['step_seconds'])}",
                f"input_seconds {_numbers(series['input_seconds'])}",
                f"compute_seconds {_numbers(compute)}",
                *([f"exposed_seconds {_numbers(series['exposed_seconds'])}"] if tells else []),
                f"update_seconds {_numbers(series['update_seconds'])}",
                *([f"loss {_numbers(series['loss'])}"] if phase == FULL else []),
            ]
    return lines


def samples_text(
    header: dict[str, Any],
    facts: dict[str, tuple[bool, str]],
    hosts: Sequence[tuple[int, str]],
    rounds: Sequence[dict[str, list[dict[str, list[float]]]]],
    *,
    estimated: bool,
) -> str:
    """Returns the text that `hvd_bench analyse` reads (bench/cli/analyse). hosts: (local rank, host) of each rank."""
    lines = ["hvd-samples 1", *(f"{key} {value}" for key, value in header.items() if value != "")]
    lines += [f"fact {key} {int(weighty)} {value}" for key, (weighty, value) in facts.items()]
    lines += [f"rank {rank} {local} {host}" for rank, (local, host) in enumerate(hosts)]
    for number, phases in enumerate(rounds, 1):
        lines += _round_lines(number, phases, estimated)
    return "\n".join([*lines, f"end {len(rounds)}", ""])
