"""The edge of a program: whatever ends its work becomes an exit code and one line on standard error.

Standard library only: hvdb.campaign uses it on login nodes.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hvdb import printable
from hvdb.errors import EXIT_DEFECT, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_USAGE, HvdbError


def tell(program: str, line: str, stream: TextIO | None = None) -> None:
    """Prints `line` (on standard output), made printable. A program does not depend on anybody reading it."""
    stream = stream or sys.stdout
    try:
        print(printable.terminal(line), file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            tell(program, f"{program}: standard output: {error.strerror}; going on without it", sys.stderr)


def _drop_what_cannot_be_written() -> None:
    """Python writes pending output when it ends, and changes the exit code to 120 if that fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(program: str, work: Callable[[], int]) -> int:
    """Does `work`; returns its exit code, or that of the error that ended it, which it says after `program`'s name.

    An HvdbError is for a person and has the exit code. An OSError that names no file is about standard output.
    """

    def say(text: object) -> None:
        tell(program, f"{program}: {' '.join(str(text).split())}", sys.stderr)

    try:
        if sys.stdout is None:
            say("standard output is closed; redirect it to a file")
            return EXIT_USAGE
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # text that its encoding has no characters for
        code = work()
        sys.stdout.flush()  # or a full disk shows only when the interpreter ends
        return code
    except HvdbError as error:
        say(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        return EXIT_GOOD
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
