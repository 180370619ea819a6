// Cuts 64-bit counts into pieces, for libraries whose counts are int, for pipelines, and for the shares of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace hvd::comm {

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
  [[nodiscard]] std::size_t end() const { return begin + count; }
};

constexpr std::size_t chunk_count(std::size_t total, std::size_t chunk) { return total / chunk + (total % chunk != 0); }

/// Returns piece `index` of `total` elements cut into pieces of `chunk` elements; the last piece may be shorter.
constexpr Range chunk_range(std::size_t total, std::size_t chunk, std::size_t index) {
  const std::size_t begin = std::min(total, chunk * index);
  return {begin, std::min(chunk, total - begin)};
}

/// Cuts [0, total) into pieces of at most `limit` elements, and calls visit(Range) for each piece.
template <class Visit>
void for_each_chunk(std::size_t total, std::size_t limit, Visit&& visit) {
  for (std::size_t begin = 0; begin < total; begin += limit) visit(Range{begin, std::min(limit, total - begin)});
}

/// The shares of ranks begin at multiples of this many elements, so that no cache line has two owners. All-reduce,
/// reduce-scatter and the sharded schedule cut shares in the same way, so that their sums have the same bits.
inline constexpr std::size_t kShareAlign = 64;

/// Returns part `index` of `parts` nearly equal parts of `total`. Boundaries are multiples of `align`, so that two
/// ranks never write to the same cache line; the last part takes the rest.
constexpr Range share_of(std::size_t total, std::size_t parts, std::size_t index, std::size_t align) {
  const std::size_t units = total / align;
  const auto boundary = [&](std::size_t i) {
    return i == parts ? total : (units / parts * i + std::min(i, units % parts)) * align;
  };
  return {boundary(index), boundary(index + 1) - boundary(index)};
}

/// Errors: invalid_argument unless there is one count per rank.
inline void check_counts(const char* operation, std::span<const std::size_t> counts, int ranks) {
  if (counts.size() == static_cast<std::size_t>(ranks)) return;
  throw Error(Errc::kInvalidArgument, std::string(operation) + ": " + std::to_string(counts.size()) + " counts for " +
                                          std::to_string(ranks) + " ranks; give one count per rank");
}

/// `offsets[p]` is the first element of share p; the last entry is the end of the last share.
using Offsets = std::span<const std::size_t>;

/// Returns the offset of each rank's share, where the shares are contiguous. The result points into `memory`.
/// Errors: invalid_argument if the sum of `counts` exceeds 64 bits.
inline Offsets offsets_of(std::span<const std::size_t> counts, std::vector<std::size_t>& memory) {
  memory.assign(1, 0);
  memory.reserve(counts.size() + 1);
  for (const std::size_t count : counts) {
    if (count > ~memory.back()) throw Error(Errc::kInvalidArgument, "the counts of a collective add up beyond 2^64");
    memory.push_back(memory.back() + count);
  }
  return memory;
}
/// Returns the offset of each rank's share in a new vector, like the function above.
inline std::vector<std::size_t> offsets_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> offsets;
  offsets_of(counts, offsets);
  return offsets;
}

}  // namespace hvd::comm
