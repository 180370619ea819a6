"""The options of hvd_bench that a spec may pass to hvd_bench, and the options that the campaign itself sets.

tests/slurm compares the names of the options with `hvd_bench --help`.
"""

from __future__ import annotations

import re

from hvdb.campaign.fields import Table, nearest

MODELS = {
    "inception3": "inception3",
    "inception_v3": "inception3",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "vgg16": "vgg16",
}
DTYPES = ("fp32", "tf32", "fp16", "bf16")
ALLREDUCE_DTYPES = ("fp32", "bf16", "fp16")
SCHEDULES = ("static", "sharded", "negotiated", "none")
DEVICES = ("auto", "cpu", "cuda")

VALUES = (
    "image-size",
    "classes",
    "threads",
    "labels",
    "learning-rate",
    "replay",
    "replay-shrink",
    "comm",
    "algorithm",
    "bucket-mb",
    "segment-kb",
    "fusion-threshold-mb",
    "cycle-time-ms",
    "cache-capacity",
    "deadline-seconds",
    "startup-deadline-seconds",
    "num-warmup-batches",
    "num-batches-per-iter",
    "num-iters",
    "target-interval",
    "max-time",
    "fusion-level",
    "loss-scale",
    "tuning-folder",
    "nccl-max-ctas",
)
FLAGS = (
    "auxiliary-head",
    "no-check",
    "no-winograd",
    "no-cuda-graph",
    "no-launch-ahead",
    "no-overlap",
    "deterministic",
    "tune",
    "tune-schedule",
    "no-nccl-registration",
    "share-gpus",
)
# Option -> the part of the spec from which the campaign takes its value.
DECIDED = {
    "model": "models",
    "batch-size": "weak.batch_size or strong.global_batch",
    "dtype": "dtypes",
    "allreduce-dtype": "allreduce_dtypes",
    "fp16-allreduce": "allreduce_dtypes",
    "schedule": "schedules",
    "seed": "seeds",
    "efficiency": "efficiency",
    "fit": "weak.batch_size or strong.global_batch",
    "device": "program.device of the site",
    "ranks": "ranks",
    "db": "the campaign's folder",
    "no-db": "the campaign's folder",
    "label": "the campaign",
    "json": "nothing: stores hold everything",
    "quiet": "nothing: stores hold everything",
    "record-replay": "nothing: one file cannot hold many cells",
    "timeline-filename": "nothing: one file cannot hold many cells",
    "profile": "nothing: no table takes profiled runs",
}
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
# The default and the range of the option --max-time of hvd_bench.
DEFAULT_MAX_TIME_SECONDS = 300
MAX_TIME_SECONDS = (1, 10_000_000)
# hvd_bench accepts numbers of this form only: without sign, spaces or underscores.
NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def read(table: Table) -> tuple[tuple[str, str], ...]:
    """Returns the spec's [options] as (name, value), in the order of the spec. A flag has the value "".

    Errors: CampaignError for an option that hvd_bench does not have, for an option in DECIDED, and for an impossible
    value.
    """
    found: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, value in table.scalars().items():
        name = key.replace("_", "-").removeprefix("--")
        if name in DECIDED:
            raise table.fail(key, f"a campaign takes this from {DECIDED[name]}; leave it out here")
        if name not in VALUES + FLAGS:
            raise table.fail(key, f"hvd_bench has no such option{nearest(name, VALUES + FLAGS)}")
        if (name in FLAGS) != isinstance(value, bool):
            wanted = "is a flag: give true, or leave it out" if name in FLAGS else "takes a value"
            raise table.fail(key, f"--{name} {wanted}")
        if name in seen:
            raise table.fail(key, f"is --{name}, as {seen[name]} is; give one of them")
        seen[name] = key
        if name in VALUES:
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
    low, high = MAX_TIME_SECONDS
    if name == "max-time" and not (re.fullmatch(NUMBER, text) and low <= float(text) <= high):
        raise table.fail(key, f"{text!r} is not a number of seconds from {low} to {high}")
    return text
