"""Labels say where each input of a prediction comes from."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, SCALED, IMPORTED, DATA_SHEET, ASSUMED = "measured", "scaled", "imported", "data sheet", "assumed"


@dataclass(frozen=True)
class Label:
    """Where an input comes from. kind: one of the constants above. value: its middle, None if it is not one number."""

    name: str
    kind: str
    source: str
    value: float | None = None
