#include "bench/measure/stopping_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/measure/median.h"

namespace hvd::bench {
namespace {

double theil_sen_slope(std::span<const double> y) {
  std::vector<double> slopes;
  slopes.reserve(y.size() * (y.size() - 1) / 2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t j = i + 1; j < y.size(); ++j) slopes.push_back((y[j] - y[i]) / static_cast<double>(j - i));
  }
  return median(slopes);
}

}  // namespace

double relative_drift(std::span<const double> window) {
  if (window.size() < 2) return 0;
  const double middle = median(window);
  if (middle == 0) return 0;
  return theil_sen_slope(window) * static_cast<double>(window.size() - 1) / middle;
}

double drift_noise(std::span<const double> window) {
  const std::size_t n = window.size();
  if (n < 3) return 0;
  const double middle = median(window);
  if (middle == 0) return 0;
  const double slope = theil_sen_slope(window);
  std::vector<double> residuals(n);
  for (std::size_t i = 0; i < n; ++i) residuals[i] = window[i] - slope * static_cast<double>(i);
  const double line = median(residuals);
  for (double& residual : residuals) residual = std::abs(residual - line);
  const double sigma = 1.4826 * median(residuals);  // standard deviation, if the residuals have a normal distribution
  // This is the standard error of a least-squares slope over n equidistant points, times the window's length.
  const auto count = static_cast<double>(n);
  return sigma * std::sqrt(12 / (count * (count * count - 1))) * (count - 1) / middle;
}

void SteadyState::add(double step_seconds) {
  steps_.push_back(step_seconds);
  seconds_ += step_seconds;
}

std::span<const double> SteadyState::window() const {
  std::size_t length = 0;
  double seconds = 0;
  while (length < steps_.size() && length < options_.longest_window &&
         (length < options_.window_steps || seconds < options_.window_seconds)) {
    ++length;
    seconds += steps_[steps_.size() - length];
  }
  return std::span(steps_).last(length);
}

bool SteadyState::steady() const {
  const std::span<const double> last = window();
  if (last.size() < options_.window_steps || steps_.size() < options_.minimum_steps + last.size()) return false;
  double seconds = 0;
  for (const double step : last) seconds += step;
  if (seconds < options_.window_seconds && last.size() < options_.longest_window) return false;
  const double drift = std::abs(relative_drift(last));
  return drift <= std::max(options_.drift, drift_noise(last));
}

bool SteadyState::gave_up() const {
  return !steady() && (steps_.size() >= options_.maximum_steps || seconds_ >= options_.maximum_seconds);
}

std::string SteadyState::text() const {
  const std::span<const double> last = window();
  if (const std::size_t needed = options_.minimum_steps + options_.window_steps; steps_.size() < needed) {
    return fmt::format("not steady as far as {} steps tell: fewer than the {} that it takes to judge", steps_.size(),
                       needed);
  }
  return fmt::format("{} after {} steps (drift {:+.1f} % over the last {})", steady() ? "steady" : "not steady",
                     steps_.size(), 100 * relative_drift(last), last.size());
}

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
