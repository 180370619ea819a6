"""The results of compare_gpu.py in their stored form: one row per network and type. Readers compute ratios anew from
the stored samples."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serving import Ratio, ratio_of

sys.path.append(str(Path(__file__).resolve().parents[2]))
from hvdb import whole_file

COLLAPSED = 1e-3  # fraction of the first loss; below it gradients vanish, and a GPU may run faster


@dataclass
class Found:
    """The best batch of one server, and the images per second at every batch in the search."""

    name: str
    batch: int = 0
    img_s: float = 0.0
    first_loss: float | None = None  # at the best batch, directly after the change to this batch
    tried: dict[int, float] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # batch -> the server's message that memory is too small
    stopped: str = ""  # why the search ended, or why there was no search


@dataclass
class Turns:
    """One side of the turns."""

    name: str
    description: str
    batch: int
    first_loss: float | None
    last_loss: float | None
    seconds_per_step: list[float]
    clocks: str = ""  # the GPU's clocks in these turns, in words; "" if not logged

    def img_s(self) -> float:
        """Returns the images per second, from the median of the turns."""
        return self.batch / statistics.median(self.seconds_per_step)

    def seconds_per_image(self) -> list[float]:
        """Returns the seconds per image, in order of the turns."""
        return [seconds / self.batch for seconds in self.seconds_per_step]

    def loss_trouble(self) -> str:
        """Returns why these turns do not count: a loss is not finite or has collapsed. "" if they count."""
        first, last = (math.nan if loss is None else loss for loss in (self.first_loss, self.last_loss))
        for when, loss in (("first", first), ("last", last)):
            if not math.isfinite(loss):
                return f"{self.name}: the {when} loss is {loss}"
        if abs(last) < COLLAPSED * abs(first):
            return f"{self.name}: the loss collapsed from {first:.3g} to {last:.3g}: its steps are no longer comparable"
        return ""


@dataclass
class Pair:
    """Results of ours and of the peer, measured in turns."""

    ours: Turns
    peer: Turns
    turns: int

    def ratio(self) -> Ratio:
        """Returns the ratio of our images per second to the peer's."""
        return ratio_of(self.ours.seconds_per_image(), self.peer.seconds_per_image(), self.turns)

    def share_of(self, seconds_per_image: float) -> Ratio:
        """Returns our speed / a speed that was not measured, such as a bound. The interval comes from
        our times alone."""
        ours = self.ours.seconds_per_image()
        return ratio_of(ours, [seconds_per_image] * len(ours), self.turns)


@dataclass
class Row:
    """One network in one type. quick: True if measured only at one batch size, beside the first variant that ran."""

    model: str
    dtype: str
    quick: bool = False
    variants: list[Found] = field(default_factory=list)
    ours_search: Found | None = None
    best: Pair | None = None  # each side at its own best batch
    same: Pair | None = None  # both at the peer's best batch; None if equal to `best`, or if ours needs too much memory
    troubles: list[str] = field(default_factory=list)
    missing_variants: list[str] = field(default_factory=list)

    def judge_losses(self) -> None:
        """Adds faults of the stored losses to `troubles`, also for rows that were stored under an older rule."""
        sides = [side for pair in (self.best, self.same) if pair for side in (pair.ours, pair.peer)]
        self.troubles += [text for side in sides if (text := side.loss_trouble()) and text not in self.troubles]


def _plain(value: object) -> object:
    """Returns the value in a form that JSON can store: NaN and infinity become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Replaces the file in one step, so that a reader never sees half of a file. Errors: OSError."""
    plain = []
    for row in rows:
        data = asdict(row)
        for name, pair in (("best", row.best), ("same", row.same)):
            if pair is not None:
                data[name]["ratio"] = asdict(pair.ratio())
        plain.append(_plain(data))
    whole_file.write_text(file, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def _found(data: dict) -> Found:
    numbered = {key: {int(batch): value for batch, value in data[key].items()} for key in ("tried", "refused")}
    return Found(**{**data, **numbered})


def _pair(data: dict | None) -> Pair | None:
    return data and Pair(Turns(**data["ours"]), Turns(**data["peer"]), data["turns"])


def read_rows(file: Path) -> list[Row]:
    """Reads the rows of a file. Errors: ValueError if write_rows() did not write `file`; OSError."""
    try:
        rows = [
            Row(
                **{
                    **data,
                    "variants": [_found(found) for found in data["variants"]],
                    "ours_search": data["ours_search"] and _found(data["ours_search"]),
                    "best": _pair(data["best"]),
                    "same": _pair(data["same"]),
                }
            )
            for data in json.loads(file.read_text(encoding="utf-8"))
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not written by compare_gpu.py: {error}") from None
    for row in rows:
        row.judge_losses()
    return rows
