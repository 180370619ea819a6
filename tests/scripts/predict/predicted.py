"""A prediction for tests, as the JSON document of predict."""

from __future__ import annotations

from typing import Any


def band(middle: float, half: float = 0.05) -> dict[str, float]:
    return {"low": middle - half, "middle": middle, "high": middle + half}


def row(ranks: int, efficiency: float, what_if: int = 0, half: float = 0.05) -> dict[str, Any]:
    """A row of 0.2 s alone, on nodes of two ranks."""
    parts = {"exposed": 0.1, "stragglers": 0.02, "control": 0.0, "slowed": 0.01, "interference": -0.001}
    low, middle, high = band(efficiency, half).values()
    step = {"low": 0.2 / high, "middle": 0.2 / middle, "high": 0.2 / low}
    made = {"what_if": what_if, "ranks": ranks, "nodes": max(1, ranks // 2), "step_seconds": step}
    made |= {"efficiency": band(efficiency, half), "parts": parts, "steps": 200, "measured": None, "warnings": []}
    return made


def document(**changes: Any) -> dict[str, Any]:
    """A whole document. changes: other values of its keys; those of the profile go to the profile."""
    profile = {"model": "resnet50", "unit": "images", "units_per_step": 8, "compute_type": "fp32", "source_run": "a"}
    profile |= {key: changes.pop(key) for key in list(changes) if key in profile}
    as_it_was = {"text": "", "schedule": "static", "options": ["--schedule", "static"], "hardware": {}}
    faster = {"text": "link-gbit=100", "schedule": "static", "options": [], "hardware": {"link_gbit": 100}}
    made = {"format": "hvdb-prediction", "version": 1, "predicted": True, "confidence": 0.9, "seed": 0, "draws": 200}
    made |= {"profile": profile, "device": "cpu", "ranks_per_node": 2, "latest_input": "2026-07-01T10:00:00Z"}
    made["training"] = {}
    made |= {"inputs": [{"file": "a.db", "sha256": "0" * 64}], "sessions": ["s"], "collectives": ["c"]}
    rows = [row(1, 1.0, half=0.0), row(2, 0.9), row(64, 0.7), row(64, 0.8, what_if=1)]
    made |= {"what_ifs": [as_it_was, faster], "rows": rows, "gains": [], "notes": [], "narrower": {"steps": 0.01}}
    made["labels"] = [{"name": "noise", "kind": "measured", "source": "20 steps", "value": None}]
    return made | changes
