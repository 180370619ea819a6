-- Schema version 2 adds tables for the results of `hvd_bench coll` to those of version 1 (schema.sql). A store has
-- version 2 only if it holds such results, so that programs that know only version 1 can use all other stores.
-- Contract between bench/coll/record (C++, writes) and scripts/ (Python, reads). Units are those of schema.sql.
PRAGMA user_version = 2;

-- One launch of `hvd_bench coll`. Its cells were measured in turn. The table `session` has a row with the same uuid.
CREATE TABLE coll_session (
  uuid            TEXT PRIMARY KEY REFERENCES session(uuid),
  status          TEXT NOT NULL CHECK (status IN ('complete', 'incomplete')),
  status_reason   TEXT NOT NULL DEFAULT '',   -- why incomplete: 'SIGTERM', 'rank 3 on n2 lost: ...'
  started_utc     TEXT NOT NULL,
  finished_utc    TEXT NOT NULL,
  device          TEXT NOT NULL CHECK (device IN ('cpu', 'cuda')),  -- whose memory holds the buffers
  comm            TEXT NOT NULL,              -- solo, loopback, mpi, ...
  ranks           INTEGER NOT NULL CHECK (ranks BETWEEN 1 AND 2147483647),
  nodes           INTEGER NOT NULL CHECK (nodes BETWEEN 1 AND ranks),
  -- some host has more ranks than processors that they may use
  oversubscribed  INTEGER NOT NULL CHECK (oversubscribed IN (0, 1)),
  blocking        INTEGER NOT NULL CHECK (blocking BETWEEN 0 AND 3),  -- as -z has it
  warm            INTEGER NOT NULL CHECK (warm IN (0, 1)),  -- --warm: buffers may stay in caches
  -- sizes are those of this network's gradient buckets; '': of a sweep
  model           TEXT NOT NULL DEFAULT '' CHECK (length(model) <= 200),
  -- relative half width of an interval that is narrow enough
  target_interval REAL NOT NULL CHECK (target_interval BETWEEN 0 AND 1),
  buffer_bytes    INTEGER NOT NULL CHECK (buffer_bytes >= 0),  -- through which one rank and side rotates its buffers
  cache_bytes     INTEGER NOT NULL CHECK (cache_bytes >= 0),   -- last-level cache; 0: unknown
  -- by which skews and transfers may be wrong; 0: one clock
  clock_seconds   REAL NOT NULL CHECK (clock_seconds BETWEEN 0 AND 1e9),
  fingerprint     TEXT NOT NULL               -- equal fingerprints are comparable
) STRICT;

-- Like the table provenance, for a launch of `hvd_bench coll`.
CREATE TABLE coll_provenance (
  session_uuid   TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  key            TEXT NOT NULL,
  value          TEXT NOT NULL,
  in_fingerprint INTEGER NOT NULL DEFAULT 0 CHECK (in_fingerprint IN (0, 1)),
  PRIMARY KEY (session_uuid, key)
) STRICT, WITHOUT ROWID;

-- A cell: one operation of one size, type and reduction, in place or out of place, on one side of a comparison. Only
-- cells with at least one sample are stored.
CREATE TABLE coll_cell (
  session_uuid   TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  seq            INTEGER NOT NULL CHECK (seq >= 0),  -- order of the cells; cells that were not sampled leave gaps
  operation      TEXT NOT NULL CHECK (operation IN ('all_reduce', 'reduce_scatter', 'all_gather', 'all_to_all',
                                                    'broadcast', 'barrier')),
  type           TEXT NOT NULL CHECK (type IN ('int8', 'uint8', 'int16', 'int32', 'int64', 'half', 'bfloat16', 'float',
                                               'double')),  -- as nccl-tests names it
  -- none: the operation does not reduce
  reduction      TEXT NOT NULL CHECK (reduction IN ('sum', 'prod', 'max', 'min', 'avg', 'none')),
  -- Size and elements, as nccl-tests counts them. No machine has 2^60 bytes of memory.
  bytes          INTEGER NOT NULL CHECK (bytes BETWEEN 0 AND 1 << 60),
  count          INTEGER NOT NULL CHECK (count BETWEEN 0 AND 1 << 60),
  root           INTEGER NOT NULL CHECK (root BETWEEN -1 AND 2147483647),  -- -1: the operation has none
  in_place       INTEGER NOT NULL CHECK (in_place IN (0, 1)),
  ragged         INTEGER NOT NULL CHECK (ragged IN (0, 1)),  -- the ranks' shares differ
  side           TEXT NOT NULL,               -- of --compare: 'algorithm=ring'; '': nothing was compared
  algorithm      TEXT NOT NULL,               -- asked for: auto, ring, ...
  data_plane     TEXT NOT NULL,               -- what really ran
  -- buffers are memory that the ranks of a host share (GPUs: known to NCCL)
  registered     INTEGER NOT NULL CHECK (registered IN (0, 1)),
  samples        INTEGER NOT NULL CHECK (samples >= 1),
  operations_per_sample INTEGER NOT NULL CHECK (operations_per_sample >= 1),
  -- Median over samples of the slowest rank's time of one operation (NULL: shorter than the clock can tell), and its
  -- nominal 95 % interval (NULL: too few samples).
  seconds        REAL CHECK (seconds BETWEEN 1e-12 AND 1e9) CHECK (seconds BETWEEN seconds_low AND seconds_high),
  seconds_low    REAL CHECK (seconds_low BETWEEN 0 AND seconds_high) CHECK (seconds_low IS NULL OR seconds NOT NULL),
  seconds_high   REAL CHECK (seconds_high BETWEEN 1e-12 AND 1e9) CHECK ((seconds_low IS NULL) = (seconds_high IS NULL)),
  -- median, last arrival to last end
  transfer_seconds REAL NOT NULL CHECK (transfer_seconds BETWEEN 0 AND 1e9),
  skew_seconds   REAL NOT NULL CHECK (skew_seconds BETWEEN 0 AND 1e9),  -- median, first to last arrival
  last_rank      INTEGER NOT NULL CHECK (last_rank >= 0),  -- the rank that arrived last most often
  last_rank_share REAL NOT NULL CHECK (last_rank_share BETWEEN 0 AND 1),  -- in this share of the samples
  -- algbw and busbw of nccl-tests
  algorithm_bytes_per_second REAL NOT NULL CHECK (algorithm_bytes_per_second BETWEEN 0 AND 1e24),
  bus_bytes_per_second REAL NOT NULL CHECK (bus_bytes_per_second BETWEEN 0 AND 1e24),
  bound          REAL CHECK (bound BETWEEN 0 AND 1e6),  -- fraction of the bound that is reached; NULL: there is none
  -- Time over that of the session's first side, round by round, with its interval. NULL: the first side, or unknown.
  ratio          REAL CHECK (ratio BETWEEN 0 AND 1e6) CHECK (ratio BETWEEN ratio_low AND ratio_high),
  ratio_low      REAL CHECK (ratio_low BETWEEN 0 AND ratio_high) CHECK (ratio_low IS NULL OR ratio NOT NULL),
  ratio_high     REAL CHECK (ratio_high BETWEEN 0 AND 1e6) CHECK ((ratio_low IS NULL) = (ratio_high IS NULL)),
  wrong          INTEGER CHECK (wrong >= 0),  -- elements, over all ranks; NULL: not checked
  -- the interval of all samples is as narrow as was asked for
  settled        INTEGER NOT NULL CHECK (settled IN (0, 1)),
  stop_reason    TEXT NOT NULL,               -- 'interval narrow enough', 'time cap', 'SIGTERM', ...
  PRIMARY KEY (session_uuid, seq)
) STRICT, WITHOUT ROWID;

-- The samples of a cell, packed like those of the table sample.
-- kind: seconds (slowest rank), transfer_seconds, skew_seconds, last_rank (the rank that arrived last), round (number
-- of the round; samples of different cells in one round were taken close together).
CREATE TABLE coll_sample (
  session_uuid TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  seq          INTEGER NOT NULL,              -- of its coll_cell
  kind         TEXT NOT NULL CHECK (kind IN ('seconds', 'transfer_seconds', 'skew_seconds', 'last_rank', 'round')),
  count        INTEGER NOT NULL,
  data         BLOB NOT NULL CHECK (length(data) = 8 * count),
  PRIMARY KEY (session_uuid, seq, kind)
) STRICT;
