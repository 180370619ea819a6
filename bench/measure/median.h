// Medians of step times and their intervals. Pure: the same samples and seed give the same answer on every machine.
//
// Step times are skewed and autocorrelated (a slow step is often followed by another), so the interval is a
// bootstrap over blocks of consecutive samples and assumes no distribution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/measure/estimate.h"
#include "bench/measure/resample.h"

namespace hvd::bench {

/// Returns the middle value, or the mean of the two middle values of an even count. HVD_ASSERTs that a sample exists.
double median(std::span<const double> samples);

/// out[i] = max over ranks of ranks[r][i]: the time of a synchronous step. All ranks have equally many samples.
std::vector<double> max_over_ranks(std::span<const std::vector<double>> ranks);

/// out[i] = min over ranks. The rank with the shortest wait arrived last, so it waited for communication only.
std::vector<double> min_over_ranks(std::span<const std::vector<double>> ranks);

/// Lag-one autocorrelation of the samples' ranks (in the statistical sense, so that outliers do not hide it). It is
/// corrected for the bias at small n and clamped to [0, 0.9]; 0 for fewer than 8 samples.
double lag_one_autocorrelation(std::span<const double> samples);

/// Block length of the bootstrap for `n` samples whose lag-one autocorrelation is `rho`; at most n / 4.
/// Source: Carlstein, Annals of Statistics 14 (1986), the AR(1) rule.
std::size_t block_length(std::size_t n, double rho);

/// There is no interval for fewer samples: the median of the distribution may lie outside the range of two samples.
inline constexpr std::size_t kFewestForInterval = 3;
/// With fewer samples the interval is printed with a warning, and no measurement ends because its interval is narrow.
inline constexpr std::size_t kFewestToBelieve = 10;

struct IntervalOptions {
  double confidence = 0.95;
  std::size_t resamples = 1000;  ///< fewer when there are very many samples, at least kStoredReplicates
  std::uint64_t seed = 1;
};

/// Returns the median with its percentile interval from a circular block bootstrap. Blocks that are shorter than the
/// correlation understate the variance. The deviations are therefore widened by the variance that an AR(1) series loses
/// at that block length, and by the usual n / (n - 1) of the effective sample size.
/// The interval contains the true median in 93 to 96 % of series of 10 or more independent samples. It does so in 90 to
/// 95 % of series with lag-one correlation 0.3 and 20 or more samples, or with correlation 0.6 and 100 or more samples
/// (simulated in tests/bench/measure_coverage_test.cpp).
/// There is no interval for fewer than kFewestForInterval samples.
Estimate median_interval(std::span<const double> samples, const IntervalOptions& options = {});

/// Like median_interval(), but for times. Also returns the replicates, which are all above zero; none without interval.
Bootstrap median_time(std::span<const double> seconds, const IntervalOptions& options = {});

/// Returns half the interval's width divided by the value; 0 if the value is 0 or there is no interval.
double relative_half_width(const Estimate& estimate);

/// Converts seconds per step to images per second, for `images` images per step. Swaps the interval's ends.
Estimate images_per_second(const Estimate& step_seconds, double images);

}  // namespace hvd::bench
