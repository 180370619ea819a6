// The memory layouts in which the ranks store their parameters, and the check that they are equal.
#pragma once

#include <cstdint>
#include <string>

#include "bench/world/settings.h"
#include "engine/runtime/engine.h"
#include "models/train_step.h"

namespace hvd::bench {

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
