// The first answer about an efficiency, as text: the figure with its interval, or "not resolved" and why. No report
// shows an efficiency without its interval. Pure.
#pragma once

#include <string>

#include "bench/measure/estimate.h"

namespace hvd::bench {

/// An efficiency whose interval is wider than this from end to end is not resolved. The published efficiencies that
/// hvd_bench was built to check are 90 and 68 %: a wider interval could hold both.
inline constexpr double kWidestEfficiency = 0.2;

/// Returns true if the efficiency has an interval of at most kWidestEfficiency.
bool is_resolved(const Estimate& efficiency);

/// Returns "97.6 % [97.0, 98.6]", "not resolved: between 46 and 101 %", or "not resolved: too few rounds for an
/// interval".
std::string efficiency_text(const Estimate& efficiency);

/// Returns the estimate of a row of the decomposition. Without ends, the estimate has no interval.
Estimate estimate_of(const DecompositionRow& row);

}  // namespace hvd::bench
