#include "bench/measure/resample.h"

#include <algorithm>
#include <cmath>

#include "engine/base/assert.h"

namespace hvd::bench {

std::size_t Draws::below(std::size_t bound) {
  HVD_ASSERT(bound > 0);
  const auto words = generator_.block(counter_++);
  return static_cast<std::size_t>(((std::uint64_t{words[1]} << 32) | words[0]) % bound);
}

void resample_blocks(std::span<const double> samples, std::size_t length, Draws& draws, std::vector<double>& out) {
  const std::size_t n = samples.size();
  out.clear();
  while (out.size() < n) {
    const std::size_t start = draws.below(n);
    const std::size_t take = std::min(length, n - out.size());
    for (std::size_t i = 0; i < take; ++i) out.push_back(samples[(start + i) % n]);
  }
}

std::pair<double, double> percentile_interval(std::vector<double>& values, double confidence) {
  HVD_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const double tail = (1 - confidence) / 2 * static_cast<double>(values.size());
  const auto cut = static_cast<std::size_t>(std::floor(tail + 1e-9));
  return {values[cut], values[values.size() - 1 - cut]};
}

Bootstrap bootstrap_of(double value, std::vector<double> replicates, Widening wider, double confidence) {
  for (double& replicate : replicates) replicate = std::max(wider.floor, value + (replicate - value) * wider.factor);
  const std::size_t stored = std::min(replicates.size(), kStoredReplicates);
  Bootstrap out;
  out.replicates.assign(replicates.begin(), replicates.begin() + static_cast<std::ptrdiff_t>(stored));
  const auto [low, high] = percentile_interval(replicates, confidence);
  out.estimate = {value, std::min(value, low), std::max(value, high)};
  return out;
}

}  // namespace hvd::bench
