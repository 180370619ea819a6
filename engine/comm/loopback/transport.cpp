#include "engine/comm/loopback/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "engine/base/error.h"

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

}  // namespace hvd::comm
