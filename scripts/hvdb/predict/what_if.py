"""What-ifs: the same training with other options of the schedule, or on another link."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from hvdb.base.errors import HvdbError
from hvdb.predict import fabric, link, schedule
from hvdb.predict.inputs import Inputs
from hvdb.predict.link import LinkChange
from hvdb.read.predictions import ASSUMED, Label

# Seconds for a byte into the fusion buffer, or out of it, where no run copied: memory of 1 to 20 GB/s.
COPY = (5e-11, 1e-9)
MAX_LETTERS = 300


@dataclass(frozen=True)
class WhatIf:
    """text: as a person wrote it. options: (name, value) of the schedule. hardware: (name, value) of the link."""

    text: str
    options: tuple[tuple[str, str], ...]
    hardware: tuple[tuple[str, str], ...]


def parse(text: str) -> WhatIf:
    """Parses `--bucket-mb 64 link-gbit=100`. Errors: HvdbError."""
    if len(text) > MAX_LETTERS:
        raise HvdbError(f"--what-if has {len(text)} letters, and at most {MAX_LETTERS} are possible")
    words = text.split()
    options: list[tuple[str, str]] = []
    hardware: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        name, given, value = word.partition("=")
        into = options if word.startswith("--") else hardware
        if into is options and not given and words:
            value = words.pop(0)
        if not value or name in dict(into):
            raise HvdbError(f"--what-if '{text}': '{name}' has no value, or two")
        into.append((name, value))
    if not options and not hardware:
        raise HvdbError("--what-if is empty: name options such as '--bucket-mb 64', or link-gbit=100")
    return WhatIf(text, tuple(options), tuple(hardware))


def apply(made: Inputs, what_if: WhatIf) -> Inputs:
    """Returns the inputs that differ as `what_if` says. Its labels and notes are those that it adds.

    Errors: HvdbError, which is TooLittle if no collectives were measured that the other schedule needs.
    """
    try:
        plan = schedule.changed(made.schedule, what_if.options)
        wanted = link.change(what_if.hardware)
    except HvdbError as error:
        raise HvdbError(f"--what-if '{what_if.text}': {error}") from error
    if plan == made.schedule and not what_if.hardware:
        raise HvdbError(f"--what-if '{what_if.text}' changes nothing: the run had these options")
    cells, labels = made.fabric, []
    if plan.allreduce_type != made.schedule.allreduce_type:
        cells = fabric.gather(made.collectives, made.base, made.ranks_per_node, plan.allreduce_type, made.added)
    copy = made.copy
    packs_more = plan.fusion_threshold_bytes > made.schedule.fusion_threshold_bytes
    told = plan == made.schedule or (plan.name == made.schedule.name and copy[0] and not packs_more)
    if plan.name == schedule.NEGOTIATED and not told:
        copy = COPY
        labels.append(Label("copies", ASSUMED, "memory of 1 to 20 GB/s", math.sqrt(COPY[0] * COPY[1])))
    changed = dataclasses.replace(made, schedule=plan, fabric=cells, copy=copy, labels=labels, notes=[])
    return on_link(changed, wanted) if what_if.hardware else changed


def on_nodes_of(made: Inputs, ranks_per_node: int) -> Inputs:
    """Returns the inputs with the sessions and collectives of another number of ranks on each node. Errors: HvdbError,
    which is TooLittle if no collectives were measured there."""
    sessions = made.layouts[ranks_per_node]
    allreduce_type = made.schedule.allreduce_type
    cells = fabric.gather(made.collectives, sessions[0].full, ranks_per_node, allreduce_type, made.added)
    return dataclasses.replace(made, sessions=sessions, fabric=cells, labels=[], notes=[], layouts={})


def on_link(made: Inputs, wanted: LinkChange) -> Inputs:
    """Returns the inputs with another link between nodes."""
    return dataclasses.replace(made, fabric=made.fabric.changed(wanted), notes=[])
