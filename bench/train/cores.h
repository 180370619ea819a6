// How many cores does a rank have for its compute? From the affinity masks of all ranks. Pure, but for the
// first function.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace hvd::bench {

using CoreSet = std::vector<bool>;  ///< [cpu]: may be used

/// The cores that the scheduler or a launcher's binding leave to the calling thread.
CoreSet available_cores();

struct CoreShare {
  int threads = 1;              ///< for every rank: the smallest share, at least 1
  bool spare_core = false;      ///< on every host a core is left over for the engines beside threads x ranks
  int ranks_at_once = 1;        ///< of one host; they find a core for each thread. The least over hosts, at least 1
  bool oversubscribed = false;  ///< on some host the ranks have more threads than cores
};

/// `cores[r]` may be used by rank r on host `nodes[r]`. A core that k ranks of a host may use counts 1/k for
/// each of them: ranks bound to cores of their own and ranks that share all cores are treated alike.
/// `threads` > 0 is what the user asked for, and is kept.
CoreShare share_cores(std::span<const CoreSet> cores, std::span<const int> nodes, int threads);

/// The same from messages: `all[r]` is what cores_message() of rank r returned, on host `hosts[r]`.
std::string cores_message();
CoreShare share_of_messages(std::span<const comm::Bytes> all, std::span<const std::string> hosts, int threads);

}  // namespace hvd::bench
