// Inputs with a known exact result, and the comparison of a result with it. Values are small integers. They are chosen
// for the world's size so that every sum and product, in any order, is exact in the element type. They repeat after
// kPeriod elements, which is a prime, so that the check detects a chunk in a wrong place. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/types.h"

namespace hvd::bench::coll {

inline constexpr std::size_t kPeriod = 1021;

/// kPeriod elements of one type. Element i of a buffer is element (i + phase) % kPeriod.
class Pattern {
 public:
  /// Shape: values (kPeriod), each exact in `type` unless `slack` is above 0. `slack` is a relative difference.
  Pattern(DataType type, const std::vector<double>& values, double slack = 0);
  /// Fills `to`, whose size is a multiple of the element size.
  void fill(std::span<std::byte> to, std::size_t phase) const;
  /// Returns the number of elements of `found` that differ from the pattern by more than `slack`, relatively.
  [[nodiscard]] std::uint64_t wrong(std::span<const std::byte> found, std::size_t phase) const;

 private:
  DataType type_;
  double slack_;
  std::vector<double> values_;
  std::vector<std::byte> bytes_;
};

/// The input of `rank` to a reduction over `ranks` ranks.
Pattern reduction_input(int rank, int ranks, DataType type, ReduceOp op);
/// The result of the reduction. It is exact, except for the average of floating-point numbers if `ranks` is not a power
/// of two. Then the reciprocal of `ranks` is rounded, and so is each of at most `ranks` intermediate results, which
/// gives slack = (ranks + 1) epsilon / 2.
Pattern reduction_result(int ranks, DataType type, ReduceOp op);
/// The data that rank `source` sends to rank `destination`, or to all ranks (destination 0).
Pattern message(int source, int destination, DataType type);

}  // namespace hvd::bench::coll
