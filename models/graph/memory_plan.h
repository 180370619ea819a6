// Places buffers with known lifetimes in one arena. Pure: the same input gives the same offsets.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace hvd::models {

struct BufferUse {
  std::string name;
  std::size_t bytes = 0;
  int first = 0;  ///< index of the operation that first writes the buffer
  int last = 0;   ///< index of the last operation that reads the buffer, >= first; the lifetime is [first, last]
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;   ///< one per BufferUse, multiples of `align_bytes`
  std::size_t arena_bytes = 0;        ///< size of the arena
  std::size_t lower_bound_bytes = 0;  ///< largest size of all buffers live at the same time: no plan needs less
  std::size_t sum_bytes = 0;          ///< size of all buffers together: an arena without reuse needs this much
};

/// Places the buffers in order of decreasing size, each in the smallest gap that has room for it (greedy by size).
/// Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, section 4.3.
MemoryPlan plan_memory(const std::vector<BufferUse>& buffers, std::size_t align_bytes = 64);

/// Returns the sizes and lifetimes of all activations, statistics and diffs of `graph`, at `element_bytes` per element.
/// The list does not depend on a library. Backends with workspaces and padded layouts make their own lists.
std::vector<BufferUse> lifetimes(const Graph& graph, std::size_t element_bytes);

}  // namespace hvd::models
