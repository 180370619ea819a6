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

// How far may the median of these samples lie from the median of very many samples? A thousand more measurements would
// tell. The bootstrap imitates them: it draws a thousand new series from the measured one, with replacement, and takes
// the median of each. The spread of these replicates stands for the spread of new measurements. The 95 % interval is
// what is left after cutting 2.5 % of the replicates at each end (percentile_interval()).
//
// Drawing single samples would assume that they are independent. But a slow step is often followed by another one. In
// shuffled series, slow and fast samples balance better than in real ones, and the interval gets too narrow. So blocks
// of consecutive samples are drawn, within which neighbours stay together:
//
//   samples    a b c d e f g h i j k l m              n = 13, blocks of 3
//   resample   d e f │ m a b │ b c d │ h i j │ a      starts drawn at random: d, m, b, h, a
//
// Each sample is a start with the same chance. A block that reaches the end goes on at the beginning; otherwise the
// samples near the ends would be in fewer blocks than the others. The last block is cut at n values. The stronger the
// correlation of neighbours, the longer the blocks; independent samples get blocks of 1 (block_length() in median.cpp).
// Correlation is still lost where blocks meet, so the replicates' deviations from the median are stretched afterwards
// (widening() in median.cpp, bootstrap_of() below).
//
// The draws follow from a seed: equal samples give equal intervals on every machine.
// Source: Kuensch, Annals of Statistics 17 (1989); Politis and Romano, "A circular block-resampling procedure for
// stationary data", 1992.
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
