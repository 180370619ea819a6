// When does warm-up end? When the data say so: the last window of steps shows no drift worth speaking of.
// Pure: fed with step times, one by one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace hvd::bench {

struct SteadyOptions {
  std::size_t minimum_steps = 3;     ///< always discarded: first touch of memory, caches, clocks
  std::size_t window_steps = 6;      ///< judged at least
  double window_seconds = 1.0;       ///< the window grows until it is this long: short steps say little singly
  std::size_t longest_window = 200;  ///< but not beyond this
  double drift = 0.02;               ///< relative change over the window that is still called steady
  std::size_t maximum_steps = 1000;  ///< gives up here and says so
  double maximum_seconds = 60;       ///< of step time; gives up here too
};

/// Relative change of the step time over `window`: Theil-Sen slope (median of all pairwise slopes, so that a
/// few outliers do not count) times its length, over the median. 0 for fewer than two steps.
double relative_drift(std::span<const double> window);

/// Standard error of relative_drift() if the steps were independent, from the median absolute deviation
/// about the fitted line.
double drift_noise(std::span<const double> window);

class SteadyState {
 public:
  explicit SteadyState(SteadyOptions options) : options_(options) {}

  void add(double step_seconds);
  /// The last window is steady: its drift is under the bound, or cannot be told from noise.
  [[nodiscard]] bool steady() const;
  /// Steady, or given up.
  [[nodiscard]] bool finished() const { return steady() || gave_up(); }
  [[nodiscard]] bool gave_up() const;
  [[nodiscard]] std::size_t steps() const { return steps_.size(); }
  /// "steady after 9 steps (drift 0.4 %)" or "not steady after 60 steps (drift +4.1 % over the last 6)", or that
  /// there were too few steps to judge; all but the first begin with "not steady".
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] std::span<const double> window() const;

  SteadyOptions options_;
  std::vector<double> steps_;
  double seconds_ = 0;
};

}  // namespace hvd::bench
