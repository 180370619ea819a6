#include "engine/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace hvd::sim {
namespace {

/// Returns a number uniform in [0, bound). `bound` must be at most 2^32.
std::size_t below(std::size_t bound, const Philox& random, std::uint64_t counter) {
  return static_cast<std::size_t>(std::uint64_t{random.block(counter)[0]} * bound >> 32);
}

void check(const NodeFactors& node, std::size_t ranks) {
  const auto positive = [](double factor) { return std::isfinite(factor) && factor > 0; };
  bool good = node.size() >= ranks && !node.front().empty();
  for (const std::vector<double>& series : node) {
    good = good && series.size() == node.front().size() && std::all_of(series.begin(), series.end(), positive);
  }
  if (!good) {
    throw Error(Errc::kInvalidArgument,
                "noise: every recorded node needs as many ranks as a simulated one, each with the same number of "
                "steps, whose factors are positive and finite");
  }
}

}  // namespace

CostTable::CostTable(std::vector<CostPoint> points) : points_(std::move(points)) {
  if (points_.empty()) throw Error(Errc::kInvalidArgument, "cost of a collective: no size was measured");
  const auto is_time = [](double value) { return std::isfinite(value) && value >= 0; };
  std::size_t before = 0;
  for (const CostPoint& point : points_) {
    if (point.bytes <= before || !is_time(point.seconds) ||
        !std::all_of(point.factors.begin(), point.factors.end(), is_time)) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("cost of a collective: {} bytes in {} s after {} bytes; sizes must ascend, and times and "
                              "factors must be finite and not negative",
                              point.bytes, point.seconds, before));
    }
    before = point.bytes;
  }
}

/// Returns the index of the first point with at least `bytes`, or the number of points.
std::size_t CostTable::point_after(std::size_t bytes) const {
  HVD_ASSERT(!points_.empty());
  const auto less = [](const CostPoint& point, std::size_t value) { return point.bytes < value; };
  return static_cast<std::size_t>(std::lower_bound(points_.begin(), points_.end(), bytes, less) - points_.begin());
}

double CostTable::seconds(std::size_t bytes) const {
  const std::size_t next = point_after(bytes);
  if (next == 0) return points_.front().seconds;
  if (points_.size() == 1) return points_.front().seconds;
  const std::size_t right = std::min(next, points_.size() - 1);
  const CostPoint &low = points_[right - 1], &high = points_[right];
  const double part = static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
  return std::max(0.0, low.seconds + part * (high.seconds - low.seconds));
}

double CostTable::factor(std::size_t bytes, double draw) const {
  std::size_t nearest = point_after(bytes);
  if (nearest == points_.size()) --nearest;
  if (nearest > 0) {
    const auto size = static_cast<double>(bytes);
    const double below = size / static_cast<double>(points_[nearest - 1].bytes);
    if (below < static_cast<double>(points_[nearest].bytes) / size) --nearest;
  }
  const std::vector<double>& factors = points_[nearest].factors;
  if (factors.empty()) return 1;
  return factors[static_cast<std::size_t>(draw * static_cast<double>(factors.size()))];
}

ComputeNoise::ComputeNoise(NoisePool pool, Ranks ranks, std::uint64_t seed)
    : pool_(std::move(pool)), ranks_per_node_(static_cast<std::size_t>(ranks.per_node)), seed_(seed) {
  HVD_ASSERT(ranks.count >= 1 && ranks.per_node >= 1 && pool_.block_steps >= 1);
  const auto count = static_cast<std::size_t>(ranks.count);
  for (const NodeFactors& node : pool_.nodes) check(node, std::min(count, ranks_per_node_));
  if (pool_.nodes.empty()) return;
  const Philox random(seed_, kNodeStream);
  for (std::size_t node = 0; node * ranks_per_node_ < count; ++node) {
    recorded_.push_back(below(pool_.nodes.size(), random, node));
  }
}

void ComputeNoise::draw(std::uint64_t step, std::span<double> factors) const {
  if (pool_.nodes.empty()) return std::fill(factors.begin(), factors.end(), 1.0);
  const std::uint64_t block = step / pool_.block_steps;
  for (std::size_t node = 0; node < recorded_.size(); ++node) {
    const NodeFactors& played = pool_.nodes[recorded_[node]];
    const std::size_t steps = played.front().size();
    const Philox random(seed_, kBlockStream + (pool_.common_steps ? 0 : node));
    // A block that reaches the end of the recording goes on at its beginning.
    const std::size_t at = (below(steps, random, block) + step % pool_.block_steps) % steps;
    const std::size_t first = node * ranks_per_node_;
    const std::size_t last = std::min(first + ranks_per_node_, factors.size());
    for (std::size_t rank = first; rank < last; ++rank) factors[rank] = played[rank - first][at];
  }
}

}  // namespace hvd::sim
