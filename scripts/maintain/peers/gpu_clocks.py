"""Logs clocks, power and throttling of the GPU every 100 ms while two sides take turns on the GPU, because a higher
clock may explain a faster side. nvidia-smi writes the samples. Each sample belongs to the side whose turn it was."""

from __future__ import annotations

import contextlib
import csv
import datetime
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serving import end_with_parent

PERIOD_MS = 100
COLUMNS = ("sm_mhz", "memory_mhz", "power_w", "celsius", "utilization_percent", "throttle_reasons")
_FIELDS = "timestamp,clocks.sm,clocks.mem,{power},temperature.gpu,utilization.gpu,clocks_throttle_reasons.active"
# power.draw.instant is the present power. On newer GPUs power.draw is an average over one second. Older drivers know
# only power.draw.
POWER = ("power.draw.instant", "power.draw")
# Bits of nvmlClocksEventReason* in nvml.h, without "idle" and "clocks set by hand".
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def _device() -> str:
    """Returns the GPU that both sides use, in the form of nvidia-smi -i: number or UUID."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def _asked(query: str) -> str:
    """Returns nvidia-smi's answer; "" if nvidia-smi is missing or does not know a field."""
    command = ["nvidia-smi", "-i", _device(), f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class Sample:
    """side: the side whose turn it was; "" between turns. values: in the order of COLUMNS, as nvidia-smi wrote them."""

    side: str
    timestamp: str  # the host's local time
    values: tuple[str, ...]


def parse(raw: str, turns: Sequence[tuple[str, float, float]]) -> list[Sample]:
    """Parses samples. raw: lines of nvidia-smi, maybe with a broken last line. turns: (side, begin, end) in Unix
    time."""
    samples = []
    for line in raw.splitlines():
        stamp, *values = (word.strip() for word in line.split(","))
        if len(values) != len(COLUMNS):
            continue
        try:
            when = datetime.datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
        except ValueError:
            continue
        side = next((name for name, begin, end in turns if begin <= when <= end), "")
        samples.append(Sample(side, stamp, tuple(values)))
    return samples


def _numbers(samples: Sequence[Sample], column: str) -> list[float]:
    found = []
    for sample in samples:
        with contextlib.suppress(ValueError):  # nvidia-smi writes [N/A] for an unknown value
            found.append(float(sample.values[COLUMNS.index(column)]))
    return found


def summary(samples: Sequence[Sample], side: str) -> str:
    """Returns a summary of the samples of a side in one line; "" if there are no samples."""
    own = [sample for sample in samples if sample.side == side]
    if not own:
        return ""
    said = []
    for column, unit in (("sm_mhz", "MHz SM"), ("memory_mhz", "MHz memory"), ("power_w", "W")):
        if numbers := _numbers(own, column):
            said.append(f"{statistics.median(numbers):.0f} {unit}")
    if celsius := _numbers(own, "celsius"):
        said.append(f"up to {max(celsius):.0f} C")
    active = []
    for sample in own:
        with contextlib.suppress(ValueError):
            active.append(int(sample.values[COLUMNS.index("throttle_reasons")], 0))
    for bit, reason in REASONS.items():
        if share := sum(1 for mask in active if mask & bit):
            said.append(f"{reason} in {100 * share / len(active):.0f} %")
    return f"{', '.join(said)} (medians of {len(own)} samples)"


class ClockLog:
    """Takes samples inside the `with`. Does nothing without a file or without nvidia-smi. One thread."""

    def __init__(self, file: Path | None, model: str, dtype: str) -> None:
        self._file, self._model, self._dtype = file, model, dtype
        self._turns: list[tuple[str, float, float]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._raw: IO[bytes] | None = None
        self._query = ""
        self.samples: list[Sample] = []

    def __enter__(self) -> ClockLog:
        queries = [_FIELDS.format(power=power) for power in POWER] if self._file else []
        self._query = next((query for query in queries if _asked(query)), "")
        if self._query:
            self._raw = tempfile.TemporaryFile()
            command = ["nvidia-smi", "-i", _device(), f"--query-gpu={self._query}", "--format=csv,noheader,nounits"]
            self._process = subprocess.Popen(
                [*command, "-lms", str(PERIOD_MS)],
                stdin=subprocess.DEVNULL,
                stdout=self._raw,
                stderr=subprocess.DEVNULL,
                preexec_fn=end_with_parent,
            )
        return self

    @contextlib.contextmanager
    def turn(self, side: str) -> Iterator[None]:
        """Marks a turn of `side` for the duration of the `with`."""
        begin = time.time()
        yield
        self._turns.append((side, begin, time.time()))

    def __exit__(self, *_: object) -> None:
        if self._process is None or self._raw is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._raw:
            self._raw.seek(0)
            self.samples = parse(self._raw.read().decode(errors="replace"), self._turns)
        self._write()

    def _write(self) -> None:
        """Adds the samples to the file, below a line about their origin."""
        assert self._file is not None
        started = datetime.datetime.fromtimestamp(self._turns[0][1], datetime.timezone.utc) if self._turns else "-"
        gpu = _asked("name,uuid,driver_version,power.limit,clocks.max.sm")
        with self._file.open("a", encoding="utf-8", newline="") as file:
            file.write(
                f"# {self._model} {self._dtype}: turns from {started}, host {platform.node()}, GPU {gpu} "
                f"(name, uuid, driver, power limit W, highest SM clock MHz); nvidia-smi -i {_device()} "
                f"--query-gpu={self._query} -lms {PERIOD_MS}; timestamps in the host's local time\n"
            )
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["model", "dtype", "side", "timestamp", *COLUMNS])
            for sample in self.samples:
                table.writerow([self._model, self._dtype, sample.side, sample.timestamp, *sample.values])
