"""Names and limits that hvd_bench and hvdb share: results/names.json, which a test compares with the program."""

from __future__ import annotations

import json

from hvdb.base import data

_SHARED = json.loads(data.NAMES.read_text(encoding="utf-8"))
COMPONENTS: dict[str, str] = _SHARED["components"]  # component of a decomposition -> title
# Names in the results of collective operations. A reduction is "none" if the operation does not reduce.
OPERATIONS, TYPES = tuple(_SHARED["operations"]), tuple(_SHARED["types"])
REDUCTIONS = (*_SHARED["reductions"], "none")
MIN_TO_BELIEVE: int = _SHARED["min_to_believe"]  # an interval from fewer samples is printed with a warning
# An efficiency whose interval is wider than this from end to end is not resolved.
WIDEST_EFFICIENCY: float = _SHARED["widest_efficiency"]
NOT_RESOLVED: dict[str, str] = _SHARED["not_resolved"]  # what is said of it; "wide" takes the ends in percent
