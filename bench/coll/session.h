// One invocation of `hvd_bench coll`: connects the ranks, samples all cells, and checks their results. Called on every
// rank; rank 0 gets the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/rank.h"
#include "bench/coll/result.h"
#include "bench/store/process_start.h"
#include "bench/world/gpu_backend.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// Returns the results so far, with `reason` as CollResult::interrupted; nullopt if there is no sample yet. Any thread
/// may call the function, even while the session's thread waits for another rank.
using Snapshot = std::function<std::optional<CollResult>(const std::string& reason)>;

/// Callbacks of a session. Rank 0's thread calls them between samples. `joined`, `met` and `leaving` are called as in
/// SessionObserver. Any function may be null.
struct CollObserver {
  std::function<std::string()> stop_requested;           ///< returns the signal that asked to stop, or empty text
  std::function<void(const std::string& line)> narrate;  ///< gets the progress of the session every half minute
  /// Called with the result on rank 0 while the ranks are still connected, because leaving MPI's world may take longer
  /// than a launcher waits after a signal. An error that `finished` throws is rethrown after the ranks have left MPI's
  /// world. If the session fails after the first sample, `finished` gets the results so far, with the error's text as
  /// `interrupted`, before the error is thrown.
  std::function<void(const CollResult&)> finished;
  /// Called on rank 0 before the first sample, with a function that returns the results so far. Use that function if
  /// the program must exit without waiting for the session's thread. At the end of the session this callback is called
  /// again, with an empty function. This second call must not return while the earlier function is in use.
  std::function<void(Snapshot)> snapshot;
  std::function<void()> joined, leaving;
  /// Called on rank 0 of a launch when the ranks have joined, before anything is measured. An error that it throws ends
  /// the session on all ranks: rank 0 throws the error itself, the other ranks throw an AgreedError.
  std::function<void()> check_outputs;
  std::function<void(std::vector<comm::Neighbour> neighbours)> met;
  std::function<std::string()> nccl_log;  ///< as in SessionObserver
};

/// Runs a session. `gpus` must not be null if the options ask for GPUs. The default `start` describes a process that
/// was started by hand. Errors, the same on all ranks: invalid_argument if there is nothing to measure, or if memory
/// does not suffice (checked before memory is allocated); mismatch if ranks have different options; the errors of the
/// communicators.
CollResult run_coll(const CollOptions& options, const CollObserver& observer, GpuBackend* gpus = nullptr,
                    const ProcessStart& start = {});

/// Runs one rank of the session on that rank's thread. `gpu` is this rank's GPU; null if the session is on CPUs.
/// `gpu_facts`: GpuRank::facts.
CollResult run_coll_rank(const CollOptions& options, Variants variants, const CollObserver& observer,
                         gpu::GpuRuntime* gpu = nullptr, const Environment& environment = {},
                         const Provenance& gpu_facts = {});

}  // namespace hvd::bench::coll
