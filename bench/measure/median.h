// Medians of step times and their intervals. Pure: the same samples and seed give the same answer on every machine.
//
// Step times are skewed and autocorrelated (a slow step is often followed by another), so the interval is a
// bootstrap over blocks of consecutive samples and assumes no distribution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/measure/resample.h"

namespace hvd::bench {

/// Returns the middle value, or the mean of the two middle values of an even count. HVD_ASSERTs that a sample exists.
double median(std::span<const double> samples);

/// out[i] = max over ranks of ranks[r][i]: the time of a synchronous step. All ranks have equally many samples.
std::vector<double> max_over_ranks(std::span<const std::vector<double>> ranks);

/// out[i] = mean over ranks of ranks[r][i]: the time of a step that ends on all ranks together, because its reductions
/// need every rank, and that begins where the previous step ended. What delays the end of step i on one rank makes this
/// rank's step i longer and its step i + 1 shorter. The maximum over ranks would count the largest of these delays in
/// every step; in the mean each of them cancels from one step to the next.
std::vector<double> mean_over_ranks(std::span<const std::vector<double>> ranks);

/// out[i] = min over ranks of ranks[r][i]. If the values are waits, the rank with the shortest wait arrived last and
/// waited for communication only.
std::vector<double> min_over_ranks(std::span<const std::vector<double>> ranks);

/// Lag-one autocorrelation, computed from each sample's place in sorted order instead of its value, so that outliers do
/// not hide the correlation. Corrected for the bias at small n and clamped to [0, 0.9]. 0 for fewer than 8 samples.
double lag_one_autocorrelation(std::span<const double> samples);

/// Block length of the bootstrap for `n` samples whose lag-one autocorrelation is `rho`; at most n / 4.
/// Source: Carlstein, Annals of Statistics 14 (1986), the AR(1) rule.
std::size_t block_length(std::size_t n, double rho);

/// Fewer samples than this have no interval: the median of the distribution may lie outside the range of two samples.
inline constexpr std::size_t kMinForInterval = 3;
/// An interval from fewer samples than this is printed with a warning, and does not end a measurement by being narrow.
inline constexpr std::size_t kMinToBelieve = 10;

struct IntervalOptions {
  double confidence = 0.95;
  std::size_t resamples = 1000;  ///< reduced for very many samples, but not below kStoredReplicates
  std::uint64_t seed = 1;
};

/// Returns the median with its percentile interval from a circular block bootstrap. Blocks that are shorter than the
/// correlation length understate the variance. So the replicates' deviations from the median are stretched: their
/// variance is multiplied by two factors. The first makes up for the variance that an AR(1) series loses at this block
/// length. The second is the usual n / (n - 1) for the effective sample size n.
/// Simulated in tests/bench/measure/measure_coverage_test.cpp: the interval contains the true median in 93 to 96 % of
/// series of 10 or more independent samples. The interval contains the true median in 90 to 95 % of series with lag-one
/// correlation 0.3 and 20 or more samples, or with correlation 0.6 and 100 or more samples.
/// There is no interval for fewer than kMinForInterval samples.
Estimate median_interval(std::span<const double> samples, const IntervalOptions& options = {});

/// Like median_interval(), but for times. Also returns the replicates, which are all above zero. If there is no
/// interval, there are no replicates.
Bootstrap median_time(std::span<const double> seconds, const IntervalOptions& options = {});

/// Returns half the interval's width divided by the value; 0 if the value is 0 or there is no interval.
double relative_half_width(const Estimate& estimate);

/// Converts seconds per step to images per second, for `images` images per step. Swaps the interval's ends.
Estimate images_per_second(const Estimate& step_seconds, double images);

}  // namespace hvd::bench
