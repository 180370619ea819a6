// `hvd_bench doctor`: examines the host and reports, with advice, what is missing and what would disturb measurements.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/doctor/machine_rate.h"
#include "bench/store/host_facts.h"
#include "bench/store/numa.h"
#include "bench/store/process_start.h"

namespace hvd::bench {

struct Finding {
  enum class Level : std::uint8_t { kGood, kNote, kWarning, kFault } level = Level::kGood;
  std::string subject;  ///< "processor", "oneDNN", "NUMA", "MPI", "launcher", "/dev/shm", "clock", "store", ...
  std::string text;     ///< result of the check, with numbers
  std::string advice;   ///< what to do; empty if all is good
};

/// Examines the processor (cores, SIMD, AMX, governor, load), memory and its copy bandwidth, the measured fp32 and bf16
/// matrix rates compared with the processor's peak, NUMA nodes, /dev/shm, oneDNN, MPI, launcher (Slurm, LSF, or none),
/// the affinity compared with the thread count, GPUs, and the store's file if one is given.
/// If several ranks are launched together, the first rank of each host examines the host, and the host's other ranks
/// only start MPI and leave. Only rank 0 examines the store.
std::vector<Finding> examine(const std::string& db_file, const ProcessStart& start);

/// Returns `value` in units of 10^9: "29.1 GB/s".
std::string giga_text(double value, const char* unit);

/// Judges the vector instructions of the processor. Pure.
Finding judge_vectors(const Processor& cpu);

/// Judges oneDNN's file. `version_reason` is the result of models::onednn_version_reason(). Pure.
Finding judge_library(const std::string& file, const std::string& version_reason);

/// Judges whether oneDNN has compiled code for the networks. `slow_reason` is the first text of
/// models::onednn_reference_code(), or empty. Pure.
Finding judge_reference_code(const std::string& slow_reason);

/// Measured fp32 rates, in FLOP/s of all threads.
struct Fp32Rates {
  PeakRate peak;
  VectorLevel level = VectorLevel::kBase;  ///< of `peak`
  int threads = 1;
  double convolution = 0;  ///< in a direct convolution; 0: unknown
};
/// Judges the peak and the convolution. A peak below the convolution, or above what the clock allows, is a warning, and
/// nothing is then compared with the peak. Pure.
std::vector<Finding> judge_fp32(const Fp32Rates& rates);

/// Judges bf16 from the measured rates of a convolution in bf16 and in fp32, in FLOP/s. `slow_reason` is the result of
/// models::onednn_slow_reason(). Pure.
Finding judge_bf16(double bf16, double fp32, const std::string& slow_reason);

/// The processors and the memory of a process.
struct NumaPlace {
  std::vector<int> cpus;          ///< processors that the process may use
  std::vector<int> memory_nodes;  ///< nodes of the memory that the process has just touched; empty: unknown
  bool company = false;           ///< other ranks run on the same host
};
/// Judges whether `place` lies within one node. Pure.
Finding judge_numa(const NumaLayout& layout, const NumaPlace& place);

/// Says how root allows itself Open MPI's mpirun, unless `uid` is not root's, `library` (Communicator::library()) is
/// another MPI, or the environment allows it already. Pure.
std::optional<Finding> judge_root(unsigned uid, const std::string& library, const Environment& environment);

/// Prints a table. Ranks other than 0 print only warnings and faults of their host, each line with the host's name.
/// Returns the exit code: 0, or 1 if there is a fault.
int print_findings(const std::vector<Finding>& findings, const Launch& launch, std::ostream& out);

}  // namespace hvd::bench
