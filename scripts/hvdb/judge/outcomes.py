"""The result of a gate or a comparison: a verdict on each cell, how often the sides failed, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, EXIT_USAGE
from hvdb.judge import verdict
from hvdb.judge.sides import Outcome
from hvdb.judge.verdict import Verdict

B_FAILS = "B fails where A does not"


@dataclass(frozen=True)
class Failures:
    """How often the sides failed. a, b: pairs in which only A, only B did, over all cells. pairs: of the longest cell.

    b_fails: the hypothesis that B fails at most as often as A is rejected. newest: what failed last; "" for nothing.
    """

    a: int
    b: int
    pairs: int
    b_fails: bool
    newest: str

    @property
    def text(self) -> str:
        """Returns one line about the failures; "" if there was none."""
        if not self.newest:
            return ""
        counts = f"only side b failed in {self.b} and only side a in {self.a} of {self.pairs} pairs"
        return f"{counts}: {B_FAILS if self.b_fails else 'no verdict on that, and no PASS'}; the newest: {self.newest}"


@dataclass(frozen=True)
class Report:
    """The result of a command. title: the command's name. missing: a line for each cell that only one side has.

    failures: None where no side could fail. notes: about the whole. explained: a line for each cell, for --explain.
    pardons: INCONCLUSIVE is no fault (--fail-on regression), unless a row is missing.
    """

    title: str
    outcomes: Sequence[Outcome]
    missing: tuple[str, ...] = ()
    failures: Failures | None = None
    notes: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    pardons: bool = False

    @property
    def b_fails(self) -> bool:
        return self.failures is not None and self.failures.b_fails

    @property
    def verdicts(self) -> list[Verdict]:
        """One verdict for each cell. A cell that only one side has is INCONCLUSIVE; B's failures are a REGRESSION."""
        measured = [outcome.judgement.verdict for outcome in self.outcomes]
        return measured + [Verdict.INCONCLUSIVE] * len(self.missing) + [Verdict.REGRESSION] * self.b_fails

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 1 with a REGRESSION, else 2 if a side failed, else by verdict.exit_code()."""
        code = verdict.exit_code(self.verdicts)
        if code != EXIT_CHECK_FAILED and self.failures and self.failures.newest:
            return EXIT_USAGE
        return EXIT_GOOD if self.pardons and code == EXIT_INCONCLUSIVE and not self.missing else code

    @property
    def summary(self) -> str:
        """One line about all verdicts, by the function summary()."""
        failed = self.failures is not None and self.failures.newest and not self.failures.b_fails
        return summary(self.title, self.verdicts) + ("; a side failed, so it is no PASS" if failed else "")


def summary(title: str, verdicts: Sequence[Verdict]) -> str:
    """Returns one line about all verdicts: the worst verdict, and how often each verdict occurs."""
    worst = next(v for v in (Verdict.REGRESSION, Verdict.INCONCLUSIVE, Verdict.PASS) if v in verdicts)
    counts = ", ".join(f"{verdicts.count(v)} {v.value}" for v in Verdict if v in verdicts)
    return f"{title}: {worst.value} ({counts})"
