// One invocation of `train` or `validate`: builds the ranks, warms up, measures, checks, and returns run records. This
// is the one place where models and engine meet. Called by the CLI on every rank; rank 0 gets the results.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/options.h"
#include "bench/run_record.h"
#include "bench/train/gpu_backend.h"
#include "bench/validation.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// Progress for a person, at most a few times a second, rank 0 only.
struct Progress {
  std::string stage;  ///< "building", "warm-up", "measuring"
  std::string phase;  ///< "full", "none", "solo"
  std::int64_t steps = 0;
  double images_per_second = 0;  ///< so far; 0 while unknown
  double interval = 0;           ///< relative half width so far; 0 while unknown
  double seconds_left = 0;       ///< estimate; < 0 while unknown
};

/// Calls from rank 0's training thread between steps, outside timed regions.
struct SessionObserver {
  std::function<void(const Progress&)> progress;
  /// A run started (status running), grew (every few seconds), or ended (complete or incomplete). The
  /// observer saves it; it holds all samples so far of the ranks that this process can see.
  std::function<void(const RunRecord&)> save;
  /// True once the scheduler or the user asked to stop (SIGTERM, SIGINT, SIGUSR1, ...); with its name.
  std::function<std::string()> stop_requested;
  /// Called on every rank of a run of several processes: when they have become one world, whose waits have deadlines,
  /// and when they are about to leave it, which takes all of them. Either may be null.
  std::function<void()> joined, leaving;
  /// Called in a run of several processes, once all have agreed, with this host's other ranks. May be null.
  std::function<void(std::vector<comm::Neighbour> neighbours)> met;
  /// EngineOptions::warn of the ranks of this process. May be null.
  std::function<void(std::string_view line)> warn;
  /// On a rank that has lost a peer: Engine::flight_record(). Any thread. May be null.
  std::function<void(std::string table)> flight_record;
  /// On every rank, from its engine's thread: after `error` its training thread is stuck in a call of CUDA (StuckRank).
  /// Has to end the process. May be null: nothing is done.
  std::function<void(const Error& error)> stuck;
  std::chrono::milliseconds stuck_patience{20000};  ///< StuckRank::patience
  /// Returns the lines that NCCL has logged so far in this process (cli/nccl_log.h). May be null: they are not known.
  std::function<std::string()> nccl_log;
};

struct SessionResult {
  std::vector<RunRecord> runs;           ///< phase full last; empty on ranks other than 0
  bool is_root = true;                   ///< this process prints and stores
  std::vector<std::string> notes;        ///< lines for the closing table: choices made, memory, reconciliation
  std::string operations;                ///< of a profiled GPU: a table of measured operations beside their bounds
  std::optional<Validation> validation;  ///< of `hvd_bench validate`
  std::vector<std::string> faults;       ///< after all was measured: files beside the store that could not be written
};

/// Runs the session. `provenance` and ids are filled in by the caller's `prepare` callback for every new
/// record before it is first saved. `gpus` may be null: the session runs on the CPU.
/// Errors: Error; runs that had begun were given to observer.save with status incomplete first.
SessionResult run_session(const Options& options, const SessionObserver& observer,
                          const std::function<void(RunRecord&)>& prepare, GpuBackend* gpus = nullptr);

}  // namespace hvd::bench
