"""Checks the values in a store that any program may have written. Each column has one rule.

All readers and the merge use this module. A file brings its own CHECK constraints and column types. This module does
not rely on these constraints and types.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hvdb.read import untrusted
from hvdb.read.names import OPERATIONS, REDUCTIONS, STORED_REPLICATES, TYPES
from hvdb.read.untrusted import COLL, RUN

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
# No step is shorter than MIN_STEP (a picosecond), no time is longer than LONGEST (30 years), and no machine does
# MAX_WORK (FLOPs or bytes) in one step.
MIN_STEP, LONGEST, MAX_WORK = 1e-12, 1e9, 1e24
MAX_RATIO = 1e6
# Bootstrap replicates are stored as samples, whose kind is the name of the figure with the suffix REPLICATES_OF.
REPLICATES_OF = "_replicates"
# Samples are checked in pieces of this size, so that the memory needed does not grow with the size of the store.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Rule:
    """A condition in SQL, in which `{c}` stands for the column, and words that describe the allowed values."""

    sql: str
    words: str


def _number(low: float, high: float, words: str) -> Rule:
    return Rule(f"typeof({{c}}) IN ('integer', 'real') AND {{c}} BETWEEN {low!r} AND {high!r}", words)


def _whole(low: int, high: int = MAX_INT64) -> Rule:
    end = "" if high == MAX_INT64 else f" to {high}"
    return Rule(f"typeof({{c}}) = 'integer' AND {{c}} BETWEEN {low} AND {high}", f"a whole number from {low}{end}")


def _one_of(*names: str) -> Rule:
    return Rule(f"{{c}} IN ({', '.join(map(repr, names))})", f"one of {', '.join(names)}")


def _word(characters: str, shortest: int, words: str) -> Rule:
    same = "length(CAST({c} AS BLOB)) = length({c})"  # false for a text with a NUL, at which GLOB would stop
    return Rule(
        f"typeof({{c}}) = 'text' AND length({{c}}) BETWEEN {shortest} AND 64 AND {same}"
        f" AND {{c}} NOT GLOB '*[^{characters}]*'",
        words,
    )


def _or_null(rule: Rule) -> Rule:
    return Rule(f"({{c}} IS NULL OR ({rule.sql}))", f"{rule.words}, or NULL")


def _lower_end(rule: Rule, upper: str) -> Rule:
    """Returns the rule for the lower end of an interval. upper: the column of the upper end."""
    return Rule(
        f"({rule.sql}) AND ({{c}} IS NULL OR {upper} IS NULL OR {{c}} <= {upper})", f"{rule.words}, at most {upper}"
    )


TEXT = Rule("typeof({c}) = 'text'", "a text")
SHORT_TEXT = Rule("typeof({c}) = 'text' AND length({c}) <= 200", "a text of at most 200 characters")
UUID = _word("0-9a-zA-Z-", 8, "a UUID")
NAME = _word("0-9a-z_", 1, "a name of small letters, digits and underscores")
YES_OR_NO = _whole(0, 1)
ABOVE_ZERO, FROM_ZERO, ANY_WHOLE = _whole(1), _whole(0), _whole(-MAX_INT64 - 1)
COUNT_OF_RANKS = _whole(1, MAX_INT32)
BYTES = _or_null(FROM_ZERO)
STEP = _number(MIN_STEP, LONGEST, "a time above zero in seconds")
SECONDS = _number(0.0, LONGEST, "a time in seconds")
WORK = _number(0.0, MAX_WORK, "a finite amount of work")
# A fraction of a step may be negative: a part may be a gain, and an interval may reach below zero.
SHARE = _number(-LONGEST, LONGEST, "a finite number")
# A rate has no upper limit, because the interval of the time from which it is computed may reach down to zero.
RATE = Rule("typeof({c}) IN ('integer', 'real') AND {c} > 0", "above zero")
ANY_NUMBER = Rule("typeof({c}) IN ('integer', 'real')", "a number")
PACKED = Rule("typeof({c}) = 'blob' AND length({c}) = 8.0 * count", "a blob of 8 bytes for each of its count")
# Numbers of elements or bytes of one operation. The limit is far above the memory of any machine.
SIZE = _whole(0, 1 << 60)
RATIO = _number(0.0, MAX_RATIO, "a ratio from zero")
COLL_KINDS = ("seconds", "transfer_seconds", "skew_seconds", "last_rank", "round")

# Table -> rule -> the names of the columns that the rule is for.
_COLUMNS: dict[str, dict[Rule, str]] = {
    "session": {UUID: "uuid", TEXT: "started_utc command_line"},
    "run": {
        UUID: "uuid session_uuid",
        _one_of("measured", "simulated"): "origin",
        _one_of("full", "none", "solo"): "phase",
        _one_of("running", "complete", "incomplete"): "status",
        _one_of("cpu", "cuda", "replay", "reference"): "device",
        _one_of("static", "sharded", "negotiated", "none"): "schedule",
        TEXT: "status_reason started_utc compute_type allreduce_type comm data_plane stop_reason checks fingerprint",
        SHORT_TEXT: "model",
        COUNT_OF_RANKS: "world_size allocation_size nodes",
        _whole(0, MAX_INT32): "threads",
        ANY_WHOLE: "seed",
        YES_OR_NO: "auxiliary_head traced",
        ABOVE_ZERO: "batch_size image_size batches_per_iter",
        FROM_ZERO: "warmup_steps measured_steps",
        # In these columns NULL means "not measured".
        _or_null(TEXT): "finished_utc plan_hash",
        _or_null(STEP): "step_seconds step_seconds_high",
        _lower_end(_or_null(SHARE), "step_seconds_high"): "step_seconds_low",
        _or_null(RATE): "images_per_second images_per_second_high",
        _lower_end(_or_null(RATE), "images_per_second_high"): "images_per_second_low",
        _or_null(WORK): "flops_per_image",
        BYTES: "parameters gradient_bytes buckets",
        _or_null(ANY_NUMBER): "final_loss",  # the loss is infinite if the run's check of the loss failed
        _number(0.0, 1.0, "a share from 0 to 1"): "confidence",
    },
    "provenance": {UUID: "run_uuid", TEXT: "key value", YES_OR_NO: "in_fingerprint"},
    "rank": {
        UUID: "run_uuid",
        _whole(0, MAX_INT32): "rank local_rank",
        TEXT: "host",
        BYTES: "planned_bytes baseline_bytes peak_bytes",
        _or_null(TEXT): "gradient_checksum",
    },
    "sample": {UUID: "run_uuid", _whole(0, MAX_INT32): "rank", NAME: "kind", FROM_ZERO: "count", PACKED: "data"},
    "decomposition": {
        UUID: "run_uuid",
        NAME: "component",
        SHARE: "fraction seconds",
        _or_null(SHARE): "high",
        _lower_end(_or_null(SHARE), "high"): "low",
    },
    "operation": {
        UUID: "run_uuid",
        FROM_ZERO: "seq",
        TEXT: "node kind implementation",
        YES_OR_NO: "library",
        SECONDS: "seconds",
        WORK: "flops bytes",
    },
    "coll_session": {
        UUID: "uuid",
        _one_of("complete", "incomplete"): "status",
        TEXT: "status_reason started_utc finished_utc comm fingerprint",
        _one_of("cpu", "cuda"): "device",
        COUNT_OF_RANKS: "ranks nodes",
        YES_OR_NO: "oversubscribed warm",
        _whole(0, 3): "blocking",
        SHORT_TEXT: "model",
        _number(0.0, 1.0, "a share from 0 to 1"): "target_interval",
        FROM_ZERO: "buffer_bytes cache_bytes",
        SECONDS: "clock_seconds",
    },
    "coll_provenance": {UUID: "session_uuid", TEXT: "key value", YES_OR_NO: "in_fingerprint"},
    "coll_cell": {
        UUID: "session_uuid",
        FROM_ZERO: "seq",
        _one_of(*OPERATIONS): "operation",
        _one_of(*TYPES): "type",
        _one_of(*REDUCTIONS): "reduction",
        SIZE: "bytes count",
        _whole(-1, MAX_INT32): "root",
        YES_OR_NO: "in_place ragged registered settled",
        TEXT: "side algorithm data_plane stop_reason",
        ABOVE_ZERO: "samples operations_per_sample",
        _or_null(STEP): "seconds seconds_high",
        _lower_end(_or_null(SECONDS), "seconds_high"): "seconds_low",
        SECONDS: "transfer_seconds skew_seconds",
        _whole(0, MAX_INT32): "last_rank",
        _number(0.0, 1.0, "a share from 0 to 1"): "last_rank_share",
        WORK: "algorithm_bytes_per_second bus_bytes_per_second",
        _or_null(RATIO): "bound ratio ratio_high",
        _lower_end(_or_null(RATIO), "ratio_high"): "ratio_low",
        _or_null(FROM_ZERO): "wrong",
    },
    "coll_sample": {
        UUID: "session_uuid",
        FROM_ZERO: "seq count",
        _one_of(*COLL_KINDS): "kind",
        PACKED: "data",
    },
}
RULES = {
    table: {column: rule for rule, columns in rules.items() for column in columns.split()}
    for table, rules in _COLUMNS.items()
}


def fault(connection: sqlite3.Connection, database: str = "main") -> str | None:
    """Returns a printable text about the first invalid value of an opened or attached store; None if all are valid.

    Call this after untrusted.table_fault(). Errors: untrusted.DAMAGE.
    """
    for table in untrusted.tables(untrusted.version_of(connection, database)):
        if why := _against_rules(connection, database, table) or _text(connection, database, table):
            return why
    if why := _relations(connection, database) or _samples(connection, database):
        return why
    if COLL in untrusted.records(connection, database):
        return _collectives(connection, database)
    return None


def _against_rules(connection: sqlite3.Connection, database: str, table: str) -> str | None:
    cases = " ".join(
        f"WHEN NOT coalesce({RULES[table][column].sql.format(c=column)}, 0) THEN '{column}'"
        for column in untrusted.columns()[table]
    )
    broken = connection.execute(
        f"SELECT wrong FROM (SELECT CASE {cases} END AS wrong FROM {database}.{table}) WHERE wrong IS NOT NULL LIMIT 1"
    ).fetchone()
    if broken is None:
        return None
    column = broken[0]
    rule = RULES[table][column]
    number = f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} ELSE typeof({column}) END"
    (shown,) = connection.execute(
        f"SELECT {number} FROM {database}.{table} WHERE NOT coalesce({rule.sql.format(c=column)}, 0) LIMIT 1"
    ).fetchone()
    return f"table '{table}' holds {column} {shown}, which is not {rule.words}"


def _text(connection: sqlite3.Connection, database: str, table: str) -> str | None:
    """Returns a fault for a text that is not UTF-8 or contains a NUL, at which programs in C would end the text."""
    kinds = (TEXT, SHORT_TEXT, _or_null(TEXT))
    texts = [column for column in untrusted.columns()[table] if RULES[table][column] in kinds]
    if not texts:
        return None
    factory = connection.text_factory
    connection.text_factory = bytes
    try:
        for row in connection.execute(f"SELECT {', '.join(texts)} FROM {database}.{table}"):
            for column, value in zip(texts, row, strict=True):
                if value is not None and (b"\0" in value or not _is_utf8(value)):
                    return f"table '{table}' holds a {column} that is not UTF-8 text"
    finally:
        connection.text_factory = factory
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _relations(connection: sqlite3.Connection, database: str) -> str | None:
    """Returns a fault if rows of different tables contradict one another; otherwise None."""

    def first(query: str) -> tuple | None:
        return connection.execute(query).fetchone()

    orphan = f"WHERE NOT EXISTS (SELECT 1 FROM {database}.{{}} AS parent WHERE parent.uuid = child.{{}}) LIMIT 1"
    owned = {RUN.table: "session_uuid", COLL.table: "uuid"}
    for record in untrusted.records(connection, database):
        for table, parent, key in (
            (record.table, "session", owned[record.table]),
            *((table, record.table, record.key) for table in record.children),
        ):
            if first(f"SELECT 1 FROM {database}.{table} AS child " + orphan.format(parent, key)):
                return f"a row of table '{table}' belongs to no {parent}"
    run = f"{database}.run AS run"
    if row := first(f"SELECT uuid, world_size, allocation_size FROM {run} WHERE world_size > allocation_size LIMIT 1"):
        return "run {} has {} of {} ranks".format(*row)
    for table in ("rank", "sample"):
        if row := first(
            f"SELECT uuid, child.rank, world_size FROM {database}.{table} AS child JOIN {run}"
            " ON run.uuid = child.run_uuid WHERE child.rank >= world_size LIMIT 1"
        ):
            return "run {} has a rank {}, but {} ranks from 0 on".format(*row)
    if row := first(
        f"SELECT uuid FROM {run} WHERE status = 'complete' AND step_seconds IS NULL AND NOT EXISTS"
        f" (SELECT 1 FROM {database}.sample AS s WHERE s.run_uuid = uuid AND s.kind = 'step_seconds' AND s.count > 0)"
        " LIMIT 1"
    ):
        return f"run {row[0]} is complete and has no step time"
    if row := first(
        f"SELECT run_uuid, rank, kind, count FROM {database}.sample"
        f" WHERE kind GLOB '*{REPLICATES_OF}' AND (rank <> 0 OR count <> {STORED_REPLICATES}) LIMIT 1"
    ):
        return f"run {{}}, rank {{}}: {{}} has {{}} values; there are {STORED_REPLICATES}, of rank 0".format(*row)
    if row := first(f"SELECT uuid FROM {run} WHERE (step_seconds_low IS NULL) <> (step_seconds_high IS NULL) LIMIT 1"):
        return f"run {row[0]}: step_seconds has one end of an interval only"
    if row := first(
        f"SELECT run_uuid, component FROM {database}.decomposition WHERE (low IS NULL) <> (high IS NULL) LIMIT 1"
    ):
        return "run {}: {} has one end of an interval only".format(*row)
    return None


def _samples(connection: sqlite3.Connection, database: str) -> str | None:
    """Returns a fault for a sample that is not finite or not a possible time. A loss may have any value."""
    rows = connection.execute(f"SELECT run_uuid, rank, kind, data FROM {database}.sample WHERE kind <> 'loss'")
    return _packed(rows, "run {}, rank {}")


def _packed(rows: Iterable[tuple], owner: str) -> str | None:
    """Returns a fault of packed samples; None without a fault.

    rows: (first column, second column, kind, data) of each blob. owner: the two columns in words, for the fault.
    """
    piece: dict[str, list[tuple]] = {}
    size = 0
    for first, second, kind, data in rows:
        piece.setdefault(kind, []).append((first, second, data))
        size += len(data)
        if size >= PIECE_BYTES:
            if why := _piece(piece, owner):
                return why
            piece, size = {}, 0
    return _piece(piece, owner)


def _piece(piece: dict[str, list[tuple]], owner: str) -> str | None:
    for kind, rows in piece.items():
        if _first_wrong(kind, b"".join(data for *_, data in rows)) is not None:
            for first, second, data in rows:
                value = _first_wrong(kind, data)
                if value is not None:
                    return f"{owner.format(first, second)}: {kind} holds {value:g}, which is {_bounds(kind)[2]}"
    return None


def _collectives(connection: sqlite3.Connection, database: str) -> str | None:
    """Returns a fault if tables of `hvd_bench coll` contradict one another, or if one of their samples is invalid."""
    cells = f"{database}.coll_cell AS cell JOIN {database}.coll_session AS session ON session.uuid = cell.session_uuid"
    samples = f"{database}.coll_sample AS sample LEFT JOIN {database}.coll_cell AS cell USING (session_uuid, seq)"
    one_end = "(cell.{0}_low IS NULL) <> (cell.{0}_high IS NULL)"
    outside = "NOT cell.{0}_low <= cell.{0} OR NOT cell.{0} <= cell.{0}_high OR (cell.{0} IS NULL AND {0}_low NOT NULL)"
    for source, wrong, words in (
        (cells, "session.nodes > session.ranks", "there are more hosts than ranks"),
        (cells, "cell.last_rank >= session.ranks", "last_rank is none of the ranks"),
        (cells, one_end.format("seconds"), "seconds has one end of an interval only"),
        (cells, one_end.format("ratio"), "ratio has one end of an interval only"),
        (cells, outside.format("seconds"), "seconds lies outside of its interval"),
        (cells, outside.format("ratio"), "ratio lies outside of its interval"),
        (samples, "cell.seq IS NULL", "there are samples, and no cell"),
        (samples, "sample.count <> cell.samples", "the cell has another number of samples"),
    ):
        if row := connection.execute(f"SELECT session_uuid, seq FROM {source} WHERE {wrong} LIMIT 1").fetchone():
            return "session {}, cell {}: {}".format(*row, words)
    rows = connection.execute(f"SELECT session_uuid, seq, kind, data FROM {database}.coll_sample")
    return _packed(rows, "session {}, cell {}")


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
