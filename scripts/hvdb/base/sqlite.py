"""Chooses the SQLite library with which hvdb reads stores: Python's own, or pysqlite3's where Python's is too old.

All modules of hvdb import sqlite3 from here, and open files with connect(); tests/house checks it. Uses only the
standard library, because hvdb.campaign uses this module on login nodes.
"""

from __future__ import annotations

import contextlib
import sqlite3 as of_python
import sys
from types import ModuleType

from hvdb.base.errors import HvdbError

# The first version with STRICT tables. An older one calls every store damaged ("malformed database schema").
# Source: https://www.sqlite.org/stricttables.html
OLDEST = (3, 37, 0)


def _choose() -> ModuleType:
    if of_python.sqlite_version_info < OLDEST:
        with contextlib.suppress(ImportError):
            import pysqlite3  # PyPI's pysqlite3-binary brings an SQLite of its own

            return pysqlite3
    return of_python


sqlite3 = _choose()


def connect(database: str, **options: object) -> sqlite3.Connection:
    """Opens a database with the options of sqlite3.connect(). Errors: HvdbError if SQLite is too old; sqlite3.Error."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise HvdbError(
            f"SQLite {sqlite3.sqlite_version} of Python's module {sqlite3.__name__} is too old for stores, which need "
            f"3.37: run `{sys.executable} -m pip install pysqlite3-binary`, or let HVD_PYTHON name another Python"
        )
    return sqlite3.connect(database, **options)
