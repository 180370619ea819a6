"""The faults that a person can act on."""

from __future__ import annotations

from hvdb.errors import EXIT_CHECK_FAILED, HvdbError


class CampaignError(HvdbError):
    """Bad input, or the world refusing: one line that says what, where, and what to do next."""


class SubmissionStopped(CampaignError):
    """A scheduler took some jobs and then refused one: part of the campaign is on its way."""

    exit_code = EXIT_CHECK_FAILED
