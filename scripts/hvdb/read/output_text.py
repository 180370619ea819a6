"""The output of another program: its lines without the labels of launchers, and the JSON documents between them.

The output may come from a stranger, hold log lines of several processes, and be cut off anywhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from hvdb.base.record import Malformed

MAX_BYTES = 64 << 20
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
# What launchers and log collectors put before a line: mpirun --tag-output and --timestamp-output (Open MPI 4 and 5),
# srun --label, mpiexec -l of MPICH and Intel MPI, docker logs -t and CI systems, ts.
_LABEL = re.compile(
    rf"(?:\w{{3}} \w{{3}} [ \d]\d {_CLOCK} \d{{4}})?(?:\[[\w.@-]*,\d+\])?<std(?:out|err)>: ?"
    rf"| *\d{{1,7}}: |\[\d{{1,7}}\] |\w{{3}} [ \d]\d {_CLOCK} "
    rf"|\[?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]? "
)
_MAX_LABELS = 3  # such as a time, a rank and a time
# JSON is looked for where a line begins. A list must hold objects, because log lines begin with [ too.
_BEGIN = re.compile(r"^[ \t]*(\{|\[(?=\s*\{))", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MAX_BROKEN = 200  # for each that is broken, Python counts the lines of all the text before it


@dataclass(frozen=True)
class Output:
    """lines: without labels. cut: True if the last line has no line break. documents: the JSON objects and lists.

    fault: why JSON that begins in the text is no document, if it is the last of the text or nothing else is JSON.
    """

    lines: list[str]
    cut: bool
    documents: list[Any]
    fault: str


def output_of(content: bytes) -> Output:
    """Errors: Malformed if it has more than MAX_BYTES."""
    if len(content) > MAX_BYTES:
        raise Malformed(f"more than {MAX_BYTES >> 20} MiB")
    text = content.decode("utf-8", errors="replace")
    lines = [_bare(line) for line in text.splitlines()]
    return Output(lines, bool(lines) and text[-1].splitlines() == [text[-1]], *_documents(lines))


def _bare(line: str) -> str:
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    start = 0
    for _ in range(_MAX_LABELS):
        if not (label := _LABEL.match(line, start)):
            break
        start = label.end()
    return line[start:]


def _documents(lines: list[str]) -> tuple[list[Any], str]:
    """Returns the documents, and Output.fault."""
    text = "\n".join(lines)
    end = len(text.rstrip())
    found: list[Any] = []
    position, broken, is_last, tries = 0, -1, False, 0
    while tries < _MAX_BROKEN and (begin := _BEGIN.search(text, position)):
        try:
            document, position = _DECODER.raw_decode(text, begin.start(1))
            found.append(document)
            continue
        except json.JSONDecodeError as error:
            stop = error.pos
        except (ValueError, RecursionError):  # a number of thousands of digits, or nested too deeply
            stop = len(text)
        broken, is_last, tries = begin.start(1), text.find("\n", stop, end) < 0, tries + 1
        position = max(stop, begin.end())
        position = text.find("\n", position) + 1 or len(text)
    if broken < 0 or (found and not is_last):
        return found, ""
    return found, f"no whole JSON document begins in line {text.count(chr(10), 0, broken) + 1}"
