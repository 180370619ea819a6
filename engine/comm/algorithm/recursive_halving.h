// Recursive halving (reduce-scatter), recursive doubling of shares (all-gather), and the all-reduce made of the two,
// which is known as Rabenseifner's: log2(n) exchanges each, and no more bytes than a ring sends.
// See docs/algorithms.md. Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
// MPICH", 2005, https://doi.org/10.1177/1094342005051521.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

class RecursiveHalving {
 public:
  explicit RecursiveHalving(Transport& transport) : transport_(transport) {}

  /// In place: afterwards the own share of `data` is the reduction of all members' and the rest is undefined.
  /// Shapes: data (offsets.back()). A power of two of members. `whole.count` is offsets.back().
  /// Every element is combined in one tree: places n/2 apart first, then n/4, ..., 1, the lower place first.
  void reduce_scatter(const Members& members, std::byte* data, Offsets offsets, const Reduction& whole,
                      const Wait& wait);
  /// In place: `data` holds the own share, afterwards all. A power of two of members.
  void all_gather(const Members& members, std::byte* data, Offsets offsets, std::size_t element, const Wait& wait);
  /// In place, any number of members: those beyond a power of two are folded into a neighbour first.
  void all_reduce(const Members& members, std::byte* data, const Reduction& whole, const Wait& wait);

 private:
  /// Sends `mine` while it receives `theirs`; both ends know both sizes.
  void exchange(int partner, std::span<const std::byte> mine, std::span<std::byte> theirs, const Wait& wait);
  std::span<std::byte> scratch(std::size_t bytes);

  Transport& transport_;
  std::vector<std::byte> scratch_;  ///< outlives a failed call: a late message may still land here
};

}  // namespace hvd::comm
