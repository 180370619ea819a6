"""Efficiency and exposed communication on a network of known bandwidth and latency, beside the formula.

Makes network namespaces with shaped links on this machine, runs hvd_bench across them with sleeping for compute, and
prints what was measured beside what the ring formula gives, with the ratio. The communication is real; the compute is
not, so that two cores can stand for eight nodes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hvnet import network
from hvnet.formula import PAYLOAD_SHARE, Expected, Work, expected
from hvnet.measure import Calibration, Measured, RunFailed, Settings, calibrate, link_of, run
from hvnet.network import Network, Wiring

EXIT_GOOD = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SKIPPED = 3
_ROOT = Path(__file__).resolve().parents[2]
_MIB = 1 << 20
# Two cores carry some 2 Gbit/s of shaped traffic in all; beyond it the formula is held against the processor.
_USABLE_MBIT = 2000
_ROW = "{:>5} {:>7} {:>9} {:>10} {:>8} {:>17} {:>6} {:>18} {:>6} {:>17} {:>6}"


_ALGORITHMS = ("auto", "ring", "doubling", "hierarchical", "mpi")  # of hvd_bench that work between hosts


def _list_of(kind: type, what: str) -> Callable[[str], list]:
    def parse(text: str) -> list:
        try:
            return [kind(word) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is no list of {what} with commas between") from None

    return parse


_numbers = _list_of(float, "numbers")
_counts = _list_of(int, "whole numbers")


def _algorithms(text: str) -> list[str]:
    for word in text.split(","):
        if word not in _ALGORITHMS:
            raise argparse.ArgumentTypeError(f"'{word}': choose from {', '.join(_ALGORITHMS)}")
    return text.split(",")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/network_bench", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--nodes", type=_counts, default=[2, 4, 8], metavar="N,...", help="namespaces (default 2,4,8)")
    add("--ranks-per-node", type=int, default=1, metavar="N", help="the formula is for 1 (default 1)")
    add("--rate-mbit", type=_numbers, default=[250.0], metavar="R,...", help="of every link, each way (default 250)")
    add("--latency-us", type=_numbers, default=[0.0, 1000.0], metavar="L,...", help="added, one way (default 0,1000)")
    add("--compute-ms", type=float, default=200.0, metavar="T", help="sleep per step (default 200)")
    add("--mib", type=float, default=8.0, metavar="S", help="gradients per rank and step in MiB (default 8)")
    add("--buckets", type=int, default=8, metavar="N", help="equal parts that they are reduced in (default 8)")
    add("--overlap", choices=("yes", "no", "both"), default="both", help="reduce during backward (default both)")
    by = "auto: ours; mpi: Open MPI's own (default auto,mpi)"
    add("--algorithms", type=_algorithms, default=["auto", "mpi"], metavar="A,...", help=by)
    add("--iterations", type=int, default=6, metavar="N", help="samples per phase (default 6)")
    add("--db", type=Path, default=None, metavar="FILE", help="keep the store, with every sample")
    add("--json", action="store_true", help="one JSON document instead of the table")
    add("--bench", type=Path, default=None, help="hvd_bench (default HVD_BENCH or build/release/bin/hvd_bench)")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.bench is None:
        arguments.bench = Path(os.environ.get("HVD_BENCH") or _ROOT / "build/release/bin/hvd_bench")
    arguments.bench = arguments.bench.resolve()
    if not os.access(arguments.bench, os.X_OK):
        parser.error(f"no program at {arguments.bench}: run scripts/build, or name it with --bench")
    if min(arguments.nodes) < 2 or arguments.ranks_per_node < 1:
        parser.error("--nodes: at least 2 namespaces, --ranks-per-node: at least 1")
    if min(arguments.rate_mbit) <= 0 or min(arguments.latency_us) < 0:
        parser.error("--rate-mbit must be above 0, --latency-us not below")
    if arguments.compute_ms <= 0 or arguments.iterations < 1:
        parser.error("--compute-ms must be above 0, --iterations at least 1")
    if arguments.buckets < 1 or arguments.mib * _MIB / arguments.buckets < 4096:
        parser.error("--buckets must be at least 1, and --mib at least 4 KiB for each of them")
    if arguments.db is not None and not arguments.db.resolve().parent.is_dir():
        parser.error(f"--db: there is no directory {arguments.db.resolve().parent}")
    return arguments


def _pair(measured: float, wanted: float, scale: float) -> tuple[str, str]:
    """'measured / formula' and their ratio; a ratio to nothing has no meaning."""
    ratio = f"{measured / wanted:.2f}" if wanted > 1e-4 else "-"
    return f"{scale * measured:.1f} / {scale * wanted:.1f}", ratio


def _row(wiring: Wiring, work: Work, algorithm: str, got: Measured, want: Expected) -> str:
    step = _pair(got.step_seconds, want.step_seconds, 1e3)
    exposed = _pair(got.exposed_seconds, want.exposed_seconds, 1e3)
    reached = _pair(got.efficiency, want.efficiency, 1e2)
    overlap = "overlap" if work.overlapped else "at the end"
    wires = (f"{wiring.rate_mbit:g}", f"{wiring.latency_us:g}")
    return _ROW.format(wiring.nodes, *wires, overlap, algorithm, *step, *exposed, *reached)


def _heading(arguments: argparse.Namespace) -> str:
    return "\n".join(
        [
            f"compute: a sleep of {arguments.compute_ms:g} ms (replay, nothing is trained), two thirds of it backward",
            f"gradients: {arguments.mib:g} MiB per rank in {arguments.buckets} buckets, fp32",
            "formula: 2 (N - 1) (bucket / N / payload rate + latency) a bucket; one by one, each when it is ready",
            f"  payload rate: {100 * PAYLOAD_SHARE:.1f} % of the shaped rate (headers); latency: measured, below",
            "  a ring that streams its segments may hide part of the latencies, and so be quicker than the formula",
            "",
            _ROW.format(
                *("nodes", "Mbit/s", "+latency", "reduction", "by", "step ms: / form.", "ratio", "exposed ms: / form."),
                *("ratio", "efficiency %: / f.", "ratio"),
            ),
        ]
    )


def _calibration_line(wiring: Wiring, found: Calibration) -> str:
    rate = 8e-6 * found.bytes_per_second
    return (
        f"# {wiring.nodes} nodes: one way {1e6 * found.latency_seconds:.0f} us; one TCP stream {rate:.1f} Mbit/s of "
        f"payload, {100 * rate / (wiring.rate_mbit * PAYLOAD_SHARE):.0f} % of what the shaper leaves"
    )


def _cases(arguments: argparse.Namespace) -> list[tuple[Work, str]]:
    overlaps = {"yes": [True], "no": [False], "both": [False, True]}[arguments.overlap]
    size = 4 * int(arguments.mib * _MIB / arguments.buckets / 4)
    works = [Work(arguments.compute_ms / 1e3, size, arguments.buckets, overlap) for overlap in overlaps]
    return list(itertools.product(works, arguments.algorithms))


def _measure_all(arguments: argparse.Namespace, folder: Path) -> int:
    store = arguments.db.resolve() if arguments.db else folder / "runs.db"
    switch = arguments.bench.with_name("delay_switch")
    document, failures = [], 0
    if not arguments.json:
        print(_heading(arguments), flush=True)
    for nodes, rate, latency in itertools.product(arguments.nodes, arguments.rate_mbit, arguments.latency_us):
        wiring = Wiring(nodes, rate, latency)
        with Network(wiring, switch, folder) as net:
            calibration = calibrate(net)
            link = link_of(net, calibration)
            if not arguments.json:
                print(_calibration_line(wiring, calibration), flush=True)
            for work, algorithm in _cases(arguments):
                settings = Settings(arguments.bench, algorithm, arguments.ranks_per_node, arguments.iterations, 300)
                kind = "overlapped" if work.overlapped else "at-end"
                name = f"sleep-{arguments.mib:g}MiB-{arguments.buckets}-{kind}"
                want = expected(link, nodes, work)
                try:
                    got = run(net, work, settings, name, folder, store)
                except RunFailed as error:
                    failures += 1
                    print(f"network_bench: {nodes} nodes, {rate:g} Mbit/s, {algorithm}: {error}", file=sys.stderr)
                    continue
                if not arguments.json:
                    print(_row(wiring, work, algorithm, got, want), flush=True)
                document.append(
                    {
                        "wiring": asdict(wiring),
                        "calibration": asdict(calibration),
                        "work": asdict(work),
                        "algorithm": algorithm,
                        "measured": asdict(got),
                        "formula": asdict(want),
                    }
                )
    if arguments.json:
        print(json.dumps({"cases": document, "payload_share": PAYLOAD_SHARE}, indent=2))
    return EXIT_FAILED if failures else EXIT_GOOD


def main(argv: list[str]) -> int:
    """Enters the outer namespaces first, then measures inside. Returns the exit code."""
    arguments = _arguments(argv)
    if not arguments.inside:
        switch = arguments.bench.with_name("delay_switch")
        if reason := network.why_not(max(arguments.latency_us) > 0, switch):
            print(f"network_bench: skipped: {reason}", file=sys.stderr)
            return EXIT_SKIPPED
        if sum(max(arguments.nodes) * [max(arguments.rate_mbit)]) > _USABLE_MBIT * (os.cpu_count() or 1) / 2:
            print("network_bench: so many nodes at such a rate may be more than this machine carries", file=sys.stderr)
        return network.enter([sys.executable, "-B", "-m", "hvnet", *argv, "--inside"])
    return _measure_all(arguments, network.prepare())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
