// Runs a function on every rank of a loopback world, with one thread per rank.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "tests/base/threads.h"

namespace hvd::test {

/// Returns one text per rank: what the body returned, or "error <code>: <what>" if it threw.
inline std::vector<std::string> run_loopback(int size, const comm::CommOptions& options, int ranks_per_node,
                                             const std::function<std::string(comm::Communicator&)>& body) {
  auto world = comm::make_loopback(size, options, ranks_per_node);
  std::vector<std::string> results(world.size());
  on_threads(world.size(), [&](std::size_t r) {
    try {
      results[r] = body(*world[r]);
    } catch (const Error& error) {
      results[r] = "error " + std::string(name(error.code())) + ": " + error.what();
      // Aborts as the engine does. A mismatch needs no abort: all ranks find the mismatch, or the plane has already
      // aborted.
      if (error.code() != Errc::kMismatch) world[r]->control().abort(error.what());
    }
  });
  return results;
}

/// Expects that every rank returned an empty text.
inline void expect_good(const std::vector<std::string>& results) {
  for (std::size_t r = 0; r < results.size(); ++r) EXPECT_EQ(results[r], "") << "rank " << r;
}

/// Returns the data plane's description after an all-reduce of `count` elements.
inline std::string description_after(std::size_t count, int size, int ranks_per_node,
                                     const comm::CommOptions& options = {}) {
  return run_loopback(size, options, ranks_per_node, [count](comm::Communicator& c) {
    std::vector<float> data(count, 1.0F);
    c.data().all_reduce(data.data(), count, DataType::kF32, ReduceOp::kSum, Deadline::after(std::chrono::seconds(20)));
    return c.data().description();
  })[0];
}

}  // namespace hvd::test
