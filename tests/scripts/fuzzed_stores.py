"""Makes one store per seed for test_fuzz: a damaged store, or a store with hostile content as from a stranger."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

from synthetic_store import CollSpec, SessionSpec, make, operation

from hvdb.read import schema, untrusted

PAGE = 4096
TABLES = tuple(schema.columns())
TEXTS = (
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines\r\n| a | b |",
    "<script>alert(1)</script><img src=x onerror=y>",
    "```\n# heading\n```",
    "a\0b",
    "../../../escaped",
    "/tmp/hvd_bench_escaped/x",
    "$\\frac{$ _^ {}$",
    "'; DROP TABLE run; --",
    "%s%n{0}{run}",
    "\u202eabc\u2066",
    "",
    "x" * 100_000,
    "nan",
    "--execute",
    "touch escaped; $(touch escaped) `touch escaped`",
)
NOT_UTF8 = "CAST(x'61ff1b5bc3' AS TEXT)"
NUMBERS = ("-1", "0", "-2", "9223372036854775807", "-9223372036854775808", "9e999", "-9e999", "1e308", "5e-324", "NULL")
ODD = ("x'1b5b324a'", "zeroblob(100000)", "'text'", "x''", "1.5", NOT_UTF8, *NUMBERS)
ENDLESS = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n)"

FREE_TEXT = (
    *(("run", name) for name in ("model", "compute_type", "allreduce_type", "comm", "data_plane", "checks")),
    *(("run", name) for name in ("status_reason", "started_utc", "finished_utc", "stop_reason", "fingerprint")),
    *(("session", name) for name in ("command_line", "started_utc")),
    ("provenance", "value"),
    *(("rank", name) for name in ("host", "gradient_checksum")),
    *(("operation", name) for name in ("node", "kind", "implementation")),
    *(("coll_session", name) for name in ("comm", "model", "status_reason", "started_utc", "fingerprint")),
    *(("coll_cell", name) for name in ("side", "algorithm", "data_plane", "stop_reason")),
    ("coll_provenance", "value"),
)
CHECKED_TEXT = (
    *(("run", name) for name in ("uuid", "phase", "device")),
    *(("provenance", "key"), ("sample", "kind"), ("decomposition", "component")),
    *(("coll_session", name) for name in ("uuid", "device")),
    ("coll_provenance", "key"),
    *(("coll_cell", name) for name in ("operation", "type", "reduction")),
    ("coll_sample", "kind"),
)
SCHEMAS = (
    "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM run; END",
    f"CREATE VIEW v AS SELECT {ENDLESS}",
    f"UPDATE sqlite_schema SET type = 'view', rootpage = 0, sql = 'CREATE VIEW {{table}} AS SELECT {ENDLESS} AS "
    "{column}' WHERE name = '{table}'",
    "UPDATE sqlite_schema SET rootpage = 0, sql = 'CREATE VIRTUAL TABLE {table} USING fts5({column})'"
    " WHERE name = '{table}'",
    "ALTER TABLE {table} ADD COLUMN more TEXT AS (hex(zeroblob(200000000))) VIRTUAL",
    "UPDATE sqlite_schema SET sql = replace(sql, '{column} ', '{column} AS (length(hex(zeroblob(100000000)))) ')"
    " WHERE name = '{table}'",
    "CREATE INDEX i ON {table} (hex({column}))",
    "CREATE TABLE extra (x)",
    "PRAGMA journal_mode = WAL",
    "PRAGMA user_version = -1",
    "UPDATE sqlite_schema SET name = CAST(x'1b5bff' AS TEXT) WHERE name = '{table}'",
    "UPDATE sqlite_schema SET rootpage = (SELECT max(rootpage) FROM sqlite_schema) WHERE name = '{table}'",
    # With these collations 'FULL' equals 'full', and two UUIDs that differ in case are equal.
    (
        "UPDATE sqlite_schema SET sql = replace(sql, 'phase           TEXT', 'phase TEXT COLLATE NOCASE')",
        "UPDATE run SET phase = upper(phase)",
    ),
    (
        "UPDATE sqlite_schema SET sql = replace(sql, 'uuid         TEXT PRIMARY', 'uuid TEXT collate nocase PRIMARY')",
        "UPDATE session SET uuid = upper(uuid)",
    ),
)


def make_base(path: Path) -> None:
    """Makes the store that all seeds change. It has several sessions, a profile, an unfinished run, and collectives."""
    kinds = ("conv", "pool", "conv_backward_data")
    operations = [operation(seq, kind=kinds[seq % 3], library=seq % 2) for seq in range(12)]
    make(
        path,
        SessionSpec(steps=12, replicates=0.01),
        SessionSpec(steps=12, model="vgg16", ranks=4),
        SessionSpec(steps=12, traced=1, operations=operations),
        SessionSpec(steps=4, status="incomplete"),
        CollSpec(sides=("algorithm=ring", "algorithm=shm")),
        CollSpec(ranks=4, columns={"status": "incomplete", "status_reason": "SIGTERM"}),
    )


def _quoted(text: str) -> str:
    return f"CAST(x'{text.encode().hex()}' AS TEXT)"


def _execute(path: Path, *statements: str) -> None:
    """Executes the statements on the store `path`. Ignores statements that SQLite refuses."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = bytes
    pragmas = ("synchronous = OFF", "writable_schema = ON", "ignore_check_constraints = ON")
    for statement in (*(f"PRAGMA {pragma}" for pragma in pragmas), *statements):
        with contextlib.suppress(*untrusted.DAMAGE):
            connection.execute(statement).fetchall()
    connection.close()


def damaged(base: Path, path: Path, seed: int) -> str:
    """Copies `base` to `path` with one kind of damage. Returns the kind."""
    rng = random.Random(f"damaged {seed}")
    shutil.copyfile(base, path)
    kind = rng.choice(("bits", "bytes", "cut", "page", "pages", "header", "columns", "table", "rows", "schema"))
    data = bytearray(path.read_bytes())
    pages = len(data) // PAGE
    if kind == "bits":
        for _ in range(rng.choice((1, 1, 4, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 200)] = rng.randbytes(rng.randrange(1, 200))
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "page":
        at = PAGE * rng.randrange(pages)
        data[at : at + PAGE] = rng.choice((bytes(PAGE), b"\xff" * PAGE, rng.randbytes(PAGE)))
    elif kind == "pages":
        to, source = PAGE * rng.randrange(pages), PAGE * rng.randrange(pages)
        data[to : to + PAGE] = data[source : source + PAGE]
    elif kind == "header":
        data[rng.randrange(100)] = rng.randrange(256)
    else:
        table = rng.choice(TABLES)
        columns = tuple(schema.columns()[table])
        column, other = rng.choice(columns), rng.choice(columns)
        statement = {
            "columns": f"UPDATE OR REPLACE {table} SET {column} = {other}, {other} = {column}",
            "table": f"DROP TABLE {table}",
            "rows": f"DELETE FROM {table} WHERE random() % 2",
            "schema": f"UPDATE sqlite_schema SET sql = CAST(replace(sql, '{column}', x'ff1b') AS TEXT)",
        }[kind]
        _execute(path, statement)
        return f"{kind}: {statement}"
    path.write_bytes(data)
    return kind


def hostile(base: Path, path: Path, seed: int) -> str:
    """Copies `base` to `path` and gives the copy hostile values or a hostile schema. Returns the statements."""
    rng = random.Random(f"hostile {seed}")
    shutil.copyfile(base, path)
    statements = []
    if rng.random() < 0.3:  # removes STRICT, so that every column accepts every value
        _execute(path, "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT, ', ''), 'STRICT', '')")
    if rng.random() < 0.2:  # puts one text into every column that accepts any text
        value = _quoted(rng.choice(TEXTS))
        statements += [f"UPDATE OR REPLACE {table} SET {column} = {value}" for table, column in FREE_TEXT]
    for _ in range(rng.choice((1, 1, 2, 5))):
        table = rng.choice(TABLES)
        column = rng.choice(tuple(schema.columns()[table]))
        some = rng.choice(("", " WHERE rowid % 3 = 0"))
        kind = rng.random()
        if kind < 0.5:
            table, column = rng.choice(FREE_TEXT + CHECKED_TEXT)
            value = NOT_UTF8 if rng.random() < 0.15 else _quoted(rng.choice(TEXTS))
        elif kind < 0.85:
            value = rng.choice(ODD)
        else:
            chosen = rng.choice(SCHEMAS)
            chosen = (chosen,) if isinstance(chosen, str) else chosen
            statements += [statement.format(table=table, column=column) for statement in chosen]
            continue
        statements.append(f"UPDATE OR REPLACE {table} SET {column} = {value}{some}")
    if rng.random() < 0.2:
        text = _quoted(rng.choice(TEXTS))
        statements.append(f"INSERT OR REPLACE INTO provenance SELECT uuid, 'caution.' || {text}, {text}, 0 FROM run")
    _execute(path, *statements)
    return "; ".join(statements)
