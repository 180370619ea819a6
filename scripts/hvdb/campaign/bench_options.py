"""The options of hvd_bench that a spec may pass to hvd_bench, and the options that the campaign itself sets.

The rows of results/options.json say which these are.
"""

from __future__ import annotations

import re

from hvdb.base import option_rows
from hvdb.campaign.fields import Table, nearest

MODELS = {name: name for name in ("inception3", "resnet50", "resnet101", "vgg16")} | {"inception_v3": "inception3"}
_ROWS = option_rows.of_training()
DTYPES, ALLREDUCE_DTYPES, SCHEDULES, DEVICES = (
    tuple(_ROWS[name]["words"]) for name in ("dtype", "allreduce-dtype", "schedule", "device")
)
# Environment variables that hvd_bench reads, without those of launchers and libraries. A job script unsets them, so
# that only the site and its set-up determine them, and nothing determines TRACE_VARIABLE. tests/slurm compares the
# names with the C++ sources.
VARIABLES = (
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_TIMELINE",
    "HVD_CUBLAS_ROOT",
    "HVD_CUDNN_ROOT",
    "HVD_MAX_CPU_ISA",
    "HVD_NCCL_ROOT",
)
TRACE_VARIABLE = "HOROVOD_TIMELINE"
DEFAULT_MAX_TIME_SECONDS = 300  # of the option --max-time of hvd_bench
# hvd_bench accepts numbers of this form only: without sign, spaces or underscores.
NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(table: Table) -> tuple[tuple[str, str], ...]:
    """Returns the spec's [options] as (name, value), in the order of the spec. A flag has the value "".

    Errors: CampaignError for an option that hvd_bench does not have, for an option that the campaign decides, and for
    an impossible value.
    """
    found: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, value in table.scalars().items():
        name = key.replace("_", "-").removeprefix("--")
        row = _ROWS.get(name)
        if row is None:
            known = tuple(name for name, row in _ROWS.items() if row["campaign"])
            raise table.fail(key, f"hvd_bench has no such option{nearest(name, known)}")
        if not row["campaign"]:
            raise table.fail(key, f"a campaign takes this from {row['decided_by'] or 'nothing'}; leave it out here")
        flag = row["value"] == ""
        if flag != isinstance(value, bool):
            wanted = "is a flag: give true, or leave it out" if flag else "takes a value"
            raise table.fail(key, f"--{name} {wanted}")
        if name in seen:
            raise table.fail(key, f"is --{name}, as {seen[name]} is; give one of them")
        seen[name] = key
        if not flag:
            found[name] = _value(table, key, name, str(value))
        elif value:
            found[name] = ""
    table.close()
    return tuple(found.items())


def _value(table: Table, key: str, name: str, text: str) -> str:
    if not text:
        raise table.fail(key, "is empty; give a value, or leave it out")
    if text.startswith("--"):
        raise table.fail(key, f"{text!r} begins like an option; --{name} takes a value")
    low, high = _ROWS["max-time"]["low"], _ROWS["max-time"]["high"]
    if name == "max-time" and not (re.fullmatch(NUMBER, text) and low <= float(text) <= high):
        raise table.fail(key, f"{text!r} is not a number of seconds from {low:.10g} to {high:.10g}")
    return text
