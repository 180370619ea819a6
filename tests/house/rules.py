"""The repository's code rules, as functions that return a text's violations. docs/architecture.md gives the reasons."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# The arrows of docs/architecture.md. A layer may include itself and every layer that its arrows reach.
ARROWS = {
    "engine/base": (),
    "engine/core": ("engine/base",),
    "engine/sim": ("engine/core", "engine/base"),
    "engine/gpu": ("engine/base",),
    "engine/comm": ("engine/gpu", "engine/base"),
    "engine/runtime": ("engine/comm", "engine/core", "engine/base"),
    "models": ("engine/gpu", "engine/base"),
    "models/cudnn/kernels": ("models",),
    "models/cudnn/lowering": ("models/cudnn/kernels",),
    "models/cudnn/library": ("models/cudnn/lowering",),
    "models/cudnn/plan": ("models/cudnn/library",),
    "models/cudnn/run": ("models/cudnn/plan",),
    "bench/measure": ("engine/base",),
    "bench/store": ("bench/measure", "engine/base"),
    "bench/world": ("bench/store", "engine/runtime", "models/cudnn/run"),
    "bench/hardware": ("bench/world",),
    "bench/train": ("bench/hardware",),
    "bench/tune": ("bench/hardware",),
    "bench/session": ("bench/train", "bench/tune", "engine/sim"),
    "bench/coll": ("bench/tune",),
    "bench/cli": ("bench/session", "bench/coll"),
    "bench/micro": ("engine/runtime", "models/cudnn/run"),
    "bench/peers": ("engine/comm", "bench/measure"),
}
# Headers that no file of a folder may include, not even through other headers. `coll` has options of its own.
UNREACHABLE = {"bench/coll": ("bench/world/options.h", "bench/world/setup.h")}
# The arrows of the packages of scripts/hvdb. Modules of no package (hvdb.cli) may import all.
PYTHON_ARROWS = {
    "hvdb.base": (),
    "hvdb.read": ("hvdb.base",),
    "hvdb.judge": ("hvdb.read",),
    "hvdb.pytorch": ("hvdb.read",),
    "hvdb.ddp": ("hvdb.pytorch",),
    "hvdb.predict": ("hvdb.judge",),
    "hvdb.show": ("hvdb.judge",),
    "hvdb.run": ("hvdb.show",),
    "hvdb.campaign": ("hvdb.read",),
    "hvdb.commands": ("hvdb.run", "hvdb.campaign", "hvdb.predict"),
}
CPP = (".cpp", ".h", ".cu", ".cuh")
MAX_FILES_OF_FOLDER = 40
# Maps vendor headers to path prefixes of the files that own the vendor's handles, and the engine's headers of devices
# to their users. In engine/runtime only device_* knows devices.
VENDOR_OWNERS = {
    r"mpi\.h": (
        "engine/comm/mpi/",
        "bench/micro/engine_bench",
        "bench/peers/mpi_collectives",
        "bench/peers/ccl_collectives",
        "docs/examples/own_mpi/",
        "tests/",
    ),
    r"(oneapi/)?dnnl.*": ("models/onednn/",),
    r"oneapi/ccl.*": ("bench/peers/ccl_collectives",),
    r"cuda.*|curand.*": ("engine/gpu/", "models/cudnn/kernels/", "tests/cudnn/"),
    r"cublas.*": ("models/cudnn/", "tests/cudnn/"),
    r"cudnn.*": ("models/cudnn/", "tests/cudnn/"),
    r"nccl.*": ("engine/comm/nccl/",),
    r"engine/(comm|runtime)/device_.*": ("engine/comm/nccl/", "engine/runtime/device_", "bench/", "tests/"),
    r"hwloc.*": ("bench/store/numa_hwloc",),
    r"sqlite3\.h": ("bench/store/sqlite_handle", "bench/store/result_store", "bench/store/provenance", "tests/bench/"),
    r"CLI/.*": ("bench/cli/", "bench/micro/"),
    r"benchmark/.*": ("bench/micro/",),
    r"gtest/.*": ("tests/",),
    r"omp\.h": ("models/onednn/", "bench/"),
}
# Pure code includes no headers of threads, clocks, input or output.
PURE_FOLDERS = ("engine/core/", "engine/sim/")
PURE_FORBIDDEN_HEADERS = (
    "thread",
    "mutex",
    "shared_mutex",
    "condition_variable",
    "atomic",
    "future",
    "semaphore",
    "latch",
    "barrier",
    "stop_token",
    "iostream",
    "fstream",
    "cstdio",
    "filesystem",
    "random",
    "ctime",
    "sys/.*",
    "unistd.h",
    "pthread.h",
)
PURE_FORBIDDEN_WORDS = r"\b(?:steady_clock|system_clock|high_resolution_clock|utc_clock|rand|srand|time)\b\s*(?:::|\()"
# Functions that <algorithm> declares. A file that calls one must include <algorithm> itself: other headers include it
# only in some standard libraries, and other source files only in a unity build.
ALGORITHM = re.compile(
    r"\bstd::(?:ranges::)?((?:(?:all|any|none)_of|copy(?:_if|_n|_backward)?|count(?:_if)?|equal|fill(?:_n)?|find(?:_if(?:_not)?|"
    r"_first_of)?|for_each|generate(?:_n)?|is_sorted|(?:lower|upper)_bound|equal_range|lexicographical_compare|"
    r"(?:min|max|minmax)(?:_element)?|clamp|mismatch|nth_element|partition|(?:partial_|stable_)?sort|remove_if|replace(?:_if)?|"
    r"reverse|rotate|search|shuffle|transform|unique|adjacent_find|binary_search))(?:<[^;(){}]*>)?\("
)
# The first file reads the environment, once, for main(). nccl_log.cpp sets variables for NCCL. mpi/environment.cpp
# records which transport MPI was forced to use. vector_level.cpp reads HVD_MAX_CPU_ISA.
GETENV_OWNERS = (
    "bench/cli/main.cpp",
    "bench/cli/nccl_log.cpp",
    "engine/base/vector_level.cpp",
    "engine/comm/mpi/environment.cpp",
)
# doctor/mpi_probe.cpp and mpi/library.cpp end a child process, which must not return into its caller.
EXIT_OWNERS = (
    "bench/cli/doctor/mpi_probe.cpp",
    "bench/cli/main.cpp",
    "bench/cli/process_end.cpp",
    "engine/comm/mpi/library.cpp",
)
# In scripts/, only this module may import sqlite3, because the system's SQLite may be too old for stores.
SQLITE_OWNER = "hvdb.base.sqlite"
SQLITE = re.compile(r"^[ \t]*(?:import|from) sqlite3\b|\bsqlite3\.connect\(", re.MULTILINE)
MAX_LINES_CPP = 450
MAX_CODE_LINES = 600

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# Matches calls that end the process, also std::exit() and ::abort(). Does not match declarations or calls of members
# (x.abort(), x->abort(), T::abort()).
EXIT_CALL = re.compile(r"(?<![\w.>:~])(?:std::|::)?(?:_exit|_Exit|quick_exit|exit|abort|terminate)\s*\(")
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b|\b(?:un)?setenv\s*\(")


@dataclass(frozen=True)
class Violation:
    """The place where a text breaks a rule, and the fault."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def reachable(layer: str, arrows: Mapping[str, tuple[str, ...]] = ARROWS) -> set[str]:
    """Returns `layer` and all layers that its arrows reach."""
    layers = {layer}
    for target in arrows[layer]:
        layers |= reachable(target, arrows)
    return layers


def layer_of(path: str) -> str | None:
    """Returns the innermost layer of a repository path, or None for tests, docs and vendor headers."""
    return max((layer for layer in ARROWS if path.startswith(layer + "/")), key=len, default=None)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def code_only(text: str) -> str:
    """Returns C++ text in which spaces replace comments and the contents of strings."""
    text = BLOCK_COMMENT.sub(_blank, text)
    text = "\n".join(re.sub(r"//.*$", "", line) if '"' not in line else line for line in text.split("\n"))
    text = STRING.sub(lambda match: '"' + " " * (len(match[0]) - 2) + '"', text)
    return re.sub(r"//.*$", "", text, flags=re.MULTILINE)


def check_layers(path: str, text: str) -> list[Violation]:
    """Checks that files include other layers only along the arrows."""
    layer = layer_of(path)
    if layer is None:
        return []
    violations = []
    for match in INCLUDE.finditer(text):
        target = layer_of(match[2])
        if target is not None and target not in reachable(layer):
            violations.append(
                Violation(path, _line(text, match.start()), f"{layer} may not include {match[2]} ({target})")
            )
        if match[2].startswith("tests/"):
            violations.append(Violation(path, _line(text, match.start()), f"{layer} may not include {match[2]}"))
        if match[1] == '"' and "/" not in match[2]:
            violations.append(
                Violation(
                    path,
                    _line(text, match.start()),
                    f'"{match[2]}": project headers are included by their path from the root',
                )
            )
    return violations


def check_reach(texts: Mapping[str, str]) -> list[Violation]:
    """Checks that no file reaches a header of UNREACHABLE through its includes. texts: path from the root -> text."""
    includes = {path: [(m[2], _line(text, m.start())) for m in INCLUDE.finditer(text)] for path, text in texts.items()}
    violations = []
    for folder, headers in UNREACHABLE.items():
        for path in includes:
            if not path.startswith(folder + "/"):
                continue
            for header, line in includes[path]:
                for reached in {header, *_reached_from(header, includes)} & set(headers):
                    through = "" if reached == header else f" through {header}"
                    violations.append(Violation(path, line, f"{folder} may not include {reached}{through}"))
    return violations


def _reached_from(header: str, includes: Mapping[str, Iterable[tuple[str, int]]]) -> set[str]:
    reached: set[str] = set()
    open_headers = [header]
    while open_headers:
        for target, _ in includes.get(open_headers.pop(), ()):
            if target not in reached:
                reached.add(target)
                open_headers.append(target)
    return reached


def check_vendor_headers(path: str, text: str) -> list[Violation]:
    """Checks that only the files that own a vendor's handles include its headers."""
    violations = []
    if path == "tests/comm/nccl-2.19.3/nccl.h":  # a vendor's header itself
        return violations
    for match in INCLUDE.finditer(text):
        for pattern, owners in VENDOR_OWNERS.items():
            if re.fullmatch(pattern, match[2]) and not path.startswith(owners):
                what = f"<{match[2]}> belongs to {', '.join(owners)} only"
                violations.append(Violation(path, _line(text, match.start()), what))
    return violations


def check_purity(path: str, text: str) -> list[Violation]:
    """Checks that engine/core and engine/sim use no threads, clocks, randomness, input or output."""
    if not path.startswith(PURE_FOLDERS):
        return []
    violations = []
    for match in INCLUDE.finditer(text):
        if match[1] == "<" and any(re.fullmatch(name, match[2]) for name in PURE_FORBIDDEN_HEADERS):
            violations.append(Violation(path, _line(text, match.start()), f"pure code may not include <{match[2]}>"))
    code = code_only(text)
    for match in re.finditer(PURE_FORBIDDEN_WORDS, code):
        what = f"pure code takes time and randomness as arguments: {match[0]}"
        violations.append(Violation(path, _line(code, match.start()), what))
    return violations


def check_algorithm(path: str, text: str) -> list[Violation]:
    """Checks that every file with a call of a function of <algorithm> includes <algorithm> itself."""
    code = code_only(text)
    first = ALGORITHM.search(code)
    if first is None or any(match[2] == "algorithm" for match in INCLUDE.finditer(text)):
        return []
    return [Violation(path, _line(code, first.start()), f"std::{first[1]} needs #include <algorithm>")]


def _check_calls(path: str, text: str, pattern: re.Pattern[str], owners: tuple[str, ...], what: str) -> list[Violation]:
    if layer_of(path) is None or path.startswith(owners):
        return []
    code = code_only(text)
    return [
        Violation(path, _line(code, match.start()), f"{what}: {match[0].strip()}")
        for match in pattern.finditer(code)
        if not re.search(r"\b(?:void|bool|int|virtual|auto|inline)\s+$", code[: match.start()])
    ]


def check_environment(path: str, text: str) -> list[Violation]:
    """Checks that only main() reads environment variables."""
    return _check_calls(path, text, GETENV, GETENV_OWNERS, "main() reads the environment and hands it down")


def check_no_exit(path: str, text: str) -> list[Violation]:
    """Checks that only main() ends the process."""
    # In a class with a member abort(), the bare call abort() calls the member and does not end the process.
    declares_abort = re.search(r"\bvoid\s+(?:\w+::)*abort\s*\(", code_only(text)) is not None
    violations = _check_calls(path, text, EXIT_CALL, EXIT_OWNERS, "only main() ends the process")
    return [v for v in violations if not (declares_abort and v.text.endswith(": abort("))]


def code_lines(text: str) -> int:
    """Counts the lines of a script that are neither blank nor a comment."""
    return sum(1 for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#"))


def check_size(path: str, text: str) -> list[Violation]:
    """Checks that no C++ file has more than 450 lines, and no other more than 600 lines of code."""
    if PurePosixPath(path).suffix in CPP:
        lines, most = len(text.splitlines()), MAX_LINES_CPP
    else:
        lines, most = code_lines(text), MAX_CODE_LINES
    return [Violation(path, 1, f"{lines} lines, more than {most}")] if lines > most else []


def check_folders(paths: Iterable[str]) -> list[Violation]:
    """Checks that no folder has more than 40 files of source code."""
    sources = [PurePosixPath(path) for path in paths if path.endswith((*CPP, ".py"))]
    counts = Counter(str(path.parent) for path in sources)
    return [
        Violation(folder, 1, f"{count} files, more than {MAX_FILES_OF_FOLDER}: make rooms by subject")
        for folder, count in sorted(counts.items())
        if count > MAX_FILES_OF_FOLDER
    ]


def imports(modules: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Returns which of `modules` (name -> text) each of them imports, also in functions, and in which line."""
    graph: dict[str, dict[str, int]] = {}
    for name, text in modules.items():
        graph[name] = {}
        for node in ast.walk(ast.parse(text)):
            wanted: list[str] = []
            if isinstance(node, ast.ImportFrom):
                # `from a import b` imports the module a.b if there is one, else a name of the module a
                package = any(other.startswith(f"{name}.") for other in modules)
                words = [*name.split("."), "__init__"] if package else name.split(".")
                above = words[: -node.level] if node.level else []
                source = ".".join([*above, *filter(None, [node.module])])
                inner = [f"{source}.{alias.name}" for alias in node.names]
                wanted = [path if path in modules else source for path in inner]
            elif isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            for target in wanted:
                if target in modules and target != name:
                    graph[name].setdefault(target, node.lineno)
    return graph


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns the nodes of one circle in their order, or an empty list if there is none."""
    done: set[str] = set()

    def search(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        for target in graph[node]:
            if turn := search(target, [*path, node]):
                return turn
        done.add(node)
        return []

    return next((turn for node in graph if (turn := search(node, []))), [])


def check_python(modules: Mapping[str, str]) -> list[Violation]:
    """Checks that packages of hvdb import others only along PYTHON_ARROWS, and that no modules import in a circle.

    Checks also that only SQLITE_OWNER imports sqlite3. modules: dotted name -> text.
    """
    graph = imports(modules)
    violations = []
    for name, text in modules.items():
        if name != SQLITE_OWNER and (match := SQLITE.search(text)):
            what = f"{match[0].strip()}: {SQLITE_OWNER} chooses the library"
            violations.append(Violation(name, _line(text, match.start()), what))
    for name, targets in graph.items():
        package = ".".join(name.split(".")[:2])
        if package not in PYTHON_ARROWS:
            continue
        allowed = reachable(package, PYTHON_ARROWS)
        for target, line in targets.items():
            other = ".".join(target.split(".")[:2])
            if other != "hvdb" and other not in allowed:
                violations.append(Violation(name, line, f"{package} may not import {target}"))
    if names := circle(graph):
        violations.append(Violation(names[0], graph[names[0]][names[1]], f"a circle of imports: {' -> '.join(names)}"))
    return violations


MARKDOWN_NAME = re.compile(r"(?<![\w/.:$-])((?:\.{0,2}/)?(?:[\w.-]+/)*[\w-]+\.md)\b")
MACHINE_PATH = re.compile(r"(?<![\w.)\]}\"'/-])/(?:work|root)/[\w.-]")
URL = re.compile(r"https?://\S+")


def check_references(path: str, text: str, exists: Callable[[str], bool]) -> list[Violation]:
    """Checks that pages name only Markdown files that exist or are built (build/), and no path of a single machine."""
    violations = []
    plain = URL.sub(_blank, text)
    for match in MARKDOWN_NAME.finditer(plain):
        name = match[1]
        beside = str(PurePosixPath(path).parent / name)
        if not exists(name) and not exists(beside) and name != "README.md" and not name.startswith("build/"):
            violations.append(Violation(path, _line(plain, match.start()), f"names {name}, which is not here"))
    for match in MACHINE_PATH.finditer(plain):
        violations.append(Violation(path, _line(plain, match.start()), f"a path of one machine: {match[0]}"))
    return violations


OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Lines that name one of these programs are skipped, because the options in such a line belong to the program.
FOREIGN = re.compile(r"\b(?:cmake|ctest|apt-get|git|docker|pip|sbatch|bsub|ninja|perf|taskset|numactl)\b")


def options_named(readme: str) -> set[str]:
    """Returns this project's options that a page names."""
    options: set[str] = set()
    for line in readme.replace("\\\n", " ").split("\n"):
        if FOREIGN.search(line):
            continue
        # options before the program's name belong to the launcher
        line = re.sub(r"\b(?:mpirun|mpiexec|srun|jsrun|salloc)\b.*?(hvd_bench|`|$)", r"\1", line)
        options |= {match[0] for match in OPTION.finditer(line)}
    return options


def violations(files: Iterable[tuple[str, str]], exists: Callable[[str], bool]) -> list[Violation]:
    """Returns all violations of all rules in `files`, which are pairs of path from the root and text."""
    texts = dict(files)
    broken = check_reach({path: text for path, text in texts.items() if PurePosixPath(path).suffix in CPP})
    for path, text in texts.items():
        suffix = PurePosixPath(path).suffix
        if suffix in CPP:
            for rule in (
                check_layers,
                check_vendor_headers,
                check_purity,
                check_environment,
                check_no_exit,
                check_algorithm,
            ):
                broken += rule(path, text)
        if suffix in (*CPP, ".py", ".sh", ".cmake") or text.startswith("#!"):
            broken += check_size(path, text)
        broken += check_references(path, text, exists)
    return broken


def read_text(path: Path) -> str | None:
    """Returns the text of a file, or None if the file is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
