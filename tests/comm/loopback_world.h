// Runs a function on every rank of a loopback world, with one thread per rank; and a world whose ranks can be killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/group_communicator.h"
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

/// A world of threads on one host in which a rank can look as if its process had ended. The rank's thread goes on: the
/// test lets it do nothing more.
class KillableWorld {
 public:
  /// Call before the test starts threads, because this function forks.
  explicit KillableWorld(int size)
      : size_(size),
        memory_(std::make_shared<comm::SharedMemory>(comm::SharedMemory::anonymous(comm::Segment::bytes_for(size)))),
        ended_process_(::fork()) {
    if (ended_process_ == 0) ::_exit(0);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(ended_process_), &info, WEXITED | WNOWAIT);  // keeps the id from being used again
  }
  KillableWorld(const KillableWorld&) = delete;
  KillableWorld& operator=(const KillableWorld&) = delete;
  ~KillableWorld() { ::waitpid(ended_process_, nullptr, 0); }

  /// Returns one communicator per rank, as comm::make_loopback() does.
  std::vector<std::unique_ptr<comm::Communicator>> communicators() {
    const auto size = static_cast<std::size_t>(size_);
    const auto handover = std::make_shared<comm::Handover>();
    std::vector<std::unique_ptr<comm::Communicator>> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      auto state = std::make_unique<comm::RankState>(
          comm::Layout(rank, std::vector<int>(size), std::vector<std::string>(size, "node0")), memory_,
          comm::NodeGroup::Kind::kThreads);
      state->group.set_handover(handover);
      ranks.push_back(std::make_unique<comm::GroupCommunicator>(std::move(state), comm::CommOptions{}, "loopback",
                                                                "threads of one process"));
    }
    return ranks;
  }
  /// From now on the other ranks find that the process of `rank` has ended.
  void kill(int rank) {
    comm::Segment(memory_->bytes(), size_).cell(rank).process = static_cast<std::uint32_t>(ended_process_);
  }
  /// Returns how many roll calls the ranks have held.
  [[nodiscard]] std::uint32_t roll_calls() const { return comm::Segment(memory_->bytes(), size_).header().roll_call; }

 private:
  const int size_;
  const std::shared_ptr<comm::SharedMemory> memory_;
  const pid_t ended_process_;
};

}  // namespace hvd::test
