// The ranks of one process: whether they are threads, and running them as such. Used by sessions of training and of
// collectives.
#pragma once

#include <functional>
#include <string>
#include <system_error>

#include "bench/cli/launch.h"
#include "bench/options.h"
#include "engine/base/error.h"

namespace hvd::bench {

enum class WorldKind : std::uint8_t { kSolo, kThreads, kProcesses };

/// Returns how the ranks come together. check_launch() must have settled the options. Pure.
WorldKind world_of(const Options& options, const Launch& launch);

/// Runs body(r) for each of `count` ranks, rank 0 on the calling thread and each other on a thread of its own; returns
/// when all have. Where the system refuses a thread, cannot_start() gets one line for the ranks that run, which must
/// not wait for it. Errors: those of the bodies. Of several, the first that is no peer_lost: a lost peer is the echo of
/// what happened to another rank.
void run_rank_threads(int count, const std::function<void(int rank)>& body,
                      const std::function<void(const std::string& reason)>& cannot_start);

/// The error for what the system refused that is nobody's bug, above all another thread.
Error resource_fault(const std::system_error& error);

}  // namespace hvd::bench
