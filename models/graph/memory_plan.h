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
  int first = 0;  ///< step (node index) of the first write
  int last = 0;   ///< step of the last read, >= first; two buffers may share memory if their lifetimes do not overlap
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;   ///< one per BufferUse, multiples of `align_bytes`
  std::size_t arena_bytes = 0;        ///< size of the arena
  std::size_t lower_bound_bytes = 0;  ///< largest sum of live buffers at any step: no plan can be smaller
  std::size_t sum_bytes = 0;          ///< sum of all buffers: size without reuse
};

/// Places the buffers in order of decreasing size, each at its best fit (greedy by size), as tensor arena planners do.
/// Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, section 4.3.
MemoryPlan plan_memory(const std::vector<BufferUse>& buffers, std::size_t align_bytes = 64);

/// Returns the lifetimes of every activation, statistic and diff of `graph` at `element_bytes` per element. This list
/// does not depend on a library; backends with workspaces and padded layouts make their own lists.
std::vector<BufferUse> lifetimes(const Graph& graph, std::size_t element_bytes);

}  // namespace hvd::models
