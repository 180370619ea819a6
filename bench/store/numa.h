// The NUMA nodes of a host with their processors, as plain data, and functions on them. numa_hwloc.cpp reads the nodes;
// a build without hwloc has no_hwloc.cpp. One thread at a time may use a NumaTopology; everything else is pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/store/process_start.h"

struct hwloc_topology;

namespace hvd::bench {

struct NumaNode {
  int number = 0;                 ///< the kernel's number of the node
  std::vector<int> cpus;          ///< the kernel's numbers of the node's processors, ascending
  int cores = 0;                  ///< number of physical cores
  std::int64_t memory_bytes = 0;  ///< 0: unknown
};

struct NumaLayout {
  std::vector<NumaNode> nodes;  ///< ascending by number; empty: unknown
  std::string source;           ///< "hwloc API 2.8" and cautions, or why `nodes` is empty
  bool this_machine = false;    ///< false if a file or a text given to hwloc describes another machine

  [[nodiscard]] bool known() const { return this_machine && !nodes.empty(); }
  /// Returns the numbers of the nodes that have a processor among `cpus`.
  [[nodiscard]] std::vector<int> nodes_of(const std::vector<int>& cpus) const;
  /// Returns true if no node has all of `cpus`. Several nodes may have the same processors: HBM and DRAM of one socket
  /// are two nodes. Ignores processors that no node has.
  [[nodiscard]] bool crosses(const std::vector<int>& cpus) const;
};

/// Returns the layout as text for other ranks: source, nodes and their processors, one "name=value" line each.
std::string to_text(const NumaLayout& layout);
/// Parses the result of to_text(). Ignores lines that to_text() does not write.
NumaLayout parse_numa_layout(std::string_view text);

/// Returns {0} as "node 0" and {0,1} as "nodes 0-1".
std::string node_list(const std::vector<int>& nodes);

/// Returns advice on how a launcher binds each rank to one node, as the end of a sentence.
/// Sources: srun(1) (--cpu-bind), mpirun(1) of Open MPI 4 and 5 (--map-by, --bind-to), IBM's "Job Step Manager: jsrun".
std::string_view binding_advice();

/// The topology of a machine as hwloc reports it.
class NumaTopology {
 public:
  /// Reads the topology of this machine, including processors and nodes that this process may not use. Never fails:
  /// NumaLayout::source gives the reason if the nodes are unknown. If HWLOC_XMLFILE, HWLOC_SYNTHETIC or similar
  /// variables are set, hwloc describes another machine; NumaLayout::source then names the variables that `environment`
  /// has.
  static NumaTopology of_machine(const Environment& environment);
  /// For tests: takes a machine in hwloc's notation, such as "numa:2 core:4 pu:2". If the description is not valid,
  /// NumaLayout::source says so.
  static NumaTopology synthetic(const std::string& description);

  [[nodiscard]] const NumaLayout& layout() const { return layout_; }
  /// Returns the nodes on which pages of `memory` lie; empty if no page has been touched or the kernel does not tell.
  [[nodiscard]] std::vector<int> nodes_of_memory(std::span<const std::byte> memory) const;

 private:
  struct Destroy {
    void operator()(hwloc_topology* topology) const noexcept;
  };
  using Handle = std::unique_ptr<hwloc_topology, Destroy>;
  NumaTopology(Handle handle, NumaLayout layout);

  Handle handle_;  ///< null if the topology is unknown
  NumaLayout layout_;
};

}  // namespace hvd::bench
