-- The store of hvd_bench: one SQLite file per job, or several jobs merged into one file. Only rank 0 writes it, outside
-- the timed region. This schema is the contract between bench/store/result_store (C++, writes) and scripts/ (Python, reads).
-- All times are in seconds, all sizes in bytes, all rates in images per second of the whole world.
-- application_id is 0x68766462 ('hvdb'); user_version is the schema version.
--
-- The CHECKs are the rules for values. A CHECK holds if the column is NULL, which means "not measured". No step is
-- shorter than 1e-12 seconds, no time is longer than 1e9 seconds, and no machine does 1e24 FLOPs in one step. Writers
-- ignore the CHECKs, so that no run is lost. Readers copy the rows of a file into temporary tables of this schema, and
-- refuse the file if a CHECK fails (scripts/hvdb/read/values.py).
PRAGMA application_id = 1752589410;
PRAGMA user_version = 1;

-- One launch of the program. Its runs were measured in turn in one allocation, so they may be compared.
CREATE TABLE session (
  uuid         TEXT PRIMARY KEY CHECK (length(uuid) BETWEEN 8 AND 64 AND uuid NOT GLOB '*[^0-9a-zA-Z-]*'),
  started_utc  TEXT NOT NULL,                 -- ISO 8601, UTC
  command_line TEXT NOT NULL                  -- runs again as it stands
) STRICT;

-- One configuration, measured or simulated.
CREATE TABLE run (
  uuid            TEXT PRIMARY KEY CHECK (length(uuid) BETWEEN 8 AND 64 AND uuid NOT GLOB '*[^0-9a-zA-Z-]*'),
  session_uuid    TEXT NOT NULL REFERENCES session(uuid),
  origin          TEXT NOT NULL CHECK (origin IN ('measured', 'simulated')),
  -- full: every rank trains and reduces. none: every rank trains, nothing is reduced (--comm none).
  -- solo: rank 0 trains alone while the others sleep: the one-rank baseline of the same allocation.
  phase           TEXT NOT NULL CHECK (phase IN ('full', 'none', 'solo')),
  status          TEXT NOT NULL CHECK (status IN ('running', 'complete', 'incomplete')),
  status_reason   TEXT NOT NULL DEFAULT '',   -- why incomplete: 'SIGTERM', 'rank 3 on n2 lost: ...'
  started_utc     TEXT NOT NULL,
  finished_utc    TEXT,
  model           TEXT NOT NULL CHECK (length(model) <= 200),  -- canonical name
  batch_size      INTEGER NOT NULL CHECK (batch_size >= 1),  -- images (fact work.unit: what else) per rank
  image_size      INTEGER NOT NULL CHECK (image_size >= 0),  -- 0: no images, or of unknown size
  auxiliary_head  INTEGER NOT NULL DEFAULT 0 CHECK (auxiliary_head IN (0, 1)),
  device          TEXT NOT NULL CHECK (device IN ('cpu', 'cuda', 'replay', 'reference', 'torch')),
  compute_type    TEXT NOT NULL,              -- fp32, tf32, fp16, bf16
  allreduce_type  TEXT NOT NULL,
  schedule        TEXT NOT NULL CHECK (schedule IN ('static', 'sharded', 'negotiated', 'none', 'ddp')),
  comm            TEXT NOT NULL,              -- solo (also every run of phase solo), loopback, mpi, nccl, gloo
  data_plane      TEXT NOT NULL,              -- what really ran: 'shm', 'ring', ...
  -- world_size: ranks that took part in this run (1 for phase solo). allocation_size: ranks of the launch.
  world_size      INTEGER NOT NULL CHECK (world_size BETWEEN 1 AND allocation_size),
  allocation_size INTEGER NOT NULL CHECK (allocation_size BETWEEN 1 AND 2147483647),
  nodes           INTEGER NOT NULL CHECK (nodes BETWEEN 1 AND 2147483647),
  threads         INTEGER NOT NULL CHECK (threads BETWEEN 0 AND 2147483647),  -- compute threads per rank
  seed            INTEGER NOT NULL,
  -- traced or profiled: never compare with untraced
  traced          INTEGER NOT NULL DEFAULT 0 CHECK (traced IN (0, 1)),
  batches_per_iter INTEGER NOT NULL DEFAULT 1 CHECK (batches_per_iter >= 1),  -- training steps per sample
  warmup_steps    INTEGER NOT NULL DEFAULT 0 CHECK (warmup_steps >= 0),  -- discarded
  measured_steps  INTEGER NOT NULL DEFAULT 0 CHECK (measured_steps >= 0),
  stop_reason     TEXT NOT NULL DEFAULT '',   -- 'interval narrow enough', 'iteration cap', 'time cap', ...
  -- Step time is the maximum over ranks, sample by sample (the mean over ranks of GPUs that reduce and whose steps are
  -- launched ahead); median over samples, bootstrap interval (NULL: fewer than three samples).
  step_seconds    REAL CHECK (step_seconds BETWEEN 1e-12 AND 1e9),
  step_seconds_low REAL CHECK (step_seconds_low BETWEEN -1e9 AND step_seconds_high),
  step_seconds_high REAL CHECK (step_seconds_high BETWEEN 1e-12 AND 1e9)
                         CHECK ((step_seconds_low IS NULL) = (step_seconds_high IS NULL)),
  -- world_size * batch_size / step_seconds. No upper limit, because the interval of the time may reach down to zero.
  images_per_second REAL CHECK (images_per_second > 0),
  images_per_second_low REAL CHECK (images_per_second_low > 0) CHECK (images_per_second_low <= images_per_second_high),
  images_per_second_high REAL CHECK (images_per_second_high > 0),
  confidence      REAL NOT NULL DEFAULT 0.95 CHECK (confidence BETWEEN 0 AND 1),
  parameters      INTEGER CHECK (parameters >= 0),
  gradient_bytes  INTEGER CHECK (gradient_bytes >= 0),
  flops_per_image REAL CHECK (flops_per_image BETWEEN 0 AND 1e24),
  plan_hash       TEXT,                       -- bucket plan, 16 hexadecimal digits
  buckets         INTEGER CHECK (buckets >= 0),
  final_loss      REAL,                       -- infinite if the run's check of the loss failed
  checks          TEXT NOT NULL DEFAULT '',   -- 'gradients ok, checksums equal' or what failed
  fingerprint     TEXT NOT NULL               -- equal fingerprints are comparable (see provenance.in_fingerprint)
) STRICT;

-- Facts that explain the figures of a run, one per row. in_fingerprint is 1 if the fact can change the result.
CREATE TABLE provenance (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  key            TEXT NOT NULL,               -- 'git.commit', 'cpu.model', 'lib.onednn', 'env.OMP_NUM_THREADS', ...
  value          TEXT NOT NULL,
  in_fingerprint INTEGER NOT NULL DEFAULT 0 CHECK (in_fingerprint IN (0, 1)),
  PRIMARY KEY (run_uuid, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE rank (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  rank           INTEGER NOT NULL CHECK (rank >= 0),
  host           TEXT NOT NULL,
  local_rank     INTEGER NOT NULL CHECK (local_rank BETWEEN 0 AND 2147483647),
  planned_bytes  INTEGER CHECK (planned_bytes >= 0),   -- memory plan: arenas, activations, workspaces, engine buffers
  baseline_bytes INTEGER CHECK (baseline_bytes >= 0),  -- resident before the model was built (program and libraries)
  peak_bytes     INTEGER CHECK (peak_bytes >= 0),      -- highest resident set of the process (VmHWM)
  gradient_checksum TEXT,                     -- of the last reduced gradients; equal on all ranks
  PRIMARY KEY (run_uuid, rank)
) STRICT, WITHOUT ROWID;

-- Samples: one blob per rank and kind, which holds `count` little-endian IEEE doubles.
-- kind: step_seconds (forward to update, per step), compute_seconds (forward and backward, without waits),
-- exposed_seconds (wait for the engine), reduce_seconds, control_seconds, copy_seconds (times of the engine's thread),
-- update_seconds, loss. Trainings by other programs have input_seconds, the part of a step in which it waits for its
-- batch, and no times of the engine's thread. On GPUs, times of the program's own trainings come from the GPU's events,
-- and there are two more kinds by the host's clock: launch_seconds (until all work was launched or enqueued) and
-- host_seconds (from the end of the previous step to the end of this one; for the first of several steps, from its
-- request).
-- Two more kinds are not samples but 200 bootstrap replicates of a figure, stored for rank 0, with which several
-- sessions are pooled: step_seconds_replicates (replicates of run.step_seconds, in seconds, above zero), and for phase
-- full of a session with --efficiency, efficiency_replicates (replicates of the component efficiency below, zero or
-- above). They are missing if the figure has no interval, and in stores of programs before 2026-11-23.
-- This table has row ids, unlike the other child tables. Without them, blobs of a few kilobytes would lie in the tree
-- of the primary key, and each would waste most of a page (19 MB instead of 9 MB for 512 ranks x 8 kinds x 200 steps).
-- Statements and columns are the same in both forms.
CREATE TABLE sample (
  run_uuid TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  rank     INTEGER NOT NULL CHECK (rank >= 0),
  kind     TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 64 AND kind NOT GLOB '*[^0-9a-z_]*')
                         CHECK (instr(kind, char(0)) = 0)
                         CHECK (kind NOT GLOB '*_replicates' OR (rank = 0 AND count = 200)),
  count    INTEGER NOT NULL,
  data     BLOB NOT NULL CHECK (length(data) = 8 * count),
  PRIMARY KEY (run_uuid, rank, kind)
) STRICT;

-- Efficiency of a session and the parts of the loss, as fractions of the full run's step time. They sum to 1.
-- component: efficiency, interference, input (only where steps wait for their batch), stragglers,
-- exposed_communication, control_plane, overlap_slowdown, update, residual (docs/measurement.md defines them).
CREATE TABLE decomposition (
  run_uuid  TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,  -- the run of phase 'full'
  component TEXT NOT NULL CHECK (length(component) BETWEEN 1 AND 64 AND component NOT GLOB '*[^0-9a-z_]*'),
  -- Of the step time of the full run. A part may be a gain, and an interval may reach below zero.
  fraction  REAL NOT NULL CHECK (fraction BETWEEN -1e9 AND 1e9),
  seconds   REAL NOT NULL CHECK (seconds BETWEEN -1e9 AND 1e9),
  low       REAL CHECK (low BETWEEN -1e9 AND high),  -- bootstrap interval of `fraction`; NULL: a single round
  high      REAL CHECK (high BETWEEN -1e9 AND 1e9) CHECK ((low IS NULL) = (high IS NULL)),
  PRIMARY KEY (run_uuid, component)
) STRICT, WITHOUT ROWID;

-- Per-operation profile of the measured steps (runs with traced = 1).
CREATE TABLE operation (
  run_uuid       TEXT NOT NULL REFERENCES run(uuid) ON DELETE CASCADE,
  seq            INTEGER NOT NULL CHECK (seq >= 0),  -- execution order
  node           TEXT NOT NULL,
  kind           TEXT NOT NULL,
  implementation TEXT NOT NULL,
  library        INTEGER NOT NULL CHECK (library IN (0, 1)),  -- inside the library's compute primitives
  seconds        REAL NOT NULL CHECK (seconds BETWEEN 0 AND 1e9),  -- mean per step
  flops          REAL NOT NULL CHECK (flops BETWEEN 0 AND 1e24),
  bytes          REAL NOT NULL CHECK (bytes BETWEEN 0 AND 1e24),
  PRIMARY KEY (run_uuid, seq)
) STRICT, WITHOUT ROWID;
