// The threads with which a step on the CPU computes, as OpenMP hands them out. The environment may give fewer threads
// than a step asks for (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS), and may bind all threads of a process to processors
// of its choice (OMP_PROC_BIND, OMP_PLACES). Without OpenMP (a build without oneDNN) a rank computes on its own thread.
#pragma once

#include <vector>

namespace hvd::models {

/// Returns the most threads that the calling thread can get; INT_MAX if the environment sets no limit.
int thread_limit();

/// Returns the processors to which OpenMP binds its threads, ascending; empty if OpenMP binds none.
std::vector<int> bound_processors();

struct ThreadTeam {
  int threads = 1;              ///< may be fewer than were asked for
  std::vector<int> processors;  ///< on which these threads may run, ascending; empty if unknown
};
/// Starts the calling thread's team of `wanted` threads and asks each thread where it may run. The team stays for the
/// steps that follow.
ThreadTeam start_team(int wanted);

}  // namespace hvd::models
