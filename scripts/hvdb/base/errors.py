"""The errors that end a command. Each class of errors has an exit code. hvd_bench uses the same exit codes."""

from __future__ import annotations

EXIT_GOOD = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOT_COMPARABLE = 4
EXIT_INTERRUPTED = 7
EXIT_DEFECT = 9


class HvdbError(Exception):
    """An error on which a person can act. The text says what is wrong, where, and what to do next."""

    exit_code = EXIT_USAGE


class StoreError(HvdbError):
    """A file is not a store, is damaged, has an unknown schema, or cannot be read or written."""


class NotComparable(HvdbError):
    """Two figures must not be compared or pooled. The text says why."""

    exit_code = EXIT_NOT_COMPARABLE


class TooLittle(HvdbError):
    """Too little was measured for an answer. The text says what is missing."""

    exit_code = EXIT_INCONCLUSIVE


class CampaignError(HvdbError):
    """Bad input, or an operation that the system refused. The text says what is wrong, where, and what to do next."""


class SubmissionStopped(CampaignError):
    """The scheduler accepted some jobs and refused the next job, so only a part of the campaign was submitted."""

    exit_code = EXIT_CHECK_FAILED
