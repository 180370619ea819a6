// Runs a function on every rank of a loopback world, with one thread per rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::test {

/// Returns one text per rank: what the body returned, or "error <code>: <what>" if it threw.
inline std::vector<std::string> run_loopback(int size, const comm::CommOptions& options, int ranks_per_node,
                                             const std::function<std::string(comm::Communicator&)>& body) {
  auto world = comm::make_loopback(size, options, ranks_per_node);
  std::vector<std::string> results(world.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < world.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          results[r] = body(*world[r]);
        } catch (const Error& error) {
          results[r] = "error " + std::string(name(error.code())) + ": " + error.what();
          // Aborts as the engine does. A mismatch needs no abort: all ranks find it, or the plane has already aborted.
          if (error.code() != Errc::kMismatch) world[r]->control().abort(error.what());
        }
      });
    }
  }
  return results;
}

}  // namespace hvd::test
