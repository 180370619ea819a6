// A point in time after which a wait gives up. Every wait in the engine takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  /// `timeout` from now; "for ever" (nanoseconds::max()) does not wrap into the past.
  static Deadline after(std::chrono::nanoseconds timeout) {
    const Clock::time_point now = Clock::now();
    return Deadline(now +
                    std::min(std::chrono::duration_cast<Clock::duration>(timeout), Clock::time_point::max() - now));
  }
  explicit Deadline(Clock::time_point when) : when_(when) {}

  [[nodiscard]] Clock::time_point when() const noexcept { return when_; }
  [[nodiscard]] bool passed() const noexcept { return Clock::now() >= when_; }
  /// Never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const noexcept {
    const auto left = when_ - Clock::now();
    return left.count() > 0 ? std::chrono::nanoseconds(left) : std::chrono::nanoseconds(0);
  }

 private:
  Clock::time_point when_;
};

}  // namespace hvd
