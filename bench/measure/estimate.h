// Figures that the statistics compute from samples, for RunRecord, the store and the reports. Plain data.
#pragma once

#include <limits>
#include <optional>
#include <string>

namespace hvd::bench {

/// A median with its bootstrap interval. Both ends are NaN (NULL in the store) if samples are too few for an interval.
struct Estimate {
  double value = 0, low = 0, high = 0;
  [[nodiscard]] bool has_interval() const { return low <= high; }
};
inline constexpr double kNoInterval = std::numeric_limits<double>::quiet_NaN();

struct DecompositionRow {
  std::string component;
  double fraction = 0, seconds = 0;
  std::optional<double> low, high;
  /// Returns true if the interval contains 0. The measurement then cannot tell whether the step has this component. A
  /// component that was 0 in every round counts as resolved, because the step certainly does not have it.
  [[nodiscard]] bool unresolved() const { return low && high && *low <= 0 && 0 <= *high && *low < *high; }
};

}  // namespace hvd::bench
