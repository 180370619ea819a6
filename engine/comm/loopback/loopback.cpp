#include "engine/comm/loopback/loopback.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/group_communicator.h"

namespace hvd::comm {
namespace {

constexpr std::chrono::milliseconds kSlice{20};

}  // namespace

std::shared_ptr<Inboxes> make_inboxes(int size) {
  auto inboxes = std::make_shared<Inboxes>();
  for (int r = 0; r < size; ++r) {
    auto inbox = std::make_unique<Inbox>();
    {
      const MutexLock lock(inbox->mutex);
      inbox->messages.resize(static_cast<std::size_t>(size));
    }
    inboxes->push_back(std::move(inbox));
  }
  return inboxes;
}

Transport::Ticket ThreadTransport::send(int to, std::span<const std::byte> bytes) {
  Inbox& theirs = inbox(to);
  {
    const MutexLock lock(theirs.mutex);
    theirs.messages[static_cast<std::size_t>(rank_)].emplace_back(bytes.begin(), bytes.end());
  }
  theirs.arrived.notify_one();
  return 0;
}

Transport::Ticket ThreadTransport::receive(int from, std::span<std::byte> bytes) {
  const Ticket ticket = next_++;
  posted_[static_cast<std::size_t>(from)].push_back({ticket, bytes});
  open_.emplace(ticket, from);
  return ticket;
}

void ThreadTransport::deliver(int from, Inbox& mine) {
  auto& messages = mine.messages[static_cast<std::size_t>(from)];
  auto& receives = posted_[static_cast<std::size_t>(from)];
  while (!messages.empty() && !receives.empty()) {
    const std::vector<std::byte> message = std::move(messages.front());
    messages.pop_front();
    const Receive receive = receives.front();
    receives.pop_front();
    open_.erase(receive.ticket);
    if (message.size() != receive.bytes.size()) {
      throw Error(Errc::kMismatch, fmt::format("rank {} sent {} bytes to rank {}, which expected {}: all ranks must "
                                               "make the same calls in the same order",
                                               from, message.size(), rank_, receive.bytes.size()));
    }
    std::copy(message.begin(), message.end(), receive.bytes.begin());
  }
}

bool ThreadTransport::test(Ticket ticket) {
  const auto found = open_.find(ticket);
  if (found == open_.end()) return true;
  Inbox& mine = inbox(rank_);
  const MutexLock lock(mine.mutex);
  deliver(found->second, mine);
  return open_.count(ticket) == 0;
}

void ThreadTransport::wait(Ticket ticket, const Wait& wait) {
  try {
    await(ticket, wait);
  } catch (const Error& error) {
    forget_receives();
    // Only the receiver detects a mismatch.
    if (error.code() == Errc::kMismatch) faults_.abort_for_mismatch(error.what());
    throw;
  } catch (...) {
    forget_receives();
    throw;
  }
}

void ThreadTransport::forget_receives() {
  for (auto& receives : posted_) receives.clear();
  open_.clear();
}

void ThreadTransport::await(Ticket ticket, const Wait& wait) {
  Inbox& mine = inbox(rank_);
  while (!test(ticket)) {
    const int from = open_.at(ticket);
    faults_.check(wait, from);
    if (wait.deadline.passed()) faults_.give_up(wait, std::array{from}, false, "");
    const MutexLock lock(mine.mutex);
    if (!mine.messages[static_cast<std::size_t>(from)].empty()) continue;
    mine.arrived.wait_until(mine.mutex, std::min(wait.deadline.when(), Clock::now() + kSlice));
  }
}

void ThreadTransport::notify(int to, const Notice& notice) noexcept {
  Inbox& theirs = inbox(to);
  {
    const MutexLock lock(theirs.mutex);
    theirs.notices.push_back(notice);
  }
  theirs.arrived.notify_one();
}

std::optional<Notice> ThreadTransport::poll_notice() noexcept {
  Inbox& mine = inbox(rank_);
  const MutexLock lock(mine.mutex);
  if (mine.notices.empty()) return std::nullopt;
  Notice notice = std::move(mine.notices.front());
  mine.notices.pop_front();
  return notice;
}

std::vector<std::unique_ptr<Communicator>> make_loopback(int size, const CommOptions& options, int ranks_per_node) {
  return make_wrapped_loopback(size, options, ranks_per_node,
                               [](int /*rank*/, std::unique_ptr<Transport> inner) { return inner; });
}

std::vector<std::unique_ptr<Communicator>> make_wrapped_loopback(int size, const CommOptions& options,
                                                                 int ranks_per_node, const WrapTransport& wrap) {
  if (size < 1)
    throw Error(Errc::kInvalidArgument, "a loopback world needs at least one rank, not " + std::to_string(size));
  if (ranks_per_node <= 0) ranks_per_node = options.ranks_per_node;
  const int per_node = ranks_per_node > 0 ? ranks_per_node : size;
  std::vector<int> node_of;
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    node_of.push_back(r / per_node);
    hosts.push_back("node" + std::to_string(r / per_node));
  }
  if (options.algorithm == Algorithm::kMpiAllreduce) {
    throw Error(
        Errc::kInvalidArgument,
        "algorithm mpi needs the mpi backend; loopback has auto, shm, ring, hierarchical, doubling, rabenseifner");
  }
  const auto inboxes = make_inboxes(size);
  std::vector<std::shared_ptr<SharedMemory>> segments;  // [node]
  std::vector<std::shared_ptr<Handover>> handovers;     // [node]
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) {
    Layout layout(r, node_of, hosts);
    if (layout.topology.local_rank == 0) {
      segments.push_back(
          std::make_shared<SharedMemory>(SharedMemory::anonymous(Segment::bytes_for(layout.topology.local_size))));
      handovers.push_back(std::make_shared<Handover>());
    }
    auto state = std::make_unique<RankState>(std::move(layout), segments.back(), NodeGroup::Kind::kThreads);
    state->group.set_handover(handovers.back());
    state->set_transport(wrap(r, std::make_unique<ThreadTransport>(inboxes, r, state->faults)));
    ranks.push_back(
        std::make_unique<GroupCommunicator>(std::move(state), options, "loopback", "threads of one process"));
  }
  return ranks;
}

std::vector<std::unique_ptr<Communicator>> make_loopback_set(int size, std::span<const int> ranks,
                                                             const CommOptions& options) {
  check_set(ranks, size);
  auto members = make_loopback(static_cast<int>(ranks.size()), options);
  std::vector<std::unique_ptr<Communicator>> of_world(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < ranks.size(); ++i) of_world[static_cast<std::size_t>(ranks[i])] = std::move(members[i]);
  return of_world;
}

}  // namespace hvd::comm
