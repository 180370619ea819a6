"""What the ranks tell each other, by the key-value store of PyTorch's process group."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdb.base.errors import HvdbError

_LOOK_SECONDS = 0.002  # between two looks at the store: a waiting rank sleeps
_ABSENT = "-"  # no rank says this: what they say is JSON


@dataclass
class Ranks:
    """What the ranks tell each other, by the key-value store of the process group. Nobody spins while he waits.

    deadline: seconds after which a rank that should have answered is lost. orders: how many rank 0 has given.
    """

    store: Any
    rank: int
    size: int
    deadline: float
    prefix: str
    orders: int = 0

    def say(self, key: str, **what: Any) -> None:
        self.store.set(f"{self.prefix}/{key}/{self.rank}", json.dumps(what))

    def hear(self, key: str, rank: int, patience: float) -> dict[str, Any] | None:
        """Returns what `rank` said; None if it has said nothing after `patience` seconds."""
        name, end = f"{self.prefix}/{key}/{rank}", time.monotonic() + patience
        try:
            while not self._has(name):
                if time.monotonic() >= end:
                    return None
                time.sleep(_LOOK_SECONDS)
            return json.loads(self.store.get(name))
        except RuntimeError as error:  # what PyTorch's stores raise
            raise HvdbError(
                f"the store of the process group is gone, and with it the rank or the launcher that served "
                f"it: {line(error)}"
            ) from error

    def _has(self, name: str) -> bool:
        if hasattr(self.store, "check"):
            return self.store.check([name])
        # PyTorch 2.1 has no check() for Python. Where there is no such name, compare_set() returns what it is told to
        # expect, and writes nothing unless that is empty.
        return self.store.compare_set(name, _ABSENT, _ABSENT) != _ABSENT.encode()

    def all(self, key: str, ranks: Sequence[int], about: str) -> list[dict[str, Any]]:
        """Returns what each of `ranks` said. Errors: HvdbError with the ranks that failed, or said nothing."""
        end = time.monotonic() + self.deadline
        heard = {rank: self.hear(key, rank, max(0.0, end - time.monotonic())) for rank in ranks}
        if lost := [rank for rank, said in heard.items() if said is None]:
            raise HvdbError(f"{listed(lost)} did not answer within {self.deadline:g} s {about}")
        if faulty := [(rank, said["fault"]) for rank, said in heard.items() if said and "fault" in said]:
            raise HvdbError(f"rank {faulty[0][0]} {about}: {faulty[0][1]}")
        return [said for said in heard.values() if said is not None]

    def order(self, **what: Any) -> None:
        """Rank 0: gives the next order."""
        self.say(f"order/{self.orders}", **what)
        self.orders += 1

    def next_order(self, patience: float) -> dict[str, Any]:
        """Other ranks: returns the next order. Errors: HvdbError if rank 0 ended the session, or is lost."""
        said = self.hear(f"order/{self.orders}", 0, patience)
        self.orders += 1
        if said is None:
            raise HvdbError(f"rank 0 did not go on within {patience:.0f} s")
        if said.get("end"):
            raise HvdbError(said["end"])
        return said


def listed(ranks: Sequence[int]) -> str:
    """Returns "ranks 1, 2" of at most eight ranks, for errors."""
    return (
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{' and more' if len(ranks) > 8 else ''}"
    )


def line(error: BaseException) -> str:
    """Returns an error as one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
