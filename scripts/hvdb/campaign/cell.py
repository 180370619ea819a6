"""One launch of hvd_bench in a campaign, and the digests that identify launches, specs and sites.

Equal input gives equal digests and orders on every machine and with every version of Python.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


def digest(data: Any, length: int = 16) -> str:
    """Returns the first `length` hexadecimal digits of SHA-256 over `data` as JSON with sorted keys and no spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def shuffled(items: Sequence[Item], *key: object) -> list[Item]:
    """Returns `items` in an order that looks random and depends only on the number of items and on `key`."""
    return [item for _, item in sorted(enumerate(items), key=lambda pair: digest([*map(str, key), pair[0]], 64))]


SCALE, ONE_RANK, ONE_NODE = "scale", "one_rank", "one_node"


@dataclass(frozen=True)
class Shape:
    """Number of ranks and nodes. `ragged`: True if the last node has fewer ranks than the other nodes."""

    ranks: int
    nodes: int
    ranks_per_node: int  # number of ranks on a full node

    @property
    def ragged(self) -> bool:
        return self.ranks != self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Cell:
    """One launch of hvd_bench. `hash` covers all fields except `role`, which follows from the other fields.

    profile: identity.of_file() of the recorded step that is replayed; "" if none is.
    """

    role: str
    shape: Shape
    model: str
    batch_size: int  # images per rank and step
    dtype: str
    allreduce_dtype: str
    schedule: str
    seed: int
    efficiency: bool
    options: tuple[tuple[str, str], ...]
    device: str
    allocation_nodes: int
    repetition: int
    site: str
    surroundings: str  # Site.surroundings
    profile: str = ""

    @property
    def hash(self) -> str:
        """16 hexadecimal digits, by which the cell is found in stores."""
        data = dataclasses.asdict(self)
        del data["role"]
        if not self.profile:
            del data["profile"]  # the hash is then that of older versions, whose cells had no such field
        return digest(data)

    def arguments(self) -> list[str]:
        """Returns those arguments of hvd_bench that may differ from cell to cell."""
        words = ["--model", self.model, "--batch-size", str(self.batch_size), "--dtype", self.dtype]
        words += ["--allreduce-dtype", self.allreduce_dtype, "--schedule", self.schedule]
        words += ["--seed", str(self.seed), "--device", self.device]
        if self.efficiency:
            words.append("--efficiency")
        for name, value in self.options:
            words += [f"--{name}"] if value == "" else [f"--{name}", value]
        if self.profile:
            words += ["--label", f"replay={self.profile}"]
        return words
