// What hvd_bench tells about a training that another program measured, such as PyTorch's, besides the rows of
// analyse_efficiency(). Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "bench/measure/decomposition.h"

namespace hvd::bench {

/// For a round whose ranks did not measure how long they wait for reductions: their compute of phase full includes that
/// wait. Sets `exposed` to what the compute takes longer than the rank's median compute in phase none, at least 0, and
/// `compute` to the rest.
void derive_exposed(Round& round);

/// A rank is late if its steps are longer than the others' by more than this fraction.
inline constexpr double kLate = 0.03;

/// The rank whose steps of phase none, in which no rank waits for another, are the longest.
struct LateRank {
  std::size_t rank = 0;
  Estimate seconds;       ///< by which its median step is longer than the mean of the others' medians
  std::string_view part;  ///< to which most of that time belongs: "input", "forward and backward" or "update"
  double part_seconds = 0;
};

/// Returns the rank with the longest steps of phase none if it is late (kLate) and the interval over rounds,
/// median_interval(), lies above 0. Fewer than kMinForInterval rounds have no interval, and no late rank.
/// `rounds`: one or more, of two or more ranks.
std::optional<LateRank> late_rank(std::span<const Round> rounds, const IntervalOptions& options = {});

}  // namespace hvd::bench
