"""Renders the verdicts of a gate or a comparison as a table, Markdown, JSON, JUnit XML and annotations of GitHub.

Figures are images per second of the whole world; of other programs, the time of an operation. Slowdowns, thresholds
and spreads are percentages in tables and ratios (0.03 for 3 %) in JSON. Terms of the decomposition are percentages (in
JSON: fractions) of A's step time.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from hvdb.base import printable
from hvdb.base.interval import Interval
from hvdb.judge import reasons, verdict
from hvdb.judge.outcomes import B_FAILS, Report, summary
from hvdb.judge.sides import Outcome
from hvdb.judge.verdict import Verdict
from hvdb.show import tables

# Unit of the time of an operation -> how many of it a second has. Shorter times are in ns.
_TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}
# Version of the JSON document (results/verdict.schema.json). Raise it with each change that can break a reader.
FORMAT_VERSION = 1
NOTES = (
    "slowdown: Hodges-Lehmann estimate of the cost per image, B to A; below 0 B is faster. Its interval is for one cell"
    " and one look; a verdict allows for all cells and looks, so a cell can be INCONCLUSIVE although its"
    " whole interval lies above the threshold.",
    f"detectable: the smallest slowdown that as many runs of this spread show as REGRESSION with probability"
    f" {verdict.POWER:.0%}; '-': so few runs cannot show any.",
    "spread: standard deviation of the pairs' log ratios; '-': A and B were not measured in turn.",
)


def _short(value: float) -> str:
    return tables.number(value) if value >= 0.1 else f"{value:.3g}"


def _rate_text(outcome: Outcome, side: int) -> str:
    rate = outcome.rates[side]
    if outcome.metric:
        return f"{_short(outcome.values[side])} {outcome.metric[0]}".rstrip()
    if not outcome.foreign:
        return tables.with_unit(tables.number(rate), outcome.unit)
    unit, scale = next((item for item in _TIMES.items() if item[1] >= rate), ("ns", 1e9))
    return f"{tables.number(scale / rate)} {unit}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:+.2f}"


def _interval(figure: Interval) -> str:
    return figure.text(form=lambda percent: f"{percent:+.2f}" if math.isfinite(percent) else "?")


def _runs(outcome: Outcome) -> str:
    a, b = outcome.judgement.observations
    return f"{a} pair{'s' if a > 1 else ''}" if outcome.paired else f"{a} + {b}"


_COLUMNS: dict[str, Callable[[Outcome], str]] = {
    "cell": lambda outcome: outcome.name,
    "A images/s": lambda outcome: _rate_text(outcome, 0),
    "B images/s": lambda outcome: _rate_text(outcome, 1),
    "slowdown of B % [95 %]": lambda outcome: _interval(outcome.judgement.interval),
    "threshold %": lambda outcome: f"{100 * outcome.judgement.threshold:g}",
    "detectable %": lambda outcome: _percent(outcome.judgement.detectable).lstrip("+"),
    "spread %": lambda outcome: _percent(outcome.judgement.spread).lstrip("+"),
    "runs": _runs,
    "verdict": lambda outcome: outcome.judgement.verdict.value,
}


def header(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Returns the titles of the columns."""
    foreign = any(outcome.foreign for outcome in outcomes)
    shown = "" if any(outcome.metric for outcome in outcomes) else " time" if foreign else " images/s"
    return tuple(title.replace(" images/s", shown) for title in _COLUMNS)


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns lines about what the columns mean."""
    foreign = any(outcome.foreign for outcome in outcomes)
    cost = (
        "metric (its reciprocal where more is better)"
        if any(one.metric for one in outcomes)
        else "time of an operation"
    )
    return [note.replace("cost per image", cost) if foreign else note for note in NOTES] if outcomes else []


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Returns one row per cell. The columns are those of header()."""
    return tables.rows(_COLUMNS, outcomes)


def resolved(terms: dict[str, Interval]) -> dict[str, Interval]:
    """Returns the terms whose interval does not contain 0."""
    return {name: effect for name, effect in terms.items() if not effect.holds(0)}


def details(outcome: Outcome) -> list[str]:
    """Returns lines about one cell: terms that moved, differences of the two sides, runs that were left out."""
    lines = [f"threshold: {outcome.reason}"] if outcome.reason else []
    moved = resolved(outcome.terms)
    for name, effect in moved.items():
        lines.append(f"{name}: {_interval(effect)} % of A's step time")
    if outcome.terms and not moved:
        lines.append("no term of the decomposition is resolved")
    if not outcome.terms and not outcome.foreign:
        lines.append("which term moved is not known: only runs made with --efficiency record the terms")
    for difference in outcome.differences:
        mark = "can change the result" if difference.in_fingerprint else "not in the fingerprint"
        a, b = ("not recorded" if value is None else f"'{value}'" for value in (difference.first, difference.second))
        lines.append(f"differs ({mark}): {difference.key}: {a} in A, {b} in B")
    if not outcome.paired:
        lines.append("A and B were not measured in turn: whatever else changed between them is in this figure")
        lines.append(f"the test assumes that {'samples' if outcome.foreign else 'runs'} of A and of B vary alike")
    lines.extend(outcome.notes)
    lines.extend(f"left out: {line}" for line in outcome.left_out)
    return lines


def _details(outcomes: Sequence[Outcome]) -> list[tuple[str, tuple[str, ...]]]:
    """Returns (names of cells, their lines of details()). Cells with equal lines are together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for outcome in outcomes:
        together.setdefault(tuple(details(outcome)), []).append(outcome.name)
    together.pop((), None)
    more = {lines: f" and {len(names) - 3} more" if len(names) > 3 else "" for lines, names in together.items()}
    return [(", ".join(names[:3]) + more[lines], lines) for lines, names in together.items()]


def _remarks(report: Report) -> list[str]:
    """Returns the lines about the whole: rows of one side, what cannot act, failures."""
    failed = [report.failures.text] if report.failures and report.failures.newest else []
    return [*report.missing, *report.notes, *failed]


def text(report: Report, *, explain: bool = False) -> str:
    """Returns the report for a terminal, made printable."""
    lines = ["", *notes(report.outcomes)]
    for names, said in _details(report.outcomes):
        lines += ["", f"{names}:", *(f"  {line}" for line in said)]
    if explain:
        lines += ["", "why:", *(f"  {line}" for line in report.explained)]
    lines += ["", *_remarks(report), report.summary]
    table = tables.text_table(header(report.outcomes), rows(report.outcomes)) if report.outcomes else ""
    return "\n".join([table, *map(printable.terminal, lines)])


# Verdict -> the workflow command of GitHub Actions that shows it as an annotation.
MAX_ANNOTATIONS = 10
_ANNOTATIONS = {Verdict.REGRESSION: "error", Verdict.INCONCLUSIVE: "warning", Verdict.PASS: "notice"}


def github(report: Report, token: str, *, explain: bool = False) -> str:
    """Returns text() and annotations of GitHub Actions, the worst first. token: a random word.

    GitHub shows ten annotations of a kind in a step, so the last one counts those that are not there. GitHub takes
    every line that begins with "::" for a command. Between ::stop-commands::token and ::token:: it does not, so names
    in text() are not commands.
    Source: docs.github.com/actions/reference/workflows-and-actions/workflow-commands; the runner's ActionCommand.cs.
    """
    annotated = [
        (outcome.judgement.verdict, outcome.name, _figures(report, row))
        for outcome, row in zip(report.outcomes, rows(report.outcomes), strict=True)
    ]
    annotated += [(Verdict.INCONCLUSIVE, "measured on one side only", line) for line in report.missing]
    if report.failures and report.failures.newest:
        failed = Verdict.REGRESSION if report.b_fails else Verdict.INCONCLUSIVE
        annotated.append((failed, "a side failed", report.failures.text))
    annotated.sort(key=lambda one: list(_ANNOTATIONS).index(one[0]))
    if len(annotated) > MAX_ANNOTATIONS:
        rest = [one[0] for one in annotated[MAX_ANNOTATIONS - 1 :]]
        counts = summary(f"{len(rest)} more cells", rest)
        annotated[MAX_ANNOTATIONS - 1 :] = [(rest[0], "more cells", f"{counts}; the table has them all")]
    shown = _ANNOTATIONS | ({Verdict.INCONCLUSIVE: "notice"} if report.pardons and report.exit_code == 0 else {})
    lines = [_annotation(shown[v], f"{report.title}: {v.value}: {what}", line) for v, what, line in annotated]
    return "\n".join([f"::stop-commands::{token}", text(report, explain=explain), f"::{token}::", *lines])


def _annotation(command: str, title: str, message: str) -> str:
    title, message = (printable.terminal(words).replace("%", "%25") for words in (title, message))
    return f"::{command} title={title.replace(':', '%3A').replace(',', '%2C')}::{message}"


def _figures(report: Report, row: Sequence[str]) -> str:
    """Returns the figures of a row of rows() as one line: their titles and values."""
    titles = header(report.outcomes)[1:]
    return printable.terminal("; ".join(f"{name} {value}" for name, value in zip(titles, row[1:], strict=True)))


def markdown(report: Report) -> str:
    """Returns the report in Markdown, for a comment on a merge request. Text from stores is shown unchanged."""
    lines = [f"### {report.summary}", ""]
    if report.outcomes:
        lines += [tables.markdown_table(header(report.outcomes), rows(report.outcomes)), ""]
    lines += [f"- {printable.markdown(line)}" for line in _remarks(report)]
    for names, said in _details(report.outcomes):
        lines += ["<details>", f"<summary>{printable.markdown(names)}</summary>", ""]
        lines += [f"- {printable.markdown(line)}" for line in said]
        lines += ["", "</details>", ""]
    lines += [f"- {printable.markdown(note)}" for note in notes(report.outcomes)]
    return "\n".join(lines) + "\n"


def finite(value: float | None) -> float | None:
    """Returns `value` for JSON, which has no infinity: an infinite end of an interval becomes None."""
    return value if value is not None and math.isfinite(value) else None


def document(report: Report) -> dict[str, Any]:
    """Returns the report as a JSON document (results/verdict.schema.json). Infinite ends of intervals become null."""
    return {
        "format": "hvdb-verdict",
        "version": FORMAT_VERSION,
        "exit_code": report.exit_code,
        "alpha": verdict.ALPHA,
        "cells": [_cell(outcome) for outcome in report.outcomes],
        "missing": list(report.missing),
        **({"notes": list(report.notes)} if report.notes else {}),
        **({"failures": dataclasses.asdict(report.failures)} if report.failures and report.failures.newest else {}),
    }


def _cell(outcome: Outcome) -> dict[str, Any]:
    judgement = dataclasses.asdict(outcome.judgement)
    del judgement["find_detectable"]
    judgement["detectable"] = outcome.judgement.detectable
    judgement["verdict"] = outcome.judgement.verdict.value
    judgement["observations"] = list(outcome.judgement.observations)
    judgement |= {end: finite(judgement[end]) for end in ("low", "high")}
    return {
        "cell": outcome.name,
        "paired": outcome.paired,
        "code": reasons.code(outcome.judgement),
        "images_per_second": dict(zip("ab", outcome.rates, strict=True)),
        **judgement,
        "reason": outcome.reason,
        "terms": {
            name: {"value": effect.value, "low": finite(effect.low), "high": finite(effect.high)}
            for name, effect in outcome.terms.items()
        },
        "differences": [dataclasses.asdict(difference) for difference in outcome.differences],
        "left_out": list(outcome.left_out),
        "runs": {side: list(uuids) for side, uuids in zip("ab", outcome.runs, strict=True)},
        **({"unit": "operations", "notes": list(outcome.notes)} if outcome.foreign else {}),
        **({"metric": _metric(outcome)} if outcome.metric else {}),
    }


def _metric(outcome: Outcome) -> dict[str, Any]:
    unit, more_is_better = outcome.metric or ("", False)
    return {"unit": unit, "more_is_better": more_is_better, **dict(zip("ab", outcome.values, strict=True))}


def json_text(report: Report) -> str:
    """Returns the JSON document as text."""
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"


def junit(report: Report) -> str:
    """Returns JUnit XML with one test case per cell.

    A REGRESSION is a failure. INCONCLUSIVE is an error, and so is a cell that only one side has.
    """
    verdicts, kind = report.verdicts, f"hvdb.{report.title}"
    failed = bool(report.failures and report.failures.newest and not report.b_fails)
    suite = ElementTree.Element(
        "testsuite",
        name=kind,
        tests=str(len(verdicts) + failed),
        failures=str(verdicts.count(Verdict.REGRESSION)),
        errors=str(verdicts.count(Verdict.INCONCLUSIVE) + failed),
    )
    if report.failures and report.failures.newest:
        case = ElementTree.SubElement(suite, "testcase", classname=kind, name=B_FAILS)
        ElementTree.SubElement(
            case, "failure" if report.b_fails else "error", message=printable.terminal(report.failures.text)
        )
    for line in report.missing:
        case = ElementTree.SubElement(suite, "testcase", classname=kind, name=printable.terminal(line))
        ElementTree.SubElement(case, "error", message=printable.terminal(line))
    for outcome, row in zip(report.outcomes, rows(report.outcomes), strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname=kind, name=printable.terminal(outcome.name))
        message = _figures(report, row)
        if outcome.judgement.verdict is Verdict.REGRESSION:
            ElementTree.SubElement(case, "failure", message=message)
        elif outcome.judgement.verdict is Verdict.INCONCLUSIVE:
            ElementTree.SubElement(case, "error", message=message)
        output = ElementTree.SubElement(case, "system-out")
        output.text = "\n".join(printable.terminal(line) for line in (message, *details(outcome)))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'
