// The NUMA nodes that the ranks of a session may run on: facts for its provenance, and a caution where ranks are not
// bound to one node. Each rank reports, rank 0 judges. Also used by sessions of collectives.
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

/// One rank sends this to rank 0.
struct NumaReport {
  std::vector<int> cpus;  ///< that it may run on
  NumaLayout layout;      ///< of its host, from the first rank of the host; else no nodes and no source
};
/// Reads the calling thread's affinity and, if `first_of_host`, the host's topology. Reading it takes milliseconds, so
/// that hundreds of ranks of a host should not all do it.
NumaReport numa_report(bool first_of_host, const Environment& environment);
std::string to_text(const NumaReport& report);
NumaReport parse_numa_report(std::string_view text);

/// The kind of all ranks, as far as the caution depends on it.
struct NumaKind {
  bool threads = false;  ///< ranks are threads of one process, so that no launcher can bind them one by one
  bool on_gpus = false;  ///< memory is the GPUs'; no caution then, gpu_surroundings.h has its own
};
struct NumaFacts {
  Provenance provenance;           ///< numa.topology, numa.of_rank, and the caution, if there is one
  std::vector<std::string> notes;  ///< on a rank that is alone on several nodes
};
/// `ranks` and `hosts` are [rank]. Pure.
NumaFacts judge_numa(const std::vector<NumaReport>& ranks, const std::vector<std::string>& hosts, const NumaKind& kind);

/// Collective: every rank calls, and `gather` gives rank 0 the messages of all. Rank 0 gets the facts of all ranks, the
/// others nothing. Errors: those of `gather`.
using GatherMessages = std::function<std::vector<comm::Bytes>(std::span<const std::byte>)>;
NumaFacts gather_numa_facts(const comm::Topology& topology, const NumaKind& kind, const Environment& environment,
                            const GatherMessages& gather);

}  // namespace hvd::bench
