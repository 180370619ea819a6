"""The outer layer of a command-line program: turns every error into an exit code and one line on standard error.

Uses only the standard library, because hvdb.campaign uses this module on login nodes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hvdb.base import printable
from hvdb.base.errors import EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_USAGE, HvdbError


class _Descriptor(io.FileIO):
    """A descriptor of an output. Drops what is written after the reader (head, less) has closed the pipe."""

    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def _to_the_end(stream: TextIO) -> TextIO:
    """Returns a stream to the same output that raises no BrokenPipeError.

    A command then does all its work if nobody reads its output, and its exit code is that of its verdict. Returns
    `stream` itself if it is not an output of the process.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    output = io.BufferedWriter(_Descriptor(stream.fileno(), "wb", closefd=False))
    at_once = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(output, stream.encoding, "backslashreplace", line_buffering=at_once)


def tell(program: str, line: str, stream: TextIO | None = None) -> None:
    """Prints `line` in printable characters on `stream` (default: standard output).

    Raises no error if nobody reads the output.
    """
    stream = stream or sys.stdout
    try:
        print(printable.terminal(line), file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            tell(program, f"{program}: standard output: {error.strerror}; going on without it", sys.stderr)


def _drop_what_cannot_be_written() -> None:
    """Discards output that cannot be written. Otherwise Python would try again at exit and end with exit code 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(program: str, work: Callable[[], int]) -> int:
    """Calls `work` and returns its exit code. If `work` raises an error, prints it and returns the error's exit code.

    program: the name of the program, printed before the error. An OSError without a file name is taken for an error of
    standard output. The exit code does not change if nobody reads the output.
    """
    with contextlib.redirect_stdout(_to_the_end(sys.stdout)), contextlib.redirect_stderr(_to_the_end(sys.stderr)):
        return _run(program, work)


def _run(program: str, work: Callable[[], int]) -> int:
    def say(text: object) -> None:
        tell(program, f"{program}: {' '.join(str(text).split())}", sys.stderr)

    try:
        if sys.stdout is None:
            say("standard output is closed; redirect it to a file")
            return EXIT_USAGE
        code = work()
        sys.stdout.flush()  # otherwise a full disk would be noticed only when the interpreter ends
        return code
    except HvdbError as error:
        say(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    except OSError as error:
        say(f"{error.filename or 'standard output'}: {error.strerror}")
        return EXIT_USAGE
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        say(f"unexpected {type(error).__name__}: {error} ({where}); this is a defect of hvd_bench, please report it")
        return EXIT_DEFECT
    finally:
        _drop_what_cannot_be_written()
