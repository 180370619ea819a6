#include "engine/sim/cost_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::sim {

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

}  // namespace hvd::sim
