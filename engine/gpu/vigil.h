// How a host waits for a GPU: asleep, and awake when the end is near.
#pragma once

#include <chrono>
#include <optional>

#include "engine/base/deadline.h"

namespace hvd::gpu {

/// One wait. A look at an event costs a microsecond or two, a nap some 60 us (timer slack) whatever one asks for. Who
/// only naps notices the end of a step up to half a millisecond late, in which the GPU has nothing to do; who only
/// looks takes a core from whoever feeds the GPU. So one naps until shortly before the end that is expected.
class Vigil {
 public:
  /// `expected`: about when the work will be over; none: nobody knows.
  explicit Vigil(Clock::time_point begin, std::optional<Clock::time_point> expected = {});
  /// What to sleep before the next look, at `now`; zero: look again at once.
  [[nodiscard]] std::chrono::microseconds nap(Clock::time_point now);

 private:
  Clock::time_point begin_;
  std::optional<Clock::time_point> wake_, doze_;  // awake in between
  std::chrono::microseconds nap_;
};

}  // namespace hvd::gpu
