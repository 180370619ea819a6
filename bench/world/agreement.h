// Checks that all ranks of a launch have the same settings. Settings can differ because of `mpirun a : b`,
// HOROVOD_* variables that were not forwarded to every host, or an old program on one host. No other check would notice
// that one rank has a smaller batch or another image size, and the throughput would be wrong.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/world/options.h"
#include "bench/world/setup.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/engine.h"
#include "models/train_step.h"

namespace hvd::bench {

/// The settings that must be equal on all ranks, by option name. Settings that only rank 0 uses (how long to measure,
/// where to store) are left out. Pure.
using RunSettings = std::vector<std::pair<std::string, std::string>>;
RunSettings settings_of(const Options& options, const Setup& setup);

/// Collective. Call it before an engine owns the communicator. Errors: mismatch on all ranks, with a text that names
/// the option, the ranks and their values; errors of the communicator.
void require_agreement(comm::Communicator& communicator, const RunSettings& mine, Deadline deadline);

/// Collective. Call it before an engine owns the communicator. `objection`: this rank's reason not to run, or "".
/// Errors: invalid_argument on all ranks, with the lowest objecting rank's text; errors of the communicator.
void require_no_objection(comm::Communicator& communicator, const std::string& objection, Deadline deadline);

/// The memory layouts in which a rank stores its parameters.
struct StoredLayouts {
  std::string maker;    ///< processor and library, such as "Intel Xeon Platinum 8481C, onednn 2.6.0 avx512_core_bf16"
  RunSettings layouts;  ///< parameter and layout; empty if the backend stores plain rows
  [[nodiscard]] std::uint64_t hash() const;
};
StoredLayouts stored_layouts(const models::TrainStep& step);

/// Collective, on the engine. Ranks exchange gradients and weights as bytes, so the layouts of all ranks must be equal.
/// Errors: mismatch on all ranks; the text names the parameter, both layouts, the ranks, hosts and processors.
void require_equal_layouts(Engine& engine, const StoredLayouts& mine);

}  // namespace hvd::bench
