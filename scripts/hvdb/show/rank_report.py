"""Describes the ranks of a run in sentences and as rows of a table. `hvdb ranks` and `hvdb report` show these."""

from __future__ import annotations

from collections.abc import Sequence

from hvdb.base import printable
from hvdb.base.interval import Interval, one_decimal
from hvdb.judge import comparable, efficiency
from hvdb.judge.rank_work import Examined
from hvdb.judge.slow_ranks import CONFIDENCE, Finding
from hvdb.show import tables

THRESHOLD = 0.02  # by default a rank is called slow only if it is slower than the others by at least this fraction
SHOWN_RANKS = 16
MAX_HOST_LENGTH = 48  # maximum characters that are shown of the name of a host
HEADER = ("rank", "host", "node", "device", "ms", f"slower % [{100 * CONFIDENCE:g} %]", "verdict")


def verdict(examined: Examined, rank: int) -> str:
    """Returns one or two words about `rank`, for a column of the table."""
    findings = examined.findings
    if examined.hosts and examined.hosts[rank] in findings.slow_nodes:
        return "slow node"
    return "slow" if rank in findings.slow_ranks else "unclear" if rank in findings.unclear_ranks else "ok"


def short(host: str) -> str:
    """Returns the name of a host in printable characters, cut to MAX_HOST_LENGTH characters."""
    name = printable.terminal(host)
    return name if len(name) <= MAX_HOST_LENGTH else f"{name[: MAX_HOST_LENGTH - 1]}…"


def slower(finding: Finding, unit: str = "") -> str:
    """Returns the slowdown in % and its interval as text: `5.1 [4.6, 5.7]`. unit: text after the figure."""
    figure = Interval(finding.slower, finding.low, finding.high)
    return figure.text(form=lambda value: one_decimal(round(value, 1) + 0), unit=unit)


def title(examined: Examined) -> str:
    """Returns one line about the run."""
    run, samples = examined.run, examined.seconds.shape[1]
    words = [tables.title(run.model), *tables.marks(comparable.curve(run)), f"batch {run.batch_size}", run.compute_type]
    if models := run.fact("gpu.name"):
        words.append(models)
    if efficiency.VALIDATION in run.provenance:
        words.append("validation")
    nodes = f" on {run.nodes} nodes" if run.nodes > 1 else ""
    words.append(f"phase {run.phase}, {run.world_size} ranks{nodes}, {samples} samples of each")
    return f"run {run.short_id} of {run.started_utc}: {', '.join(words)}"


def rows(examined: Examined) -> list[tuple[str, ...]]:
    """Returns one row per rank for a table with the columns HEADER. The slowest rank comes first.

    Column ms: the time of the rank's own work in a step, of which `slower %` is.
    """
    nodes = {host: str(number) for number, host in enumerate(dict.fromkeys(examined.hosts))}
    made = []
    for rank in examined.findings.slowest_first:
        host = examined.hosts[rank] if examined.hosts else "?"
        made.append(
            (
                str(rank),
                short(host),
                nodes.get(host, "?"),
                examined.devices[rank],
                tables.number(1000.0 * examined.findings.ranks[rank].seconds),
                slower(examined.findings.ranks[rank]),
                verdict(examined, rank),
            )
        )
    return made


def _doubt(finding: Finding, threshold: float, load: str) -> str:
    """Returns the reason why a rank that is slower by `threshold` or more is not called slow.

    load: what is known of other programs on the rank's host, or "".
    """
    if load:
        return f"{load}; stop them and measure again"
    if finding.low < threshold:
        return f"its interval reaches below {100 * threshold:g} %; more samples may tell"
    return "the others differ from each other too much, or too few of its samples are independent"


def _some(lines: Sequence[str], what: str) -> list[str]:
    """Returns at most SHOWN_RANKS of `lines`. If lines are left out, adds a line with their number."""
    more = len(lines) - SHOWN_RANKS
    return [*lines[:SHOWN_RANKS], *([f"and {more} more {what}"] if more > 0 else [])]


def conclusions(examined: Examined, threshold: float) -> list[str]:
    """Returns the lines below the table, which say which ranks are slow or may be slow, or that no rank is slow."""
    findings = examined.findings

    def name(rank: int) -> str:
        where = [f"host {short(examined.hosts[rank])}"] if examined.hosts else []
        return f"rank {rank} ({', '.join([*where, examined.devices[rank]])})"

    def load(rank: int) -> str:
        return examined.other_load if examined.hosts and examined.hosts[rank] == examined.hosts[0] else ""

    nodes = [
        f"all {examined.hosts.count(host)} ranks of node {short(host)} are slow: "
        f"the node is {slower(findings.nodes[host], ' %')} slower than the median of the other nodes"
        for host in findings.slow_nodes
    ]
    slow = [
        f"{name(rank)} is {slower(findings.ranks[rank], ' %')} slower than the median of the other ranks"
        for rank in findings.slowest_first
        if rank in findings.slow_ranks
    ]
    unclear = [
        f"{name(rank)} {'is not clear: slower' if load(rank) else 'may be slow,'} by "
        f"{slower(findings.ranks[rank], ' %')}: {_doubt(findings.ranks[rank], threshold, load(rank))}"
        for rank in findings.slowest_first
        if rank in findings.unclear_ranks
    ]
    said = [*_some(nodes, "nodes"), *_some(slow, "slow ranks"), *_some(unclear, "ranks that may be slow")]
    if said:
        return said
    nobody = f"no rank is slower than the others by {100 * threshold:g} % or more"
    reach = max(finding.high for finding in findings.ranks)
    return [
        nobody if reach < threshold else f"{nobody}, as far as can be told: intervals reach up to {100 * reach:.1f} %"
    ]
