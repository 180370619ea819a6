"""Writes texts of samples as scripts/hvdb/torch_efficiency.py does, with times that a test chooses."""

from __future__ import annotations

from collections.abc import Sequence

HEAD = """hvd-samples 1
model {model}
unit images
units_per_rank 4
device torch
schedule ddp
comm gloo
compute_type fp32
allreduce_type fp32
threads 1
parameters 31007
gradient_bytes 124028
warmup_steps 5
started_utc 2026-11-20T20:56:00.123Z
finished_utc 2026-11-20T20:57:00.123Z
{status}
fact torch.version 1 2.15.0
fact cpu.model 1 a processor
"""
# [input, compute, exposed, update] of each rank in seconds. Rank 1 loads and computes longer, so rank 0 waits for it.
SOLO = ((0.02, 0.19, 0.0, 0.01),)
NONE = ((0.01, 0.20, 0.0, 0.01), (0.03, 0.40, 0.0, 0.01))
FULL = ((0.01, 0.20, 0.23, 0.01), (0.03, 0.40, 0.01, 0.01))
# What analyse_efficiency() makes of them, in seconds: T1 0.2, none without input 0.21 and 0.41, full 0.45.
ROWS = {
    "efficiency": 0.2,
    "interference": 0.11,
    "input": 0.02,
    "stragglers": 0.11,
    "exposed_communication": 0.01,
    "overlap_slowdown": 0.0,
    "update": 0.0,
    "residual": 0.0,
}


def phase(name: str, ranks: Sequence[Sequence[float]], steps: int, *, waits: bool = True) -> str:
    """Returns the lines of a phase in which every step takes equally long. waits: with input_seconds."""
    lines = [f"phase {name}"]
    for number, (fetch, compute, exposed, update) in enumerate(ranks):
        parts = {"input": fetch if waits else 0, "compute": compute, "exposed": exposed, "update": update}
        series = {"step": sum(parts.values()), **parts}
        given = [key for key in series if (key != "input" or waits) and (key != "exposed" or name == "full")]
        series = {key: series[key] for key in given}
        lines += [f"rank {number}", *(f"{key}_seconds" + f" {value!r}" * steps for key, value in series.items())]
    return "\n".join(lines) + "\n"


def text(
    model: str = "resnet50", rounds: int = 6, steps: int = 4, *, waits: bool = True, incomplete: bool = False
) -> str:
    """Returns a whole text of two ranks. incomplete: a further round ends after phase solo."""
    status = "status incomplete\nstatus_reason rank 1 on n2 was lost" if incomplete else "status complete"
    said = HEAD.format(model=model, status=status) + "rank 0 0 n1\nrank 1 0 n2\n"
    for number in range(1, rounds + 1):
        said += f"round {number}\n"
        said += "".join(
            phase(name, ranks, steps, waits=waits) for name, ranks in (("solo", SOLO), ("none", NONE), ("full", FULL))
        )
    if incomplete:
        said += f"round {rounds + 1}\n{phase('solo', SOLO, steps, waits=waits)}"
    return f"{said}end {rounds + incomplete}\n"
