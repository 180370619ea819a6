// Decides in which ranges of the gradient arena a negotiated batch is reduced. The ranks compared their gradient lists
// at the start, so all ranks decide the same if they decide by gradient indices. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

/// A run is a series of consecutive gradients, [first, last). The gaps between neighbouring gradients hold no data, so
/// a reduction may include the gaps.
struct GradientRun {
  std::size_t first = 0, last = 0;
  bool operator==(const GradientRun&) const = default;
};

/// If the runs of a batch have at least this many bytes on average, each run is reduced in place by a reduction of its
/// own, which adds a latency of 10 us. Copying a run of this size into the fusion buffer and out again would take
/// longer: about 20 us at 10 GB/s.
inline constexpr std::size_t kWorthItsOwnReduction = std::size_t{128} << 10;

struct GradientRuns {
  std::vector<GradientRun> runs;  ///< ascending
  bool packed = false;  ///< true: one reduction in the fusion buffer; false: a reduction in place for each run
};

/// Divides a batch into runs and decides how to reduce them. `gradients`: indices of the batch's gradients, at least
/// one, without duplicates. `bytes`: Batch::bytes.
GradientRuns gradient_runs(std::vector<Tag> gradients, std::size_t bytes);

}  // namespace hvd::core
