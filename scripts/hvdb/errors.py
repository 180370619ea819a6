"""The faults that a command can end with, each with its exit code (the same codes as hvd_bench itself)."""

from __future__ import annotations

EXIT_GOOD = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOT_COMPARABLE = 4
EXIT_INTERRUPTED = 7
EXIT_DEFECT = 9


class HvdbError(Exception):
    """A fault that a person can act on: the text says what, where, and what to do next."""

    exit_code = EXIT_USAGE


class StoreError(HvdbError):
    """A file that is not a store, is damaged, is of an unknown schema, or cannot be read or written."""


class NotComparable(HvdbError):
    """Figures that must not be put side by side or pooled."""

    exit_code = EXIT_NOT_COMPARABLE
