"""The edge of a program: whatever ends its work becomes an exit code and one line on standard error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from hvdb.errors import EXIT_DEFECT, EXIT_GOOD, EXIT_INTERRUPTED, EXIT_USAGE, HvdbError


def run(program: str, work: Callable[[], int]) -> int:
    """Does `work`; returns its exit code, or that of the fault that ended it, which it says after `program`'s name."""

    def say(text: object) -> None:
        print(f"{program}: {' '.join(str(text).split())}", file=sys.stderr)

    try:
        if sys.stdout is None:
            raise HvdbError("standard output is closed; redirect it to a file")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # a label that its encoding has no characters for
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_GOOD
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        return EXIT_USAGE
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        say(f"unexpected {type(error).__name__}: {error} ({where}); this is a defect of hvd_bench, please report it")
        return EXIT_DEFECT
