// Figures that the statistics compute from samples. The run's record, the store and the reports hold them. Plain data.
#pragma once

#include <limits>
#include <optional>
#include <string>

namespace hvd::bench {

/// Median with its bootstrap interval. With too few samples for an interval, both ends are NaN (NULL in the store).
struct Estimate {
  double value = 0, low = 0, high = 0;
  [[nodiscard]] bool has_interval() const { return low <= high; }
};
inline constexpr double kNoInterval = std::numeric_limits<double>::quiet_NaN();

struct DecompositionRow {
  std::string component;
  double fraction = 0, seconds = 0;
  std::optional<double> low, high;
  /// True if the interval contains 0: the measurement cannot tell whether the part is there. A part that was 0 in every
  /// round is known not to be there, so it is resolved.
  [[nodiscard]] bool unresolved() const { return low && high && *low <= 0 && 0 <= *high && *low < *high; }
};

}  // namespace hvd::bench
