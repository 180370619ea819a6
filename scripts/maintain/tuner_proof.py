"""Compares the choices of --tune-schedule with the best setting of its space. `benchmarks DIR tuner` runs this.

For each schedule the search runs several times with a replay file, so that only the communication is real. Then every
setting of the space runs in rounds of random order. The best setting has the smallest median over the even rounds. The
step time of the best setting is compared with those of the searches' choices, as medians over the odd rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hvdb import edge
from hvdb.errors import HvdbError
from hvnet import network
from hvnet.measure import calibrate
from hvnet.network import Network, Wiring

_MIB = 1 << 20
# Each list has the default, then the other values that the search tries (bench/train/schedule_search.cpp).
_BUCKETS_MB = ("25", "6.25", "100")
_SEGMENTS_KB = ("256", "64", "1024")
_THRESHOLDS_MB = ("128", "32", "512")
_CYCLES_MS = ("1", "0.25", "4")
_ALGORITHMS = ("auto", "ring", "rabenseifner", "hierarchical")


@dataclass(frozen=True)
class Setting:
    """One point of the space, as options of hvd_bench."""

    options: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.options)


@dataclass
class Search:
    """One run of --tune-schedule: its choice, and its duration in seconds."""

    chosen: Setting
    seconds: float


@dataclass
class Result:
    """The results under one schedule. `rounds`: setting -> median step time of each run, in seconds."""

    schedule: str
    searches: list[Search] = field(default_factory=list)
    rounds: dict[Setting, list[float]] = field(default_factory=dict)


def space(schedule: str, gradient_bytes: int, nodes: int) -> list[Setting]:
    """Returns every setting that the search may choose. The default comes first."""

    def sizes(values: tuple[str, ...]) -> list[str]:
        """Returns the values, but only the first with room for all gradients: all such values have the same effect."""
        whole = [value for value in values if float(value) * _MIB >= gradient_bytes]
        return [value for value in values if value not in whole or value == whole[0]]

    axes = [[("--segment-kb", value) for value in _SEGMENTS_KB]]
    if schedule == "negotiated":
        axes.append([("--fusion-threshold-mb", value) for value in sizes(_THRESHOLDS_MB)])
        axes.append([("--cycle-time-ms", value) for value in _CYCLES_MS])
    else:
        axes.append([("--bucket-mb", value) for value in sizes(_BUCKETS_MB)])
    if nodes > 1:
        axes.append([("--algorithm", value) for value in _ALGORITHMS])
    return [Setting(tuple(itertools.chain(*point))) for point in itertools.product(*axes)]


def chosen_setting(provenance: dict[str, str], schedule: str, nodes: int) -> Setting:
    """Returns the final options of a tuned run, in the order of space()."""

    def number(key: str, unit: float) -> str:
        return f"{float(provenance[key]) / unit:g}"

    options = ["--segment-kb", number("comm.segment_bytes", 1024)]
    if schedule == "negotiated":
        options += ["--fusion-threshold-mb", number("engine.fusion_threshold_bytes", _MIB)]
        options += ["--cycle-time-ms", number("engine.cycle_time_us", 1000)]
    else:
        options += ["--bucket-mb", number("engine.bucket_bytes", _MIB)]
    if nodes > 1:
        options += ["--algorithm", provenance["comm.algorithm"]]
    return Setting(tuple(options))


def judge(result: Result) -> tuple[Setting, list[tuple[Setting, float]]]:
    """Returns the best setting by the even rounds, and for each search its choice and a ratio: the choice's median step
    time over the best setting's, both from the odd rounds.

    Errors: HvdbError if a search chose a setting outside the space.
    """
    even = {setting: statistics.median(seconds[0::2]) for setting, seconds in result.rounds.items()}
    odd = {setting: statistics.median(seconds[1::2]) for setting, seconds in result.rounds.items()}
    best = min(even, key=even.__getitem__)
    ratios = []
    for search in result.searches:
        if search.chosen not in odd:
            raise HvdbError(f"the search chose '{search.chosen.text}', which is not in the space that was measured")
        ratios.append((search.chosen, odd[search.chosen] / odd[best]))
    return best, ratios


class Runner:
    """Starts hvd_bench on the replay file, on this host or across a network of namespaces."""

    def __init__(self, arguments: argparse.Namespace, launch: list[str]) -> None:
        self._start = [*launch, str(arguments.program), "--replay", str(arguments.replay), "--threads", "1"]
        self._start += ["--no-db", "--json", "--no-check"]

    def run(self, *options: str) -> dict:
        """Runs hvd_bench and returns its JSON document. Errors: HvdbError with the last line of standard error."""
        command = [*self._start, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise HvdbError(f"{' '.join(command)}: {last}")
        return json.loads(done.stdout)


def measure(runner: Runner, schedule: str, arguments: argparse.Namespace) -> Result:
    """Runs the searches first, then the rounds over the whole space. Prints progress to standard error."""
    result = Result(schedule)
    nodes, gradient_bytes = 1, 0
    for i in range(arguments.searches):
        begun = time.monotonic()
        options = ("--tune-schedule", "--num-warmup-batches", "1", "--num-iters", "3")
        document = runner.run("--schedule", schedule, *options)
        (run,) = document["runs"]
        nodes, gradient_bytes = run["nodes"], run["gradient_bytes"]
        chosen = chosen_setting(run["provenance"], schedule, nodes)
        result.searches.append(Search(chosen, time.monotonic() - begun))
        print(f"{schedule}: search {i + 1} of {arguments.searches}: {chosen.text}", file=sys.stderr, flush=True)
    settings = space(schedule, gradient_bytes, nodes)
    result.rounds = {setting: [] for setting in settings}
    draw, begun = random.Random(arguments.seed), time.monotonic()
    for i in range(arguments.rounds):
        for setting in draw.sample(settings, len(settings)):
            options = ("--num-warmup-batches", "2", "--num-iters", str(arguments.steps), *setting.options)
            (run,) = runner.run("--schedule", schedule, *options)["runs"]
            result.rounds[setting].append(run["step_seconds"])
        left = (time.monotonic() - begun) / (i + 1) * (arguments.rounds - i - 1)
        print(f"{schedule}: round {i + 1} of {arguments.rounds}, {left:.0f} s left", file=sys.stderr, flush=True)
    return result


def show(result: Result) -> None:
    """Prints one table on standard output."""
    best, ratios = judge(result)
    print(f"{result.schedule}: {len(result.rounds)} settings, {len(next(iter(result.rounds.values())))} rounds")
    for setting, seconds in sorted(result.rounds.items(), key=lambda pair: statistics.median(pair[1])):
        mark = " (best by the even rounds)" if setting == best else ""
        print(f"  {1e3 * statistics.median(seconds):9.2f} ms  {setting.text}{mark}")
    for search, (setting, ratio) in zip(result.searches, ratios, strict=True):
        print(f"  a search of {search.seconds:.0f} s, start included, chose {setting.text}: {ratio:.3f} x the best")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="hvd_bench")
    parser.add_argument("replay", type=Path, help="made by hvd_bench --record-replay")
    parser.add_argument("--schedules", default="static,negotiated", help="default: static,negotiated")
    parser.add_argument("--searches", type=int, default=3, help="per schedule (default: 3)")
    parser.add_argument("--rounds", type=int, default=16, help="over the whole space, 2 at least (default: 16)")
    parser.add_argument("--steps", type=int, default=10, help="steps per run (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order of the runs")
    parser.add_argument("--nodes", type=int, default=1, help="network namespaces with one rank each; 1: two ranks here")
    parser.add_argument("--rate-mbit", type=float, default=1000, help="rate of every namespace's link")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rounds < 2:
        parser.error("--rounds: the best setting is chosen by one half and judged by the other: 2 at least")
    arguments.program, arguments.replay = arguments.program.resolve(), arguments.replay.resolve()
    return arguments


def _measure_all(arguments: argparse.Namespace, launch: list[str]) -> int:
    runner, results = Runner(arguments, launch), []
    for schedule in arguments.schedules.split(","):
        results.append(measure(runner, schedule, arguments))
        show(results[-1])
    if arguments.json is not None:
        document = [
            {
                "schedule": result.schedule,
                "searches": [asdict(search) for search in result.searches],
                "rounds": [{"options": setting.text, "seconds": took} for setting, took in result.rounds.items()],
            }
            for result in results
        ]
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def _main(argv: list[str]) -> int:
    arguments = _arguments(argv)
    if arguments.nodes == 1:
        return _measure_all(arguments, ["mpirun", "-np", "2"])
    if not arguments.inside:
        if reason := network.why_not(False, arguments.program):
            raise HvdbError(reason)
        return network.enter([sys.executable, "-B", __file__, *argv, "--inside"])
    wiring = Wiring(arguments.nodes, arguments.rate_mbit, 0)
    with Network(wiring, arguments.program, network.prepare()) as net:
        calibrate(net)  # waits until the links are up
        return _measure_all(arguments, net.mpirun(1))


if __name__ == "__main__":
    sys.exit(edge.run("tuner_proof", lambda: _main(sys.argv[1:])))
