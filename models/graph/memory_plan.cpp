#include "models/graph/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models {
namespace {

bool live_together(const BufferUse& a, const BufferUse& b) { return a.first <= b.last && b.first <= a.last; }

// Returns the largest sum of live (aligned) bytes at any step. The sum changes only where a lifetime starts or ends.
std::size_t peak_live_bytes(const std::vector<BufferUse>& buffers, const std::vector<std::size_t>& bytes) {
  std::map<int, std::int64_t> change;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    change[buffers[i].first] += static_cast<std::int64_t>(bytes[i]);
    change[buffers[i].last + 1] -= static_cast<std::int64_t>(bytes[i]);
  }
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const auto& [step, delta] : change) {
    live += delta;
    peak = std::max(peak, live);
  }
  return static_cast<std::size_t>(peak);
}

struct Placed {
  std::size_t index = 0, begin = 0, end = 0;
};

// Considers the buffers of `placed` (sorted by begin) that are live at the same time as `buffer`. Returns the offset of
// the smallest gap between these buffers that has room for `bytes`. If no gap has room, returns the end of the last of
// these buffers.
std::size_t best_fit(const std::vector<BufferUse>& buffers, const BufferUse& buffer, std::size_t bytes,
                     const std::vector<Placed>& placed) {
  std::size_t best = std::numeric_limits<std::size_t>::max();
  std::size_t smallest_gap = std::numeric_limits<std::size_t>::max();
  std::size_t occupied_to = 0;
  for (const Placed& other : placed) {
    if (!live_together(buffer, buffers[other.index])) continue;
    if (other.begin >= occupied_to + bytes && other.begin - occupied_to < smallest_gap) {
      smallest_gap = other.begin - occupied_to;
      best = occupied_to;
    }
    occupied_to = std::max(occupied_to, other.end);
  }
  return best == std::numeric_limits<std::size_t>::max() ? occupied_to : best;
}

}  // namespace

MemoryPlan plan_memory(const std::vector<BufferUse>& buffers, std::size_t align_bytes) {
  HVD_ASSERT(align_bytes > 0);
  std::vector<std::size_t> bytes;
  bytes.reserve(buffers.size());
  for (const BufferUse& buffer : buffers) {
    if (buffer.last < buffer.first) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("memory plan: buffer {} is last used at step {}, before its first use at {}", buffer.name,
                              buffer.last, buffer.first));
    }
    bytes.push_back(align_up(buffer.bytes, align_bytes));
  }
  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  plan.lower_bound_bytes = peak_live_bytes(buffers, bytes);
  plan.sum_bytes = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});

  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });

  std::vector<Placed> placed;  // sorted by begin
  placed.reserve(buffers.size());
  for (const std::size_t index : order) {
    if (bytes[index] == 0) continue;
    const std::size_t begin = best_fit(buffers, buffers[index], bytes[index], placed);
    const Placed entry{.index = index, .begin = begin, .end = begin + bytes[index]};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  entry);
    plan.offsets[index] = begin;
    plan.arena_bytes = std::max(plan.arena_bytes, entry.end);
  }
  return plan;
}

std::vector<BufferUse> lifetimes(const Graph& graph, std::size_t element_bytes) {
  const auto planned = [](TensorRole role) {
    return role == TensorRole::kActivation || role == TensorRole::kStatistic || role == TensorRole::kDiff;
  };
  std::vector<int> last(graph.tensors.size(), -1);
  for (std::size_t step = 0; step < graph.nodes.size(); ++step) {
    for (const TensorId input : graph.nodes[step].inputs)
      last[static_cast<std::size_t>(input)] = static_cast<int>(step);
  }
  std::vector<BufferUse> uses;
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    const TensorDesc& tensor = graph.tensors[id];
    if (!planned(tensor.role)) continue;
    HVD_ASSERT(tensor.producer != kNoNode);
    uses.push_back({.name = tensor.name,
                    .bytes = static_cast<std::size_t>(tensor.shape.count()) * element_bytes,
                    .first = tensor.producer,
                    .last = std::max<int>(last[id], tensor.producer)});
  }
  return uses;
}

}  // namespace hvd::models
