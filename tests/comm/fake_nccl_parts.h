// State that the calls of the fake NCCL share with the work that they enqueue.
#pragma once

#include <deque>
#include <utility>

#include "tests/comm/fake_nccl.h"

namespace hvd::test {

/// One collective, with the calls of all ranks.
struct FakeNcclHub::Round {
  std::vector<comm::nccl::CallArguments> parts;  // [rank]
  std::vector<bool> here;
  std::vector<std::uint64_t> capture;  // [rank] number of this call among the rank's captured calls; 0: not captured
  bool done = false;
  int turns = 0;  // turns that must pass before the collective is over
};

/// One end of a message: the send or the receive.
struct FakeNcclHub::End {
  comm::nccl::CallArguments what;
  std::uint64_t capture = 0;  // number of this message among the captured messages of its lane; 0: not captured
  bool met = false;
};

/// Messages from one rank to another: sends that wait for their receive, or receives that wait for their send. At least
/// one of the two queues is empty.
struct FakeNcclHub::Lane {
  std::deque<std::shared_ptr<End>> sends, receives;

  /// Moves the messages whose send and receive are both here. If a send and its receive differ, throws an error that
  /// names `label` and breaks the GPU.
  void meet(const std::string& label);
};

/// One communicator, shared by all its ranks.
struct FakeNcclHub::Group {
  Mutex mutex;  // locked by work, which already holds the world's mutex
  int size = 0;
  std::vector<bool> joined;
  std::vector<std::size_t> next;  // [rank] number of rounds begun
  std::vector<std::shared_ptr<Round>> rounds;
  std::map<std::pair<int, int>, Lane> lanes;  // [from, to]
  std::atomic<bool> lost{false};
  enum Leaving : std::uint8_t { kIn, kFinalized, kClosed };
  std::vector<Leaving> leaving;  // [rank]
  std::vector<std::weak_ptr<int>> holds_of_closed;  // held_by_graphs of the ranks that have closed

  void leave(int rank, Leaving how, const std::shared_ptr<int>& held_by_graphs);
  /// Returns true if no graph holds the communicator of a rank that has closed. Such a rank must have no Member.
  bool reclaimable();
  /// Returns true if all ranks have left as far as `how`.
  bool all_left(Leaving how);
};

/// One rank's handle of a communicator.
struct FakeNccl::Member {
  Mutex mutex;  // locked by the owner and by a watchdog
  std::shared_ptr<FakeNcclHub::Group> group;
  int rank = 0;
  int max_ctas = 0;
  int in_progress HVD_GUARDED_BY(mutex) = 0;  // state() reports "in progress" this many more times
  bool joined HVD_GUARDED_BY(mutex) = false;
  bool finalized HVD_GUARDED_BY(mutex) = false;
  std::vector<Call> late HVD_GUARDED_BY(mutex);     // calls to enqueue when the call in progress is over
  std::vector<Call> grouped HVD_GUARDED_BY(mutex);  // calls to enqueue at the end of the group
  std::shared_ptr<int> held_by_graphs = std::make_shared<int>(0);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::uint64_t captures = 0;                                   // number of captured collectives
  std::map<std::pair<bool, int>, std::uint64_t> captured_ends;  // [sent, peer] number of captured messages
  int registrations = 0;
  std::weak_ptr<int> caller HVD_GUARDED_BY(mutex);  // expires when the thread of the last call ends
  std::atomic<int> inside{0};                       // number of the owner's calls that have not returned
};

/// Exists while the owner is inside a call.
class FakeNccl::Inside {
 public:
  Inside(FakeNccl& nccl, Member& member) : member_(member) {
    member_.inside.fetch_add(1);
    if (nccl.options_.inside) nccl.options_.inside();
  }
  ~Inside() { member_.inside.fetch_sub(1); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Member& member_;
};

}  // namespace hvd::test
