"""Measures efficiency and exposed communication on a network of known bandwidth and latency, beside the formula.

Makes network namespaces with shaped links on this machine, and runs hvd_bench across them. Prints the measured times
beside the times of the ring formula, with the ratio. The communication is real. The compute is only a sleep, so that
two cores are enough for eight nodes.

With `-- PROGRAM ARGUMENT ...`, runs PROGRAM instead, under mpirun on every node of each network. The word {bench} is
replaced by hvd_bench: tests/testbed/network_bench --nodes 4 --rate-mbit 1000 -- {bench} coll --find-crossovers
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hvdb.base import data, edge
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, EXIT_INCONCLUSIVE, HvdbError, StoreError
from hvdb.commands import number
from hvdb.read import store
from hvnet import network
from hvnet.formula import PAYLOAD_SHARE, Expected, Link, Work, expected
from hvnet.measure import Calibration, Measured, calibrate, run
from hvnet.network import Network, Wiring

_MIB = 1 << 20
# Range of a link's rate and latency. Calibrating a link outside this range takes minutes (hvnet.probe).
_MBIT = (0.5, 1e5)
_MICROSECONDS = (0.0, 1e5)
_MAX_NODES = 1000
_MAX_MIB = 65536.0
_MAX_MS = 1e5
# What one core carries, of all nodes together, and how many nodes. Two cores took 1.10 to 1.25 of the formula with 8
# nodes at 1000 Mbit/s. Source: results/recorded/2026-11-29-network.
_MBIT_PER_CORE, _NODES_PER_CORE = 2400, 6
_ROW = "{:>5} {:>7} {:>9} {:>10} {:>8} {:>17} {:>6} {:>18} {:>6} {:>17} {:>6}"


_ALGORITHMS = ("auto", "ring", "doubling", "hierarchical", "mpi")  # values of --algorithm that work between hosts


def _number(low: float, high: float) -> Callable[[str], float]:
    """Returns a parser for numbers from `low` to `high`, whole numbers if `low` is an int. The parser refuses NaN."""
    what = "whole number" if isinstance(low, int) else "number"
    return number(lambda value: low <= value <= high, f"{{}} is not a {what} from {low:g} to {high:g}", type(low))


def _list_of(parse: Callable[[str], float]) -> Callable[[str], list[float]]:
    """Returns a parser for a comma-separated list."""
    return lambda text: [parse(word) for word in text.split(",")]


def _algorithms(text: str) -> list[str]:
    for word in text.split(","):
        if word not in _ALGORITHMS:
            raise argparse.ArgumentTypeError(f"'{word}': choose from {', '.join(_ALGORITHMS)}")
    return text.split(",")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/testbed/network_bench", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    counts = _list_of(_number(2, _MAX_NODES))
    add("--nodes", type=counts, default=[2, 4, 8], metavar="N,...", help="namespaces (default 2,4,8)")
    add("--ranks-per-node", type=_number(1, 1024), default=1, metavar="N", help="the formula is for 1 (default 1)")
    rates, latencies = _list_of(_number(*_MBIT)), _list_of(_number(*_MICROSECONDS))
    add("--rate-mbit", type=rates, default=[250.0], metavar="R,...", help="of every link, each way (default 250)")
    add("--latency-us", type=latencies, default=[0.0, 1000.0], metavar="L,...", help="added, one way (default 0,1000)")
    add("--compute-ms", type=_number(0.001, _MAX_MS), default=200.0, metavar="T", help="sleep per step (default 200)")
    mib, parts = "gradients per rank and step in MiB (default 8)", "equal parts that they are reduced in (default 8)"
    add("--mib", type=_number(0.0, _MAX_MIB), default=8.0, metavar="S", help=mib)
    add("--buckets", type=_number(1, 100000), default=8, metavar="N", help=parts)
    add("--overlap", choices=("yes", "no", "both"), default="both", help="reduce during backward (default both)")
    by = "auto: ours; mpi: Open MPI's own (default auto,mpi)"
    add("--algorithms", type=_algorithms, default=["auto", "mpi"], metavar="A,...", help=by)
    add("--iterations", type=_number(1, 1000000), default=6, metavar="N", help="samples per phase (default 6)")
    add("--db", type=Path, default=None, metavar="FILE", help="keep the store, with every sample")
    add("--json", action="store_true", help="one JSON document instead of the table")
    add("--bench", type=Path, default=None, help="hvd_bench (default HVD_BENCH or build/release/bin/hvd_bench)")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    split = argv.index("--") if "--" in argv else len(argv)
    arguments = parser.parse_args(argv[:split])
    arguments.command = argv[split + 1 :]
    if split < len(argv) and not arguments.command:
        parser.error("name a program behind --")
    if arguments.bench is None:
        arguments.bench = Path(os.environ.get("HVD_BENCH") or data.hvd_bench())
    if arguments.mib * _MIB / arguments.buckets < 4096:
        parser.error("--mib must be at least 4 KiB for each of the --buckets")
    arguments.bench = Path(os.path.realpath(arguments.bench))  # Path.resolve() raises if a link names itself
    if arguments.db is not None:
        arguments.db = Path(os.path.realpath(arguments.db))
    try:
        _require_bench(arguments.bench)
        if arguments.db is not None:
            _require_store(arguments.db)
    except HvdbError as error:
        parser.error(str(error))
    return arguments


def _require_outside(option: str, path: Path) -> None:
    if network.COVERED in path.parents:
        raise HvdbError(
            f"{option}: {path} is below {network.COVERED}, where the measurement puts a file system of its own, "
            "which ends with it: name another place"
        )


def _require_bench(path: Path) -> None:
    """Errors: HvdbError if `path` is not an hvd_bench that can run inside the namespaces."""
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise HvdbError(f"no program at {path}: run scripts/build, or name it with --bench")
    _require_outside("--bench", path)
    try:
        said = subprocess.run([str(path), "--version"], capture_output=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = b""
    if not said.startswith(b"hvd_bench "):
        raise HvdbError(f"--bench: {path} is not hvd_bench: it does not say so with --version")


def _require_store(path: Path) -> None:
    """Errors: HvdbError if hvd_bench cannot create the file or add to it, or if the measurement would remove it."""
    _require_outside("--db", path)
    if not path.parent.is_dir():
        raise HvdbError(f"--db: there is no directory {path.parent}")
    if path.is_symlink():
        raise HvdbError(f"--db: {path} is a link that leads back to itself: name another file")
    if path.exists() and not (path.is_file() and path.stat().st_size == 0):
        try:
            store.require_ours(path)
        except StoreError as error:
            raise HvdbError(f"--db: {error}; name another file") from None


def _pair(measured: float, wanted: float, scale: float) -> tuple[str, str]:
    """Returns 'measured / formula' and the ratio of the two; '-' as the ratio if the formula gives almost 0."""
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


def _calibration_line(wiring: Wiring, calibration: Calibration) -> str:
    rate = 8e-6 * calibration.bytes_per_second
    return (
        f"# {wiring.nodes} nodes: one way {1e6 * calibration.latency_seconds:.0f} us; one TCP stream {rate:.1f} Mbit/s "
        f"of payload, {100 * rate / (wiring.rate_mbit * PAYLOAD_SHARE):.0f} % of what the shaper leaves"
    )


def _cases(arguments: argparse.Namespace) -> list[tuple[Work, str]]:
    overlaps = {"yes": [True], "no": [False], "both": [False, True]}[arguments.overlap]
    size = 4 * int(arguments.mib * _MIB / arguments.buckets / 4)
    works = [Work(arguments.compute_ms / 1e3, size, arguments.buckets, overlap) for overlap in overlaps]
    return list(itertools.product(works, arguments.algorithms))


def _measure(arguments: argparse.Namespace, wiring: Wiring, folder: Path, kept: Path, document: list[dict]) -> int:
    """Measures all cases on one network. Adds them to `document`. Returns the number of failures. Errors: HvdbError."""
    failures = 0
    with Network(wiring, arguments.bench.with_name("shaped_switch"), folder) as net:
        calibration = calibrate(net)
        link = Link(wiring.rate_mbit * 1e6, calibration.latency_seconds)  # the latency is that of the idle link
        if not arguments.json:
            print(_calibration_line(wiring, calibration), flush=True)
        for work, algorithm in _cases(arguments):
            kind = "overlapped" if work.overlapped else "at-end"
            name = f"sleep-{arguments.mib:g}MiB-{arguments.buckets}-{kind}"
            want = expected(link, wiring.nodes, work)
            try:
                got = run(net, work, algorithm, arguments, name, folder, kept)
            except HvdbError as error:
                failures += 1
                edge.tell("network_bench", f"network_bench: {wiring.text}, {algorithm}: {error}", sys.stderr)
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
    return failures


def _measure_all(arguments: argparse.Namespace, folder: Path) -> int:
    kept = arguments.db or folder / "runs.db"
    document, failures = [], 0
    if not arguments.json:
        print(_heading(arguments), flush=True)
    for wires in itertools.product(arguments.nodes, arguments.rate_mbit, arguments.latency_us):
        wiring = Wiring(*wires)
        try:
            failures += _measure(arguments, wiring, folder, kept, document)
        except HvdbError as error:  # must not end the program: earlier results are still printed
            failures += 1
            edge.tell("network_bench", f"network_bench: {wiring.text}: {error}", sys.stderr)
    if arguments.json:
        print(json.dumps({"cases": document, "payload_share": PAYLOAD_SHARE}, indent=2))
    return EXIT_CHECK_FAILED if failures else EXIT_GOOD


def _run_command(arguments: argparse.Namespace, folder: Path) -> int:
    """Runs the user's program on each network. Returns the first exit code that is not 0. Errors: HvdbError."""
    command = [str(arguments.bench) if word == "{bench}" else word for word in arguments.command]
    code = 0
    for wires in itertools.product(arguments.nodes, arguments.rate_mbit, arguments.latency_us):
        wiring = Wiring(*wires)
        with Network(wiring, arguments.bench.with_name("shaped_switch"), folder) as net:
            print(_calibration_line(wiring, calibrate(net)), flush=True)
            done = subprocess.run([*net.mpirun(arguments.ranks_per_node), *command], check=False)
            code = code or done.returncode
    return code


def _too_much(nodes: int, rate_mbit: float) -> str:
    """Returns why this machine cannot carry such a network, or ""."""
    cores = os.cpu_count() or 1
    if nodes > _NODES_PER_CORE * cores:
        return f"{nodes} nodes: {cores} cores were only seen to carry {_NODES_PER_CORE * cores}"
    if nodes * rate_mbit > _MBIT_PER_CORE * cores:
        return (
            f"{nodes} nodes at {rate_mbit:g} Mbit/s: {cores} cores carry {_MBIT_PER_CORE * cores} Mbit/s of all nodes, "
            "and with more the processors would be measured"
        )
    return ""


def main(argv: list[str]) -> int:
    """Runs the program. Returns the exit code. An error becomes one line on standard error."""
    return edge.run("network_bench", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    """Enters the outer namespaces first, then measures inside them. Returns the exit code."""
    arguments = _arguments(argv)
    if not arguments.inside:
        if reason := _too_much(int(max(arguments.nodes)), max(arguments.rate_mbit)):
            raise HvdbError(reason)
        if reason := network.why_not(arguments.bench.with_name("shaped_switch")):
            print(f"network_bench: skipped: {reason}", file=sys.stderr)
            return EXIT_INCONCLUSIVE
        return network.enter([sys.executable, "-B", "-m", "hvnet", "--inside", *argv])
    if arguments.command:
        return _run_command(arguments, network.prepare())
    return _measure_all(arguments, network.prepare())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
