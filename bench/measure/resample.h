// A figure with its interval, and resampling for the intervals of medians and of the decomposition: draws blocks of
// consecutive samples, and computes an interval from the resampled values, called replicates. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/philox.h"

namespace hvd::bench {

/// A median with its bootstrap interval. Both ends are NaN (NULL in the store) if samples are too few for an interval.
struct Estimate {
  double value = 0, low = 0, high = 0;
  [[nodiscard]] bool has_interval() const { return low <= high; }
};
inline constexpr double kNoInterval = std::numeric_limits<double>::quiet_NaN();

/// A sequence of random numbers that (seed, stream) determines.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream) : generator_(seed, stream) {}
  /// Returns a number uniform in [0, bound), with a bias below bound / 2^64. `bound` must be above 0.
  std::size_t below(std::size_t bound);

 private:
  Philox generator_;
  std::uint64_t counter_ = 0;
};

/// Writes one resample into `out`, with as many values as `samples` has. The resample consists of blocks of `length`
/// consecutive samples. A block that reaches the end of `samples` goes on at the beginning.
void resample_blocks(std::span<const double> samples, std::size_t length, Draws& draws, std::vector<double>& out);

/// Returns the central interval that contains the fraction `confidence` of `values`. Sorts `values`.
std::pair<double, double> percentile_interval(std::vector<double>& values, double confidence);

/// Every stored figure with an interval has this many replicates, so that sessions can be pooled.
inline constexpr std::size_t kStoredReplicates = 200;

/// A figure with its interval, and the first kStoredReplicates of its replicates, in the order in which they were
/// drawn.
struct Bootstrap {
  Estimate estimate;
  std::vector<double> replicates;
};

/// `factor`: resamples understate deviations from the figure by this factor. `floor`: lowest widened replicate.
struct Widening {
  double factor = 1, floor = 0;
};

/// Multiplies the deviations of `replicates` from `value` by wider.factor, and computes the interval of the result. The
/// interval always contains `value`.
Bootstrap bootstrap_of(double value, std::vector<double> replicates, Widening wider, double confidence);

/// Like median(), but reorders `samples` instead of copying them.
double median_in_place(std::vector<double>& samples);

}  // namespace hvd::bench
