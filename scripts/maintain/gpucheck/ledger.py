"""Results of the parts over all calls with one folder: summary.json, and summary.txt for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .schedule import Estimate, Outcome, Result, table
from hvdb import whole_file

FILE = "summary.json"


class Ledger:
    """Writes its files after every change, so that no result is lost however the call ends. One thread."""

    def __init__(self, out: Path, parts: Sequence[Estimate], call: int = 1) -> None:
        """Reads the results of earlier calls in `out`. call: the number of this call.

        Errors: ValueError if gpu_check did not write the summary, OSError."""
        self._out = out
        self._parts = parts
        self._known: dict[str, Outcome] = {}
        self.call = call
        file = out / FILE
        if file.exists():
            try:
                rows = json.loads(file.read_text(encoding="utf-8"))
                outcomes = [Outcome(**{**row, "result": Result(row["result"])}) for row in rows]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} is not a summary of gpu_check ({error}): name another directory") from None
            self._known = {o.part: o for o in outcomes if o.result is not Result.NOT_YET}

    def results(self) -> dict[str, Result]:
        """Returns the results of the parts that ran or began to run."""
        return {part: outcome.result for part, outcome in self._known.items()}

    def outcomes(self, not_yet: str = "") -> list[Outcome]:
        """Returns the outcomes of parts that only earlier calls requested, then those of the parts that this call
        requested. not_yet: why a part did not run."""
        asked = [self._known.get(e.part, Outcome(e.part, Result.NOT_YET, 0.0, not_yet, e.seconds)) for e in self._parts]
        names = {outcome.part for outcome in asked}
        return [o for o in self._known.values() if o.part not in names] + asked

    def put(self, outcome: Outcome) -> None:
        """Stores the outcome in place of the part's previous outcome."""
        self._known[outcome.part] = outcome
        self.write()

    def text(self, not_yet: str = "") -> str:
        """Returns the table for people."""
        return table(self.outcomes(not_yet))

    def write(self, not_yet: str = "") -> None:
        """Writes both files."""
        rows = [{**asdict(outcome), "result": outcome.result.value} for outcome in self.outcomes(not_yet)]
        whole_file.write_text(self._out / FILE, json.dumps(rows, indent=1) + "\n")
        whole_file.write_text(self._out / "summary.txt", self.text(not_yet))
