"""The libraries whose collectives are measured: where each is, and how to compile and start its program."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hvdb.base import process
from hvdb.base.errors import HvdbError

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / "build" / "peers"  # scripts/install_deps --peers
PROGRAMS = ROOT / "build" / "peer_programs"
SOURCES = ROOT / "bench" / "peers"
OURS = {"ours": "registered", "ours_plain": "plain"}  # library -> the memory that our engine gets
INTELS = ("intelmpi", "oneccl")
NAMES = (*OURS, "system", "openmpi", "mpich", *INTELS, "gloo")

CORES, OVERSUBSCRIBED = "cores", "oversubscribed"
OPEN_MPI = {CORES: ["--bind-to", "core"], OVERSUBSCRIBED: ["--oversubscribe", "--bind-to", "none"]}
MPICH = {CORES: ["-bind-to", "core"], OVERSUBSCRIBED: []}
# These settings make a waiting rank give up its core where ranks share cores. Open MPI yields by itself, Gloo sleeps in
# its sockets, and MPICH's settings did not help.
YIELD = ["-genv", "I_MPI_PIN", "0", "-genv", "I_MPI_THREAD_YIELD", "3", "-genv", "CCL_YIELD", "sched_yield"]
INTEL = {CORES: ["-genv", "I_MPI_PIN", "1"], OVERSUBSCRIBED: YIELD}


class Library(NamedTuple):
    """placing: class -> the launcher's words that place the ranks. rank: the words that start a rank.

    source: file of bench/peers that `compiler` compiles into `program`; "": the program must already exist.
    """

    version: str
    launcher: str
    placing: Mapping[str, Sequence[str]]
    program: Path
    rank: Sequence[str]
    compiler: Sequence[str] = ()
    source: str = ""
    link: Sequence[str] = ()
    variables: Mapping[str, str] = MappingProxyType({})


def cores() -> int:
    """Returns the number of cores that this process may use (Linux). Their hardware threads count once."""
    folders = [Path(f"/sys/devices/system/cpu/cpu{number}/topology") for number in os.sched_getaffinity(0)]
    siblings = [folder / "thread_siblings_list" for folder in folders]
    return len({file.read_text(encoding="utf-8") if file.exists() else str(file) for file in siblings})


def find(name: str, engine: Path) -> Library:
    """Returns the library of NAMES. engine: our program. Errors: OSError if the library is not installed."""
    mpirun = shutil.which("mpirun", path="/usr/bin:/usr/local/bin") or shutil.which("mpirun") or ""
    program, folder = PROGRAMS / name, PEERS / ("torch" if name == "gloo" else name)
    bin, lib, source = folder / "bin", folder / "lib", "mpi_collectives.cpp"
    if name in OURS or name == "system":
        asked = ["git", "describe", "--always", "--dirty"] if name in OURS else [mpirun, "--version"]
        if not mpirun:
            raise FileNotFoundError("there is no mpirun")
        said = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT, timeout=30).stdout
        version = (said.splitlines() or ["unknown"])[0][:100]
        if name in OURS:
            return Library(version, mpirun, OPEN_MPI, engine, [str(engine), OURS[name]])
        compiler = [str(Path(mpirun).with_name("mpicxx"))]
        return Library(version, mpirun, OPEN_MPI, program, [str(program)], compiler, source)
    version = (folder / "wheels.txt").read_text(encoding="utf-8").strip()[:200]
    if name == "gloo":
        script = str(Path(__file__).with_name("gloo_rank.py"))
        rank, compiler = [str(bin / "python"), "-B", script, str(program)], ["g++", "-shared", "-fPIC"]
        return Library(version, mpirun, OPEN_MPI, program, rank, compiler, "collectives.cpp")
    launcher, rank, compiler = str(bin / "mpirun"), [str(program)], [str(bin / "mpicxx")]
    if name not in INTELS:
        return Library(version, launcher, OPEN_MPI if name == "openmpi" else MPICH, program, rank, compiler, source)
    compiler, link = [str(bin / "mpigxx")], [f"-Wl,-rpath,{lib}", "-lccl"] if name == "oneccl" else []
    variables = {"I_MPI_ROOT": str(folder), "PATH": f"{bin}:/usr/bin:/bin"}
    variables |= {"CCL_ROOT": str(folder), "CCL_LOG_LEVEL": "error"}
    source = "ccl_collectives.cpp" if name == "oneccl" else source
    return Library(version, launcher, INTEL, program, rank, compiler, source, link, variables)


def build(library: Library) -> str:
    """Compiles the library's program if a source is newer. Returns the version, and the first digits of the program's
    SHA-256. Errors: HvdbError with the compiler's first error."""
    program, newest = library.program, max(file.stat().st_mtime for file in SOURCES.iterdir())
    if library.source and not (program.exists() and program.stat().st_mtime > newest):
        program.parent.mkdir(parents=True, exist_ok=True)
        sources = dict.fromkeys(str(SOURCES / name) for name in ("collectives.cpp", library.source))
        words = [*library.compiler, "-std=c++20", "-O3", f"-I{ROOT}", *sources, *library.link, "-o", str(program)]
        variables = {**os.environ, **library.variables}
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["the compiler failed"]
            raise HvdbError(f"{program.name} does not compile: {lines[0]}")
    if not program.exists():
        raise HvdbError(f"no program at {program}: scripts/build release --target engine_collectives")
    return f"{library.version}; program {hashlib.sha256(program.read_bytes()).hexdigest()[:12]}"


def last_words(text: str) -> str:
    """Returns the line of a launch's output that explains best why the launch failed: the last line of a measuring
    program that does not blame another rank, else the last line that is neither a result nor a warning, else ""."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"^[^{]*\w", line) and "warn" not in line.lower()]
    programs = [line for line in lines if re.match(r"(rank \d+|\w+_collectives): ", line)]
    return ([line for line in programs if not line.endswith("another rank failed")] or lines or [""])[-1][:160]


def launch(
    library: Library, placing: Sequence[str], ranks: int, words: Sequence[str], seconds: float
) -> tuple[dict[str, dict], str | None]:
    """Makes one launch of at most `seconds`. words: the arguments of bench/peers/collectives.h after FILE.

    Returns cell -> {"seconds": [...], "wrong": N} for what was measured, and why the launch failed, or None.
    """
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    failure = None
    with tempfile.TemporaryDirectory(prefix="peers.", dir=memory) as folder, tempfile.TemporaryFile() as output:
        page = Path(folder, "page")
        page.touch()
        command = [library.launcher, "-np", str(ranks), *placing, *library.rank, str(page), *words]
        try:
            process.run(command, library.variables, seconds, output=output)
        except process.RunFailed as error:
            failure = error.why
        except OSError as error:
            failure = f"cannot be started: {error.strerror}"
        output.seek(0)
        text = output.read().decode(errors="replace")
    if failure and "took longer" not in failure and (said := last_words(text)):
        failure = f"{failure}: {said}"
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"cell"') and line.endswith("}")]
    measured = {row["cell"]: {"seconds": [1e-9 * t for t in row["nanoseconds"]], "wrong": row["wrong"]} for row in rows}
    return measured, failure
