"""Starts programs with a time limit, stores the output, and ends the programs' children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_starting = threading.Lock()  # only one thread may fork at a time
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Done:
    """How a program ended. code: None if the time limit ended the program."""

    code: int | None
    seconds: float
    output: str

    def last_line(self) -> str:
        """Returns the last line of the output, which usually says why a program failed."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "it wrote nothing"


def run(
    command: list[str],
    log: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Done:
    """Runs `command` in a process group of its own, for at most `seconds`. log: gets the command and its output. Any
    thread may call this, but must live as long as the program. Interrupts reach only the main thread: see end_all().

    Paths below `root` are written relative to `root`. Errors: OSError if the log cannot be written. A program that
    cannot start counts as ended with code 127.
    """
    begun = time.monotonic()
    shown = shlex.join(command)
    if root is not None:
        shown = shown.replace(f"{root}/", "")
    with log.open("ab") as out:
        out.write(f"$ {shown}\n".encode())
        out.flush()
        start = out.tell()
        try:
            with _starting:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
                _running.add(process)
        except OSError as error:
            out.write(f"{error}\n".encode())
            return Done(127, 0.0, str(error))
        try:
            code: int | None = process.wait(timeout=max(0.1, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
            _running.discard(process)
    with log.open("rb") as back:
        back.seek(start)
        output = back.read().decode(errors="replace")
    return Done(code, time.monotonic() - begun, output)


def end_all() -> None:
    """Asks all programs that run() has started in any thread to end. Each run() then kills its program if the
    program does not end."""
    with _starting:
        for process in _running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


try:
    _prctl = ctypes.CDLL(None).prctl
except (OSError, AttributeError):  # the system is not Linux
    _prctl = None


def _end_with_parent() -> None:
    """Makes the kernel send SIGTERM to the calling child if gpu_check is killed, to free the GPU (Linux)."""
    pr_set_pdeathsig = 1  # linux/prctl.h
    if _prctl is not None:
        _prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes], grace_seconds: float = 5.0) -> None:
    """Asks the process group to end, and kills processes that do not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
