// A world of threads on one host in which a rank can look as if its process had ended. The rank's thread goes on: the
// test lets it do nothing more.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/group_communicator.h"
#include "engine/comm/process.h"

namespace hvd::test {

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
