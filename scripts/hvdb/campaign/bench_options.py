"""The options of hvd_bench that a spec may pass to hvd_bench, and the options that the campaign itself sets.

The rows of results/options.json say which these are.
"""

from __future__ import annotations

import re
from typing import Annotated

from hvdb.base import data, record
from hvdb.base.record import From, Malformed


def _scalar(value: object) -> object:
    if type(value) not in (str, int, float, bool):
        raise Malformed("takes a string, a number, or true")
    return value


Scalar = Annotated[str | int | float | bool, From(object, _scalar)]
MODELS = {name: name for name in ("inception3", "resnet50", "resnet101", "vgg16")} | {"inception_v3": "inception3"}
_ROWS = data.of_training()
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
    "HVD_MPI",
    "HVD_NCCL_ROOT",
)
TRACE_VARIABLE = "HOROVOD_TIMELINE"
DEFAULT_MAX_TIME_SECONDS = 300  # of the option --max-time of hvd_bench
# hvd_bench accepts numbers of this form only: without sign, spaces or underscores.
NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(options: dict[str, Scalar]) -> tuple[tuple[str, str], ...]:
    """Returns the spec's [options] as (name, value), in the order of the spec. A flag has the value "".

    Errors: Malformed for an option that hvd_bench does not have, for an option that the campaign decides, and for an
    impossible value.
    """
    found: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, value in options.items():
        name = key.replace("_", "-").removeprefix("--")
        row = _ROWS.get(name)
        if row is None:
            known = [name for name, row in _ROWS.items() if row["campaign"]]
            raise Malformed(f"hvd_bench has no such option{record.nearest(name, known)}", key)
        if not row["campaign"]:
            raise Malformed(f"a campaign takes this from {row['decided_by'] or 'nothing'}; leave it out here", key)
        flag = row["value"] == ""
        if flag != isinstance(value, bool):
            wanted = "is a flag: give true, or leave it out" if flag else "takes a value"
            raise Malformed(f"--{name} {wanted}", key)
        if name in seen:
            raise Malformed(f"is --{name}, as {seen[name]} is; give one of them", key)
        seen[name] = key
        if not flag:
            found[name] = _value(key, name, str(value))
        elif value:
            found[name] = ""
    return tuple(found.items())


def _value(key: str, name: str, text: str) -> str:
    if not text:
        raise Malformed("is empty; give a value, or leave it out", key)
    if text.startswith("--"):
        raise Malformed(f"{text!r} begins like an option; --{name} takes a value", key)
    low, high = _ROWS["max-time"]["low"], _ROWS["max-time"]["high"]
    if name == "max-time" and not (re.fullmatch(NUMBER, text) and low <= float(text) <= high):
        raise Malformed(f"{text!r} is not a number of seconds from {low:.10g} to {high:.10g}", key)
    return text
