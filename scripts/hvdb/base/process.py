"""Runs hvd_bench under a launcher, and ends the launcher together with all ranks that it started."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hvdb.base.errors import HvdbError

_LOOK_SECONDS = 0.5  # between two looks at how much a process has printed


def end_in_order_when_told() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt from now on, so that run() and its caller can clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # for example SIGHUP stays ignored under nohup
            signal.signal(number, signal.default_int_handler)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes the kernel send signal `number` to the calling process when its parent ends, also if the parent is killed.
    Call between fork and exec (preexec_fn). Source: prctl(2). Without prctl (not Linux), does nothing."""
    pr_set_pdeathsig = 1  # linux/prctl.h
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number, 0, 0, 0)


def shown(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Returns the command as a line that a person can give to a shell."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(words)])


class RunFailed(HvdbError):
    """The command failed or took too long. why: the fault, without the text of the command. code: its exit code; None
    if it was ended."""

    def __init__(self, why: str, command: str, code: int | None = None) -> None:
        super().__init__(f"the run {why}: {command}")
        self.why, self.code = why, code


def run(
    words: Sequence[str],
    variables: Mapping[str, str],
    timeout_seconds: float,
    directory: Path | None = None,
    output: IO[bytes] | None = None,
    inherited: Sequence[int] = (),
    errors: IO[bytes] | None = None,
    max_bytes: int | None = None,
) -> None:
    """Runs `words` without a shell and without input. Adds `variables` to the caller's environment.

    output: the file for standard output and standard error (default: those of the caller). errors: another file for
    standard error. max_bytes: about how much each file may hold. inherited: descriptors that stay open in the new
    process. Errors: RunFailed if the process fails, takes longer than `timeout_seconds` or prints more than
    `max_bytes`; OSError if it cannot be started.
    """
    environment = {**os.environ, **variables}
    if os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    # The launcher gets a process group of its own, so that _end() reaches the launcher and all its ranks.
    process = subprocess.Popen(
        words,
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors or output,
        start_new_session=True,
        pass_fds=inherited,
    )
    end = time.monotonic() + timeout_seconds
    try:
        while (code := _wait(process, end, _LOOK_SECONDS if max_bytes else math.inf)) is None:
            if time.monotonic() >= end:
                raise RunFailed(f"took longer than {timeout_seconds:g} s and was ended", shown(words, variables))
            if max_bytes and any(os.fstat(file.fileno()).st_size > max_bytes for file in (output, errors) if file):
                raise RunFailed(f"printed more than {max_bytes >> 20} MiB and was ended", shown(words, variables))
    finally:
        _end(process)
    if code != 0:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        raise RunFailed(how, shown(words, variables), code)


def _wait(process: subprocess.Popen, end: float, longest: float) -> int | None:
    """Waits until the time `end`, but at most `longest` seconds. Returns the exit code; None if the process runs on."""
    try:
        return process.wait(max(0.0, min(end - time.monotonic(), longest)))
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen) -> None:
    """Ends the process's group. Sends SIGTERM, on which hvd_bench closes the store, and SIGKILL after 15 s.

    A KeyboardInterrupt during the 15 s kills the group at once.
    """
    with contextlib.suppress(ProcessLookupError):  # raised when no process of the group is left
        try:
            _signal(process, signal.SIGTERM, 15.0)
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        _signal(process, signal.SIGKILL, 5.0)


def _signal(process: subprocess.Popen, number: int, patience_seconds: float) -> None:
    """Sends a signal to the process's group and waits. Errors: ProcessLookupError as soon as the group is empty.

    Returns if the group still has a process after `patience_seconds`.
    """
    os.killpg(process.pid, number)
    end = time.monotonic() + patience_seconds
    while time.monotonic() < end:
        process.poll()  # reaps the process if it has ended, because a zombie would still belong to the group
        os.killpg(process.pid, 0)
        time.sleep(0.05)
