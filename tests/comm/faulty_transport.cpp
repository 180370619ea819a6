#include "tests/comm/faulty_transport.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/philox.h"

namespace hvd::test {

std::uint64_t RankFaults::draw(std::uint64_t counter) const { return Philox(seed).block(counter)[0]; }

void RankFaults::pass() {
  const std::uint64_t now = passed_++;
  if (kind == FaultKind::kDelay && draw(now) % 8 == 0) {
    happened = true;
    std::this_thread::sleep_for(std::chrono::microseconds(draw(now) / 8 % 2000));
  }
  if (kind == FaultKind::kKill && now == point) {
    happened = true;
    throw Killed{};
  }
}

comm::Transport::Ticket FaultyTransport::send(int to, std::span<const std::byte> bytes) {
  faults_.pass();
  const bool now = sent_++ == faults_.point && faults_.kind >= FaultKind::kCut;
  faults_.happened = faults_.happened || now;
  if (now && faults_.kind == FaultKind::kCut) cut_off_ = to;
  if (to == cut_off_) return 0;  // ThreadTransport's ticket for a finished send
  if (!now) return inner_->send(to, bytes);
  // `changed` need not outlive this call, because ThreadTransport copies the bytes that it sends.
  std::vector<std::byte> changed(bytes.begin(), bytes.end());
  const std::uint64_t random = faults_.draw(faults_.point);
  switch (faults_.kind) {
    case FaultKind::kTruncate: changed.resize(random % changed.size()); break;
    case FaultKind::kLengthen: changed.resize(changed.size() + 1 + random % 64); break;
    default: {
      const std::size_t bit = faults_.bit.value_or(random % (8 * changed.size()));
      changed[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    }
  }
  return inner_->send(to, changed);
}

comm::Transport::Ticket FaultyTransport::receive(int from, std::span<std::byte> bytes) {
  faults_.pass();
  return inner_->receive(from, bytes);
}

void FaultyTransport::wait(Ticket ticket, const comm::Wait& wait) {
  faults_.pass();
  inner_->wait(ticket, wait);
}

void FaultyTransport::notify(int to, const comm::Notice& notice) noexcept {
  if (faults_.notices == Notices::kSomeLost && faults_.draw(~notified_++) % 2 == 0) return;
  inner_->notify(to, notice);
  if (faults_.notices == Notices::kTwice) inner_->notify(to, notice);
}

}  // namespace hvd::test
