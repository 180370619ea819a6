// Inputs of operations whose exact results are known, and the comparison of results with the known ones. The values are
// small integers, chosen for the world's size so that every sum and product, in any order, is exact in the element
// type. The values repeat after kPeriod elements. kPeriod is a prime, so that the check detects a chunk in a wrong
// place. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/types.h"

namespace hvd::bench::coll {

inline constexpr std::size_t kPeriod = 1021;

/// kPeriod elements of one type. Element i of a buffer is element (i + phase) % kPeriod of the pattern.
class Pattern {
 public:
  /// Shape: values (kPeriod), each exact in `type` unless `slack` is above 0. `slack` is the accepted relative error.
  Pattern(DataType type, const std::vector<double>& values, double slack = 0);
  /// Fills `to`, whose size is a multiple of the element size.
  void fill(std::span<std::byte> to, std::size_t phase) const;
  /// Returns the number of `elements` whose relative difference from the pattern is above `slack`.
  [[nodiscard]] std::uint64_t wrong(std::span<const std::byte> elements, std::size_t phase) const;

 private:
  DataType type_;
  double slack_;
  std::vector<double> values_;
  std::vector<std::byte> bytes_;
};

/// Returns the input of `rank` to a reduction over `ranks` ranks.
Pattern reduction_input(int rank, int ranks, DataType type, ReduceOp op);
/// Returns the result of the reduction. The result is exact, unless it is the average of floating-point numbers and
/// `ranks` is not a power of two. In that case 1 / `ranks` and at most `ranks` intermediate results are rounded, which
/// gives slack = (ranks + 1) epsilon / 2.
Pattern reduction_result(int ranks, DataType type, ReduceOp op);
/// Returns the data that rank `source` sends to rank `destination`. If all ranks get the same data, `destination` is 0.
Pattern message(int source, int destination, DataType type);

}  // namespace hvd::bench::coll
