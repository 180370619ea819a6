// Recursive doubling: log2(n) exchanges of the whole message. Best for small messages, where latency dominates.
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
  /// Sets into = op(first, second). The function must know the size of the message.
  using Combine = std::function<void(std::byte* into, const std::byte* first, const std::byte* second)>;

  explicit RecursiveDoubling(Transport& transport) : transport_(transport) {}

  /// Works in place on every member. The data of the lower place are the first operand, so that all members get the
  /// same bits. Works for any number of members: folding.h pairs members if their number is not a power of two.
  void all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine, const Wait& wait);
  void all_reduce(const Members& members, std::byte* data, std::size_t count, DataType dtype, ReduceOp op, int divisor,
                  const Wait& wait);

 private:
  Transport& transport_;
  std::vector<std::byte> scratch_;
};

}  // namespace hvd::comm
