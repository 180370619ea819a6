"""Parts that the tests of hvdb.campaign share: paths, and functions that make specs, sites and plans in one line."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import subprocess
import sys
import unittest.mock
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).resolve().parent / "stand_ins"
SCRIPTS = str(REPOSITORY / "scripts")
sys.path.insert(0, SCRIPTS)
sys.path.append(str(REPOSITORY / "tests" / "scripts"))

from limits import HANG, slowness  # noqa: E402

from hvdb.base import record  # noqa: E402  (the path must be set first)
from hvdb.base.errors import HvdbError  # noqa: E402
from hvdb.campaign import plan, site, spec  # noqa: E402
from hvdb.campaign.script import Layout  # noqa: E402
from hvdb.cli import main  # noqa: E402

__all__ = ["HANG", "slowness"]

LAYOUT = Layout(Path("/campaign"))
MINIMAL = """
name = "small"
models = ["vgg16"]
[weak]
batch_size = 4
"""


def spec_of(text: str = MINIMAL, **more: str) -> spec.Spec:
    """Reads a spec from the TOML `text`, after the top-level keys `more`, whose values are TOML."""
    head = "".join(f"{key} = {value}\n" for key, value in more.items())
    with record.faults_of("spec.toml"):
        data = record.toml(head + text)
    return spec.from_data(data, "spec.toml")


def site_of(name: str = "slurm-4gpu", *assignments: str) -> site.Site:
    return site.read(name, assignments)


def plan_of(study: spec.Spec | None = None, machine: site.Site | None = None) -> plan.Plan:
    return plan.make(study or spec_of(), machine or site_of())


def fault(act: object, *arguments: object) -> str:
    """Returns the text of the HvdbError that `act(*arguments)` must raise. The text must be one line."""
    try:
        act(*arguments)  # type: ignore[operator]
    except HvdbError as error:
        text = str(error)
        assert "\n" not in text, f"not one line: {text}"
        return text
    raise AssertionError("no error")


def campaign_here(*arguments: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `hvdb campaign` in this process, which is quicker than a new process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        unittest.mock.patch.dict(os.environ, environment or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(["campaign", *map(str, arguments)])
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())


def campaign(*arguments: object, timeout: float = HANG, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/campaign in a new process, as a user does."""
    command = [str(REPOSITORY / "scripts" / "campaign"), *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": timeout, "check": False}
    return subprocess.run(command, env={**os.environ, **environment}, **options)


def rows(store: Path, sql: str) -> list[tuple]:
    """Returns all rows of a query on a store."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        return connection.execute(sql).fetchall()
