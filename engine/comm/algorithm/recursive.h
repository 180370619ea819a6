// Algorithms in which log2(n) rounds connect all members, because the distance between partners doubles or halves from
// round to round: recursive doubling and halving, and the broadcast through a binomial tree. See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

/// Recursive doubling: log2(n) exchanges of the whole message. Best for small messages, where latency dominates.
class RecursiveDoubling {
 public:
  /// Sets into = op(first, second). The function must know the size of the message.
  using Combine = std::function<void(std::byte* into, const std::byte* first, const std::byte* second)>;

  explicit RecursiveDoubling(Transport& transport) : transport_(transport) {}

  /// Works in place on every member. The data of the lower place are the first operand, so that all members get the
  /// same bits. Works for any number of members: Folding pairs members if their number is not a power of two.
  void all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine, const Wait& wait);
  void all_reduce(const Members& members, std::byte* data, std::size_t count, DataType dtype, ReduceOp op, int divisor,
                  const Wait& wait);

 private:
  Transport& transport_;
  std::vector<std::byte> scratch_;
};

/// Recursive halving (reduce-scatter), recursive doubling of shares (all-gather), and Rabenseifner's all-reduce, which
/// runs halving and then doubling. Halving and doubling take log2(n) exchanges each and send no more bytes than a ring.
/// Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
/// https://doi.org/10.1177/1094342005051521.
class RecursiveHalving {
 public:
  explicit RecursiveHalving(Transport& transport) : transport_(transport) {}

  /// Works in place: afterwards this member's share of `data` holds the reduction over all members, and the rest is
  /// undefined. Shapes: data (offsets.back()); `whole.count` is offsets.back(). The number of members must be a power
  /// of two. Members at distance n/2 combine first, then those at n/4, ..., 1. In each pair, the data of the lower
  /// member are the first operand.
  void reduce_scatter(const Members& members, std::byte* data, Offsets offsets, const Reduction& whole,
                      const Wait& wait);
  /// Works in place: `data` contains this member's share before the call, and all shares after it. The number of
  /// members must be a power of two.
  void all_gather(const Members& members, std::byte* data, Offsets offsets, std::size_t element, const Wait& wait);
  /// Works in place, for any number of members: Folding pairs members if their number is not a power of two.
  void all_reduce(const Members& members, std::byte* data, const Reduction& whole, const Wait& wait);

 private:
  /// Sends `mine` and receives `theirs` at the same time; this rank and `partner` know both sizes.
  void exchange(int partner, std::span<const std::byte> mine, std::span<std::byte> theirs, const Wait& wait);
  std::span<std::byte> scratch(std::size_t bytes);

  Transport& transport_;
  std::vector<std::byte> scratch_;  ///< kept after a failed call: a late message may still be written here
};

/// Sends `data` of the member at place `root` to all members. All members give `data` of the same size.
void tree_broadcast(Transport& transport, const Members& members, std::size_t root, std::span<std::byte> data,
                    const Wait& wait);

}  // namespace hvd::comm
