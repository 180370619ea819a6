"""Connects network namespaces through one switch. Every link has a rate and a latency.

Everything is inside one outer set of namespaces (network, mount, PID), which this program enters first. When the first
process in the outer set ends, the kernel removes all namespaces. Nothing outside changes.

The switch is shaped_switch.cpp in user space, which says why tc-tbf does not do; many kernels have no sch_netem.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hvdb.base.errors import HvdbError
from hvdb.base.process import end_with_parent

SUBNET = "10.77.0.0/16"
COVERED = Path("/run")  # see prepare()
_HEAD = "10.77.255.254"  # address of mpirun, in the outer namespace
_CONNECT_SECONDS = 10
# A message arrives with the frame that holds its end, so a frame of 64 KiB would delay it by as long as it takes. Small
# frames cost the switch time.
_FRAME_SECONDS, _FRAME_BYTES = 1e-3, (3000, 65536)

_TCP = (
    # reno, because BBR paces by an estimate of the bandwidth of its own.
    "net.ipv4.tcp_congestion_control=reno",
    # TCP windows are wide from the beginning and stay wide while compute sleeps, so that they do not limit the rate.
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_rmem=4096 4194304 33554432",
    "net.ipv4.tcp_wmem=4096 4194304 4194304",
)

# The remote shell for Open MPI. A host is the name of a node. Each node has its own host name and /dev/shm, so that
# ranks of two nodes cannot share memory. nsenter is used, because `ip netns exec` remounts /sys and needs more rights.
_AGENT = """#!/bin/sh
node=$1
shift
exec nsenter --net=/run/netns/"$node" unshare --mount --uts sh -c '
  hostname "$1"
  mount -t tmpfs -o size=2g tmpfs /dev/shm
  shift
  eval "exec $*"' sh "$node" "$@"
"""

_PROBE = """set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip netns add probe
"""


@dataclass(frozen=True)
class Wiring:
    """The network to make. rate_mbit 0: no limit. latency_us: added to that of the machine."""

    nodes: int
    rate_mbit: float
    latency_us: float

    @property
    def text(self) -> str:
        return f"{self.nodes} nodes, {self.rate_mbit:g} Mbit/s, {self.latency_us:g} us added"


def _unshare() -> list[str]:
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_not(switch: Path) -> str:
    """Returns the reason why this machine cannot make this network; "" if it can."""
    missing = [name for name in ("unshare", "nsenter", "ip", "mpirun") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: apt-get install iproute2 util-linux openmpi-bin)"
    done = subprocess.run([*_unshare(), "sh", "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"network namespaces are not permitted here ({reason})"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no access to /dev/net/tun, which the switch needs"
    if not os.access(switch, os.X_OK):
        return f"no {switch}, which connects the nodes: run scripts/build"
    return ""


def enter(command: list[str]) -> int:
    """Runs `command` inside the outer namespaces. Returns the exit code. SIGINT and SIGTERM end everything inside.

    unshare itself ignores both signals, but all processes inside end when unshare is killed.
    """
    with subprocess.Popen(
        [*_unshare(), *command], preexec_fn=partial(end_with_parent, signal.SIGKILL), start_new_session=True
    ) as inside:
        stopped: list[int] = []

        def stop(number: int, _: object) -> None:
            stopped.append(number)
            inside.kill()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        code = inside.wait()
    return 128 + stopped[0] if stopped else code


def prepare() -> Path:
    """Mounts a file system on /run that disappears with the mount namespace. Call once, inside the outer namespaces.
    The names of network namespaces and all temporary files, also Open MPI's, lie there. Returns a folder in it."""
    _do(f"mount -t tmpfs -o mode=755 tmpfs {COVERED}")
    (COVERED / "netns").mkdir()
    folder = COVERED / "hvnet"
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    _do("ip link set lo up")
    return folder


def _do(command: str) -> None:
    if subprocess.run(command.split(), check=False, stdin=subprocess.DEVNULL).returncode != 0:
        raise HvdbError(f"'{command}' failed; see its message above")


def address(node: int) -> str:
    """Returns the address of node 1, 2, ..."""
    return f"10.77.{node // 250}.{node % 250 + 1}"


class Network:
    """The network exists inside the `with`. The nodes' names are net1, net2, ... folder: for the network's files."""

    def __init__(self, wiring: Wiring, switch: Path, folder: Path) -> None:
        self.wiring = wiring
        self.agent = folder / "agent.sh"
        self._switch_program = switch
        self._switch: subprocess.Popen | None = None
        self._hosts = folder / "hosts"

    @property
    def nodes(self) -> list[str]:
        return [f"net{i}" for i in range(1, self.wiring.nodes + 1)]

    def __enter__(self) -> Network:
        self.agent.write_text(_AGENT)
        self.agent.chmod(0o755)
        names = [f"{address(i)} net{i}" for i in range(1, self.wiring.nodes + 1)]
        self._hosts.write_text("\n".join([Path("/etc/hosts").read_text(), *names, ""]))
        _do(f"mount --bind {self._hosts} /etc/hosts")
        try:
            self._start_switch()
            for i, node in enumerate(self.nodes, start=1):
                self._connect(i, node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the network, to make room for the next network in the same outer namespaces."""
        quiet = {"check": False, "stderr": subprocess.DEVNULL}
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
            self._switch = None
        for node in self.nodes:
            subprocess.run(["ip", "netns", "del", node], **quiet)
        subprocess.run(["umount", "/etc/hosts"], **quiet)

    def _start_switch(self) -> None:
        ports = self.wiring.nodes + 1  # the last port is for mpirun
        words = map(str, (self._switch_program, ports, self.wiring.latency_us, self.wiring.rate_mbit, "port"))
        self._switch = subprocess.Popen([*words], stdout=subprocess.PIPE, text=True)
        assert self._switch.stdout is not None
        if self._switch.stdout.readline().strip() != "ready":
            raise HvdbError("shaped_switch did not start; see its message above")
        _do(f"ip addr add {_HEAD}/16 dev port{ports}")
        _do(f"ip link set port{ports} up")

    def _connect(self, number: int, node: str) -> None:
        _do(f"ip netns add {node}")
        _do(f"ip link set port{number} netns {node}")
        _do(f"ip -n {node} link set port{number} name eth0")
        _do(f"ip -n {node} link set lo up")
        _do(f"ip -n {node} addr add {address(number)}/16 dev eth0")
        _do(f"ip -n {node} link set eth0 gso_max_size {self._frame_bytes()} up")
        command = self.inside(node, "sysctl", "-qw", *_TCP)
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)

    def _frame_bytes(self) -> int:
        """Returns how many bytes a frame may have before the network splits it. A frame arrives as a whole."""
        low, high = _FRAME_BYTES
        at_rate = self.wiring.rate_mbit * 1e6 / 8 * _FRAME_SECONDS
        return int(min(high, max(low, at_rate))) if at_rate else high

    def inside(self, node: str, *command: str) -> list[str]:
        """Returns the command that runs `command` in the network namespace of `node`."""
        return ["nsenter", f"--net=/run/netns/{node}", *command]

    def mpirun(self, ranks_per_node: int) -> list[str]:
        """Returns the beginning of a command line that runs a program on every node."""
        hosts = ",".join(f"{node}:{ranks_per_node}" for node in self.nodes)
        places = f"-np {ranks_per_node * self.wiring.nodes} --map-by ppr:{ranks_per_node}:node --bind-to none"
        words = f"mpirun --allow-run-as-root --host {hosts} {places}"
        settings = {
            "plm": "rsh",
            "plm_rsh_agent": str(self.agent),
            "plm_rsh_no_tree_spawn": "1",
            "plm_rsh_num_concurrent": "64",
            "oob_tcp_if_include": SUBNET,
            "btl_tcp_if_include": SUBNET,
            "pml": "ob1",
            "btl": "self,vader,tcp",
            "mpi_yield_when_idle": "1",
        }
        return [*words.split(), *(word for key, value in settings.items() for word in ("--mca", key, value))]


def wait_until_connected(network: Network, probe: list[str]) -> None:
    """Waits until the command `probe` succeeds, because its server starts meanwhile."""
    end = time.monotonic() + _CONNECT_SECONDS
    while subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > end:
            raise HvdbError(f"no connection from {network.nodes[0]} to {network.nodes[1]} after {_CONNECT_SECONDS} s")
        time.sleep(0.1)
