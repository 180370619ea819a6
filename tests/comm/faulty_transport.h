// A transport that injects one fault, at a point that its owner chose. The rank's Communicator owns the transport
// and uses it on the rank's thread. Notices may come from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/transport.h"

namespace hvd::test {

/// The fault to inject.
enum class FaultKind : std::uint8_t {
  kNone,
  kDelay,     ///< short sleeps at random calls of all ranks; messages are late, but right
  kKill,      ///< the rank ends without a notice
  kCut,       ///< from some message on, one peer receives nothing more
  kTruncate,  ///< one message arrives shorter than it was sent
  kLengthen,  ///< one message arrives longer than it was sent
  kFlip,      ///< one bit of one message arrives inverted
};
inline constexpr std::uint32_t kFaultKinds = 7;

/// Decides which notices about faults are delivered, because a real transport may lose notices.
enum class Notices : std::uint8_t { kArrive, kSomeLost, kTwice };

/// The exception that ends a killed rank. It is not an Error, so that nothing catches it before the rank's thread ends.
struct Killed {};

/// The fault of one rank, shared between its transport and the loop that calls its collectives.
struct RankFaults {
  FaultKind kind = FaultKind::kNone;
  Notices notices = Notices::kArrive;
  std::uint64_t point = 0;  ///< calls of pass() (kKill) or sends (other kinds) before the fault
  std::uint64_t seed = 0;
  std::optional<std::size_t> bit;  ///< the bit to invert; none: the seed chooses
  bool happened = false;

  /// Called by the rank before each collective, and by the transport in send(), receive() and wait(). Errors: Killed.
  void pass();
  /// Returns a random number that depends only on the seed and `counter`.
  [[nodiscard]] std::uint64_t draw(std::uint64_t counter) const;

 private:
  std::uint64_t passed_ = 0;
};

class FaultyTransport final : public comm::Transport {
 public:
  /// Borrows `faults`.
  FaultyTransport(std::unique_ptr<comm::Transport> inner, RankFaults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  Ticket send(int to, std::span<const std::byte> bytes) override;
  Ticket receive(int from, std::span<std::byte> bytes) override;
  bool test(Ticket ticket) override { return inner_->test(ticket); }
  void wait(Ticket ticket, const comm::Wait& wait) override;
  void notify(int to, const comm::Notice& notice) noexcept override;
  std::optional<comm::Notice> poll_notice() noexcept override { return inner_->poll_notice(); }
  bool library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op,
                          const comm::Wait& wait) override {
    return inner_->library_all_reduce(data, count, dtype, op, wait);
  }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 private:
  std::unique_ptr<comm::Transport> inner_;
  RankFaults& faults_;
  std::uint64_t sent_ = 0;
  std::atomic<std::uint64_t> notified_{0};
  int cut_off_ = -1;  ///< the peer that receives nothing more
};

}  // namespace hvd::test
