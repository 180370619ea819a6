"""Finds our files. Only this module distinguishes a checkout from an installation.

A checkout has the data in results/ and slurm/. The wheel and `cmake --install` put the same files into hvdb/data.
Standard library only: hvdb.campaign uses it on login nodes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BENCH = "hvd_bench"  # the program that measures
_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "data"
# The root of the checkout that this package belongs to; None in an installation.
CHECKOUT = None if _INSTALLED.is_dir() else _PACKAGE.parents[1]
_RESULTS = CHECKOUT / "results" if CHECKOUT else _INSTALLED
_SLURM = CHECKOUT / "slurm" if CHECKOUT else _INSTALLED

SCHEMA = _RESULTS / "schema.sql"
SCHEMA_2 = _RESULTS / "schema_2.sql"  # tables that version 2 adds
PUBLISHED = _RESULTS / "published.csv"
SITES = _SLURM / "sites"
SPECS = _SLURM / "specs"
JOB_BODY = _SLURM / "job_body.sh"


def recorded_stores() -> list[Path]:
    """Returns the stores of the runs that were recorded with the sources. An installation has none."""
    return sorted(CHECKOUT.glob("results/recorded/*/*.db")) if CHECKOUT else []


def named(file: Path) -> str:
    """Returns one of our files' name for a text: relative to the checkout, or the path where the file is installed."""
    return str(file.relative_to(CHECKOUT) if CHECKOUT else file)


def called(command: str) -> str:
    """Returns how a person starts `command`: "scripts/merge" in a checkout with that script, else "hvdb merge"."""
    return f"scripts/{command}" if CHECKOUT and (CHECKOUT / "scripts" / command).is_file() else f"hvdb {command}"


def hvd_bench() -> Path | None:
    """Returns the absolute path of the hvd_bench that belongs to this package.

    In a checkout: the program of the release build, even if there is no build. In an installation: the program in bin/
    of the prefix that contains this package, else the first program on the PATH, else None.
    """
    if CHECKOUT:
        return CHECKOUT / "build" / "release" / "bin" / BENCH
    for prefix in _PACKAGE.parents:
        program = prefix / "bin" / BENCH
        if program.is_file() and os.access(program, os.X_OK):
            return program
    found = shutil.which(BENCH)
    return Path(found).absolute() if found else None
