// The time of a collective against its bytes, as measured at a few sizes. Pure: a draw is given as a number.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd::sim {

struct CostPoint {
  std::size_t bytes = 0;             ///< size of the whole vector, above 0
  double seconds = 0;                ///< typical time of the collective
  std::vector<double> factors = {};  ///< measured times divided by `seconds`; empty: the time is always `seconds`
};

/// Time is linear in bytes between two points, which is exact wherever a collective takes a latency plus a time per
/// byte. Below the first point the time is that of the first point, the latency. Beyond the last point it goes on with
/// the slope of the last two points. Times between two points lie between theirs, so a table is as monotone as its
/// points: a choice of another algorithm may make a larger vector faster, and stands as two points side by side.
class CostTable {
 public:
  CostTable() = default;
  /// Errors: invalid_argument if there is no point, if sizes do not ascend, or if a time or factor is negative or not
  /// finite.
  explicit CostTable(std::vector<CostPoint> points);

  /// Call only if the table has points. Never negative.
  [[nodiscard]] double seconds(std::size_t bytes) const;
  /// Returns one of the factors of the point whose size is nearest to `bytes` by ratio. `draw` in [0, 1) chooses it.
  [[nodiscard]] double factor(std::size_t bytes, double draw) const;
  [[nodiscard]] bool empty() const { return points_.empty(); }

 private:
  [[nodiscard]] std::size_t point_after(std::size_t bytes) const;

  std::vector<CostPoint> points_;
};

}  // namespace hvd::sim
