// The NUMA nodes of a host and the processors of each, as plain data, and the questions that a run asks about them.
// hwloc answers in numa_hwloc.cpp; no_hwloc.cpp takes its place in a build without hwloc. A NumaTopology is used by one
// thread at a time; everything else is pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/environment.h"

struct hwloc_topology;

namespace hvd::bench {

struct NumaNode {
  int number = 0;                 ///< the kernel's
  std::vector<int> cpus;          ///< the kernel's numbers, ascending
  int cores = 0;                  ///< physical
  std::int64_t memory_bytes = 0;  ///< 0: unknown
};

struct NumaLayout {
  std::vector<NumaNode> nodes;  ///< ascending by number; empty: unknown
  std::string source;           ///< "hwloc API 2.8", with what is odd about it; where nodes is empty: why
  bool this_machine = false;    ///< hwloc vouches for it; else a file or a text describes some other machine

  [[nodiscard]] bool known() const { return this_machine && !nodes.empty(); }
  /// Numbers of the nodes that have a processor among `cpus`.
  [[nodiscard]] std::vector<int> nodes_of(const std::vector<int>& cpus) const;
  /// Whether no node has all of `cpus`. Nodes may share their processors: HBM beside DRAM is a node of its own. Numbers
  /// that no node has are passed over.
  [[nodiscard]] bool crosses(const std::vector<int>& cpus) const;
};

/// What ranks tell one another of a host: source, nodes and their processors. One "name=value" line each.
std::string to_text(const NumaLayout& layout);
/// Lines that to_text() does not write are passed over.
NumaLayout parse_numa_layout(std::string_view text);

/// {0} is "node 0", {0,1} is "nodes 0-1".
std::string node_list(const std::vector<int>& nodes);

/// How a launcher binds each rank to one node, as the end of a sentence.
/// Sources: srun(1) (--cpu-bind), mpirun(1) of Open MPI 4 and 5 (--map-by, --bind-to), IBM's "Job Step Manager: jsrun".
std::string_view binding_advice();

/// What hwloc has found.
class NumaTopology {
 public:
  /// The machine's, processors and nodes included that this process may not use. Never fails: see NumaLayout::source.
  /// hwloc itself reads HWLOC_XMLFILE, HWLOC_SYNTHETIC and the like from the environment and then describes what they
  /// say; `environment` serves to name them in `source`.
  static NumaTopology of_machine(const Environment& environment);
  /// For tests: hwloc's description of a machine, say "numa:2 core:4 pu:2". `source` of the layout says what is wrong
  /// with it.
  static NumaTopology synthetic(const std::string& description);

  [[nodiscard]] const NumaLayout& layout() const { return layout_; }
  /// Numbers of the nodes on which pages of `memory` lie; empty if none has been touched, or the kernel does not tell.
  [[nodiscard]] std::vector<int> nodes_of_memory(std::span<const std::byte> memory) const;

 private:
  struct Destroy {
    void operator()(hwloc_topology* topology) const noexcept;
  };
  using Handle = std::unique_ptr<hwloc_topology, Destroy>;
  NumaTopology(Handle handle, NumaLayout layout);

  Handle handle_;  ///< null: unknown
  NumaLayout layout_;
};

}  // namespace hvd::bench
