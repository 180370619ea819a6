// The text that tells `hvd_bench simulate` which worlds to simulate, and what everything costs there.
// docs/prediction.md describes it. A text may come from a stranger. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sim/world.h"

namespace hvd::bench {

constexpr std::size_t kMaxCostsBytes = std::size_t{64} << 20;

/// One draw of all that is known about a world only roughly.
struct CostsDraw {
  std::size_t line = 0;  ///< where it begins in the text
  sim::Costs costs = {};
  double compute_factor = 1;
  bool common_steps = false;
  double shift_seconds = 0;  ///< added to the times at which gradients are submitted and ready
};

struct CostsWorld {
  std::size_t line = 0;
  sim::Ranks ranks = {};
  std::vector<CostsDraw> draws = {};
};

struct CostsText {
  std::uint64_t seed = 1;
  std::size_t steps = 1;
  std::size_t align = 1;  ///< gradients begin at multiples of so many elements in the arena
  sim::Reducer reducer = sim::Reducer::kEngineThread;
  sim::Pacing pacing = sim::Pacing::kOnDemand;
  sim::NoisePool noise = {};
  std::vector<CostsWorld> worlds = {};
};

/// Errors: invalid_argument for a malformed or truncated text and for one beyond the limits, with `origin` (the file)
/// and the line.
CostsText parse_costs(std::string_view text, const std::string& origin);

}  // namespace hvd::bench
