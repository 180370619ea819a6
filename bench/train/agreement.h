// Whether the ranks of a launch want the same run. They can differ: `mpirun a : b`, HOROVOD_* variables that were
// not forwarded to every host, an old program on one of them. Nothing else would notice a smaller batch or another
// image size, and the throughput would be wrong.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/options.h"
#include "bench/train/setup.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/engine.h"
#include "models/train_step.h"

namespace hvd::bench {

/// What must be equal everywhere, by the option's name. What rank 0 alone decides (how long to measure, where to
/// store) is not among it. Pure.
using Wishes = std::vector<std::pair<std::string, std::string>>;
Wishes wishes_of(const Options& options, const Setup& setup);

/// Collective, before an engine has the communicator. Errors: mismatch on all ranks alike, which names the option,
/// the ranks and their values; those of the communicator.
void require_agreement(comm::Communicator& communicator, const Wishes& mine, Deadline deadline);

/// Collective, likewise. `objection` is this rank's, empty for none.
/// Errors: invalid_argument on all ranks alike, with the objection of the lowest rank that has one; the communicator's.
void require_no_objection(comm::Communicator& communicator, const std::string& objection, Deadline deadline);

/// How a rank stores its parameters.
struct StoredLayouts {
  std::string maker;  ///< processor and library: "Intel Xeon Platinum 8481C, onednn 2.6.0 avx512_core_bf16"
  Wishes layouts;     ///< parameter and layout; empty where the backend stores rows
  [[nodiscard]] std::uint64_t hash() const;
};
StoredLayouts stored_layouts(const models::TrainStep& step);

/// Collective, on the engine. Gradients are summed, and weights are broadcast, as they lie in memory.
/// Errors: mismatch on all ranks alike, which names the parameter, both layouts, the ranks, hosts and processors.
void require_equal_layouts(Engine& engine, const StoredLayouts& mine);

}  // namespace hvd::bench
