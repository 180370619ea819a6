#include "bench/measure/stopping_rule.h"

#include <algorithm>

namespace hvd::bench {

std::optional<std::string> reason_to_stop(const StoppingRule& rule, const MeasurementState& state) {
  if (rule.exact_samples && state.samples >= *rule.exact_samples) return "iterations asked for";
  if (state.samples == 0) return std::nullopt;
  const bool enough = state.samples >= rule.minimum_samples && state.rounds >= rule.minimum_rounds;
  const bool narrow = enough && state.half_width <= rule.target_half_width;
  if (!rule.exact_samples && narrow && state.elapsed_seconds >= rule.earliest_seconds) {
    return "interval narrow enough";
  }
  if (state.samples >= rule.maximum_samples) return "iteration cap";
  if (state.elapsed_seconds + state.next_seconds > rule.maximum_seconds) return "time cap";
  if (rule.exact_samples) return std::nullopt;
  // End as near to the promised time as whole rounds allow.
  const bool due = state.elapsed_seconds + state.next_seconds / 2 > rule.planned_seconds;
  if (due && state.rounds >= rule.minimum_rounds) return "planned time";
  if (state.elapsed_seconds + state.next_seconds > rule.latest_seconds) return "planned time";
  return std::nullopt;
}

double samples_missing(const StoppingRule& rule, const MeasurementState& state) {
  const auto have = static_cast<double>(state.samples);
  if (rule.exact_samples) return std::max(0.0, static_cast<double>(*rule.exact_samples) - have);
  if (state.samples < 2 || state.half_width <= 0) return 0;
  const double ratio = state.half_width / rule.target_half_width;
  const double wanted = std::max(have * ratio * ratio, static_cast<double>(rule.minimum_samples));
  return std::max(0.0, std::min(wanted, static_cast<double>(rule.maximum_samples)) - have);
}

}  // namespace hvd::bench
