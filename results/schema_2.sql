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
  ranks           INTEGER NOT NULL,
  nodes           INTEGER NOT NULL,
  oversubscribed  INTEGER NOT NULL,           -- some host has more ranks than processors that they may use
  blocking        INTEGER NOT NULL,           -- 0 .. 3, as -z has it
  warm            INTEGER NOT NULL,           -- --warm: buffers may stay in caches
  model           TEXT NOT NULL DEFAULT '',   -- sizes are those of this network's gradient buckets; '': of a sweep
  target_interval REAL NOT NULL,              -- relative half width of an interval that is narrow enough
  buffer_bytes    INTEGER NOT NULL,           -- through which the buffers of one rank and side rotate
  cache_bytes     INTEGER NOT NULL,           -- last-level cache; 0: unknown
  clock_seconds   REAL NOT NULL,              -- by which skews and transfers may be wrong; 0: one clock
  fingerprint     TEXT NOT NULL               -- equal fingerprints are comparable
) STRICT;

-- Like the table provenance, for a launch of `hvd_bench coll`.
CREATE TABLE coll_provenance (
  session_uuid   TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  key            TEXT NOT NULL,
  value          TEXT NOT NULL,
  in_fingerprint INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (session_uuid, key)
) STRICT, WITHOUT ROWID;

-- A cell: one operation of one size, type and reduction, in place or out of place, on one side of a comparison. Only
-- cells with at least one sample are stored.
CREATE TABLE coll_cell (
  session_uuid   TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  seq            INTEGER NOT NULL,            -- order of the cells; cells that were not sampled leave gaps
  operation      TEXT NOT NULL CHECK (operation IN ('all_reduce', 'reduce_scatter', 'all_gather', 'all_to_all',
                                                    'broadcast', 'barrier')),
  type           TEXT NOT NULL,               -- as nccl-tests names it: float, half, ...
  reduction      TEXT NOT NULL,               -- sum, prod, max, min, avg; none: the operation does not reduce
  bytes          INTEGER NOT NULL,            -- size as nccl-tests counts it
  count          INTEGER NOT NULL,            -- elements as nccl-tests counts them
  root           INTEGER NOT NULL,            -- -1: the operation has none
  in_place       INTEGER NOT NULL,
  ragged         INTEGER NOT NULL,            -- the ranks' shares differ
  side           TEXT NOT NULL,               -- of --compare: 'algorithm=ring'; '': nothing was compared
  algorithm      TEXT NOT NULL,               -- asked for: auto, ring, ...
  data_plane     TEXT NOT NULL,               -- what really ran
  registered     INTEGER NOT NULL,            -- buffers are memory that the ranks of a host share (GPUs: known to NCCL)
  samples        INTEGER NOT NULL,
  operations_per_sample INTEGER NOT NULL,
  -- Median over samples of the slowest rank's time of one operation (NULL: shorter than the clock can tell), and its
  -- nominal 95 % interval (NULL: too few samples).
  seconds        REAL,
  seconds_low    REAL,
  seconds_high   REAL,
  transfer_seconds REAL NOT NULL,             -- median, last arrival to last end
  skew_seconds   REAL NOT NULL,               -- median, first to last arrival
  last_rank      INTEGER NOT NULL,            -- the rank that arrived last most often
  last_rank_share REAL NOT NULL,              -- in this share of the samples
  algorithm_bytes_per_second REAL NOT NULL,   -- algbw of nccl-tests
  bus_bytes_per_second REAL NOT NULL,         -- busbw
  bound          REAL,                        -- fraction of the bound that is reached; NULL: there is none
  -- Time over that of the session's first side, round by round, with its interval. NULL: the first side, or unknown.
  ratio          REAL,
  ratio_low      REAL,
  ratio_high     REAL,
  wrong          INTEGER,                     -- elements, over all ranks; NULL: not checked
  settled        INTEGER NOT NULL,            -- the interval of all samples is as narrow as was asked for
  stop_reason    TEXT NOT NULL,               -- 'interval narrow enough', 'time cap', 'SIGTERM', ...
  PRIMARY KEY (session_uuid, seq)
) STRICT, WITHOUT ROWID;

-- The samples of a cell, packed like those of the table sample.
-- kind: seconds (slowest rank), transfer_seconds, skew_seconds, last_rank (the rank that arrived last), round (number
-- of the round; samples of different cells in one round were taken close together).
CREATE TABLE coll_sample (
  session_uuid TEXT NOT NULL REFERENCES coll_session(uuid) ON DELETE CASCADE,
  seq          INTEGER NOT NULL,              -- of its coll_cell
  kind         TEXT NOT NULL,
  count        INTEGER NOT NULL,
  data         BLOB NOT NULL CHECK (length(data) = 8 * count),
  PRIMARY KEY (session_uuid, seq, kind)
) STRICT;
