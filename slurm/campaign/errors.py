"""The faults that a person can act on."""

from __future__ import annotations

EXIT_GOOD = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


class CampaignError(Exception):
    """Bad input, or the world refusing: one line that says what, where, and what to do next."""

    exit_code = EXIT_USAGE


class SubmissionStopped(CampaignError):
    """A scheduler took some jobs and then refused one: part of the campaign is on its way."""

    exit_code = EXIT_FAILED
