// The options that say how the ranks of a launch form a world. Decides whether the ranks are threads of this process,
// and runs ranks as threads. The options of training (options.h) and of `hvd_bench coll` contain WorldOptions.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

#include "bench/store/process_start.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"

namespace hvd::bench {

enum class CommBackend : std::uint8_t {
  kAuto,      ///< mpi when launched with several ranks, loopback when --ranks > 1, else solo
  kNone,      ///< every rank trains, nothing is reduced
  kLoopback,  ///< ranks are --ranks threads of this process
  kMpi,
  kNccl,  ///< NCCL between GPUs; the ranks find one another as with kAuto
};

struct WorldOptions {
  CommBackend comm = CommBackend::kAuto;
  int ranks = 0;  ///< loopback ranks in this process
  /// Deadline of every wait for another rank during start-up, while the ranks join and compare their options; in
  /// training also while they build the network, tune and take their first steps.
  Patience startup_deadline{std::chrono::minutes(5), "--startup-deadline-seconds"};
};

enum class WorldKind : std::uint8_t { kSolo, kThreads, kProcesses };

/// Returns true if the options make the ranks threads of this process. Pure.
bool in_process(const WorldOptions& options);
/// Decides how the ranks form a world. check_launch() must have settled the options. Pure.
WorldKind world_of(const WorldOptions& options, const Launch& launch);

/// Call after MPI has told the world's size. Errors: invalid_argument if the launcher started several processes and
/// each process is a world of its own. library: Communicator::library(), for the text.
void check_world(const Launch& launch, int world_size, const WorldOptions& options, std::string_view library = "MPI");

/// Returns why the rank that MPI assigned cannot be right, or "" if it can be right. The process with the launcher's
/// rank 0 prints and stores, and the process with MPI's rank 0 has the results, so every process must
/// have the same rank in both.
std::string rank_objection(const Launch& launch, int world_rank);

/// Runs body(r) for each of `count` ranks: rank 0 on the calling thread, and each other rank on a thread of its own.
/// Returns when all bodies have returned. If the system refuses to start a thread, calls cannot_start() with one line.
/// cannot_start() must make the running ranks stop waiting for the missing rank. Errors: those of the bodies. If
/// several bodies throw, the first error that is not peer_lost is thrown, because an error of one rank makes the other
/// ranks throw peer_lost.
void run_rank_threads(int count, const std::function<void(int rank)>& body,
                      const std::function<void(const std::string& reason)>& cannot_start);

/// Converts a refusal by the system, most often to start another thread, into an Error. Such a refusal is not a bug.
Error resource_fault(const std::system_error& error);

}  // namespace hvd::bench
