"""Finds the project's files, and reads the options of hvd_bench.

Only this module distinguishes a checkout from an installation.
A checkout has the data files in results/ and slurm/. The wheel and `cmake --install` put these files into hvdb/data.
Uses only the standard library, because hvdb.campaign uses this module on login nodes.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from typing import Any

from hvdb.base.errors import HvdbError

BENCH = "hvd_bench"  # the program that measures
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "data"
# The root of the checkout that this package belongs to; None in an installation.
CHECKOUT = None if _INSTALLED.is_dir() else _PACKAGE.parents[1]
_RESULTS = CHECKOUT / "results" if CHECKOUT else _INSTALLED
_SLURM = CHECKOUT / "slurm" if CHECKOUT else _INSTALLED

SCHEMA = _RESULTS / "schema.sql"
SCHEMA_2 = _RESULTS / "schema_2.sql"  # the tables that schema version 2 adds to those of version 1
NAMES = _RESULTS / "names.json"
OPTIONS = _RESULTS / "options.json"  # what `hvd_bench --describe-options` prints
PUBLISHED = _RESULTS / "published.csv"
SITES = _SLURM / "sites"
SPECS = _SLURM / "specs"
JOB_BODY = _SLURM / "job_body.sh"
STEPS = _RESULTS / "steps"


def recorded_stores() -> list[Path]:
    """Returns the stores that are checked in with the sources. An installation has no such stores."""
    return sorted(CHECKOUT.glob("results/recorded/*/*.db")) if CHECKOUT else []


def shipped_steps() -> dict[str, Path]:
    """Returns name -> file of the recorded steps that ship with hvd_bench."""
    return {file.stem: file for file in sorted(STEPS.glob("*.replay"))}


def step(named: str) -> Path:
    """Returns the file of the recorded step that `named` means, by the rule of bench/world/shipped_steps.h.

    The name of a step that ships means this step, and "./gpt2" a file. Errors: HvdbError if `named` has no "/" and no
    ".", and neither a step nor a file is called so.
    """
    shipped = shipped_steps()
    if not {"/", "."} & set(named) and named not in shipped and not Path(named).exists():
        raise HvdbError(f"{named}: there is no such file, and the steps that ship are {', '.join(shipped)}")
    return shipped.get(named, Path(named))


def named(file: Path) -> str:
    """Returns the path of one of the project's files in the form that texts show.

    The path is relative to the checkout, or the absolute path in an installation.
    """
    return str(file.relative_to(CHECKOUT) if CHECKOUT else file)


def called(command: str) -> str:
    """Returns what a person types to start `command`: "scripts/merge" if this script exists, else "hvdb merge"."""
    return f"scripts/{command}" if CHECKOUT and (CHECKOUT / "scripts" / command).is_file() else f"hvdb {command}"


def hvd_bench() -> Path | None:
    """Returns the absolute path of the hvd_bench that belongs to this package.

    In a checkout: the path of the release build's program, even if nothing was built. In an installation: the program
    in bin/ of the prefix that contains this package, else the first hvd_bench on the PATH, else None.
    """
    if CHECKOUT:
        return CHECKOUT / "build" / "release" / "bin" / BENCH
    for prefix in _PACKAGE.parents:
        program = prefix / "bin" / BENCH
        if program.is_file() and os.access(program, os.X_OK):
            return program
    installed = shutil.which(BENCH)
    return Path(installed).absolute() if installed else None


@functools.cache
def of_training() -> dict[str, dict[str, Any]]:
    """Returns the rows of bench/world/training_options.cpp by name without "--", in the order of --help."""
    document = json.loads(OPTIONS.read_text(encoding="utf-8"))
    return {row["names"].removeprefix("--"): row for row in document["train"]}


def find_program(named: Path | None = None) -> Path:
    """Returns the hvd_bench to run: `named`, else $HVD_BENCH, else hvd_bench(), else the first on the PATH.

    Errors: HvdbError if there is no such program.
    """
    if named:
        if not (named.is_file() and os.access(named, os.X_OK)):
            raise HvdbError(f"--program: no program at {named}: run scripts/build, or name another")
        return named.absolute()
    own = hvd_bench()
    for program in (os.environ.get("HVD_BENCH"), own and shutil.which(own), shutil.which(BENCH)):
        if program:
            return Path(program).absolute()
    built = f"at {own}" if own else f"beside {called('rerun')}"
    raise HvdbError(f"no {BENCH} {built} or on the PATH: build or install it, or name one: --program")
