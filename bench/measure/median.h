// Medians of step times and their intervals. Pure: same samples and seed, same answer, on every machine.
//
// Step times are skewed and autocorrelated (a slow step is often followed by another), so the interval is a
// bootstrap over blocks of consecutive samples and assumes no distribution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/measure/resample.h"
#include "bench/run_record.h"

namespace hvd::bench {

/// Middle value; the mean of the two middle ones for an even count. Errors: HVD_ASSERT on an empty span.
double median(std::span<const double> samples);

/// out[i] = max over ranks of ranks[r][i]: the time of a synchronous step. All ranks have the same length.
std::vector<double> max_over_ranks(std::span<const std::vector<double>> ranks);

/// out[i] = min over ranks: of waits, that of the rank which arrived last and waited for communication only.
std::vector<double> min_over_ranks(std::span<const std::vector<double>> ranks);

/// Autocorrelation at lag one of the samples' ranks (so that outliers do not hide it), corrected for its bias
/// at small n, within [0, 0.9]; 0 below 8 samples.
double lag_one_autocorrelation(std::span<const double> samples);

/// Block length of the bootstrap for `n` samples whose lag-one autocorrelation is `rho`; at most n / 4.
/// Source: Carlstein, Annals of Statistics 14 (1986), the AR(1) rule.
std::size_t block_length(std::size_t n, double rho);

/// Fewer samples have no interval at all: of two, the median may lie anywhere beyond either.
inline constexpr std::size_t kFewestForInterval = 3;
/// Of fewer samples the interval is printed with a warning, and no measurement ends because it is narrow.
inline constexpr std::size_t kFewestToBelieve = 10;

struct IntervalOptions {
  double confidence = 0.95;
  std::size_t resamples = 1000;  ///< fewer when there are very many samples, at least kStoredReplicates
  std::uint64_t seed = 1;
};

/// Median with its percentile interval from a circular block bootstrap. Blocks shorter than the correlation
/// understate the variance: the deviations are widened by what an AR(1) series of that block length loses,
/// and by the usual n / (n - 1) of the effective sample size.
/// Covers the true median in 93 to 96 % of independent series of 10 and more samples, 90 to 95 % at lag-one
/// correlation 0.3 from 20 samples and at 0.6 from 100 (simulated in tests/bench/measure_coverage_test.cpp).
/// Fewer than kFewestForInterval samples: no interval.
Estimate median_interval(std::span<const double> samples, const IntervalOptions& options = {});

/// As median_interval() for times, with the replicates, all of them above zero; none where there is no interval.
Bootstrap median_time(std::span<const double> seconds, const IntervalOptions& options = {});

/// Half the interval's width over the value; 0 for a value of 0 or where there is no interval.
double relative_half_width(const Estimate& estimate);

/// Images per second of `images` images a step: the interval's ends change places.
Estimate images_per_second(const Estimate& step_seconds, double images);

}  // namespace hvd::bench
