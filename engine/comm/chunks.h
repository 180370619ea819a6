// Cuts 64-bit counts into pieces: for libraries whose counts are int, for pipelines, for shares of ranks.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hvd::comm {

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
  [[nodiscard]] std::size_t end() const { return begin + count; }
};

constexpr std::size_t chunk_count(std::size_t total, std::size_t chunk) { return total / chunk + (total % chunk != 0); }

/// The `index`-th piece of `total` things in pieces of `chunk`; the last one may be shorter.
constexpr Range chunk_range(std::size_t total, std::size_t chunk, std::size_t index) {
  const std::size_t begin = std::min(total, chunk * index);
  return {begin, std::min(chunk, total - begin)};
}

/// Calls visit(Range) for [0, total) in pieces of at most `limit`.
template <class Visit>
void for_each_chunk(std::size_t total, std::size_t limit, Visit&& visit) {
  for (std::size_t begin = 0; begin < total; begin += limit) visit(Range{begin, std::min(limit, total - begin)});
}

/// Part `index` of `parts` near-equal parts; boundaries are multiples of `align` (the last part takes the
/// rest), so that two ranks never write one cache line.
constexpr Range share_of(std::size_t total, std::size_t parts, std::size_t index, std::size_t align) {
  const std::size_t units = total / align;
  const auto boundary = [&](std::size_t i) {
    return i == parts ? total : (units / parts * i + std::min(i, units % parts)) * align;
  };
  return {boundary(index), boundary(index + 1) - boundary(index)};
}

}  // namespace hvd::comm
