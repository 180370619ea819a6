"""Predicts the time of a step on a network of known bandwidth and latency. Pure arithmetic, no measurement.

A ring all-reduce of S bytes over N ranks takes 2 (N - 1) steps of S / N bytes each. Every step costs one latency and
the time of its bytes on the wire (docs/algorithms.md). Buckets are reduced one after another. The reduction of a bucket
begins when the backward pass has made the bucket ready, or later. Reduction time after the end of backward is exposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The share of data in the bytes of a frame. An Ethernet frame of 1,514 bytes has 66 bytes of headers (14 of Ethernet,
# 20 of IPv4, 32 of TCP with time stamps). The switch counts all 1,514 bytes, but not the preamble and gap of a real
# wire.
PAYLOAD_SHARE = 1448 / 1514


@dataclass(frozen=True)
class Link:
    """The link of every node, in each direction. latency_seconds: one way, from node to node."""

    bits_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class Work:
    """A step that sleeps `compute_seconds`, of which two thirds are backward, and reduces `buckets` equal buckets of
    `bucket_bytes`. overlapped: True if bucket i is ready after (i + 1) / buckets of backward; else all buckets are
    ready at the end of backward."""

    compute_seconds: float
    bucket_bytes: int
    buckets: int
    overlapped: bool

    @property
    def forward_seconds(self) -> float:
        return self.compute_seconds / 3

    @property
    def ready_seconds(self) -> list[float]:
        if not self.overlapped:
            return [self.compute_seconds] * self.buckets
        backward = self.compute_seconds - self.forward_seconds
        return [self.forward_seconds + backward * (i + 1) / self.buckets for i in range(self.buckets)]


@dataclass(frozen=True)
class Expected:
    """The prediction for one step. reduce_seconds: time to reduce all buckets without a pause."""

    step_seconds: float
    exposed_seconds: float
    reduce_seconds: float
    efficiency: float


def ring_seconds(link: Link, ranks: int, size: float) -> float:
    """Returns the seconds of a ring all-reduce of `size` bytes over `ranks` nodes of one rank each."""
    if ranks == 1:
        return 0.0
    payload_bytes_per_second = link.bits_per_second / 8 * PAYLOAD_SHARE
    return 2 * (ranks - 1) * (size / ranks / payload_bytes_per_second + link.latency_seconds)


def queue_end(ready: Sequence[float], service: Sequence[float]) -> float:
    """Returns the end of a queue's last job. A job starts when it is ready and its predecessor is done."""
    done = 0.0
    for at, seconds in zip(ready, service, strict=True):
        done = max(done, at) + seconds
    return done


def expected(link: Link, ranks: int, work: Work) -> Expected:
    """Predicts a step of `work` on `ranks` nodes of one rank each."""
    bucket_seconds = ring_seconds(link, ranks, work.bucket_bytes)
    end = queue_end(work.ready_seconds, [bucket_seconds] * work.buckets) if ranks > 1 else work.compute_seconds
    step = max(end, work.compute_seconds)
    return Expected(
        step_seconds=step,
        exposed_seconds=step - work.compute_seconds,
        reduce_seconds=bucket_seconds * work.buckets,
        efficiency=work.compute_seconds / step,
    )


def replay_text(work: Work, name: str, network: str) -> str:
    """Returns the step as a profile for hvd_bench --replay (models/replay). The profile says that it is made up.

    network: the network in words, which becomes part of the profile and so of the run's fingerprint.
    """
    lines = [
        "hvd-replay 1",
        f"model {name}",
        "batch_size 1",
        "image_size 1",
        f"device none (a sleep), network: {network}",
        "compute_type fp32",
        "source_run none (made up by network_bench)",
        f"forward_seconds {work.forward_seconds:.9g}",
        f"backward_end_seconds {work.compute_seconds:.9g}",
        "update_seconds 0",
    ]
    for i, ready in enumerate(work.ready_seconds):
        lines.append(f"gradient {work.bucket_bytes // 4} {ready:.9g} {ready:.9g} bucket{i}")
    return "\n".join([*lines, f"end {work.buckets}", ""])
