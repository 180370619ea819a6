// Recursive doubling: log2(n) exchanges of the whole message, for messages that latency dominates.
// See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"

namespace hvd::comm {

class RecursiveDoubling {
 public:
  /// into = op(first, second), bytes.
  using Combine = std::function<void(std::byte* into, const std::byte* first, const std::byte* second)>;

  explicit RecursiveDoubling(Transport& transport) : transport_(transport) {}

  /// In place on every member. Operands are combined lower place first, so that all get the same bits.
  /// Any number of members: those beyond a power of two are folded into a neighbour first.
  void all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine, const Wait& wait);
  void all_reduce(const Members& members, std::byte* data, std::size_t count, DataType dtype, ReduceOp op, int divisor,
                  const Wait& wait);

 private:
  Transport& transport_;
  std::vector<std::byte> scratch_;
};

}  // namespace hvd::comm
