"""Estimates the longest time of cells and jobs. Uses hvd_bench's time limit, or the measured times of a pilot."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdb.campaign.cell import Cell
from hvdb.campaign.site import Site
from hvdb.campaign.spec import Spec

PILOT_SAFETY = 1.5  # factor, because the allocation and the number of nodes differ from those of the pilot
ROUND_TO_SECONDS = 60


@dataclass(frozen=True)
class PilotKey:
    """The properties of a launch on which its estimated time depends. The exact number of ranks is not one of them."""

    model: str
    batch_size: int
    dtype: str
    several_ranks: bool


@dataclass(frozen=True)
class Pilot:
    """Measured times. seconds: key -> longest time of a launch, from its first run's start to its last run's end.

    notes: one line for each launch whose time is not known.
    """

    seconds: dict[PilotKey, float]
    notes: tuple[str, ...] = ()


class CellTime:
    """Computes the seconds of cells and the walltimes of jobs for one spec on one site. Pure."""

    def __init__(self, spec: Spec, site: Site, pilot: Pilot | None) -> None:
        self._cap = spec.max_time_seconds()
        self._site = site.walltime
        self._pilot = pilot

    def seconds(self, cell: Cell) -> float:
        """Returns the longest time, in seconds, that one launch of `cell` may take."""
        measuring = self._cap
        if self._pilot is not None:
            key = PilotKey(cell.model, cell.batch_size, cell.dtype, cell.shape.ranks > 1)
            seen = self._pilot.seconds.get(key)
            if seen is not None:
                measuring = min(self._cap, PILOT_SAFETY * seen)
        startup = self._site.startup_seconds + self._site.startup_seconds_per_rank * cell.shape.ranks
        return startup + measuring

    def walltime(self, seconds: float) -> int:
        """Returns the walltime to request for cells that take `seconds`, rounded up to whole minutes.

        The walltime includes the site's margin and the time between the scheduler's warning and the end.
        """
        wanted = seconds * self._site.margin + self._site.warning_seconds
        return ROUND_TO_SECONDS * math.ceil(wanted / ROUND_TO_SECONDS)


def duration_text(seconds: float) -> str:
    """Returns `seconds` as HH:MM:SS. Hours may have more than two digits."""
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
