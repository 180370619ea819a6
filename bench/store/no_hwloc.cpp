// Replaces numa_hwloc.cpp in a build without hwloc, where the NUMA nodes are unknown.
#include "bench/store/numa.h"

namespace hvd::bench {
namespace {

constexpr const char* kReason = "this build has no hwloc";

}  // namespace

void NumaTopology::Destroy::operator()(hwloc_topology* /*topology*/) const noexcept {}

NumaTopology NumaTopology::of_machine(const Environment& /*environment*/) {
  return {nullptr, {.nodes = {}, .source = kReason, .this_machine = false}};
}

NumaTopology NumaTopology::synthetic(const std::string& /*description*/) {
  return {nullptr, {.nodes = {}, .source = kReason, .this_machine = false}};
}

std::vector<int> NumaTopology::nodes_of_memory(std::span<const std::byte> /*memory*/) const { return {}; }

}  // namespace hvd::bench
