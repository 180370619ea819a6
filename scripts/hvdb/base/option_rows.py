"""The options of `hvd_bench train`, which the program describes with --describe-options in results/options.json."""

from __future__ import annotations

import functools
import json
from typing import Any

from hvdb.base import data


@functools.cache
def of_training() -> dict[str, dict[str, Any]]:
    """Returns the rows of bench/world/training_options.cpp by name without "--", in the order of --help."""
    document = json.loads(data.OPTIONS.read_text(encoding="utf-8"))
    return {row["names"].removeprefix("--"): row for row in document["train"]}
