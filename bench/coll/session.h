// One invocation of `hvd_bench coll`: brings the ranks together, samples all cells, checks their results. Called on
// every rank; rank 0 gets the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/rank.h"
#include "bench/coll/result.h"
#include "bench/options.h"
#include "bench/train/gpu_backend.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// Makes a result of what was measured so far, with `reason` as `interrupted`; nothing where there is no sample yet.
/// Any thread may call it, also while the session's thread waits for another rank.
using Snapshot = std::function<std::optional<CollResult>(const std::string& reason)>;

/// Calls from rank 0's thread between samples, but for joined, met and leaving, which are SessionObserver's. Any may be
/// null.
struct CollObserver {
  std::function<std::string()> stop_requested;           ///< name of the signal that asked to stop, or empty
  std::function<void(const std::string& line)> narrate;  ///< how far the session is, every half minute
  /// The result, on rank 0, while the ranks are still together: leaving MPI's world may take longer than a launcher
  /// waits after a signal. What it throws is thrown once the ranks have parted. If the session fails after the first
  /// sample, it is called with what was measured, whose `interrupted` is the error's text, before the error is thrown.
  std::function<void(const CollResult&)> finished;
  /// Called on rank 0 before the first sample. The snapshot is for an end that cannot wait for the session's thread.
  /// When the session is over, this is called with an empty function; it must return only once the snapshot is out of
  /// use.
  std::function<void(Snapshot)> snapshot;
  std::function<void()> joined, leaving;
  std::function<void(std::vector<comm::Neighbour> neighbours)> met;
};

/// `world` says how the ranks come together (comm, ranks) and how long they wait for one another.
/// Errors: invalid_argument where there is nothing to measure or no memory for it, before any is taken; mismatch where
/// ranks want different things; those of the communicators. All ranks get the same.
/// `gpus`: needed where the options want GPUs.
CollResult run_coll(const Options& world, const CollOptions& options, const CollObserver& observer,
                    GpuBackend* gpus = nullptr);

/// One rank of it, on that rank's thread. `gpu`: this rank's, null where the session is on CPUs.
CollResult run_coll_rank(const CollOptions& options, Variants variants, const CollObserver& observer, Patience patience,
                         gpu::Runtime* gpu = nullptr);

}  // namespace hvd::bench::coll
