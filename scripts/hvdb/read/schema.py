"""The tables of a store: versions of the schema, records, columns and keys. results/schema.sql is the contract.

Uses only the standard library, because hvdb.campaign, which imports this module, runs on login nodes without packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from hvdb.base import data, sqlite
from hvdb.base.sqlite import sqlite3

APPLICATION_ID = 0x68766462  # 'hvdb'
# Schema version -> the SQL file with the tables that this version adds to those of the previous version.
SCHEMAS = {1: data.SCHEMA, 2: data.SCHEMA_2}


@dataclass(frozen=True)
class Record:
    """The data that is stored and merged as a unit: a row of `table`, which has a `uuid`, and its rows in child tables.

    version: the first schema version that has `table`. key: the column of the child tables that contains the UUID.
    children: child table -> the columns by which its rows are ordered.
    """

    table: str
    noun: str
    version: int
    key: str
    children: dict[str, str]


RUN = Record(
    "run",
    "run",
    1,
    "run_uuid",
    {"provenance": "key", "rank": "rank", "sample": "rank, kind", "decomposition": "component", "operation": "seq"},
)
COLL = Record(
    "coll_session",
    "session of collectives",
    2,
    "session_uuid",
    {"coll_provenance": "key", "coll_cell": "seq", "coll_sample": "seq, kind"},
)
RECORDS = (RUN, COLL)
BLOB_TABLES = frozenset({"sample", "coll_sample"})


def tables(version: int) -> tuple[str, ...]:
    """Returns the names of the tables of a schema version. A parent table comes before its child tables."""
    parts = ((record.table, *record.children) for record in RECORDS if record.version <= version)
    return ("session", *(table for part in parts for table in part))


def version_of(connection: sqlite3.Connection, database: str = "main") -> int:
    """Returns the schema version that the header of an opened or attached store contains. Errors: DAMAGE."""
    return connection.execute(f"PRAGMA {database}.user_version").fetchone()[0]


def records(connection: sqlite3.Connection, database: str = "main") -> tuple[Record, ...]:
    """Returns those members of RECORDS for which a store has tables. The store must have been checked."""
    version = version_of(connection, database)
    return tuple(record for record in RECORDS if record.version <= version)


def make_tables(connection: sqlite3.Connection, version: int) -> None:
    """Upgrades 'main', a store or an empty file, to schema version `version` if its version is lower.

    Runs in the caller's transaction. Errors: sqlite3.Error.
    """
    for number, file in SCHEMAS.items():
        if version_of(connection) < number <= version:
            for statement in _statements(file.read_text(encoding="utf-8")):
                connection.execute(statement)


def make_temporary_tables(connection: sqlite3.Connection, version: int) -> None:
    """Makes the TEMP tables of a schema version anew, empty, and with the CHECKs of our schema.

    The tables are small: in place of a blob they have the length of the blob, also in its CHECK. Errors: sqlite3.Error.
    """
    for table in tables(max(SCHEMAS)):
        connection.execute(f"DROP TABLE IF EXISTS temp.{table}")
    for statement in _temporary_tables(version):
        connection.execute(statement)


@cache
def _temporary_tables(version: int) -> tuple[str, ...]:
    return tuple(
        statement.replace("CREATE TABLE", "CREATE TEMP TABLE")
        .replace("BLOB", "INTEGER")
        .replace("length(data)", "data")
        for number, file in SCHEMAS.items()
        for statement in _statements(file.read_text(encoding="utf-8"))
        if number <= version and "CREATE TABLE" in statement
    )


def _statements(script: str) -> Iterator[str]:
    """Yields the statements of a script one by one, because executescript() would commit the caller's transaction."""
    piece = ""
    for line in script.splitlines(keepends=True):
        piece += line
        if sqlite3.complete_statement(piece):
            yield piece
            piece = ""


@cache
def columns() -> dict[str, dict[str, str]]:
    """Returns table -> column -> its type (TEXT, INTEGER, REAL or BLOB). A table has equal columns in all versions."""
    return {table: {column[0]: column[1] for column in rows} for table, rows in layout(max(SCHEMAS)).items()}


@cache
def keys(table: str) -> tuple[str, ...]:
    """Returns the columns of the primary key of a table."""
    return tuple(column[0] for column in layout(max(SCHEMAS))[table] if column[2])


@cache
def layout(version: int) -> dict[str, tuple[tuple, ...]]:
    """Returns table -> columns_in(), for the tables of a schema version."""
    connection = sqlite.connect(":memory:")
    try:
        make_tables(connection, version)
        return {table: columns_in(connection, "main", table) for table in tables(version)}
    finally:
        connection.close()


def columns_in(connection: sqlite3.Connection, database: str, table: str) -> tuple[tuple, ...]:
    """Returns, for each column, (name, type, position in the primary key, code for hidden or generated)."""
    return tuple(
        (row[1], row[2], row[5], row[6]) for row in connection.execute(f"PRAGMA {database}.table_xinfo({table})")
    )


def unknown_version(version: int) -> str | None:
    """Returns the reason why stores of a schema version cannot be read; None if they can be read."""
    if version in SCHEMAS:
        return None
    known = ", ".join(map(str, SCHEMAS))
    return (
        f"schema version {version}, this program knows {known}; read it with the scripts of the version that wrote it"
    )
