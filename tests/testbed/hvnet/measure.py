"""Runs hvd_bench across a shaped network, and reads the time of a step from the store."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hvdb.base.errors import HvdbError
from hvdb.judge import efficiency
from hvdb.read import runs
from hvnet.formula import Work, replay_text
from hvnet.network import Network, address, wait_until_connected

_STREAM_SECONDS = 0.5  # duration of the calibration at full rate
_RUN_SECONDS = 300
_MIB = 1 << 20


@dataclass(frozen=True)
class Calibration:
    """What plain sockets measure on a link. latency_seconds: one way, on the idle link. bytes_per_second: payload of
    one TCP stream."""

    latency_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Measured:
    """Medians over steps of the slowest rank's times, and the efficiency with its 95 % interval (low, high)."""

    solo_seconds: float
    none_seconds: float
    step_seconds: float
    exposed_seconds: float
    efficiency: float
    low: float
    high: float
    data_plane: str
    run_id: str


def calibrate(network: Network) -> Calibration:
    """Measures latency and rate between the first two nodes. Errors: HvdbError."""
    here = [sys.executable, "-B", "-m", "hvnet.probe"]
    first, second = network.nodes[:2]
    rate = network.wiring.rate_mbit or 10000
    size = max(_MIB, int(rate * 1e6 / 8 * _STREAM_SECONDS))
    with subprocess.Popen(network.inside(second, *here, "serve")) as server:
        try:
            wait_until_connected(network, network.inside(first, *here, "measure", address(2), "1"))
            command = network.inside(first, *here, "measure", address(2), str(size))
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        except subprocess.CalledProcessError as error:
            raise HvdbError(f"the link was not measured: {(error.stderr or str(error)).splitlines()[-1]}") from None
        except subprocess.TimeoutExpired as error:
            raise HvdbError(f"the link was not measured in {error.timeout:g} s") from None
        finally:
            server.kill()
    return Calibration(**json.loads(done.stdout))


def run(
    network: Network, work: Work, algorithm: str, arguments: argparse.Namespace, name: str, folder: Path, store: Path
) -> Measured:
    """Runs `hvd_bench --efficiency` once, with `work` as its compute. Adds the runs to `store`. Errors: HvdbError."""
    profile = folder / f"{name}.replay"
    profile.write_text(replay_text(work, name, network.wiring.text))
    command = [
        *network.mpirun(arguments.ranks_per_node),
        *(str(arguments.bench), "--replay", str(profile), "--efficiency", "--threads", "1"),
        *("--algorithm", algorithm, "--bucket-mb", f"{work.bucket_bytes / _MIB:.9g}"),
        *("--num-warmup-batches", "1", "--num-iters", str(arguments.iterations), "--db", str(store), "--quiet"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise HvdbError(f"not done after {_RUN_SECONDS} s") from None
    if done.returncode != 0:
        raise HvdbError(done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}")
    return _read(store, name)


def _read(store: Path, name: str) -> Measured:
    """Returns the results of the newest session of `name`."""
    newest = [run for run in runs.load([store]) if run.model == name][-3:]
    phase = {run.phase: run for run in newest}
    full = phase["full"]
    reached = full.decomposition["efficiency"].fraction
    middle = {key: efficiency.step_time(run).value for key, run in phase.items()}
    return Measured(
        solo_seconds=middle["solo"],
        none_seconds=middle["none"],
        step_seconds=middle["full"],
        exposed_seconds=full.decomposition["exposed_communication"].seconds,
        efficiency=reached.value,
        low=reached.low if reached.low is not None else reached.value,
        high=reached.high if reached.high is not None else reached.value,
        data_plane=full.data_plane,
        run_id=full.uuid,
    )
