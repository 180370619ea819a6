#include "bench/world/ranks.h"

#include <fmt/format.h>

#include <exception>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace hvd::bench {
namespace {

void rethrow_cause(const std::vector<std::exception_ptr>& faults) {
  std::exception_ptr first;
  for (const std::exception_ptr& fault : faults) {
    if (!fault) continue;
    if (!first) first = fault;
    try {
      std::rethrow_exception(fault);
    } catch (const Error& error) {
      if (error.code() != Errc::kPeerLost) throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

bool in_process(const WorldOptions& options) {
  return options.comm == CommBackend::kLoopback || (options.comm != CommBackend::kMpi && options.ranks > 0);
}

WorldKind world_of(const WorldOptions& options, const Launch& launch) {
  if (options.comm == CommBackend::kLoopback || options.ranks > 0) return WorldKind::kThreads;
  if (options.comm == CommBackend::kMpi) return WorldKind::kProcesses;
  // Even with --comm none, the ranks of one launch measure together.
  return launch.size > 1 ? WorldKind::kProcesses : WorldKind::kSolo;
}

void check_world(const Launch& launch, int world_size, const WorldOptions& options, std::string_view library) {
  if (launch.size <= 1 || world_size != 1 || in_process(options)) return;
  throw Error(Errc::kInvalidArgument,
              fmt::format("{}: {} processes were started together, but {} made each a separate world of one (the "
                          "launcher and this MPI library do not speak the same PMI); launch with: {}; or name the "
                          "launcher's MPI in HVD_MPI",
                          launch.evidence, launch.size, library, how_to_launch(launch.evidence, launch.size)));
}

std::string rank_objection(const Launch& launch, int world_rank) {
  if (launch.launcher == Launcher::kNone || launch.rank == world_rank) return {};
  if (launch.rank_evidence.ends_with('=')) {
    return fmt::format(
        "{} without {}: this launcher does not say which rank is which; use mpirun, srun --mpi=pmix or jsrun",
        launch.evidence, launch.rank_evidence.substr(0, launch.rank_evidence.size() - 1));
  }
  return fmt::format(
      "{} of a process that is rank {} in MPI; unset what the launcher (mpirun, srun, jsrun) did not set",
      launch.rank_evidence, world_rank);
}

void run_rank_threads(int count, const std::function<void(int rank)>& body,
                      const std::function<void(const std::string& reason)>& cannot_start) {
  std::vector<std::exception_ptr> faults(static_cast<std::size_t>(count));
  const auto run = [&](int rank) {
    try {
      body(rank);
    } catch (...) {
      faults[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < count; ++rank) {
      try {
        threads.emplace_back([&run, rank] { run(rank); });
      } catch (const std::exception& error) {
        cannot_start(fmt::format("rank {} cannot be started: {}", rank, error.what()));
        throw;
      }
    }
    run(0);
  }
  rethrow_cause(faults);
}

Error resource_fault(const std::system_error& error) {
  if (error.code() == std::errc::resource_unavailable_try_again) {
    return {Errc::kBackend,
            fmt::format("the system refuses another thread ({}); use fewer --threads or --ranks, or raise the limit "
                        "(ulimit -u, ulimit -v, pids of the container)",
                        error.code().message())};
  }
  return {Errc::kIo, error.what()};
}

}  // namespace hvd::bench
