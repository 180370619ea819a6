"""Computes bounds by the simplest model of a ring all-reduce, to show beside published or measured figures.

A ring of N ranks moves 2 (N - 1) / N times the size of the gradients through every link. The slowest link is the
network link of a node, however many GPUs the node has. The model ignores latency, protocol and interference, so a real
ring takes longer. Source of the ring's cost: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_PARAMETER = 4  # fp32 gradients
FORMULA = (
    "ring = 2 (N - 1) / N x S / B;  step = batch / (images/s of one GPU);  backward = share x step;",
    "at most  = step / (step + max(0, ring - backward))   all of backward hides the ring",
    "at least = step / (step + ring)                      nothing hides it (line rate and no latency assumed)",
)


@dataclass(frozen=True)
class Inputs:
    """The inputs of the model.

    gpus: number of GPUs. parameters: number of parameters of the network. gbit_per_second: bandwidth of one node's
    link. images_per_second: of one GPU alone. batch: images per GPU and step. backward_share: the fraction (0..1) of a
    step that is the backward pass.
    """

    gpus: int
    parameters: int
    gbit_per_second: float
    images_per_second: float
    batch: int
    backward_share: float


@dataclass(frozen=True)
class Bounds:
    """The model's seconds per step, and the range of efficiencies (0..1) in which it expects the real efficiency."""

    ring_seconds: float
    step_seconds: float
    backward_seconds: float
    at_least: float
    at_most: float


def bounds(inputs: Inputs) -> Bounds:
    """Computes the model's bounds. All inputs must be positive. With one GPU nothing is reduced."""
    gradient_bytes = BYTES_PER_PARAMETER * inputs.parameters
    bytes_per_second = inputs.gbit_per_second * 1e9 / 8
    ring = 2 * (inputs.gpus - 1) / inputs.gpus * gradient_bytes / bytes_per_second
    step = inputs.batch / inputs.images_per_second
    backward = inputs.backward_share * step
    exposed = max(0.0, ring - backward)
    return Bounds(ring, step, backward, step / (step + ring), step / (step + exposed))
