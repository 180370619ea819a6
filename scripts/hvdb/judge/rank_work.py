"""Extracts the time of each rank's own work from a stored run, and finds slow ranks and nodes by these times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError, NotComparable
from hvdb.judge import slow_ranks
from hvdb.judge.slow_ranks import MAJORITY, MIN_STEPS, Findings
from hvdb.read import runs
from hvdb.read.runs import Run

# Kind of samples that contain only a rank's own work -> why they contain nothing else.
OWN_WORK = {
    "compute_seconds": "forward and backward, which wait for no other rank; the steps of all ranks take equally long "
    "where each waits for the slowest",
    "step_seconds": "whole steps, which wait for no other rank in phase none",
}
# DEVICE_FACTS: facts in which GPUs of different models differ. REASON_FACTS: facts that may explain why a GPU is slower
# than other GPUs of its model.
DEVICE_FACTS = ("gpu.name", "gpu.compute_capability", "gpu.multiprocessors", "gpu.memory_bytes")
REASON_FACTS = ("gpu.power_limit_watts", "gpu.max_sm_mhz", "gpu.max_memory_mhz", "gpu.ecc", "gpu.driver", "gpu.engines")
BETWEEN_RANKS = "; "  # separates the different values that ranks have for one fact
OTHERS = "measurement.other_processors"  # "0.92 of 2": what other programs used while the run was measured
BUSY = 0.1  # of all processors; OtherUse::disturbs() in bench/session/records.h has the same limit


class CannotTell(HvdbError):
    """The stored samples of a run do not show whether one of the run's ranks is slow."""

    exit_code = EXIT_INCONCLUSIVE


def others_used(run: Run) -> str:
    """Returns "0.92 of 2 processors" if other programs used more than BUSY of rank 0's host meanwhile, else ""."""
    others, word, processors = run.fact(OTHERS).partition(" of ")
    used = run.number(OTHERS)
    known = used is not None and word and processors.isascii() and processors.isdigit()
    return f"{others} of {processors} processors" if known and used > BUSY * int(processors) else ""


@dataclass(frozen=True)
class Examined:
    """A run and the findings about its ranks. kind: the kind of the samples. seconds: own work (ranks, samples).

    hosts: the host of each rank; empty if the store lacks the host of even one rank. devices: the device of each rank.
    notes: caveats for the reader.
    """

    run: Run
    kind: str
    seconds: np.ndarray
    hosts: list[str]
    devices: list[str]
    findings: Findings
    notes: list[str]

    @property
    def other_load(self) -> str:
        """What other programs used of rank 0's host meanwhile, in words; "" if little or unknown."""
        used = others_used(self.run)
        return f"other programs used {used} meanwhile" if used else ""

    @property
    def exit_code(self) -> int:
        if self.findings.slow_ranks or self.findings.slow_nodes:
            return EXIT_CHECK_FAILED
        return EXIT_INCONCLUSIVE if self.findings.unclear_ranks else EXIT_GOOD


def kind_of(run: Run) -> str:
    """Returns the kind of the run's samples that contain only a rank's own work.

    Errors: CannotTell if the run has no such samples.
    """
    if "compute_seconds" in run.samples:
        return "compute_seconds"
    if "step_seconds" not in run.samples:
        raise CannotTell("the store holds no samples of its ranks")
    if run.phase == "none":
        return "step_seconds"
    raise CannotTell(
        "the store holds step times only (no compute_seconds): every rank waits for the slowest in each step, so that "
        "a slow rank cannot be told from those that wait for it"
    )


def matrix(run: Run, kind: str, by_rank: dict[int, np.ndarray]) -> np.ndarray:
    """Returns the samples of all ranks in seconds (ranks, samples). Errors: CannotTell.

    All ranks are cut to the number of samples of the rank with the fewest samples.
    """
    if missing := run.world_size - len(by_rank):
        first = next(rank for rank in range(run.world_size) if rank not in by_rank)
        raise CannotTell(f"{kind} of {missing} of its {run.world_size} ranks is missing, the first is rank {first}")
    steps = min(map(len, by_rank.values()))
    if steps < MIN_STEPS:
        raise CannotTell(f"{steps} samples of a rank are too few: {MIN_STEPS} at least (--num-iters, --max-time)")
    seconds = np.array([by_rank[rank][:steps] for rank in range(run.world_size)])
    if not (seconds > 0).all():
        raise CannotTell(f"{kind} holds times of 0, which have no ratio to others")
    return seconds


def require_equal_devices(run: Run) -> None:
    """Raises NotComparable if the run used several models of GPUs: the store does not say which rank had which GPU."""
    for key in DEVICE_FACTS:
        if BETWEEN_RANKS in run.fact(key):
            raise NotComparable(
                f"its ranks have different GPUs ({key}: {run.fact(key)}), and the store does not say which rank has "
                "which; only ranks of equal devices are compared, so measure each model alone"
            )


def examine(run: Run, kind: str, by_rank: dict[int, np.ndarray], threshold: float, seed: int) -> Examined:
    """Examines the ranks of `run`. by_rank: rank -> its samples of `kind`.

    threshold: a slow rank is slower by at least this fraction.

    Errors: CannotTell, NotComparable.
    """
    if run.world_size < 2:
        raise CannotTell("one rank has no others to be compared with")
    require_equal_devices(run)
    seconds = matrix(run, kind, by_rank)
    ranks, samples = seconds.shape
    placed = {row["rank"]: row for row in run.ranks}
    known = len(placed) == ranks
    hosts = [placed[rank]["host"] for rank in range(ranks)] if known else []
    on_gpus = run.device == "cuda" and known
    devices = [f"GPU {placed[rank]['local_rank']}" if on_gpus else run.device for rank in range(ranks)]
    notes = [
        f"the ranks' GPUs differ in {key.removeprefix('gpu.')}: {run.fact(key)}"
        for key in REASON_FACTS
        if BETWEEN_RANKS in run.fact(key)
    ]
    if longest := max(map(len, by_rank.values())) - samples:
        notes.append(f"some ranks have up to {longest} samples more than others; the first {samples} of each are used")
    if not known:
        notes.append("the store does not say on which host each rank ran, so nodes are not compared")
    findings = slow_ranks.examine(seconds, hosts, threshold, seed)
    if ranks < MAJORITY:
        notes.append(f"{ranks} ranks have no majority: which of them is usual, and which is not, cannot be told")
    if 0 < len(findings.nodes) < MAJORITY:
        notes.append(f"{len(findings.nodes)} nodes have no majority: which is usual, and which is not, cannot be told")
    examined = Examined(run, kind, seconds, hosts, devices, findings, notes)
    if examined.other_load:
        notes.append(f"{examined.other_load}: times are uncertain")
    return examined


def examine_all(
    wanted: Sequence[Run], threshold: float, seed: int = 1
) -> Iterator[tuple[Run, Examined | CannotTell | NotComparable]]:
    """Yields each run with the result of examine(), or with the error that examine() raised. Errors: StoreError."""
    kinds: dict[str, str] = {}
    for run in wanted:
        try:
            kinds[run.uuid] = kind_of(run)
        except CannotTell as error:
            yield run, error
    told = [(run, kinds[run.uuid]) for run in wanted if run.uuid in kinds]
    for run, by_rank in runs.samples_of_ranks(told):
        try:
            yield run, examine(run, kinds[run.uuid], by_rank, threshold, seed)
        except (CannotTell, NotComparable) as error:
            yield run, error
