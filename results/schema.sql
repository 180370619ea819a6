-- The store of hvd_bench: one SQLite file per job, or several jobs merged into one file. Only rank 0 writes it, outside
-- the timed region. This schema is the contract between bench/store/result_store (C++, writes) and scripts/ (Python, reads).
-- All times are in seconds, all sizes in bytes, all rates in images per second of the whole world.
-- application_id is 0x68766462 ('hvdb'); user_version is the schema version.
PRAGMA application_id = 1752589410;
PRAGMA user_version = 1;

-- One launch of the program. Its runs were measured in turn in one allocation, so they may be compared.
CREATE TABLE session (
  uuid         TEXT PRIMARY KEY,
  started_utc  TEXT NOT NULL,                 -- ISO 8601, UTC
  command_line TEXT NOT NULL                  -- runs again as it stands
) STRICT;

-- One configuration, measured or simulated.
CREATE TABLE run (
  uuid            TEXT PRIMARY KEY,
  session_uuid    TEXT NOT NULL REFERENCES session(uuid),
  origin          TEXT NOT NULL CHECK (origin IN ('measured', 'simulated')),
  -- full: every rank trains and reduces. none: every rank trains, nothing is reduced (--comm none).
  -- solo: rank 0 trains alone while the others sleep: the one-rank baseline of the same allocation.
  phase           TEXT NOT NULL CHECK (phase IN ('full', 'none', 'solo')),
  status          TEXT NOT NULL CHECK (status IN ('running', 'complete', 'incomplete')),
  status_reason   TEXT NOT NULL DEFAULT '',   -- why incomplete: 'SIGTERM', 'rank 3 on n2 lost: ...'
  started_utc     TEXT NOT NULL,
  finished_utc    TEXT,
  model           TEXT NOT NULL,              -- canonical name
  batch_size      INTEGER NOT NULL,           -- images per rank
  image_size      INTEGER NOT NULL,
  auxiliary_head  INTEGER NOT NULL DEFAULT 0,
  device          TEXT NOT NULL CHECK (device IN ('cpu', 'cuda', 'replay', 'reference')),
  compute_type    TEXT NOT NULL,              -- fp32, tf32, fp16, bf16
  allreduce_type  TEXT NOT NULL,
  schedule        TEXT NOT NULL CHECK (schedule IN ('static', 'sharded', 'negotiated', 'none')),
  comm            TEXT NOT NULL,              -- solo (also every run of phase solo), loopback, mpi, nccl, hierarchical
  data_plane      TEXT NOT NULL,              -- what really ran: 'shm', 'ring', ...
  world_size      INTEGER NOT NULL,           -- ranks that took part in this run (1 for phase solo)
  allocation_size INTEGER NOT NULL,           -- ranks of the launch
  nodes           INTEGER NOT NULL,
  threads         INTEGER NOT NULL,           -- compute threads per rank
  seed            INTEGER NOT NULL,
  traced          INTEGER NOT NULL DEFAULT 0, -- traced or profiled: never compare with untraced
  batches_per_iter INTEGER NOT NULL DEFAULT 1,-- training steps per sample
  warmup_steps    INTEGER NOT NULL DEFAULT 0, -- discarded
  measured_steps  INTEGER NOT NULL DEFAULT 0,
  stop_reason     TEXT NOT NULL DEFAULT '',   -- 'interval narrow enough', 'iteration cap', 'time cap', ...
  -- Step time is the maximum over ranks, sample by sample; median over samples, bootstrap interval (NULL: fewer than
  -- three samples).
  step_seconds    REAL,
  step_seconds_low REAL,
  step_seconds_high REAL,
  images_per_second REAL,                     -- world_size * batch_size / step_seconds
  images_per_second_low REAL,
  images_per_second_high REAL,
  confidence      REAL NOT NULL DEFAULT 0.95,
  parameters      INTEGER,
  gradient_bytes  INTEGER,
  flops_per_image REAL,
  plan_hash       TEXT,                       -- bucket plan, 16 hexadecimal digits
  buckets         INTEGER,
  final_loss      REAL,
  checks          TEXT NOT NULL DEFAULT '',   -- 'gradients ok, checksums equal' or what failed
  fingerprint     TEXT NOT NULL               -- equal fingerprints are comparable (see provenance.in_fingerprint)
) STRICT;

-- Facts that explain the figures of a run, one per row. in_fingerprint is 1 if the fact can change the result.
CREATE TABLE provenance (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  key            TEXT NOT NULL,               -- 'git.commit', 'cpu.model', 'lib.onednn', 'env.OMP_NUM_THREADS', ...
  value          TEXT NOT NULL,
  in_fingerprint INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run_uuid, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE rank (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  rank           INTEGER NOT NULL,
  host           TEXT NOT NULL,
  local_rank     INTEGER NOT NULL,
  planned_bytes  INTEGER,                     -- memory plan: arenas, activations, workspaces, engine buffers
  baseline_bytes INTEGER,                     -- resident before the model was built (program and libraries)
  peak_bytes     INTEGER,                     -- highest resident set of the process (VmHWM)
  gradient_checksum TEXT,                     -- of the last reduced gradients; equal on all ranks
  PRIMARY KEY (run_uuid, rank)
) STRICT, WITHOUT ROWID;

-- Samples: one blob per rank and kind, which holds `count` little-endian IEEE doubles.
-- kind: step_seconds (forward to update, per step), compute_seconds (forward and backward, without waits),
-- exposed_seconds (wait for the engine), reduce_seconds, control_seconds, copy_seconds (times of the engine's thread),
-- update_seconds, loss. On GPUs, these times come from the GPU's events, and there are two more kinds by the host's
-- clock: launch_seconds (until all work was launched or enqueued) and host_seconds (from the end of the previous step
-- to the end of this one; for the first of several steps, from its request).
-- Two more kinds are not samples but 200 bootstrap replicates of a figure, stored for rank 0, with which several
-- sessions are pooled: step_seconds_replicates (replicates of run.step_seconds, in seconds, above zero), and for phase
-- full of a session with --efficiency, efficiency_replicates (replicates of the component efficiency below, zero or
-- above). They are missing if the figure has no interval, and in stores of programs before 2026-11-23.
-- This table has row ids, unlike the other child tables. Without them, blobs of a few kilobytes would lie in the tree
-- of the primary key, and each would waste most of a page (19 MB instead of 9 MB for 512 ranks x 8 kinds x 200 steps).
-- Statements and columns are the same in both forms.
CREATE TABLE sample (
  run_uuid TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  rank     INTEGER NOT NULL,
  kind     TEXT NOT NULL,
  count    INTEGER NOT NULL,
  data     BLOB NOT NULL CHECK (length(data) = 8 * count),
  PRIMARY KEY (run_uuid, rank, kind)
) STRICT;

-- Efficiency of a session and the parts of the loss, as fractions of the full run's step time. They sum to 1.
-- component: efficiency, interference, stragglers, exposed_communication, control_plane, overlap_slowdown, update,
-- residual (docs/measurement.md defines them).
CREATE TABLE decomposition (
  run_uuid  TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,  -- the run of phase 'full'
  component TEXT NOT NULL,
  fraction  REAL NOT NULL,                    -- of the step time of the full run
  seconds   REAL NOT NULL,
  low       REAL,                             -- bootstrap interval of `fraction`; NULL: a single round
  high      REAL,
  PRIMARY KEY (run_uuid, component)
) STRICT, WITHOUT ROWID;

-- Per-operation profile of the measured steps (runs with traced = 1).
CREATE TABLE operation (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  seq            INTEGER NOT NULL,            -- execution order
  node           TEXT NOT NULL,
  kind           TEXT NOT NULL,
  implementation TEXT NOT NULL,
  library        INTEGER NOT NULL,            -- inside the library's compute primitives
  seconds        REAL NOT NULL,               -- mean per step
  flops          REAL NOT NULL,
  bytes          REAL NOT NULL,
  PRIMARY KEY (run_uuid, seq)
) STRICT, WITHOUT ROWID;
