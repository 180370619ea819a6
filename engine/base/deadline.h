// A point in time after which a wait gives up. Every wait in the engine takes one.
#pragma once

#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime()

#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;

/// The time of Clock at the last tick of the kernel's timer: up to 10 ms ago. Reading it takes 3 ns where Clock::now()
/// takes 21, which shows in a collective of 150 ns.
inline Clock::time_point coarse_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

class Deadline {
 public:
  static constexpr const char* kUnnamed = "the deadline";

  /// `timeout` from now; "for ever" (nanoseconds::max()) does not wrap into the past. `set_by`: see Patience.
  static Deadline after(std::chrono::nanoseconds timeout, const char* set_by = kUnnamed) {
    const Clock::time_point now = Clock::now();
    return Deadline(
        now + std::min(std::chrono::duration_cast<Clock::duration>(timeout), Clock::time_point::max() - now), set_by);
  }
  explicit Deadline(Clock::time_point when, const char* set_by = kUnnamed) : when_(when), set_by_(set_by) {}

  [[nodiscard]] Clock::time_point when() const noexcept { return when_; }
  /// Name of the option that sets this deadline, for error messages.
  [[nodiscard]] const char* set_by() const noexcept { return set_by_; }
  [[nodiscard]] bool passed() const noexcept { return Clock::now() >= when_; }
  /// Never negative.
  [[nodiscard]] std::chrono::nanoseconds remaining() const noexcept {
    const auto left = when_ - Clock::now();
    return left.count() > 0 ? std::chrono::nanoseconds(left) : std::chrono::nanoseconds(0);
  }

 private:
  Clock::time_point when_;
  const char* set_by_;
};

/// How long each of many waits may take.
struct Patience {
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): a duration is a patience
  constexpr Patience(std::chrono::duration<Rep, Period> each, const char* option = Deadline::kUnnamed)
      : timeout(std::chrono::duration_cast<std::chrono::milliseconds>(each)), set_by(option) {}
  [[nodiscard]] Deadline from_now() const { return Deadline::after(timeout, set_by); }

  std::chrono::milliseconds timeout;
  const char* set_by;  ///< a literal: name of the option that sets it, for error messages
};

}  // namespace hvd
