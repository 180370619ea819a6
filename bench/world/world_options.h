// The options that say how the ranks of a launch form a world. The options of training (options.h) and of `hvd_bench
// coll` contain them. Plain data.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/base/deadline.h"

namespace hvd::bench {

enum class CommBackend : std::uint8_t {
  kAuto,      ///< mpi when launched with several ranks, loopback when --ranks > 1, else solo
  kNone,      ///< every rank trains, nothing is reduced
  kLoopback,  ///< ranks are --ranks threads of this process
  kMpi,
  kNccl,  ///< NCCL between GPUs; the ranks find one another as with kAuto
};

struct WorldOptions {
  CommBackend comm = CommBackend::kAuto;
  int ranks = 0;  ///< loopback ranks in this process
  /// Deadline of every wait for another rank during start-up, while the ranks join and compare their options; in
  /// training also while they build the network, tune and take their first steps.
  Patience startup_deadline{std::chrono::minutes(5), "--startup-deadline-seconds"};
};

}  // namespace hvd::bench
