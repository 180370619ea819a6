"""Runs hvd_bench under its launcher, and ends the launcher and its ranks together."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hvdb.errors import HvdbError


def end_in_order_when_told() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt from now on. run() and its caller then clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)


def shown(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Returns the command as a line for a shell."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(words)])


class RunFailed(HvdbError):
    """why: the fault, without the command."""

    def __init__(self, why: str, command: str) -> None:
        super().__init__(f"the run {why}: {command}")
        self.why = why


def run(
    words: Sequence[str],
    variables: Mapping[str, str],
    timeout_seconds: float,
    directory: Path | None = None,
    output: IO[bytes] | None = None,
    inherited: Sequence[int] = (),
) -> None:
    """Runs `words` without a shell and without input. Adds `variables` to the caller's environment.

    output: receives standard output and standard error (default: the caller's). inherited: descriptors that the process
    keeps open. Errors: RunFailed if it fails or takes longer than `timeout_seconds`; OSError if it cannot start.
    """
    environment = {**os.environ, **variables}
    if os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    # The launcher gets a session of its own, so that _end() reaches all of its ranks too.
    process = subprocess.Popen(
        words,
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=inherited,
    )
    try:
        code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired as error:
        why = f"took longer than {timeout_seconds:.0f} s and was ended"
        raise RunFailed(why, shown(words, variables)) from error
    finally:
        _end(process)
    if code != 0:
        raise RunFailed(f"ended with exit code {code}", shown(words, variables))


def _end(process: subprocess.Popen) -> None:
    """Ends the process's group: by SIGTERM, so that the program closes the store, and after 15 s by SIGKILL.

    An interrupt during this time kills the group at once.
    """
    with contextlib.suppress(ProcessLookupError):  # raised when no process is left
        try:
            _signal(process, signal.SIGTERM, 15.0)
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        _signal(process, signal.SIGKILL, 5.0)


def _signal(process: subprocess.Popen, number: int, patience_seconds: float) -> None:
    """Sends the signal to the process's group and waits. Errors: ProcessLookupError as soon as the group is empty."""
    os.killpg(process.pid, number)
    end = time.monotonic() + patience_seconds
    while time.monotonic() < end:
        process.poll()  # reaps the process, because a zombie still belongs to its group
        os.killpg(process.pid, 0)
        time.sleep(0.05)
