// Decides when the engine's thread pauses between two negotiation cycles of a step. Pure.
#pragma once

#include <chrono>
#include <cstddef>

namespace hvd::core {

/// A cycle takes about 10 us for any number of bytes. If a cycle reduced fewer bytes than this and the caller has not
/// marked all gradients yet, the thread pauses, so that the next cycle reduces more gradients.
inline constexpr std::size_t kSmallCycleBytes = std::size_t{256} << 10;
inline constexpr std::chrono::microseconds kPauseAfterSmallCycle{20};

/// What one cycle of a negotiated step did on one rank.
struct CycleResult {
  std::size_t gradients = 0;      ///< number of gradients reduced
  std::size_t bytes = 0;          ///< bytes reduced, tensors with tickets included
  bool gradients_to_come = true;  ///< this rank has not marked all gradients of the step yet
};

/// Returns how long the rank pauses before its next cycle. A cycle without gradients is followed by no pause, because
/// the callers of its tickets may wait for the next cycle.
constexpr std::chrono::microseconds pause_after(const CycleResult& cycle) noexcept {
  const bool small = cycle.gradients > 0 && cycle.bytes < kSmallCycleBytes;
  return small && cycle.gradients_to_come ? kPauseAfterSmallCycle : std::chrono::microseconds{0};
}

}  // namespace hvd::core
