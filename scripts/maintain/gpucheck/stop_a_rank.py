"""Runs a command of two ranks under mpirun, stops rank 1 when the command measures, and checks how rank 0 ends.

    python stop_a_rank.py SECONDS COMMAND...

Exit code: 0 if the command ended by itself within SECONDS, with exit code 5 and a line that names rank 1. Otherwise 1,
and the last line says what happened. The ranks must run under Open MPI, which sets OMPI_COMM_WORLD_RANK.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

MARK = "HVD_GPU_CHECK_RUN"  # environment variable of all processes that this script starts
MEASURES = "measuring full: step"
LOST = 5  # the program's exit code for a lost rank


def processes(mark: str, rank: int | None = None) -> list[int]:
    """Returns the ids of the processes with this mark; with `rank`, only of processes of this rank."""
    wanted = {f"{MARK}={mark}".encode()}
    wanted |= set() if rank is None else {f"OMPI_COMM_WORLD_RANK={rank}".encode()}
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def send(number: signal.Signals, pids: list[int]) -> None:
    """Sends a signal to those of the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def watch(command: list[str], seconds: float) -> str:
    """Runs the check. Returns "" if the command ended correctly, else what happened."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    text, stopped = [], 0.0
    killer = threading.Timer(seconds, lambda: send(signal.SIGKILL, processes(mark)))
    killer.start()
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            text.append(line)
            if not stopped and MEASURES in line:
                stopped = time.monotonic()
                send(signal.SIGSTOP, processes(mark, 1))
        code = process.wait()
    finally:
        killer.cancel()
        send(signal.SIGKILL, processes(mark))  # a stopped rank would otherwise remain
    if not stopped:
        return f"it did not come to measuring (exit code {code})"
    if code != LOST:
        return f"rank 1 was stopped, and the exit code was {code}, not {LOST}: abort hung, or was not told"
    if not any("error" in line and "rank 1" in line for line in text):
        return "rank 1 was stopped, and nothing names it"
    print(f"rank 1 was stopped: the run ended {time.monotonic() - stopped:.1f} s later and named it")
    return ""


def main() -> int:
    """Runs the command line. SIGTERM raises SystemExit, so that watch() kills a stopped rank."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    trouble = watch(sys.argv[2:], float(sys.argv[1]))
    if trouble:
        print(trouble)
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
