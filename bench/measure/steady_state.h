// Decides from the step times when warm-up ends: as soon as the last window of steps shows no significant drift.
// Receives the step times one by one. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace hvd::bench {

struct SteadyOptions {
  std::size_t minimum_steps = 3;     ///< always discarded: they touch memory first, fill caches and raise clocks
  std::size_t window_steps = 6;      ///< least number of steps that are judged
  double window_seconds = 1.0;       ///< the window grows to at least this time, because single short steps vary a lot
  std::size_t longest_window = 200;  ///< largest number of steps in the window
  double drift = 0.02;               ///< largest relative change over the window that counts as steady
  std::size_t maximum_steps = 1000;  ///< warm-up gives up after this many steps
  double maximum_seconds = 60;       ///< warm-up gives up after this much step time
};

/// Relative change of the step time over `window`: the Theil-Sen slope times the window's length, divided by the median
/// step time. The Theil-Sen slope is the median of all pairwise slopes, so a few outliers have no effect. 0 for fewer
/// than two steps.
double relative_drift(std::span<const double> window);

/// Standard error that relative_drift() would have with independent steps. Estimated from the median absolute deviation
/// of the steps from the fitted line.
double drift_noise(std::span<const double> window);

class SteadyState {
 public:
  explicit SteadyState(SteadyOptions options) : options_(options) {}

  void add(double step_seconds);
  /// Returns true if the drift of the last window is below the bound, or cannot be told from noise.
  [[nodiscard]] bool steady() const;
  /// Returns true if warm-up is steady or gave up.
  [[nodiscard]] bool finished() const { return steady() || gave_up(); }
  [[nodiscard]] bool gave_up() const;
  [[nodiscard]] std::size_t steps() const { return steps_.size(); }
  /// Returns "steady after 9 steps (drift 0.4 %)", or "not steady after 60 steps (drift +4.1 % over the last 6)", or a
  /// text that begins with "not steady" and says that there were too few steps to judge.
  [[nodiscard]] std::string text() const;
  /// Returns the steps that are judged: the last ones.
  [[nodiscard]] std::span<const double> window() const;

 private:
  SteadyOptions options_;
  std::vector<double> steps_;
  double seconds_ = 0;
};

}  // namespace hvd::bench
