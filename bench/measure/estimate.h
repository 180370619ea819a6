// Figures that the statistics compute from samples, for RunRecord, the store and the reports. Plain data.
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
  /// Returns true if the interval contains 0, so that the measurement cannot tell whether the part is there. A part
  /// that was 0 in every round counts as resolved, because it is known not to be there.
  [[nodiscard]] bool unresolved() const { return low && high && *low <= 0 && 0 <= *high && *low < *high; }
};

}  // namespace hvd::bench
