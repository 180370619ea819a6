#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bench/store/numa.h"

namespace hvd::bench {
namespace {

// Variables that make hwloc describe another machine, or make hwloc claim to describe this machine.
// Source: hwloc 2.9's documentation, "Environment Variables".
constexpr std::array<const char*, 6> kRedirections{"HWLOC_XMLFILE",    "HWLOC_SYNTHETIC",  "HWLOC_FSROOT",
                                                   "HWLOC_COMPONENTS", "HWLOC_CPUID_PATH", "HWLOC_THISSYSTEM"};

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const noexcept { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

std::vector<int> numbers(hwloc_const_bitmap_t bitmap) {
  std::vector<int> found;
  if (bitmap == nullptr || hwloc_bitmap_weight(bitmap) < 0) return found;  // an infinite set means unknown
  for (int next = hwloc_bitmap_first(bitmap); next >= 0; next = hwloc_bitmap_next(bitmap, next)) found.push_back(next);
  return found;
}

std::string version() {
  const unsigned api = hwloc_get_api_version();  // 0x20800 is 2.8; hwloc cannot report its full version at run time
  return fmt::format("hwloc API {}.{}", api >> 16, (api >> 8) & 0xff);
}

NumaNode read_node(hwloc_topology_t topology, hwloc_obj_t object) {
  NumaNode node;
  node.number = static_cast<int>(object->os_index);
  node.cpus = numbers(object->cpuset);
  node.cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, object->cpuset, HWLOC_OBJ_CORE);
  node.memory_bytes = static_cast<std::int64_t>(object->attr->numanode.local_memory);
  return node;
}

std::vector<NumaNode> read_nodes(hwloc_topology_t topology) {
  std::vector<NumaNode> nodes;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
    nodes.push_back(read_node(topology, object));
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  return nodes;
}

/// Returns text such as " (set: HWLOC_SYNTHETIC, HWLOC_THISSYSTEM)"; empty if no variable of kRedirections is set.
std::string redirections(const Environment& environment) {
  std::string names;
  for (const char* name : kRedirections) {
    if (environment.find(std::string_view(name)) != environment.end())
      names.append(names.empty() ? "" : ", ").append(name);
  }
  return names.empty() ? names : fmt::format(" (set: {})", names);
}

}  // namespace

void NumaTopology::Destroy::operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }

NumaTopology NumaTopology::of_machine(const Environment& environment) {
  NumaLayout layout;
  layout.source = version() + redirections(environment);
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) {
    layout.source += " cannot start";
    return {nullptr, std::move(layout)};
  }
  Handle handle(made);
  // Keep all object types: without groups and packages, hwloc gives every node the processors of the whole machine.
  hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  if (hwloc_topology_load(made) != 0) {
    layout.source += std::string(" cannot read the topology: ") + std::strerror(errno);
    return {nullptr, std::move(layout)};
  }
  layout.nodes = read_nodes(made);
  layout.this_machine = hwloc_topology_is_thissystem(made) == 1;
  if (!layout.this_machine) layout.source += ", which describes another machine";
  return {std::move(handle), std::move(layout)};
}

NumaTopology NumaTopology::synthetic(const std::string& description) {
  NumaLayout layout;
  layout.source = version() + ", synthetic";
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return {nullptr, std::move(layout)};
  Handle handle(made);
  if (hwloc_topology_set_synthetic(made, description.c_str()) != 0 || hwloc_topology_load(made) != 0) {
    layout.source += ": cannot be understood: " + description;
    return {nullptr, std::move(layout)};
  }
  layout.nodes = read_nodes(made);
  layout.this_machine = hwloc_topology_is_thissystem(made) == 1;
  return {std::move(handle), std::move(layout)};
}

std::vector<int> NumaTopology::nodes_of_memory(std::span<const std::byte> memory) const {
  if (handle_ == nullptr || !layout_.this_machine || memory.empty()) return {};
  const Bitmap nodes(hwloc_bitmap_alloc());
  if (nodes == nullptr || hwloc_get_area_memlocation(handle_.get(), memory.data(), memory.size(), nodes.get(),
                                                     HWLOC_MEMBIND_BYNODESET) != 0) {
    return {};
  }
  return numbers(nodes.get());
}

}  // namespace hvd::bench
