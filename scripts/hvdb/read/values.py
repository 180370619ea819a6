"""Checks the values in a store that any program may have written. All readers and the merge use this module.

The rules for values are the CHECKs in results/schema.sql and schema_2.sql. A file brings its own CHECKs and column
types, on which this module does not rely: it copies the rows into TEMP tables of our schema, with our CHECKs on. This
module itself checks the values in blobs, the encoding of texts, and the relations between tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hvdb.base.sqlite import sqlite3
from hvdb.read import schema, untrusted
from hvdb.read.schema import COLL, RUN

# Limits of samples, which are those of times in the schema.
MIN_STEP, LONGEST, MAX_INT64 = 1e-12, 1e9, 2**63 - 1
# Bootstrap replicates are stored as samples, whose kind is the name of the figure with the suffix REPLICATES_OF.
REPLICATES_OF = "_replicates"
# Samples are checked in pieces of this size, so that the memory needed does not grow with the size of the store.
PIECE_BYTES = 8 << 20

# Queries of the TEMP tables that return a text for each contradiction between rows of different tables.
_CONTRADICTIONS = {
    RUN.table: (
        *(
            "SELECT printf('run %s has a rank %d, but %d ranks from 0 on', uuid, child.rank, world_size)"
            f" FROM temp.{table} AS child JOIN temp.run ON uuid = run_uuid WHERE child.rank >= world_size"
            for table in ("rank", "sample")
        ),
        "SELECT printf('run %s is complete and has no step time', uuid) FROM temp.run"
        " WHERE status = 'complete' AND step_seconds IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM temp.sample WHERE run_uuid = uuid AND kind = 'step_seconds' AND count > 0)",
    ),
    COLL.table: (
        "SELECT printf('session %s, cell %d: last_rank is none of the ranks', uuid, seq)"
        " FROM temp.coll_cell JOIN temp.coll_session ON uuid = session_uuid WHERE last_rank >= ranks",
        "SELECT printf('session %s, cell %d: there are samples, and no cell', session_uuid, seq)"
        " FROM temp.coll_sample LEFT JOIN temp.coll_cell AS cell USING (session_uuid, seq) WHERE samples IS NULL",
        "SELECT printf('session %s, cell %d: the cell has another number of samples', session_uuid, seq)"
        " FROM temp.coll_sample AS sample JOIN temp.coll_cell USING (session_uuid, seq) WHERE sample.count <> samples",
    ),
}


def fault(connection: sqlite3.Connection, database: str = "main", known: Collection[str] = ()) -> str | None:
    """Returns a printable text about the first invalid value of an opened or attached store; None if all are valid.

    known: runs that are neither checked nor copied; if there are any, sessions of collectives are not checked either.
    Leaves the checked rows in TEMP tables, which queries without the name of a database then read. The tables with
    blobs have no copy, so queries read the file.
    Call this after untrusted.table_fault(). Errors: untrusted.DAMAGE.
    """
    schema.make_temporary_tables(connection, schema.version_of(connection, database))
    records = (RUN,) if known else schema.records(connection, database)
    parts = {"session": "1"}
    for record in records:
        parts[record.table] = "uuid NOT IN (SELECT value FROM json_each(:known))"
        own_rows = f"{record.key} IN (SELECT uuid FROM temp.{record.table})" if known else "1"
        parts |= dict.fromkeys(record.children, own_rows)
    parameters = {"known": json.dumps(list(known))}
    # From here to the end of the `with`, statements write only to the TEMP tables, which have no CHECK of the file.
    with untrusted.own_checks(connection):
        for table, where in parts.items():
            if why := _copy(connection, database, table, where, parameters) or _text_fault(connection, table):
                return why
    for table in parts:
        if why := _orphan(connection, table):
            return why
    for record in records:
        for query in _CONTRADICTIONS[record.table]:
            if contradiction := connection.execute(query).fetchone():
                return contradiction[0]
    for table in schema.BLOB_TABLES & parts.keys():
        connection.execute(f"DROP TABLE temp.{table}")
        keys = ", ".join(schema.keys(table))
        rows = connection.execute(
            f"SELECT {keys}, data FROM {database}.{table} WHERE {parts[table]} AND kind <> 'loss'"
        )
        if why := _packed(table, rows):
            return why
    return None


def _copy(
    connection: sqlite3.Connection, database: str, table: str, where: str, parameters: dict[str, str]
) -> str | None:
    """Copies rows into the TEMP table `table`. Returns a fault for the first row that breaks a rule."""
    columns = schema.columns()[table]
    # Our tables would convert the text '5' to an integer, and the copy would then differ from the original. A value of
    # another type than the column's is replaced by a blob, which is not converted, so that its insertion fails.
    shown = ", ".join(
        f"iif(typeof({name}) = 'blob', length({name}), x'')"
        if kind == "BLOB"
        else f"iif(typeof({name}) IN ('null', '{kind.lower()}'), {name}, x'')"
        for name, kind in columns.items()
    )
    # The columns are named, because INSERT ... SELECT * checks nothing if the file has the same CHECKs.
    insert = f"INSERT INTO temp.{table} ({', '.join(columns)})"
    select = f"SELECT {shown} FROM {database}.{table} WHERE {where}"
    try:
        connection.execute(f"{insert} {select}", parameters)
    except sqlite3.IntegrityError:
        return _first_broken(connection, table, select, parameters, insert)
    return None


def _first_broken(
    connection: sqlite3.Connection, table: str, select: str, parameters: dict[str, str], insert: str
) -> str | None:
    """Inserts the rows of `select` one by one. Returns a fault for the first row that breaks a rule."""
    columns = schema.columns()[table]
    try:
        for row in connection.execute(select, parameters):
            try:
                connection.execute(f"{insert} VALUES ({', '.join('?' * len(columns))})", tuple(row))
            except sqlite3.IntegrityError as error:
                return _broken(table, dict(zip(columns, row, strict=True)), error)
    except sqlite3.OperationalError as error:
        if "Could not decode" not in str(error):
            raise
        return f"table '{table}' holds text that is not UTF-8"
    return None


def _broken(table: str, row: dict[str, object], error: sqlite3.IntegrityError) -> str:
    """Returns a text with the table, the key of the row, the rule that SQLite names, and the row's values for it."""
    rule = re.sub("cannot store .* column", "another type than column", " ".join(str(error).split()))
    if table in schema.BLOB_TABLES:  # the copy of `data` is the length
        row = {"length(data)" if column == "data" else column: value for column, value in row.items()}
        rule = re.sub(r"(?<!\.)\bdata\b", "length(data)", rule)
    shown = ", ".join(
        f"{column} {untrusted.printable(str(value), 40)}"
        for column, value in row.items()
        if re.search(rf"(?<!\w){re.escape(column)}(?!\w)", rule) and not isinstance(value, bytes)
    )
    return untrusted.printable(f"{_place(table, row)}: {rule}{f' ({shown})' if shown else ''}", 400)


def _place(table: str, row: dict[str, object]) -> str:
    key = ", ".join(str(row[column]) for column in schema.keys(table) if column in row)
    return untrusted.printable(f"table '{table}', row {key}")


def _text_fault(connection: sqlite3.Connection, table: str) -> str | None:
    """Returns a fault for a text that is not UTF-8 or contains a NUL, at which programs in C would end the text."""
    if table in schema.BLOB_TABLES:
        return None  # the only text of its own is `kind`, for which the schema has a rule
    texts = [column for column, kind in schema.columns()[table].items() if kind == "TEXT"]
    factory = connection.text_factory
    connection.text_factory = bytes
    try:
        for row in connection.execute(f"SELECT {', '.join(texts)} FROM temp.{table}"):
            for column, value in zip(texts, row, strict=True):
                if value is not None and (b"\0" in value or not _is_utf8(value)):
                    known = {
                        name: text.decode("utf-8", "replace") for name, text in zip(texts, row, strict=True) if text
                    }
                    return f"{_place(table, known)}: {column} is not UTF-8 text"
    finally:
        connection.text_factory = factory
    return None


def _orphan(connection: sqlite3.Connection, table: str) -> str | None:
    """Returns a fault for a row of the TEMP table `table` whose parent is missing."""
    keys = schema.keys(table)
    for _, _, parent, column, owner, *_ in connection.execute(f"PRAGMA temp.foreign_key_list({table})").fetchall():
        missing = f"{column} NOT IN (SELECT {owner} FROM temp.{parent})"
        if row := connection.execute(f"SELECT {', '.join(keys)} FROM temp.{table} WHERE {missing}").fetchone():
            return f"{_place(table, dict(zip(keys, row, strict=True)))} belongs to no {parent}"
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _packed(table: str, rows: Iterable[Sequence]) -> str | None:
    """Returns a fault for samples that are not finite or not possible. rows: the key and the blob of each series."""
    piece: dict[str, list[Sequence]] = {}
    size = 0
    for row in rows:
        piece.setdefault(row[-2], []).append(row)
        size += len(row[-1])
        if size >= PIECE_BYTES:
            if why := _piece(table, piece):
                return why
            piece, size = {}, 0
    return _piece(table, piece)


def _piece(table: str, piece: dict[str, list[Sequence]]) -> str | None:
    for kind, rows in piece.items():
        if _first_wrong(kind, b"".join(row[-1] for row in rows)) is not None:
            for *key, data in rows:
                value = _first_wrong(kind, data)
                if value is not None:
                    place = _place(table, dict(zip(schema.keys(table), key, strict=True)))
                    return f"{place} holds {value:g}, which is {_bounds(kind)[2]}"
    return None


def _bounds(kind: str) -> tuple[float, float, str]:
    """Returns the lowest and the highest valid sample of a kind, and words that describe an invalid sample."""
    figure = kind.removesuffix(REPLICATES_OF)
    if kind in ("last_rank", "round"):
        return 0.0, float(MAX_INT64), "not a number of a rank or round"
    if figure == "seconds" or figure.endswith("_seconds"):
        return (MIN_STEP if figure == "step_seconds" else 0.0), LONGEST, "not a time"
    if kind == f"efficiency{REPLICATES_OF}":
        return 0.0, LONGEST, "not an efficiency"
    return -np.inf, np.inf, "not finite"


def _first_wrong(kind: str, data: bytes) -> float | None:
    numbers = np.frombuffer(data, dtype="<f8")
    if not len(numbers):
        return None
    low, high, _ = _bounds(kind)
    # If any sample is NaN, min() and max() are NaN, and isfinite() is false.
    if np.isfinite(least := numbers.min()) and np.isfinite(most := numbers.max()) and low <= least and most <= high:
        return None
    wrong = ~np.isfinite(numbers) | (numbers < low) | (numbers > high)
    return float(numbers[wrong][0])
