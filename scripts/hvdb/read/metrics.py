"""Reads numbers from the output of any command: by a regular expression, or by a path into JSON.

A metric is a row. Every match is a sample of it, and all samples of a launch belong to one session, so the caller takes
their median. The output may come from a stranger.
"""

from __future__ import annotations

import math
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from hvdb.base import printable
from hvdb.base.errors import HvdbError
from hvdb.base.record import Malformed
from hvdb.read import output_text
from hvdb.read.others import COMMAND, Results

MAX_MATCHES = 100_000
MAX_SECONDS = 10  # of a regular expression
MIN_VALUE, MAX_VALUE = 1e-30, 1e30
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d{1,9})\]|\[(\*)\]|\['([^']+)'\]", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MORE_DIGITS = re.compile(r"[.,]?\d|[eE][+-]?\d")
_UNIT = re.compile(r" ?([A-Za-zµμ/%]{1,12})(?![A-Za-zµμ/%])")
_UNITS = (
    "ns us µs μs ms s nsec usec msec sec seconds min % B kB KB MB GB TB KiB MiB GiB bytes kbps Kbps Mbps Gbps FLOPS"
)
_KNOWN = frozenset((*_UNITS.split(), "MFLOPS", "GFLOPS", "TFLOPS"))
_RATE = re.compile(r"[A-Za-z]+/(s|sec|second)")  # GB/s, Gbit/s, images/s
_MAX_SHOWN = 100


@dataclass(frozen=True)
class Metric:
    """pattern: a regular expression with one group, or a path into JSON, which begins with "$." or "$[".

    higher_is_better: the cost of a value is then its inverse."""

    name: str
    pattern: str
    higher_is_better: bool = False


def read_option(text: str) -> Metric:
    """Reads NAME=PATTERN, such as 'latency_us=Latency: ([0-9.]+)' or 'time=$.results[*].time'. Errors: HvdbError."""
    name, equals, pattern = text.partition("=")
    about = f"--metric '{printable.terminal(text)}'"
    if not equals or not pattern:
        raise HvdbError(f"{about}: write NAME=PATTERN, such as 'latency_us=Latency: ([0-9.]+)'")
    if not _NAME.fullmatch(name):
        raise HvdbError(f"{about}: a name has 1 to 60 letters, digits, '_', '.' and '-'")
    try:
        if _is_path(pattern):
            _steps(pattern)
        elif (groups := re.compile(pattern, re.MULTILINE).groups) != 1:
            raise Malformed(f"the regular expression has {groups} groups (...), and one must hold the number")
    except (re.error, RecursionError, OverflowError) as error:
        raise HvdbError(f"{about}: not a regular expression: {error}") from error
    except Malformed as error:
        raise HvdbError(f"{about}: {error}") from error
    return Metric(name, pattern)


def read_options(texts: Sequence[str], higher: Sequence[str]) -> list[Metric]:
    """Reads the options --metric. higher: the names of metrics of which more is better. Errors: HvdbError."""
    made = [read_option(text) for text in texts]
    names = [metric.name for metric in made]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HvdbError(f"--metric: two metrics are named {twice}")
    if unknown := next((name for name in higher if name not in names), None):
        raise HvdbError(f"--higher-is-better {printable.terminal(unknown)}: no --metric is named so")
    return [replace(metric, higher_is_better=metric.name in higher) for metric in made]


def parse(content: bytes, metrics: Sequence[Metric]) -> Results:
    """Returns a row for each metric: its values, or their inverses if higher is better. A metric that matches nothing,
    a value that is no positive number, and units that change are faults of the row. Errors: Malformed."""
    if len(content) > output_text.MAX_BYTES:
        raise Malformed(f"more than {output_text.MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8", errors="replace")
    made = Results(COMMAND, {}, {})
    documents: list[Any] | None = None
    for metric in metrics:
        try:
            if _is_path(metric.pattern):
                documents = output_text.output_of(content).documents if documents is None else documents
                values, unit = _of_documents(documents, metric.pattern, text), ""
            else:
                values, unit = _matches(metric.pattern, text)
            if min(values) < MIN_VALUE or not max(values) <= MAX_VALUE:
                worst = next(value for value in values if not MIN_VALUE <= value <= MAX_VALUE)
                raise Malformed(f"{worst:g} is not a number from {MIN_VALUE:g} to {MAX_VALUE:g}")
            made.costs[metric.name] = [1 / value if metric.higher_is_better else value for value in values]
            made.units[metric.name] = unit
        except Malformed as fault:
            made.faulty[metric.name] = str(fault)
    return made


def _is_path(pattern: str) -> bool:
    return pattern.startswith(("$.", "$["))


def _nothing(text: str) -> Malformed:
    begin = printable.terminal(text.strip()[:_MAX_SHOWN])[:_MAX_SHOWN]
    shown = f"the output begins: '{begin}'" if begin else "the output is empty"
    return Malformed(f"matched nothing in {len(text.splitlines())} lines; {shown}")


# --- Regular expressions ----------------------------------------------------------------------------------------------


def _matches(pattern: str, text: str) -> tuple[list[float], str]:
    """Returns the numbers and their unit. Another process matches, because only a kill ends every regular expression:
    Python looks for signals in some of them only. Errors: Malformed."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_match, args=(pattern, text, sender), daemon=True)
    child.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(MAX_SECONDS) else None
    except EOFError:
        raise Malformed("the matching of the regular expression ended early; is there too little memory?") from None
    finally:
        child.kill()
        child.join()
        receiver.close()
    if found is None:
        raise Malformed(f"the regular expression took more than {MAX_SECONDS} s")
    if len(found) > MAX_MATCHES:
        raise Malformed(f"matched more than {MAX_MATCHES} times")
    if not found:
        raise _nothing(text)
    values = [_number(value, more) for value, _, more in found]
    units = list(dict.fromkeys(unit or "no unit" for _, unit, _ in found))
    if len(units) > 1:
        raise Malformed(f"its unit changes within one launch: {units[0]}, then {units[1]}")
    return values, found[0][1]


def _match(pattern: str, text: str, sender: Connection) -> None:
    """Sends the number, the unit and the further digits of each match, of one more than MAX_MATCHES at most."""
    found = []
    for match in re.compile(pattern, re.MULTILINE).finditer(text):
        end = max(match.end(1), 0)
        unit = _UNIT.match(text, end)
        known = unit[1].replace("µ", "u").replace("μ", "u") if unit else ""
        more = _MORE_DIGITS.match(text, end)
        is_known = known in _KNOWN or _RATE.fullmatch(known)
        found.append(((match[1] or "")[:_MAX_SHOWN], known if is_known else "", more[0] if more else ""))
        if len(found) > MAX_MATCHES:
            break
    sender.send(found)


def _number(value: str, more: str) -> float:
    shown = printable.terminal(value)[:_MAX_SHOWN]
    if not _NUMBER.fullmatch(value):
        raise Malformed(f"'{shown}' is not a number")
    if more:
        raise Malformed(f"the match '{shown}' ends within a number: '{shown}{more}'")
    return float(value)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _steps(path: str) -> list[int | str | None]:
    """Returns keys and indices; None: all entries. Errors: Malformed."""
    made: list[int | str | None] = []
    position = 1
    while position < len(path):
        if not (step := _STEP.match(path, position)):
            raise Malformed("a path has the form $.key.key[3].key, with [*] for all entries and ['a b'] for other keys")
        made.append(None if step[3] else int(step[2]) if step[2] else step[1] or step[4])
        position = step.end()
    return made


def _of_documents(documents: Sequence[Any], path: str, text: str) -> list[float]:
    """Returns the numbers at `path`, in all documents that have it. Errors: Malformed."""
    if not documents:
        raise Malformed(f"no JSON object begins a line; {_nothing(text)}")
    found: list[float] = []
    for value in (value for document in documents for value in _at(document, _steps(path))):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Malformed(f"{path} holds a {type(value).__name__}, not a number")
        try:
            found.append(float(value))
        except OverflowError:
            found.append(math.inf)
        if len(found) > MAX_MATCHES:
            raise Malformed(f"matched more than {MAX_MATCHES} times")
    if not found:
        raise Malformed(f"{path} is not there, in {len(documents)} JSON documents")
    return found


def _at(value: Any, steps: Sequence[int | str | None]) -> Iterator[Any]:
    if not steps:
        yield value
    elif isinstance(value, list) and (steps[0] is None or isinstance(steps[0], int)):
        for entry in value if steps[0] is None else value[steps[0] : steps[0] + 1]:
            yield from _at(entry, steps[1:])
    elif isinstance(value, dict) and (steps[0] is None or steps[0] in value):
        for key in value if steps[0] is None else [steps[0]]:
            yield from _at(value[key], steps[1:])
