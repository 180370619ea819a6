// Inputs whose exact result is known, and the comparison with it. Values are small integers, chosen for the world's
// size so that every sum and product of them, in any order, is exact in the element type. They repeat after kPeriod
// elements, a prime, so that a chunk that lands in a wrong place shows. Pure functions.
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
  /// Shape: values (kPeriod), each exact in `type` unless `slack` is above 0.
  Pattern(DataType type, const std::vector<double>& values, double slack = 0);
  /// Fills `to`, whose size is a multiple of the element's.
  void fill(std::span<std::byte> to, std::size_t phase) const;
  /// Elements of `found` that differ from the pattern by more than `slack`, relative.
  [[nodiscard]] std::uint64_t wrong(std::span<const std::byte> found, std::size_t phase) const;

 private:
  DataType type_;
  double slack_;
  std::vector<double> values_;
  std::vector<std::byte> bytes_;
};

/// What `rank` of `ranks` gives to a reduction.
Pattern reduction_input(int rank, int ranks, DataType type, ReduceOp op);
/// What comes of it. Exact, but for the average of floating-point numbers over a world whose size is no power of two:
/// its reciprocal is rounded, and so is each of at most `ranks` results, which makes slack (ranks + 1) epsilon / 2.
Pattern reduction_result(int ranks, DataType type, ReduceOp op);
/// What rank `source` sends to rank `destination`, or to everybody (destination 0).
Pattern message(int source, int destination, DataType type);

}  // namespace hvd::bench::coll
