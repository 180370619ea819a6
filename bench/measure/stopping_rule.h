// When does a measurement end, and why? Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "bench/measure/median.h"

namespace hvd::bench {

struct StoppingRule {
  std::optional<std::size_t> exact_samples =
      std::nullopt;  ///< given by the user: so many, whatever the interval (the time cap holds)
  std::size_t minimum_samples = kFewestToBelieve;
  std::size_t minimum_rounds = 0;  ///< of an interleaved session
  std::size_t maximum_samples = 100'000;
  double target_half_width = 0.02;  ///< relative
  double maximum_seconds = 300;     ///< warm-up included
};

struct MeasurementState {
  std::size_t samples = 0;
  std::size_t rounds = 0;
  double half_width = 0;       ///< relative, of the widest interval of the session; 0 while unknown
  double elapsed_seconds = 0;  ///< since the session's first step
  double next_seconds = 0;     ///< what going on would take at least (one step, or one round)
};

/// Why the measurement should stop now; nothing while it should go on. The text is stored with the run:
/// "iterations asked for", "interval narrow enough", "iteration cap", "time cap". An interval that was looked at until
/// it was narrow holds the truth in 84 to 94 % of cases instead of 95 (simulated). The time cap holds only
/// once there is a sample: a run without any would say nothing.
std::optional<std::string> reason_to_stop(const StoppingRule& rule, const MeasurementState& state);

/// Samples that are still missing, for the time left: the half width shrinks with the square root of their
/// number. 0 when unknown.
double samples_missing(const StoppingRule& rule, const MeasurementState& state);

}  // namespace hvd::bench
