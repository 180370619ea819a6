"""Reads SQLite files that a stranger may have made. Evaluates no expression of such a file, and refuses a file whose
tables differ from those of the schema.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
Functions that check return a fault as text.
Source: https://www.sqlite.org/security.html, "Untrusted SQLite Database Files".
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdb.base.sqlite import sqlite3
from hvdb.read import schema

# sqlite3 raises these errors for a damaged file. The messages of these errors quote the file and may not be UTF-8.
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
# Maximum bytes of a text or blob that is read. A blob of this size has samples of one kind for 33 million steps.
MAX_BYTES = 256 << 20
LIMITS = {
    "SQLITE_LIMIT_LENGTH": MAX_BYTES,
    "SQLITE_LIMIT_SQL_LENGTH": 100_000,
    "SQLITE_LIMIT_COLUMN": 200,
    "SQLITE_LIMIT_EXPR_DEPTH": 200,
    "SQLITE_LIMIT_TRIGGER_DEPTH": 1,
    "SQLITE_LIMIT_LIKE_PATTERN_LENGTH": 100,
}
# Our schema never contains these words, not even in a comment. A schema with such a word comes from a stranger.
FOREIGN_CLAUSE = re.compile(r"\b(collate|conflict)\b", re.IGNORECASE)
SUPER_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def harden(connection: sqlite3.Connection) -> None:
    """Makes a connection safe for files from strangers. Call this before the first query.

    If table_fault() then finds no fault in an opened or attached file, SQLite evaluates no expression of that file.
    SQLite ignores CHECK constraints, because a stranger may have chosen those of the file. See own_checks().
    """
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "ignore_check_constraints = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    if hasattr(connection, "setlimit"):  # exists in Python 3.11 and newer
        for name, value in LIMITS.items():
            connection.setlimit(getattr(sqlite3, name), value)


@contextmanager
def own_checks(connection: sqlite3.Connection) -> Iterator[None]:
    """Lets SQLite evaluate CHECKs. Inside the `with`, write only to tables of schema.make_temporary_tables()."""
    connection.execute("PRAGMA ignore_check_constraints = OFF")
    try:
        yield
    finally:
        connection.execute("PRAGMA ignore_check_constraints = ON")


@contextmanager
def deadline(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Ends a statement in the `with` by sqlite3.OperationalError('interrupted') after `seconds` of processor time."""
    end = time.process_time() + seconds
    connection.set_progress_handler(lambda: time.process_time() > end, 1000)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def table_fault(connection: sqlite3.Connection, version: int, database: str = "main") -> str | None:
    """Returns how the tables of a file differ from those of schema version `version`; None if they do not differ.

    A view, virtual table, trigger, generated column or additional index is a fault, because SQLite would evaluate its
    expressions. A collation is a fault, because it decides which texts are equal, and so is ON CONFLICT, because it may
    drop rows that are added. Errors: DAMAGE.
    """
    known = schema.layout(version)
    present = set()
    for name, kind, page, sql in connection.execute(
        f"SELECT name, type, rootpage, sql FROM {database}.sqlite_schema"
    ).fetchall():
        if str(name).startswith("sqlite_") and ((kind == "index" and sql is None) or (kind == "table" and page)):
            continue  # SQLite itself made this: the index of a primary key, or a table of ANALYZE
        shown = printable(f"{kind} '{name}'")
        if kind != "table" or not page or name not in known:
            return f"holds a {shown}, which schema version {version} does not have"
        if clause := FOREIGN_CLAUSE.search(str(sql)):
            return f"its table '{name}' has a {clause[0].upper()} clause, which no store of hvd_bench has"
        present.add(name)
    for table, expected in known.items():
        if table not in present:
            return f"damaged: its table '{table}' is missing"
        if schema.columns_in(connection, database, table) != expected:
            return f"its table '{table}' lacks columns of schema version {version} or has others"
    return None


def journal_of(path: Path) -> Path:
    """Returns the path of SQLite's journal of the file `path`. The journal of a link lies beside the link's target."""
    return Path(f"{os.path.realpath(path)}-journal")


def journal_fault(journal: Path) -> str | None:
    """Returns the reason why SQLite must not open a journal; None if SQLite may open it, or if there is no journal.

    If the journal were a pipe, SQLite would wait for ever. A journal may end with the name of a super-journal. When
    SQLite rolls this journal back, it deletes the file of that name, so a stranger's journal could delete any file. The
    journals of hvd_bench never contain such a name.

    Source: https://www.sqlite.org/fileformat.html, "The Rollback Journal". Errors: OSError.
    """
    try:
        if not stat.S_ISREG(journal.stat().st_mode):
            return "is not a file"
        with journal.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - len(SUPER_JOURNAL_MAGIC)))
            if file.read() == SUPER_JOURNAL_MAGIC:
                return "names another file, which rolling it back may delete"
    except FileNotFoundError:
        pass
    return None


def printable(text: str, longest: int = 160) -> str:
    """Returns `text` on one line, with '?' in place of unprintable characters, cut to `longest` characters."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def in_words(error: Exception) -> str:
    """Returns SQLite's error message in printable characters. The message may quote a file from a stranger."""
    if isinstance(error, UnicodeDecodeError):
        return "text that is not UTF-8"
    if str(error) == "interrupted":
        return "checking it takes too long"
    return printable(str(error))
