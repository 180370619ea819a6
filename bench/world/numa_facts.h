// Finds the NUMA nodes on which the ranks of a session may run. Makes facts for the provenance, and a caution if a rank
// is not bound to one node. Each rank sends a report, and rank 0 judges all reports. Also used by `hvd_bench coll`.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/store/numa.h"
#include "bench/store/process_start.h"
#include "bench/store/run_record.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// The report that each rank sends to rank 0.
struct NumaReport {
  std::vector<int> cpus;  ///< processors on which the rank may run
  NumaLayout layout;      ///< layout of the host, from the host's first rank; empty on the host's other ranks
};
/// Reads the calling thread's affinity and, if `first_of_host`, the host's topology. Reading the topology takes
/// milliseconds, and a host may have hundreds of ranks, so only the first of them should read it.
NumaReport numa_report(bool first_of_host, const Environment& environment);
std::string to_text(const NumaReport& report);
NumaReport parse_numa_report(std::string_view text);

/// What the caution about unbound ranks depends on. Applies to all ranks.
struct NumaKind {
  bool threads = false;  ///< ranks are threads of one process, so no launcher can bind them one by one
  bool on_gpus = false;  ///< the ranks use GPU memory: no caution, because gpu_surroundings.h checks such ranks
};
struct NumaFacts {
  Provenance provenance;           ///< numa.topology, numa.of_rank, and the caution, if there is one
  std::vector<std::string> notes;  ///< about a rank that may run on several nodes and is alone on its host
};
/// Judges the reports of all ranks. `ranks` and `hosts` are indexed by rank. Pure.
NumaFacts judge_numa(const std::vector<NumaReport>& ranks, const std::vector<std::string>& hosts, const NumaKind& kind);

/// Collective. `gather` gives rank 0 the messages of all ranks. Rank 0 gets the facts of all ranks, the other ranks get
/// none. Errors: those of `gather`.
using GatherMessages = std::function<std::vector<comm::Bytes>(std::span<const std::byte>)>;
NumaFacts gather_numa_facts(const comm::Topology& topology, const NumaKind& kind, const Environment& environment,
                            const GatherMessages& gather);

}  // namespace hvd::bench
