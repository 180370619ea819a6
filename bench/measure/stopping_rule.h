// Decides when warm-up ends, and when and why a measurement ends. Pure.
//
// Warm-up ends as soon as the last window of steps shows no significant drift.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/measure/median.h"

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

struct StoppingRule {
  std::optional<std::size_t> exact_samples =
      std::nullopt;  ///< if set: take exactly this many samples and ignore the interval; the time cap applies
  std::size_t minimum_samples = kMinToBelieve;
  std::size_t minimum_rounds = 0;  ///< above 0 in an interleaved session
  std::size_t maximum_samples = 100'000;
  double target_half_width = 0.02;  ///< fraction of the value
  double maximum_seconds = 300;     ///< warm-up included
  /// The time that was promised for an interleaved session, since its first step; infinite: nothing was promised.
  /// `planned_seconds` ends the session as soon as it has minimum_rounds. No interval, however narrow, ends the session
  /// before `earliest_seconds`. `latest_seconds` ends the session in any case.
  double planned_seconds = HUGE_VAL, earliest_seconds = 0, latest_seconds = HUGE_VAL;
};

struct MeasurementState {
  std::size_t samples = 0;
  std::size_t rounds = 0;
  double half_width = 0;       ///< relative half width of the session's widest interval; 0 while unknown
  double elapsed_seconds = 0;  ///< since the session's first step
  double next_seconds = 0;     ///< least time that one more step, or one more round, would take
};

/// Returns why the measurement should stop now, or nothing if it should continue. The text is stored with the run:
/// "iterations asked for", "interval narrow enough", "iteration cap", "time cap", "planned time". If a measurement ends
/// because its interval is narrow, the interval contains the true value in 84 to 94 % of cases instead of 95 %
/// (simulated). The time cap does not end a measurement that has no sample yet, because the run would have no result.
std::optional<std::string> reason_to_stop(const StoppingRule& rule, const MeasurementState& state);

/// Estimates how many samples are still needed, for a display of the remaining time. Assumes that the half width is
/// proportional to 1 / sqrt(number of samples). 0 if unknown.
double samples_missing(const StoppingRule& rule, const MeasurementState& state);

}  // namespace hvd::bench
