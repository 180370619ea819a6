"""Shows runs to other tools: a JSON line a run for log shippers, the newest runs in Prometheus's text format.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats (text format, version 0.0.4) and
https://prometheus.io/docs/practices/naming (names and units).
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable
from typing import Any

from hvdb.base import printable
from hvdb.base.interval import Interval
from hvdb.judge import comparable, efficiency
from hvdb.read.runs import Run

# Version of a JSON line (docs/compatibility.md). Raise it with each change that can break a reader.
FORMAT_VERSION = 1
# Columns of table run that a JSON line has under their own names.
_COLUMNS = (
    *("started_utc", "finished_utc", "status", "status_reason", "origin", "phase", "model", "batch_size", "image_size"),
    *("device", "compute_type", "allreduce_type", "schedule", "comm", "data_plane", "nodes", "threads"),
    *("measured_steps", "batches_per_iter", "stop_reason"),
    *("step_seconds", "step_seconds_low", "step_seconds_high", "confidence"),
    *("final_loss", "checks", "fingerprint"),
)
# The values of a JSON line that say which cell a run belongs to.
_CELL = (
    *("model", "ranks", "nodes", "phase", "batch_size", "image_size", "auxiliary_head", "unit"),
    *("device", "compute_type", "allreduce_type", "schedule", "comm", "threads"),
)
# All labels. Those after _CELL keep series apart that options, software or machines set apart.
LABELS = (*_CELL, "host", "fingerprint")
_LABEL = "label."  # begins the keys of facts that `hvd_bench --label` stores
# Name of a metric -> the value of a JSON line that it shows, and what it means.
_OF_RUN = {
    "hvd_bench_start_timestamp_seconds": ("start", "When the newest run of the cell began."),
    "hvd_bench_step_seconds": ("step_seconds", "Median step time of all ranks together."),
    "hvd_bench_step_low_seconds": ("step_seconds_low", "Lower end of the interval of the step time."),
    "hvd_bench_step_high_seconds": ("step_seconds_high", "Upper end of the interval of the step time."),
    "hvd_bench_units_per_second": ("units_per_second", "Images, or what label unit says, per second of all ranks."),
    "hvd_bench_efficiency_ratio": ("efficiency_ratio", "Weak-scaling efficiency, if it is resolved."),
    "hvd_bench_efficiency_low_ratio": ("efficiency_ratio_low", "Lower end of the interval of the efficiency."),
    "hvd_bench_efficiency_high_ratio": ("efficiency_ratio_high", "Upper end of the interval of the efficiency."),
}
# The same for the values of one part of the step.
_OF_PART = {
    "hvd_bench_step_part_ratio": ("ratio", "Share of a part in the step time; not resolved if its interval holds 0."),
    "hvd_bench_step_part_low_ratio": ("ratio_low", "Lower end of the interval of the share."),
    "hvd_bench_step_part_high_ratio": ("ratio_high", "Upper end of the interval of the share."),
}
# The same for a row of `hvd_bench coll`, and the labels that, with its options, say which cell it belongs to.
_OF_ROW = {
    "hvd_bench_collective_seconds": ("seconds", "Median time of one operation on the slowest rank."),
    "hvd_bench_collective_low_seconds": ("seconds_low", "Lower end of the interval of the time of one operation."),
    "hvd_bench_collective_high_seconds": ("seconds_high", "Upper end of the interval of the time of one operation."),
}
_ROW = ("row", "ranks", "nodes", "device", "comm", "data_plane")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record(run: Run) -> dict[str, Any]:
    """Returns the values of a JSON line: seconds, ratios (1 for all), units per second of all ranks.

    None stands for what was not measured, and for an infinite loss. The efficiency is None if it is not resolved; then
    only the ends of its interval are there.
    """
    stored = run.decomposition.get("efficiency")
    figure = stored.fraction if stored else Interval(math.nan)
    return {
        "format": "hvdb-run",
        "version": FORMAT_VERSION,
        "run": run.uuid,
        "session": run.session_uuid,
        **{name: _finite(run.columns[name]) for name in _COLUMNS},
        "traced": bool(run.traced),
        "auxiliary_head": bool(run.auxiliary_head),
        "ranks": run.world_size,
        "host": run.ranks[0]["host"] if run.ranks else None,
        "options": comparable.settings(run),
        "labels": {
            key.removeprefix(_LABEL): fact.value for key, fact in run.provenance.items() if key.startswith(_LABEL)
        },
        "commit": run.fact("git.commit") or None,
        "unit": run.unit,
        "units_per_second": _finite(run.images_per_second),
        "efficiency_ratio": figure.value if efficiency.resolved(figure) else None,
        "efficiency_ratio_low": figure.low,
        "efficiency_ratio_high": figure.high,
        "parts": {
            name: {
                "ratio": part.fraction.value,
                "ratio_low": part.fraction.low,
                "ratio_high": part.fraction.high,
                "seconds": part.seconds,
            }
            for name, part in run.decomposition.items()
            if name != "efficiency"
        },
        "cautions": [fact.value for key, fact in run.provenance.items() if key.startswith(efficiency.CAUTION)],
    }


def collective(run: Run) -> dict[str, Any]:
    """Returns the values of a JSON line of a row of `hvd_bench coll` (coll_runs.py). Times: seconds of an operation."""
    values = record(run)
    kept = ("run", "started_utc", "finished_utc", "status", "status_reason", "device", "comm", "data_plane", "ranks")
    kept += ("nodes", "options", "labels", "commit", "stop_reason", "fingerprint")
    return {
        "format": "hvdb-collective",
        "version": FORMAT_VERSION,
        "session": run.uuid.rpartition("-")[0],
        "row": run.model,
        "type": run.compute_type,
        **{name: values[name] for name in kept},
        "seconds": values["step_seconds"],
        "seconds_low": values["step_seconds_low"],
        "seconds_high": values["step_seconds_high"],
    }


def collective_lines(rows: Iterable[Run]) -> str:
    """Returns a line of JSON for each row of `hvd_bench coll`, in ASCII."""
    return "".join(json.dumps(collective(row), allow_nan=False) + "\n" for row in rows)


def json_lines(runs: Iterable[Run]) -> str:
    """Returns a line of JSON for each run, in ASCII."""
    return "".join(json.dumps(record(run), allow_nan=False) + "\n" for run in runs)


def _start(text: str) -> float | None:
    """Returns the seconds since 1970 at a time in ISO 8601, UTC. Returns None if `text` is no such time."""
    try:
        moment = datetime.datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or datetime.timezone.utc).timestamp()


def _label(name: str, value: object) -> str:
    text = printable.terminal(str(value).lower() if isinstance(value, bool) else value)
    return '{}="{}"'.format(name, text.replace("\\", r"\\").replace('"', r"\""))


def prometheus(runs: Iterable[Run], collectives: Iterable[Run] = ()) -> str:
    """Returns gauges with the newest of `runs` of each cell, and of `collectives`, rows of `hvd_bench coll`.

    The runs of a cell have one value for each of _CELL, and agree in options and kind of machine. Their software may
    differ, as may the hosts of a cluster: labels say which the newest run had.

    runs: in the order of time. A value that was not measured has no line, and lines have no time of their own, because
    node_exporter refuses it.
    """
    newest: dict[tuple, dict[str, Any]] = {}
    for run in runs:
        values = {**record(run), "start": _start(run.started_utc)}
        cell = tuple(values[name] for name in _CELL), tuple(sorted(values["options"].items())), run.batches_per_iter
        cell += tuple(map(run.fact, comparable.MACHINE_FACTS))
        newest.pop(cell, None)  # so that the order is that of time
        newest[cell] = values
    cells = {",".join(_label(name, values[name]) for name in LABELS): values for values in newest.values()}
    lines = []
    for name, (key, meaning) in _OF_RUN.items():
        lines += _family(name, meaning, [(labels, values[key]) for labels, values in cells.items()])
    for name, (key, meaning) in _OF_PART.items():
        parts = [
            (f"{labels},{_label('part', part)}", figures[key])
            for labels, values in cells.items()
            for part, figures in values["parts"].items()
        ]
        lines += _family(name, meaning, parts)
    newest_rows = {tuple(map(str, (*map(row.get, _ROW), row["options"]))): row for row in map(collective, collectives)}
    for name, (key, meaning) in _OF_ROW.items():
        shown = [
            (",".join(_label(label, row[label]) for label in (*_ROW, "fingerprint")), row[key])
            for row in newest_rows.values()
        ]
        lines += _family(name, meaning, shown)
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, meaning: str, samples: Iterable[tuple[str, float | None]]) -> list[str]:
    lines = [f"{name}{{{labels}}} {value!r}" for labels, value in sorted(samples) if value is not None]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *lines] if lines else []
