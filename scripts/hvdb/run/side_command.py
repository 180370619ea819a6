"""Parses the text by which a user describes one side of a gate: `[NAME=value ...] [module:NAME ...] [PROGRAM] options`.

    'OMP_WAIT_POLICY=active'               sets an environment variable
    'LD_LIBRARY_PATH=/opt/onednn/lib'      chooses a library by its folder
    'module:onednn/3.7'                    chooses a library by an environment module
    'build/mine/bin/hvd_bench'             chooses the program
    'commit:main'                          builds the program from a commit, in a worktree of its own
    '--schedule negotiated'                adds options

The text comes from the user's own command line, not from a store. No shell reads the text.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdb.base import process
from hvdb.base.errors import HvdbError

# Options that a cell or a side must not set. The gate itself chooses where results are written, and it does not measure
# traced runs.
_OWN = ("--db", "--no-db", "--json", "--quiet", "--timeline-filename", "--profile")
_BUILD_SECONDS = 3600
# Variables that git sets for hooks among others. Inside a worktree they would name another repository, or the index of
# another worktree. Source: git rev-parse --local-env-vars (git 2.39).
_OF_WORK_TREE = ("GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
_OF_REPOSITORY = (
    *_OF_WORK_TREE,
    "GIT_DIR",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
)


@dataclass(frozen=True)
class Side:
    """The parts of a side's text. program: None for the installed hvd_bench.

    text: the side's text in one fixed spelling. It has a commit's hash in place of the commit's name, because a branch
    may move before the gate is continued.
    """

    text: str
    variables: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    commit: str | None = None
    program: Path | None = None
    options: tuple[str, ...] = ()


def parse(text: str, name: str) -> Side:
    """Parses the text of a side. name: the option that has the value `text`, for error texts. Errors: HvdbError."""
    words = split_words(text, name)
    variables, modules = _take_settings(words, name)
    commit = program = None
    if words and words[0].startswith("commit:"):
        revision = words.pop(0).removeprefix("commit:")
        about = f"{name} commit:{revision}"
        commit = _commit(revision, about)
    elif words and not words[0].startswith("-"):
        program = _program(words.pop(0), name)
    chosen = [f"commit:{commit}"] if commit else [str(program)] if program else []
    settings = [*(f"{key}={value}" for key, value in variables.items()), *(f"module:{module}" for module in modules)]
    text = shlex.join([*settings, *chosen, *words])
    return Side(text, variables, tuple(modules), commit, program, require_options(words, name))


def _commit(revision: str, about: str) -> str:
    """Returns the hash of the commit that `revision` names. Errors: HvdbError, which says how to fetch the commit."""
    try:
        return _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}", about=about)
    except HvdbError as error:
        if not str(error).endswith("Needed a single revision"):
            raise
    shallow = _git("rev-parse", "--is-shallow-repository", about=about) == "true"
    words = ["git", "fetch", *(["--unshallow"] if shallow else []), "origin"]
    if re.fullmatch(r"\w[\w./-]*", revision) and not re.fullmatch(r"[0-9a-f]{7,40}|HEAD", revision):
        branch = revision.removeprefix("origin/")
        words = ["git", "fetch", "origin", f"{branch}:{'' if branch == revision else 'refs/remotes/'}{revision}"]
    raise HvdbError(
        f"{about}: this {'shallow ' if shallow else ''}clone has no such commit; to fetch it: {shlex.join(words)}"
    )


def _take_settings(words: list[str], name: str) -> tuple[dict[str, str], list[str]]:
    """Removes the variables and modules at the beginning of `words`, and returns them."""
    variables: dict[str, str] = {}
    modules: list[str] = []
    while words:
        if match := re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", words[0], re.DOTALL):
            variables[match[1]] = match[2]
        elif words[0].startswith("module:"):
            modules.append(words[0].removeprefix("module:"))
        else:
            break
        words.pop(0)
    _require_preloaded(variables, name)
    return variables, modules


def tool_command(text: str, name: str) -> list[str]:
    """Returns the command of a side that is another benchmark: `[NAME=value ...] [module:NAME ...] PROGRAM [words]`.

    Errors: HvdbError if there is no such program. A program of a module is looked for when it runs.
    """
    words = split_words(text, name)
    variables, modules = _take_settings(words, name)
    if not words:
        raise HvdbError(f"{name} '{text}': names no program")
    if not modules:
        words[0] = str(_program(words[0], name))
    return in_surroundings(Side(text, variables, tuple(modules)), words)


def _require_preloaded(variables: Mapping[str, str], name: str) -> None:
    """Errors: HvdbError for a file of LD_PRELOAD that is not there: the linker would go on without it."""
    for file in re.split("[ :]+", variables.get("LD_PRELOAD", "")):
        if "/" in file and "$" not in file and not Path(file).exists():
            raise HvdbError(f"{name}: LD_PRELOAD names {file}, and there is no such file")


def _program(word: str, name: str) -> Path:
    """Returns the path of the program `word`, found as by a shell. Errors: HvdbError if there is no such program."""
    path = Path(word if "/" in word else shutil.which(word) or word)
    with contextlib.suppress(RuntimeError):  # nobody knows whose home ~ is: then there is no such program
        path = path.expanduser()
    if path.is_file() and not os.access(path, os.X_OK):
        raise HvdbError(f"{name}: '{word}' is a file, and none that may be run (chmod +x)")
    if not path.is_file():
        raise HvdbError(f"{name}: there is no program '{word}' {'' if '/' in word else 'on the PATH'}".rstrip())
    return path.absolute()


def split_words(text: str, name: str) -> list[str]:
    """Splits `text` into words by the rules of a shell. Errors: HvdbError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise HvdbError(f"{name} '{text}': {str(error).lower()}") from None


def work_of(text: str, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the command of a cell, ("coll",) or () for a training, and its options. Errors: HvdbError."""
    words = split_words(text, name)
    command = tuple(words[:1]) if words[:1] == ["coll"] else ()
    return command, require_options(words[len(command) :], name)


def require_options(words: Sequence[str], name: str) -> tuple[str, ...]:
    """Returns `words` if they are options and none of them is in _OWN. Errors: HvdbError."""
    for word in words:
        if option_of(word) in _OWN:
            raise HvdbError(f"{name}: {option_of(word)} is the gate's own; leave it out")
    if words and not words[0].startswith("-"):
        raise HvdbError(f"{name}: '{words[0]}' is not an option of hvd_bench")
    return tuple(words)


def option_of(word: str) -> str:
    """Returns the name of the option in `word`, written with hyphens: --max-time for --max_time=5."""
    return word.partition("=")[0].replace("_", "-")


def in_surroundings(side: Side, words: Sequence[str]) -> list[str]:
    """Returns a command that sets the side's variables, loads its modules and then runs `words`.

    The command does this itself, because a launcher may start ranks on other nodes.
    """
    if side.variables:
        words = ["env", *(f"{name}={value}" for name, value in side.variables.items()), *words]
    if not side.modules:
        return list(words)
    # `module` is a function of the login shell. Modules and words are arguments of the shell, which therefore does not
    # run them as code.
    load = 'count=$1; shift; module load "${@:1:count}" && shift "$count" && exec "$@"'
    return ["bash", "-lc", load, "hvdb", str(len(side.modules)), *side.modules, *words]


def built(side: Side, folder: Path) -> Path:
    """Returns the program of the side's commit. Builds the program below `folder` if it does not exist there.

    The build runs the commit's own scripts/build and takes minutes. Errors: HvdbError.
    """
    about = f"commit:{side.commit}"
    tree = folder.absolute() / side.commit
    program = tree / "build" / "release" / "bin" / "hvd_bench"
    # The file `finished` marks a complete build, because a build that was killed may leave half a program.
    finished = tree / "build" / "release" / "built-for-gate"
    if tree.exists():
        _require_worktree(tree, side.commit, about)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _git("worktree", "prune", about=about)
        _git("worktree", "add", "--force", "--detach", str(tree), side.commit, about=about)
    if finished.exists() and os.access(program, os.X_OK):
        return program
    log = folder / f"{side.commit}.log"
    try:
        with log.open("wb") as output:
            words = ["env", *(f"--unset={name}" for name in _OF_REPOSITORY), str(tree / "scripts" / "build"), "release"]
            process.run(words, {}, _BUILD_SECONDS, output=output)
    except process.RunFailed as error:
        raise HvdbError(f"{about}: scripts/build release {error.why}; see {log}") from error
    if not os.access(program, os.X_OK):
        raise HvdbError(f"{about}: scripts/build release left no {program}; see {log}")
    finished.touch()
    return program


def _require_worktree(tree: Path, commit: str, about: str) -> None:
    """Errors: HvdbError unless `tree` is a worktree of today's repository that holds `commit`, whole and unchanged.

    A folder of another clone may look the same, but its build would record another commit, or none.
    """
    today = Path(_git("rev-parse", "--git-common-dir", about=about)).resolve()
    found: list[str] = []
    if (tree / ".git").exists():  # else git would answer for a repository around the folder
        with contextlib.suppress(HvdbError):  # for example, the clone is gone
            for ask in ("rev-parse --git-common-dir", "rev-parse HEAD", "status --porcelain --untracked-files=no"):
                found.append(_git("-C", str(tree), *ask.split(), about=about, without=_OF_REPOSITORY))
    if len(found) < 3 or (tree / found[0]).resolve() != today or found[1:] != [commit, ""]:
        raise HvdbError(
            f"{about}: {tree} is not a whole and unchanged worktree of {today} at this commit; remove the folder, or "
            "name another one with --worktrees"
        )


def _git(*words: str, about: str, without: Sequence[str] = _OF_WORK_TREE) -> str:
    """Returns what git prints. without: the variables that git does not get. Errors: HvdbError with git's reason."""
    if not shutil.which("git"):
        raise HvdbError(f"{about}: git is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment["LC_ALL"] = "C"  # _reason() and _commit() read git's English
    # A path in what git prints may be no UTF-8.
    done = subprocess.run(
        ["git", *words], capture_output=True, text=True, errors="surrogateescape", check=False, env=environment
    )
    if done.returncode != 0:
        raise HvdbError(f"{about}: git {words[0]}: {_reason(done.stderr)}")
    return done.stdout.strip()


def _reason(said: str) -> str:
    """Returns why git failed: its first line of an error, and the remedy that git prints for another user's clone."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["failed"]
    why = next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])
    remedy = f"; if you trust its owner: {lines[-1]}" if "dubious ownership" in why and len(lines) > 1 else ""
    return why.removeprefix("fatal: ").removeprefix("error: ") + remedy
