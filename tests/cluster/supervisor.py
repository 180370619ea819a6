"""Starts the daemons of a test cluster and ends them all.

Reads one JSON command per line on standard input: {"start": NAME, "argv": [...]} or {"signal": NAME, "number": N}.
Answers each with one JSON line. Standard input ends when the test closes it or dies. The supervisor then kills and
reaps all its descendants, removes the folder given as the first argument (if any), and ends.

Slurm's daemons start step daemons, which detach from their parents. This process is a child subreaper (prctl(2)), so
it inherits the step daemons and finds them among its descendants. If this process has its own PID namespace (see
slurm_cluster.py) and is killed, the kernel kills all processes of the namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Runs in a child between fork and exec. Makes the kernel kill the child when this process ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def raise_priority() -> None:
    """Raises this process's priority if allowed, so that daemons get processor time beside hundreds of tasks. Children
    inherit the priority. Some kernels divide time among sessions first: autogroup sets the session's nice value."""
    try:
        os.nice(-5)
        Path("/proc/self/autogroup").write_text("-5")
    except OSError:
        return


def children_of(pid: int) -> list[int]:
    """Returns the direct children of all threads of `pid`. The list is empty if the process has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Returns all descendants of `pid`, children before grandchildren."""
    found = children_of(pid)
    for child in found:  # the list grows during the loop
        found += children_of(child)
    return found


def reap(names: dict[int, str]) -> None:
    """Collects the exit codes of ended daemons, and of ended orphans that this process inherited."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in names:
            print(f"supervisor: {names.pop(pid)} ended with status {status}", file=sys.stderr, flush=True)


class Supervisor:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # process id -> name of each running daemon
        self._lock = threading.Lock()
        threading.Thread(target=self._reap_for_ever, daemon=True).start()

    def _reap_for_ever(self) -> None:
        while True:
            with self._lock:
                reap(self._names)
            time.sleep(0.1)

    def obey(self, command: dict) -> dict:
        with self._lock:
            if "start" in command:
                return self._start(command["start"], command["argv"])
            running = [pid for pid, name in self._names.items() if name == command["signal"]]
            for pid in running:
                os.kill(pid, command["number"])
            return {"signalled": len(running)}

    def _start(self, name: str, argv: list[str]) -> dict:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, preexec_fn=die_with_parent
            )
        except OSError as error:
            return {"error": f"{argv[0]}: {error.strerror}"}
        self._names[process.pid] = name
        process.returncode = 0  # so that subprocess does not wait for the process: reap() collects exit codes
        return {"pid": process.pid}

    def end(self) -> None:
        """Kills every descendant. Repeats until none is left, because a descendant may start processes meanwhile."""
        with self._lock:
            self._names.clear()
            if os.getpid() == 1:
                try:
                    os.kill(-1, signal.SIGKILL)  # kills the whole PID namespace in one call
                except ProcessLookupError:
                    return
            while left := descendants(os.getpid()):
                for pid in left:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                reap({})
                time.sleep(0.01)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # on Control-C the test closes standard input, which ends this process
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    raise_priority()
    supervisor = Supervisor()
    try:
        for line in sys.stdin:
            print(json.dumps(supervisor.obey(json.loads(line))), flush=True)
    finally:
        supervisor.end()
        if len(sys.argv) > 1:
            shutil.rmtree(sys.argv[1], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
