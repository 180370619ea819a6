"""Errors of campaigns, on which a person can act."""

from __future__ import annotations

from hvdb.base.errors import EXIT_CHECK_FAILED, HvdbError


class CampaignError(HvdbError):
    """Bad input, or an operation that the system refused. The text says what is wrong, where, and what to do next."""


class SubmissionStopped(CampaignError):
    """The scheduler accepted some jobs and refused the next job, so only a part of the campaign was submitted."""

    exit_code = EXIT_CHECK_FAILED
