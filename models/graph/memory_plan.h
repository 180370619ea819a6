// Placement of buffers with known lifetimes into one arena. Pure: same input, same offsets.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace hvd::models {

struct BufferUse {
  std::string name;
  std::size_t bytes = 0;
  int first = 0;  ///< step (node index) at which it is first written
  int last = 0;   ///< step at which it is last read; >= first. Two buffers may share memory iff disjoint.
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< one per BufferUse, multiples of `align_bytes`
  std::size_t arena_bytes = 0;       ///< what has to be allocated
  std::size_t lower_bound_bytes = 0; ///< largest sum of live buffers at any step: no plan can be smaller
  std::size_t sum_bytes = 0;         ///< without reuse
};

/// Best fit over decreasing size (greedy by size), as in tensor arena planners.
/// Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, section 4.3.
MemoryPlan plan_memory(const std::vector<BufferUse>& buffers, std::size_t align_bytes = 64);

/// Lifetimes of every activation, statistic and diff of `graph` at `element_bytes` per element (the
/// library-independent plan; backends with workspaces and padded layouts make their own list).
std::vector<BufferUse> lifetimes(const Graph& graph, std::size_t element_bytes);

}  // namespace hvd::models
