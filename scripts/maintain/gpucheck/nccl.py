"""The part that runs two ranks on one GPU with the real NCCL (2.30 or newer), and tests NCCL's capture and abort."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from . import checks, host
from .ctest import GpuTest
from .training import speed
from .visit import CannotRun, PartFailed, Visit

NEEDED = 23000  # 2.30.0 as a number of ncclGetVersion()
FILE = "libnccl.so.2"
# NCCL may use only a few thread blocks, because the kernels of both ranks must be on the GPU at the same time.
MAX_CTAS = 4
ENVIRONMENT = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": str(MAX_CTAS), "NCCL_DEBUG": "WARN"}
STARTUP_SECONDS, DEADLINE_SECONDS = 60, 15
# The sum of both deadlines, the 45 s in which a stuck rank must end (StuckRank), and 10 s for the program's report.
WATCH_SECONDS = STARTUP_SECONDS + DEADLINE_SECONDS + 55.0
_ASK = """import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)"""


def version_of(library: Path) -> int:
    """Returns the version as ncclGetVersion() gives it: 23007 is 2.30.7. 0 if the library cannot be loaded."""
    said = host.says([sys.executable, "-c", _ASK, str(library)]).strip()
    return int(said) if said.isdigit() else 0


def version_text(version: int) -> str:
    """Returns a text such as "2.30.7"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}" if version else "one that cannot be loaded"


def unpacked(given: Path, scratch: Path) -> Path:
    """Returns the folder with the library: `given`, or `scratch` with the library of a wheel. Errors: CannotRun."""
    if given.is_dir():
        return given
    try:
        with zipfile.ZipFile(given) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(f"/{FILE}"))
            with wheel.open(name) as source, (scratch / FILE).open("wb") as target:
                shutil.copyfileobj(source, target)
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise CannotRun(f"--nccl: {given} is neither a folder nor a wheel with {FILE}: {error}") from None
    return scratch


def find(given: Path | None, folders: list[str], scratch: Path) -> Path:
    """Returns the folder of a new enough NCCL: `given`, else the first in `folders`. Errors: CannotRun."""
    places = [unpacked(given, scratch)] if given else [Path(folder) for folder in folders]
    seen = []
    for place in places:
        if (library := place / FILE).exists():
            version = version_of(library)
            if version >= NEEDED:
                return place
            seen.append(version_text(version))
    there = f"NCCL here is {', '.join(seen)}" if seen else f"there is no {FILE} here"
    raise CannotRun(f"{there}; two ranks on one GPU need 2.30: give it with --nccl (docs/gpu_check.md)")


def two_ranks_on_one_gpu(visit: Visit) -> str:
    """Runs the engine's tests on GPUs, trains with two processes, and checks how a process ends that has lost the other
    process. This NCCL lets ranks share a GPU."""
    if visit.gpu is None:
        raise CannotRun("no GPU")
    with tempfile.TemporaryDirectory(prefix="hvd_bench-nccl-") as scratch:
        folder = find(visit.nccl, visit.folders, Path(scratch))
        version = version_text(version_of(folder / FILE))
        libraries = ":".join(filter(None, [str(folder), visit.environment.get("LD_LIBRARY_PATH")]))
        environment = {**ENVIRONMENT, "LD_LIBRARY_PATH": libraries}
        tests = [test for test in visit.place.gpu_tests() if "engine" in test.name or "nccl" in test.name]
        if not tests:
            raise CannotRun("this build has no tests of the engine with label gpu")
        shared = [GpuTest(f"nccl-{t.name}", t.command, t.seconds, {**t.environment, **environment}) for t in tests]
        tested = checks.run_all(visit, shared, skips=False)
        # Two processes train with a captured graph. Then one process is stopped. The other process must abort and
        # report the stopped process.
        launcher = visit.place.program("mpirun") or shutil.which("mpirun")
        if launcher is None:
            raise PartFailed(f"NCCL {version}: tests {tested}; there is no mpirun for two processes")
        command = [launcher, "-n", "2", visit.program("hvd_bench"), "--model", "resnet50", "--device", "cuda"]
        command += ["--dtype", visit.sizes.main_dtype, "--comm", "nccl", "--share-gpus"]
        command += ["--nccl-max-ctas", str(MAX_CTAS), "--batch-size", "32", "--num-warmup-batches", "10"]
        short = ("--num-iters", "30", "--max-time", "20", "--no-db")
        trained = speed(visit.run("nccl-two-ranks", [*command, *short], environment=environment))
        endless = ["--num-iters", "1000000", "--max-time", "600", "--no-check", "--no-db"]
        endless += ["--startup-deadline-seconds", str(STARTUP_SECONDS), "--deadline-seconds", str(DEADLINE_SECONDS)]
        watch = [sys.executable, str(Path(__file__).with_name("stop_a_rank.py")), f"{WATCH_SECONDS:.0f}"]
        stopped = visit.run("nccl-stopped-rank", [*watch, *command, *endless], environment=environment)
        if stopped.code != 0:
            raise PartFailed(f"NCCL {version}: tests {tested}; by two ranks {trained}; {stopped.last_line()}")
        return f"NCCL {version}: tests {tested}; ResNet-50 by two ranks {trained}; {stopped.last_line()}"
