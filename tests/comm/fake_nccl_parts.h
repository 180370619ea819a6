// State that the calls of fake NCCL share with the work that they enqueue.
#pragma once

#include <deque>
#include <utility>

#include "tests/comm/fake_nccl.h"

namespace hvd::test {

/// One collective on all ranks.
struct FakeNcclHub::Round {
  std::vector<comm::nccl::Operation> parts;  // [rank]
  std::vector<bool> here;
  std::vector<std::uint64_t> capture;  // [rank] which of the rank's captured calls this is; 0: not captured
  bool done = false;
  int turns = 0;  // that are to pass before it is over
};

/// One end of a message.
struct FakeNcclHub::End {
  comm::nccl::Operation what;
  std::uint64_t capture = 0;  // which of the captured messages of its lane this is; 0: not captured
  bool met = false;
};

/// Messages from one rank to another: the ends that have not met, in their order. One of the two is empty.
struct FakeNcclHub::Lane {
  std::deque<std::shared_ptr<End>> sends, receives;

  /// Moves what has both its ends. Errors, which break the GPU: ends that differ; `label` is for the text.
  void meet(const std::string& label);
};

/// One communicator on all ranks.
struct FakeNcclHub::Group {
  Mutex mutex;  // taken by work, which holds the world's
  int size = 0;
  std::vector<bool> joined;
  std::vector<std::size_t> next;  // [rank] rounds begun
  std::vector<std::shared_ptr<Round>> rounds;
  std::map<std::pair<int, int>, Lane> lanes;  // [from, to]
  std::atomic<bool> lost{false};
};

/// A rank's end of a communicator.
struct FakeNccl::Member {
  Mutex mutex;  // the owner and a watchdog
  std::shared_ptr<FakeNcclHub::Group> group;
  int rank = 0;
  int max_ctas = 0;
  int in_progress HVD_GUARDED_BY(mutex) = 0;  // state() says so this many times more
  bool joined HVD_GUARDED_BY(mutex) = false;
  std::vector<Call> late HVD_GUARDED_BY(mutex);     // what is enqueued when the call is over
  std::vector<Call> grouped HVD_GUARDED_BY(mutex);  // what is handed over at the end of the group
  std::shared_ptr<int> held_by_graphs = std::make_shared<int>(0);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::uint64_t captures = 0;                                   // collectives
  std::map<std::pair<bool, int>, std::uint64_t> captured_ends;  // [sent, peer]
  int registrations = 0;
};

}  // namespace hvd::test
