// `hvd_bench doctor`: what is here, what is missing and how to get it, and whether it is what it should be.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "bench/cli/launch.h"
#include "bench/numa.h"

namespace hvd::bench {

struct Finding {
  enum class Level : std::uint8_t { kGood, kNote, kWarning, kFault } level = Level::kGood;
  std::string subject;  ///< "processor", "oneDNN", "NUMA", "MPI", "launcher", "/dev/shm", "clock", "store", ...
  std::string text;     ///< what was found, with numbers
  std::string advice;   ///< what to do; empty when good
};

/// Looks at processor (cores, SIMD, AMX, governor, throttling), memory and its measured copy bandwidth,
/// measured fp32 and bf16 matrix rate against the processor's peak, NUMA nodes, /dev/shm, oneDNN, MPI, scheduler
/// (Slurm, LSF, or none), affinity against the thread count, the store's file if given.
/// Of several ranks that were launched together, the first of each host looks at it, without company on its cores;
/// the others only join in starting MPI; rank 0 alone looks at the store.
std::vector<Finding> examine(const std::string& db_file, const Launch& launch);

/// Judges computing in bf16 by the measured rates of convolutions in both types, in FLOP/s. `slow_reason`:
/// models::onednn_slow_reason(). Pure.
Finding judge_bf16(double bf16, double fp32, const std::string& slow_reason);

/// Where a process runs.
struct NumaPlace {
  std::vector<int> cpus;          ///< that it may use
  std::vector<int> memory_nodes;  ///< of memory that it has just touched; empty: unknown
  bool company = false;           ///< more ranks run on its host
};
/// Judges whether `place` lies within one node. Pure.
Finding judge_numa(const NumaLayout& layout, const NumaPlace& place);

/// Prints a table; on ranks other than 0 only what is wrong with their host, each line under the host's name.
/// Returns the exit code: 0, or 1 if there is a fault.
int print_findings(const std::vector<Finding>& findings, const Launch& launch, std::ostream& out);

}  // namespace hvd::bench
