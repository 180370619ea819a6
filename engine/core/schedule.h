// The ways in which a step's gradients are reduced.
#pragma once

#include <cstdint>

namespace hvd {

enum class Schedule : std::uint8_t {
  kStatic,      ///< buckets fixed at start, no control plane
  kNegotiated,  ///< Horovod's protocol
  kNone,        ///< no reduction; the reference for the cost of communication
  kSharded,     ///< the buckets of kStatic, but each rank gets only its share of the reduced bucket
};
/// Returns true if gradients are reduced by the buckets of the plan, without a control plane.
constexpr bool by_bucket(Schedule schedule) noexcept {
  return schedule == Schedule::kStatic || schedule == Schedule::kSharded;
}

}  // namespace hvd
