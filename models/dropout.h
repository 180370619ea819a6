// The dropout mask is a pure function of (seed, step, layer, global sample, feature). Every backend draws the same
// mask, and the mask does not depend on how the global batch is split over ranks.
#pragma once

#include <cstdint>
#include <span>

#include "models/graph/graph.h"

namespace hvd::models {

struct DropoutPoint {
  std::uint64_t seed = 1;          ///< StepOptions::seed
  std::uint64_t step = 0;          ///< Batch::step
  std::uint64_t first_sample = 0;  ///< Batch::first_sample
  std::uint64_t features = 0;      ///< number of elements per sample: h * w * c or features
};

/// Sets keep[i] to 1 if element i of a row-major {n, features} block is kept, else to 0. Row 0 of the block is sample
/// `first_sample`. Forward and backward multiply kept elements by dropout_scale() and set the rest to zero.
void dropout_mask(const DropoutAttr& attr, const DropoutPoint& point, std::span<std::uint8_t> keep);

/// Returns 1 / (1 - rate).
[[nodiscard]] double dropout_scale(const DropoutAttr& attr) noexcept;

}  // namespace hvd::models
