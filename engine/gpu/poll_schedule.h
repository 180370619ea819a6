// Decides how a host thread waits for a GPU: it sleeps between polls, and polls without sleeping near the expected end.
#pragma once

#include <chrono>
#include <optional>

#include "engine/base/deadline.h"

namespace hvd::gpu {

/// The schedule of one wait. A poll of an event takes one or two microseconds; a sleep takes at least about 60 us
/// because of timer slack. A thread that only sleeps notices the end of a step up to half a millisecond late, and the
/// GPU is idle meanwhile. A thread that only polls takes a core away from the threads that feed the GPU. A PollSchedule
/// therefore sleeps until shortly before the expected end.
class PollSchedule {
 public:
  /// `expected`: the approximate time at which the work will be finished; none if unknown.
  explicit PollSchedule(Clock::time_point begin, std::optional<Clock::time_point> expected = {});
  /// Returns how long to sleep before the next poll if the time is `now`; zero: poll again at once.
  [[nodiscard]] std::chrono::microseconds next_sleep(Clock::time_point now);

 private:
  Clock::time_point begin_;
  std::optional<Clock::time_point> poll_from_, poll_until_;  // no sleep from poll_from_ until poll_until_
  std::chrono::microseconds nap_;
};

}  // namespace hvd::gpu
