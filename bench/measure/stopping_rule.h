// Decides when a measurement ends, and why. Pure.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include "bench/measure/median.h"

namespace hvd::bench {

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
