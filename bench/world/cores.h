// Computes the number of cores that each rank has for its compute, from the affinity masks of all ranks. Pure, except
// available_cores() and cores_message().
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace hvd::bench {

using CoreSet = std::vector<bool>;  ///< [cpu]: true if the cpu may be used

/// Returns the cores that the scheduler or a launcher's binding allows the calling thread to use.
CoreSet available_cores();

struct CoreShare {
  int threads = 1;              ///< compute threads of every rank: the smallest share over ranks, at least 1
  bool spare_core = false;      ///< every host has more cores than compute threads, so a core is left for the engines
  int ranks_at_once = 1;        ///< ranks per host that can run at once, one core per thread; minimum over hosts, >= 1
  bool oversubscribed = false;  ///< on some host the ranks have more threads than cores
};

/// Rank r may use the cores `cores[r]` of host `nodes[r]`. A core that k ranks of a host may use counts 1/k for each of
/// these ranks, so ranks that are bound to separate cores and ranks that share all cores get the same shares. `threads`
/// > 0 is the user's choice and is returned unchanged.
CoreShare share_cores(std::span<const CoreSet> cores, std::span<const int> nodes, int threads);

/// Returns the calling thread's available_cores() as a message for share_of_messages().
std::string cores_message();
/// Like share_cores(), but from messages: all[r] is cores_message() of rank r, which runs on host hosts[r].
CoreShare share_of_messages(std::span<const comm::Bytes> all, std::span<const std::string> hosts, int threads);

}  // namespace hvd::bench
