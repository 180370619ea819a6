// One session of `train` or `validate`: builds the ranks, warms up, measures, checks, and returns run records. The CLI
// calls run_session() on every rank, and rank 0 gets the results.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/session/validation.h"
#include "bench/store/process_start.h"
#include "bench/store/run_record.h"
#include "bench/world/gpu_backend.h"
#include "bench/world/options.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// The progress of a session, to be shown to a person. Sent at most a few times a second, on rank 0 only.
struct Progress {
  std::string stage;  ///< "building", "warm-up", "measuring"
  std::string phase;  ///< "full", "none", "solo"
  std::int64_t steps = 0;
  double images_per_second = 0;  ///< so far, in the unit of work; 0 while unknown
  double interval = 0;           ///< relative half width of the median's interval so far; 0 while unknown
  double seconds_left = 0;       ///< estimate; negative while unknown
  std::string unit = {};         ///< of work: "images"; may be empty while the rate is unknown
};

/// Callbacks. Unless stated otherwise, rank 0's training thread calls them between steps, outside timed regions.
struct SessionObserver {
  std::function<void(const Progress&)> progress;
  /// Called on rank 0 with a line for the user: what is planned, or that little fits. Called before the first round,
  /// and maybe before the stage "warm-up". May be null.
  std::function<void(const std::string& line)> tell;
  /// Called when a run has started (status running), has grown (every few seconds), or has ended (complete or
  /// incomplete). The observer saves the record, which holds all samples so far of the ranks that this process can see.
  std::function<void(const RunRecord&)> save;
  /// Returns the name of the signal that asked the program to stop (SIGTERM, SIGINT, SIGUSR1, ...), or "".
  std::function<std::string()> stop_requested;
  /// Called on every rank of a run of several processes. `joined`: the processes have become one world, and from now on
  /// waits have deadlines. `leaving`: the process is about to leave that world, after success or error. May be null.
  std::function<void()> joined, leaving;
  /// Called in a run of several processes, with the other ranks of this host, once all ranks have been found to have
  /// the same settings. May be null.
  std::function<void(std::vector<comm::Neighbour> neighbours)> met;
  /// EngineOptions::warn for the ranks of this process. May be null.
  std::function<void(std::string_view line)> warn;
  /// Called on a rank that has lost a peer, with Engine::flight_record(). Any thread. May be null.
  std::function<void(std::string table)> flight_record;
  /// Called from another thread of a rank whose training thread is stuck: after `error` in a call of CUDA (StuckRank),
  /// or on the CPU in a step (StepWatch). `stuck` has to end the process. If `stuck` is null, nothing is done.
  std::function<void(const Error& error)> stuck;
  std::chrono::milliseconds stuck_patience{20000};  ///< StuckRank::patience
  /// Returns what NCCL has logged so far in this process (cli/nccl_log.h). If null, the log is unknown.
  std::function<std::string()> nccl_log;
};

struct SessionResult {
  std::vector<RunRecord> runs;     ///< phase full last; empty on ranks other than 0
  bool is_root = true;             ///< this process prints and stores
  std::vector<std::string> notes;  ///< lines for the closing table: choices made for the user, and cautions
  std::string
      operations;  ///< with --profile: a table of the measured operations, beside their bounds where these are known
  std::optional<Validation> validation;  ///< result of `hvd_bench validate`
  std::vector<std::string> faults;       ///< errors after the measurement: files that could not be written
};

/// Runs the session. The callback `prepare` fills in provenance and ids of every new record before its first save. If
/// `gpus` is null, the session runs on the CPU. The default `start` describes a process that was started by hand.
/// Errors: any Error. Before the Error is thrown, observer.save gets the runs that had begun, with status incomplete.
SessionResult run_session(const Options& options, const SessionObserver& observer,
                          const std::function<void(RunRecord&)>& prepare, GpuBackend* gpus = nullptr,
                          const ProcessStart& start = {});

}  // namespace hvd::bench
