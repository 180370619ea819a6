"""Facts about the measuring machine: its processor, cores, cache and memory (Linux)."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

PROCESSORS = Path("/sys/devices/system/cpu")
CACHE_BYTES = 32 << 20  # used if the system does not tell the size
MEMORY = Path("/proc/meminfo")


def _read(file: Path) -> str:
    """Returns the text of a file of the system; "" if the file cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def one_per_core(processors: Iterable[int], folder: Path = PROCESSORS) -> list[int]:
    """Returns the first hardware thread of each core of `processors`. A processor whose core is unknown
    counts as a core."""
    first: dict[tuple[str, str], int] = {}
    for number in sorted(processors):
        topology = folder / f"cpu{number}" / "topology"
        package, core = (_read(topology / name) for name in ("physical_package_id", "core_id"))
        first.setdefault((package, core) if core else ("", f"processor {number}"), number)
    return list(first.values())


def cores() -> list[int]:
    """Returns one hardware thread of each core that this process may use."""
    return one_per_core(os.sched_getaffinity(0))


def cache_bytes() -> int:
    """Returns the size of the last-level cache."""
    text = _read(PROCESSORS / "cpu0" / "cache" / "index3" / "size")
    return int(text[:-1]) << 10 if text.endswith("K") and text[:-1].isdecimal() else CACHE_BYTES


def available_bytes(file: Path = MEMORY) -> int:
    """Returns the memory available to programs without swapping: MemAvailable, which counts the page cache as free."""
    for line in _read(file).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.strip().removesuffix("kB").strip().isdecimal():
            return int(value.strip().removesuffix("kB")) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def described(count: int) -> str:
    """Describes the processor, `count` cores and the cache in words."""
    models = (line.partition(":")[2] for line in _read(Path("/proc/cpuinfo")).splitlines() if "model name" in line)
    name = next(models, platform.machine()).strip()[:100]
    return f"{name}, {count} cores, {cache_bytes() >> 20} MiB of last-level cache"
