"""A real Slurm on this machine, for tests: several slurmd, a controller and a munge key, all under one folder.

    with Cluster(Shape(nodes=2, cpus=2, gpus=2)) as cluster:
        result = cluster.srun("-N2", "--ntasks-per-node=2", "hostname")

Needs slurmctld, slurmd, srun and munged (Debian: slurm-wlm, munge). If the caller is root and may make namespaces,
every node has its own host name and /dev/shm, and all processes are in one PID namespace. Otherwise the nodes share
the machine's host name, /dev/shm and process ids.
"""

from __future__ import annotations

import getpass
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "cli"))

from slurm_config import Place, Shape, config_files, node_names

from program import HANG, Result, Running, environment, execute

__all__ = ["Cluster", "Shape", "may_isolate", "missing_programs"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# If mknod is not allowed, these character devices stand in for GPUs.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx")

# Runs a node in its own namespaces. $1 is the node's name, $2 the cluster's folder.
_ISOLATED_NODE = """set -e
hostname "$1"
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
mount --bind "$2/etc/hosts" /etc/hosts
exec slurmd -D -N "$1" -f "$2/etc/slurm.conf"
"""


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])


def missing_programs() -> str:
    """Returns why no cluster can be started here, or an empty text if a cluster can be started."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_search_path()) is None]
    return f"no {', '.join(missing)} here (scripts/install_deps --tests installs Slurm)" if missing else ""


def may_isolate() -> bool:
    """Returns whether nodes may have namespaces of their own. A container or a chroot may refuse them to root too."""
    probe = [*_NAMESPACES, "unshare", "--mount", "--uts", "sh", "-c", "hostname probe && mount -t tmpfs none /dev/shm"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_ports(count: int) -> int:
    """Returns the first of `count` free ports in a row. All are below the range of ports that the kernel hands out."""
    for _ in range(1000):
        first = random.randrange(10000, 32000 - count)
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError(f"no {count} neighbouring free ports between 10000 and 32000")


def _make_gpus(folder: Path, count: int) -> tuple[str, ...]:
    """Makes copies of /dev/null. If mknod is not allowed, returns devices that every machine has."""
    try:
        for i in range(count):
            os.mknod(folder / f"nvidia{i}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        return tuple(str(folder / f"nvidia{i}") for i in range(count))
    except PermissionError:
        present = [device for device in _DEVICES if Path(device).is_char_device()]
        if count > len(present):
            raise RuntimeError(f"at most {len(present)} pretended GPUs per node without the right to mknod") from None
        return tuple(present[:count])


class Cluster:
    """A cluster that exists inside a `with` block and ends if this process dies. Only one thread may use it."""

    start_seconds = HANG  # limit for the start of all daemons

    def __init__(self, shape: Shape, *, isolated: bool | None = None) -> None:
        self.shape = shape
        self._want_isolated = isolated
        self._supervisor: subprocess.Popen | None = None

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="hvd_slurm_"))
        self.folder.chmod(0o755)
        isolated = may_isolate() if self._want_isolated is None else self._want_isolated
        for name in ("state", "log", "run", "etc", "dev", "work"):
            (self.folder / name).mkdir()
        for name in node_names(self.shape):
            (self.folder / "spool" / name).mkdir(parents=True)
            (self.folder / "tmp" / name).mkdir(parents=True)
        self.place = Place(
            folder=self.folder,
            user=getpass.getuser(),
            host=socket.gethostname().split(".")[0],
            first_port=_free_ports(self.shape.nodes + 1),
            isolated=isolated,
            gpu_files=_make_gpus(self.folder / "dev", self.shape.gpus),
        )
        self.env = {"SLURM_CONF": str(self.place.config), "PATH": _search_path()}
        try:
            self._write_files()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def work(self) -> Path:
        """The jobs' folder, which all nodes see. The folder is removed with the cluster."""
        return self.folder / "work"

    def _write_files(self) -> None:
        etc = self.folder / "etc"
        for name, text in config_files(self.shape, self.place).items():
            (etc / name).write_text(text)
        (etc / "task_prolog.sh").chmod(0o755)
        key = etc / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))

    def _start_daemons(self) -> None:
        command = [sys.executable, "-B", str(_SUPERVISOR), str(self.folder)]
        if self.place.isolated:
            command = [*_NAMESPACES, *command]
        self._log = (self.folder / "log" / "supervisor.log").open("w")
        self._supervisor = subprocess.Popen(
            command,
            env=environment(self.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that Control-C reaches only the test
            cwd="/",
        )
        run, etc, log = self.folder / "run", self.folder / "etc", self.folder / "log"
        munged = ["munged", "--foreground", "--force", f"--key-file={etc}/munge.key", f"--socket={run}/munge.sock"]
        munged += [f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munged.seed"]
        self._start("munged", [*munged, "--num-threads=4"])
        self._until(self.place.munge_socket.exists, "munged's socket")
        self._start("slurmctld", ["slurmctld", "-D", "-c", "-f", str(self.place.config)])
        for name in node_names(self.shape):
            self.start_node(name)
        self._until(lambda: self.nodes_in("idle") == self.shape.nodes, f"{self.shape.nodes} idle nodes")

    def start_node(self, name: str) -> None:
        if self.place.isolated:
            argv = ["unshare", "--mount", "--uts", "sh", "-c", _ISOLATED_NODE, "sh", name, str(self.folder)]
        else:
            argv = ["slurmd", "-D", "-N", name, "-f", str(self.place.config)]
        self._start(name, argv)

    def _tell(self, command: dict) -> dict:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._supervisor.stdin.write(json.dumps(command) + "\n")
        self._supervisor.stdin.flush()
        line = self._supervisor.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the supervisor has ended\n{self.logs()}"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _start(self, name: str, argv: list[str]) -> None:
        self._tell({"start": name, "argv": argv})

    def signal_daemon(self, name: str, number: int) -> None:
        """Signals 'munged', 'slurmctld', or a node's slurmd. If a slurmd gets SIGKILL, its tasks go on."""
        self._tell({"signal": name, "number": int(number)})

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.start_seconds
        while not ready():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not there after {self.start_seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines: int = 15) -> str:
        """Returns the last lines of the logs of the supervisor, the controller and the first node."""
        text = ""
        for name in ("supervisor.log", "slurmctld.log", "slurmd.n1.log"):
            file = self.folder / "log" / name
            if file.exists():
                text += f"--- {name}\n" + "".join(file.read_text(errors="replace").splitlines(True)[-lines:])
        return text

    def stop(self) -> None:
        """Ends every daemon, job and task, and removes the folder. A second call does nothing."""
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            self._supervisor.stdin.close()
            self._supervisor.wait(60)
            self._supervisor.stdout.close()
            self._log.close()
            self._supervisor = None
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- calls by a user of the cluster -----------------------------------------------------------------------------

    def run(self, *command: str, env: dict[str, str] | None = None, timeout: float = HANG) -> Result:
        """Runs a command as the user on the login node."""
        return execute(list(command), {**self.env, **(env or {})}, timeout)

    def srun(self, *arguments: str, env: dict[str, str] | None = None, timeout: float = HANG) -> Result:
        return self.run("srun", *arguments, env=env, timeout=timeout)

    def running(self, *command: str) -> Running:
        return Running(list(command), self.env)

    def nodes_in(self, state: str) -> int:
        listing = self.run("sinfo", "-h", "-N", "-t", state, "-o", "%N", timeout=HANG)
        return len(set(listing.out.split())) if listing.code == 0 else 0

    def submit(self, script: str, *options: str, env: dict[str, str] | None = None) -> str:
        """Submits the text of a batch script from the folder `work`; returns the job's id."""
        file = self.work / f"job{time.monotonic_ns()}.sh"
        file.write_text(script)
        done = self.run("sbatch", "--parsable", f"--chdir={self.work}", *options, str(file), env=env)
        if done.code != 0:
            raise RuntimeError(f"sbatch refused\n{done}")
        return done.out.strip().split(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """Returns what scontrol reports about a job: JobState, ExitCode, Reason, Restarts, ..."""
        shown = self.run("scontrol", "show", "job", "-o", job_id)
        return dict(re.findall(r"(\S+?)=(\S*)", shown.out))

    def wait_for_state(self, job_id: str, *states: str, timeout: float = HANG) -> dict[str, str]:
        """Polls until the job is in one of `states`. `sbatch --wait` may notice the state minutes late."""
        end = time.monotonic() + timeout
        while (job := self.job(job_id)).get("JobState") not in states:
            if time.monotonic() > end:
                raise AssertionError(f"job {job_id} is not {' or '.join(states)} after {timeout:.0f} s: {job}")
            time.sleep(0.3)
        return job

    def finished(self, job_id: str, timeout: float = HANG) -> dict[str, str]:
        return self.wait_for_state(
            job_id, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", timeout=timeout
        )
