#include "bench/ranks.h"

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

WorldKind world_of(const Options& options, const Launch& launch) {
  if (options.comm == CommBackend::kLoopback || options.ranks > 0) return WorldKind::kThreads;
  if (options.comm == CommBackend::kMpi) return WorldKind::kProcesses;
  // With --comm none, too, the ranks of one launch measure together.
  return launch.size > 1 ? WorldKind::kProcesses : WorldKind::kSolo;
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
        cannot_start("rank " + std::to_string(rank) + " cannot be started: " + error.what());
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
            "the system refuses another thread (" + error.code().message() +
                "); use fewer --threads or --ranks, or raise the limit (ulimit -u, ulimit -v, pids of the container)"};
  }
  return {Errc::kIo, error.what()};
}

}  // namespace hvd::bench
