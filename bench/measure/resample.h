// What the intervals of medians and of the decomposition share: drawing blocks of consecutive samples, and reading an
// interval off the resampled values, the replicates. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bench/run_record.h"
#include "engine/base/philox.h"

namespace hvd::bench {

/// A sequence of random numbers, fixed by (seed, stream).
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream) : generator_(seed, stream) {}
  /// Uniform in [0, bound); bound > 0. Bias below bound / 2^64.
  std::size_t below(std::size_t bound);

 private:
  Philox generator_;
  std::uint64_t counter_ = 0;
};

/// Start indices of the blocks of one resample of `n` samples: ceil(n / length) of them in [0, n).
/// Sample `i` of the resample is sample (starts[i / length] + i % length) % n.
std::vector<std::size_t> block_starts(std::size_t n, std::size_t length, Draws& draws);

/// One resample of the same size into `out`, from blocks that wrap around the end.
void resample_blocks(std::span<const double> samples, std::size_t length, Draws& draws, std::vector<double>& out);

/// Central interval that holds `confidence` of `values`. Sorts them.
std::pair<double, double> percentile_interval(std::vector<double>& values, double confidence);

/// This many replicates are stored with a figure, so that sessions can be pooled. Every stored figure has as many.
inline constexpr std::size_t kStoredReplicates = 200;

/// A figure with its interval, and the first kStoredReplicates of its replicates, in the order in which they were
/// drawn.
struct Bootstrap {
  Estimate estimate;
  std::vector<double> replicates;
};

/// Factor by which resamples understate the deviations, and the lowest value of a widened replicate.
struct Widening {
  double factor = 1, floor = 0;
};

/// Widens the deviations of `replicates` from `value`, and reads the interval off the result. The interval holds
/// `value`.
Bootstrap bootstrap_of(double value, std::vector<double> replicates, Widening wider, double confidence);

/// Like median(), but reorders `samples` instead of copying.
double median_in_place(std::vector<double>& samples);

}  // namespace hvd::bench
