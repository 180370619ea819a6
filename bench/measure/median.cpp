#include "bench/measure/median.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

// Variance of the mean of `length` consecutive samples of an AR(1) series, divided by the variance of the mean of as
// many independent samples.
double block_variance_factor(double rho, std::size_t length) {
  double sum = 1;
  double power = 1;
  for (std::size_t k = 1; k < length; ++k) {
    power *= rho;
    sum += 2 * (1 - static_cast<double>(k) / static_cast<double>(length)) * power;
  }
  return sum;
}

double widening(double rho, std::size_t length, std::size_t n) {
  const double full = (1 + rho) / (1 - rho);
  const double effective = std::max(3.0, static_cast<double>(n) / full);
  return std::sqrt(full / block_variance_factor(rho, length)) * std::sqrt(effective / (effective - 1));
}

std::size_t affordable_resamples(std::size_t wanted, std::size_t n) {
  constexpr std::size_t kSampleBudget = 20'000'000;  // samples in all resamples together; nth_element takes about 0.2 s
  return std::min(wanted, std::max(kStoredReplicates, kSampleBudget / std::max<std::size_t>(1, n)));
}

template <class Choose>
std::vector<double> over_ranks(std::span<const std::vector<double>> ranks, Choose choose) {
  if (ranks.empty()) return {};
  std::vector<double> out = ranks[0];
  for (const std::vector<double>& rank : ranks.subspan(1)) {
    HVD_ASSERT(rank.size() == out.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = choose(out[i], rank[i]);
  }
  return out;
}

constexpr double kMinReplicate = 1e-3;  // fraction of the median; widening could make a replicate negative

Bootstrap bootstrap_median(std::span<const double> samples, const IntervalOptions& options) {
  const std::size_t n = samples.size();
  const double value = median(samples);
  if (n < kMinForInterval) return {{value, kNoInterval, kNoInterval}, {}};
  const double rho = lag_one_autocorrelation(samples);
  const std::size_t length = block_length(n, rho);
  Draws draws(options.seed, 0);
  std::vector<double> medians(affordable_resamples(options.resamples, n));
  std::vector<double> resampled;
  for (double& replicate : medians) {
    resample_blocks(samples, length, draws, resampled);
    replicate = median_in_place(resampled);
  }
  const Widening wider{.factor = widening(rho, length, n), .floor = -HUGE_VAL};
  return bootstrap_of(value, std::move(medians), wider, options.confidence);
}

}  // namespace

double median_in_place(std::vector<double>& samples) {
  HVD_ASSERT(!samples.empty());
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  if (samples.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(samples.begin(), middle));
}

double median(std::span<const double> samples) {
  std::vector<double> copy(samples.begin(), samples.end());
  return median_in_place(copy);
}

std::vector<double> max_over_ranks(std::span<const std::vector<double>> ranks) {
  return over_ranks(ranks, [](double a, double b) { return std::max(a, b); });
}

std::vector<double> mean_over_ranks(std::span<const std::vector<double>> ranks) {
  std::vector<double> out = over_ranks(ranks, std::plus<>());
  for (double& value : out) value /= static_cast<double>(ranks.size());
  return out;
}

std::vector<double> min_over_ranks(std::span<const std::vector<double>> ranks) {
  return over_ranks(ranks, [](double a, double b) { return std::min(a, b); });
}

double lag_one_autocorrelation(std::span<const double> samples) {
  const std::size_t n = samples.size();
  if (n < 8) return 0;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return samples[a] < samples[b]; });
  std::vector<double> centred(n);
  const double middle = (static_cast<double>(n) - 1) / 2;
  for (std::size_t position = 0; position < n; ++position) {
    centred[order[position]] = static_cast<double>(position) - middle;
  }
  double product = 0;
  double square = 0;
  for (std::size_t i = 0; i < n; ++i) {
    square += centred[i] * centred[i];
    if (i > 0) product += centred[i] * centred[i - 1];
  }
  // The sample autocorrelation is too low by about (1 + 3 rho) / n. Source: Kendall, Biometrika 41 (1954).
  const auto count = static_cast<double>(n);
  return std::clamp((count * product / square + 1) / (count - 3), 0.0, 0.9);
}

std::size_t block_length(std::size_t n, double rho) {
  const double length = std::cbrt(6.0) * std::pow(rho / (1 - rho * rho), 2.0 / 3.0) * std::cbrt(static_cast<double>(n));
  const auto longest = static_cast<double>(std::max<std::size_t>(1, n / 4));
  return static_cast<std::size_t>(std::clamp(std::ceil(length), 1.0, longest));
}

Estimate median_interval(std::span<const double> samples, const IntervalOptions& options) {
  return bootstrap_median(samples, options).estimate;
}

Bootstrap median_time(std::span<const double> seconds, const IntervalOptions& options) {
  Bootstrap out = bootstrap_median(seconds, options);
  for (double& replicate : out.replicates) replicate = std::max(replicate, kMinReplicate * out.estimate.value);
  return out;
}

double relative_half_width(const Estimate& estimate) {
  if (estimate.value == 0 || !estimate.has_interval()) return 0;
  return 0.5 * (estimate.high - estimate.low) / std::abs(estimate.value);
}

Estimate images_per_second(const Estimate& step_seconds, double images) {
  if (!step_seconds.has_interval()) return {images / step_seconds.value, kNoInterval, kNoInterval};
  // A very wide interval of seconds may begin at zero; the rate then has no upper bound.
  return {images / step_seconds.value, images / step_seconds.high,
          step_seconds.low > 0 ? images / step_seconds.low : HUGE_VAL};
}

}  // namespace hvd::bench
