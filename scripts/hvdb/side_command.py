"""What one side of a gate runs, from the user's text: `[NAME=value ...] [module:NAME ...] [PROGRAM] options`.

    'OMP_WAIT_POLICY=active'               another environment
    'LD_LIBRARY_PATH=/opt/onednn/lib'      another library
    'module:onednn/3.7'                    the same, as an environment module
    'build/mine/bin/hvd_bench'             another program
    'commit:main'                          the program of another commit, built in a worktree of its own
    '--schedule negotiated'                other options

The text comes from the user's own command line, not from a store; it is split into words, and no shell reads it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdb.errors import HvdbError

# Options that the gate itself gives to every run.
_OWN = ("--db", "--no-db", "--json", "--quiet", "--timeline-filename", "--profile")
_BUILD_SECONDS = 3600


@dataclass(frozen=True)
class Side:
    """The parts of a side's text. program: None for the installed hvd_bench.

    text: what the user wrote, with the commit by its hash: a branch may move before the gate goes on.
    """

    text: str
    variables: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    commit: str | None = None
    program: Path | None = None
    options: tuple[str, ...] = ()


def parse(text: str, name: str) -> Side:
    """name: of the option that `text` was given to, for messages. Errors: HvdbError."""
    words = _split(text, name)
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
    commit = program = None
    if words and words[0].startswith("commit:"):
        revision = words.pop(0).removeprefix("commit:")
        about = f"{name} commit:{revision}"
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}", about=about)
        text = text.replace(f"commit:{revision}", f"commit:{commit}", 1)
    elif words and not words[0].startswith("-"):
        program = Path(words.pop(0))
    return Side(text, variables, tuple(modules), commit, program, require_options(words, name))


def split_options(text: str, name: str) -> tuple[str, ...]:
    """`text` as options of hvd_bench. Errors: HvdbError."""
    return require_options(_split(text, name), name)


def _split(text: str, name: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise HvdbError(f"{name} '{text}': {str(error).lower()}") from None


def require_options(words: Sequence[str], name: str) -> tuple[str, ...]:
    """`words` as options that leave the results to the gate. Errors: HvdbError."""
    for word in words:
        option = word.partition("=")[0].replace("_", "-")
        if option in _OWN:
            raise HvdbError(f"{name}: {option} is the gate's own; leave it out")
    if words and not words[0].startswith("-"):
        raise HvdbError(f"{name}: '{words[0]}' is no option of hvd_bench")
    return tuple(words)


def with_modules(side: Side, words: Sequence[str]) -> list[str]:
    """`words` behind `module load`, where the side asks for modules."""
    if not side.modules:
        return list(words)
    # A module is a function of the login shell. Names and words are arguments; the shell does not read them as code.
    load = 'count=$1; shift; module load "${@:1:count}" && shift "$count" && exec "$@"'
    return ["bash", "-lc", load, "hvdb", str(len(side.modules)), *side.modules, *words]


def built(side: Side, folder: Path) -> Path:
    """The program of the side's commit, built below `folder` unless it is there already.

    Builds with scripts/build of that commit, which takes minutes. Errors: HvdbError.
    """
    about = f"commit:{side.commit}"
    tree = folder / side.commit
    program = tree / "build" / "release" / "bin" / "hvd_bench"
    if os.access(program, os.X_OK):
        return program
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _git("worktree", "add", "--detach", str(tree.absolute()), side.commit, about=about)
    log = folder / f"{side.commit}.log"
    with log.open("wb") as output:
        code = subprocess.run(
            [str(tree / "scripts" / "build"), "release"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            timeout=_BUILD_SECONDS,
            check=False,
        ).returncode
    if code != 0 or not os.access(program, os.X_OK):
        raise HvdbError(f"{about}: scripts/build release ended with exit code {code}; see {log}")
    return program


def _git(*words: str, about: str) -> str:
    if not shutil.which("git"):
        raise HvdbError(f"{about}: git is not installed")
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HvdbError(f"{about}: git {words[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
    return done.stdout.strip()
